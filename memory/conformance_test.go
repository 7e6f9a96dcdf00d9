package memlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	memlock "github.com/mortiselock/lock/memory"
)

// TestConformance runs the whole suite on both personalities, as they are used.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("TestConformanceInVirtualTime does it in seconds")
	}
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memlock.NewStore(nil)
			conformance.Run(t, conformance.Config{
				OpenBackend: func(ctx context.Context) (backend.Backend, error) {
					return memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
				},
				TTL:    500 * time.Millisecond,
				Budget: 5 * time.Second,
				Judge:  linear.Judge(t),
			})
		})
	}
}
