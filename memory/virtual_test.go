package memlock_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	memlock "github.com/mortiselock/lock/memory"
)

// TestConformanceInVirtualTime runs the whole suite in a bubble, where waiting takes no
// time and nothing is ever late.
func TestConformanceInVirtualTime(t *testing.T) {
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		var rep conformance.Report
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore(nil)
			var err error
			rep, err = conformance.Check(t.Context(), conformance.Config{
				OpenBackend: func(ctx context.Context) (backend.Backend, error) {
					return memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
				},
				Judge: linear.Judge(t),
			})
			require.NoError(t, err)
		})
		t.Run(name, func(t *testing.T) {
			for _, r := range rep.Results {
				t.Run(r.Rule, func(t *testing.T) {
					switch r.Verdict {
					case conformance.Pass, conformance.Unclaimed:
					case conformance.NotClaimed, conformance.Skipped:
						t.Skipf("%s: %s", r.Verdict, r.Evidence)
					default: // nothing is slow here
						assert.Fail(t, string(r.Verdict), "%s\n%s", r.Statement, r.Evidence)
					}
				})
			}
			t.Log(rep.Counts())
		})
	}
}
