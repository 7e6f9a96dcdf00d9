package lock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// declining is a wrapper that declines whatever has a fall-back in the lock package.
type declining struct{ backend.Backend }

func (d declining) Unwrap() backend.Backend { return d.Backend }

func (d declining) Guarantees() backend.Guarantees {
	g := d.Backend.Guarantees()
	g.Waiting, g.Fair = backend.WaitPoll, false
	return g
}

func (declining) Watch(context.Context, string) (<-chan backend.Hint, error) {
	return nil, fmt.Errorf("%w: no watch, no queue", backend.ErrUnsupported)
}

func (declining) Enqueue(context.Context, backend.Request) (backend.Ticket, error) {
	return nil, fmt.Errorf("%w: no watch, no queue", backend.ErrUnsupported)
}

func (declining) ReleaseTelling(context.Context, backend.Hold) (int, error) {
	return 0, fmt.Errorf("%w: nobody is told", backend.ErrUnsupported)
}

func (declining) HandOver(context.Context, backend.Hold, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, fmt.Errorf("%w: nothing is handed over", backend.ErrUnsupported)
}

func (declining) RenewBatch(_ context.Context, holds []backend.Hold) []backend.Renewal {
	all := make([]backend.Renewal, len(holds))
	for i := range all {
		all[i].Err = fmt.Errorf("%w: not in batches", backend.ErrUnsupported)
	}
	return all
}

// declined hands the test what rules say of a wrapper that declines, around each kind of backend.
func declined(t *testing.T, test func(t *testing.T, results []conformance.Result), rules ...string) {
	for name, queue := range map[string]bool{"record": false, "queue": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.NewStore(nil)
				rep, err := conformance.Check(t.Context(), conformance.Config{
					OpenBackend: func(ctx context.Context) (backend.Backend, error) {
						b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
						return declining{b}, err
					},
					Only: rules,
				})
				require.NoError(t, err)
				test(t, rep.Results)
				time.Sleep(time.Minute) // what ends beside the run
			})
		})
	}
}

// A wrapper that declines abilities waits, renews and releases as a backend that lacks them.
func TestWrapperMayDecline(t *testing.T) {
	declined(t, func(t *testing.T, results []conformance.Result) {
		for _, r := range results {
			assert.Equal(t, conformance.Pass, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		}
	}, "RenewKeeps", "ManyLeases", "ReleaseFrees", "ReleaseIsNoLoss", "WaiterWakes", "WaiterGivesUp", "WaiterOrderLocal",
		"ManyWaiters", "CancelDuring", "ReentrantOverWaiters", "ReentrantOwnLeases", "CloseEndsHolds", "CloseEndsWaits")
}

// The rules of backends take a wrapper that declines for a backend that lacks the abilities.
func TestWrapperThatDeclinesIsNotAccused(t *testing.T) {
	declined(t, func(t *testing.T, results []conformance.Result) {
		some := false
		for _, r := range results {
			assert.NotEqual(t, conformance.Fail, r.Verdict, "%s: %s", r.Rule, r.Evidence)
			some = some || strings.Contains(r.Evidence, "declines backend.")
		}
		assert.True(t, some)
	}, "backend")
}

// handsNothing declines to hand over, and does not say who watches.
type handsNothing struct{ backend.Backend }

func (h handsNothing) Unwrap() backend.Backend { return h.Backend }

func (handsNothing) HandOver(context.Context, backend.Hold, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, backend.ErrUnsupported
}

func (h handsNothing) ReleaseTelling(ctx context.Context, hold backend.Hold) (int, error) {
	return -1, h.Backend.Release(ctx, hold)
}

// A Locker whose backend declines to hand over was always the first to ask after its own release.
func TestWhoDeclinesToHandOverStarvesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		store := memlock.NewStore(nil)
		var turns [4]int64
		var callers sync.WaitGroup
		for i := range turns {
			b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: store})
			require.NoError(t, err)
			l, err := lock.New(handsNothing{b}, nil)
			require.NoError(t, err)
			defer l.Close()
			for range 4 {
				callers.Go(func() {
					for ctx.Err() == nil {
						lease, err := l.Acquire(ctx, "k")
						if err != nil {
							return
						}
						turns[i]++ // under the lock
						time.Sleep(time.Millisecond)
						assert.NoError(t, lease.Release(ctx))
					}
				})
			}
		}
		callers.Wait()
		for i, n := range turns {
			assert.Greater(t, n, int64(375), "client %d of 4 had %d turns of %v", i, n, turns)
		}
	})
}

// What a caller writes into the guarantees that it was given is not shown to others.
func TestGuaranteesAreTheCallers(t *testing.T) {
	t.Parallel()
	b, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	l, err := lock.New(b, nil)
	require.NoError(t, err)
	defer l.Close()
	l.Guarantees().Assumptions[0] = "none"
	assert.NotEqual(t, "none", l.Guarantees().Assumptions[0])
}
