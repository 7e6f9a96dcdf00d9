package faultlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	memlock "github.com/mortiselock/lock/memory"
)

// TestConformance: without faults the decorator is not there. The rules that look at
// backends directly, at the lock package while it is disturbed, and at Close see no
// difference.
func TestConformance(t *testing.T) {
	var rules []string
	for _, r := range conformance.Rules() {
		if r.NeedsBackend || r.Subject == "close" {
			rules = append(rules, r.Name)
		}
	}
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memlock.NewStore(nil)
			conformance.Run(t, conformance.Config{
				Name: "memory behind faults",
				OpenBackend: func(ctx context.Context) (backend.Backend, error) {
					inner, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
					if err != nil {
						return nil, err
					}
					return faultlock.New(inner, nil).Backend(), nil
				},
				TTL:    time.Second,
				Budget: 5 * time.Second,
				Only:   rules,
				Judge:  linear.Judge(t),
			})
		})
	}
}
