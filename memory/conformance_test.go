package memlock_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
				TTL:      500 * time.Millisecond,
				Budget:   5 * time.Second,
				Parallel: 12, // beside the tests of servers
				Judge:    linear.Judge(t),
			})
		})
	}
}

// TestDefaultRunIsShort holds a run with the settings that a newcomer has against the clock,
// which says something on a machine that has nothing else to do.
func TestDefaultRunIsShort(t *testing.T) {
	if os.Getenv("LOCK_TEST_LONG") == "" {
		t.Skip("it measures the machine; make test-healthy runs it")
	}
	store := memlock.NewStore(nil)
	rep, err := conformance.Check(t.Context(), conformance.Config{OpenBackend: func(ctx context.Context) (backend.Backend, error) {
		return memlock.NewBackend(ctx, &memlock.Options{Store: store})
	}})
	require.NoError(t, err)
	assert.True(t, rep.OK(), "%s", rep)
	assert.Less(t, rep.Seconds, 20.0, "seconds of the run")
}
