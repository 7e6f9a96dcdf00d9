package zklock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// A server that stands still, and an ensemble without a leader, block neither a
// release nor the signal of a loss nor a try; and when they serve again everything
// goes on.
func TestNobodyServes(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(t *testing.T) (servers []*servertest.Server, stop, goOn func()){
		"frozen": func(t *testing.T) ([]*servertest.Server, func(), func()) {
			s := servertest.ZooKeeper(t, servertest.WithControl())
			return []*servertest.Server{s}, func() { s.Freeze(t) }, func() { s.Resume(t) }
		},
		"no leader": func(t *testing.T) ([]*servertest.Server, func(), func()) {
			members := servertest.ZooKeeperCluster(t, 3, servertest.WithControl())
			down := members[:2]
			if leads(t, members[2]) {
				down = members[1:]
			}
			return members, func() {
					for _, m := range down {
						m.Kill(t)
					}
				}, func() {
					var starting sync.WaitGroup
					for _, m := range down {
						starting.Go(func() { m.Restart(t, true) })
					}
					starting.Wait()
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 12 * time.Second
			servers, stop, goOn := disturb(t)
			l := lockerOn(t, backendOn(t, &Options{Lock: lock.Options{TTL: ttl}}, servers...))
			held, err := l.Acquire(t.Context(), "held")
			require.NoError(t, err)
			released, err := l.Acquire(t.Context(), "released")
			require.NoError(t, err)
			type got struct {
				lease lock.Lease
				err   error
				told  bool // the holder's context had ended
			}
			other := lockerOn(t, backendOn(t, &Options{Lock: lock.Options{TTL: ttl}}, servers...))
			grants := make(chan got, 1)
			wait := backendtest.Short(t, 5*time.Minute)
			go func() {
				next, err := other.Acquire(wait, "held")
				grants <- got{next, err, held.Context().Err() != nil}
			}()
			waiting := make(chan error, 1)
			stop()
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := l.Acquire(ctx, "held")
				waiting <- err
			}()
			deadline, ok := held.Deadline()
			require.True(t, ok)
			err = released.Release(backendtest.Short(t, 100*time.Millisecond))
			require.True(t, errors.Is(err, lock.ErrOutcomeUnknown) || errors.Is(err, lock.ErrUnavailable), "%v", err)
			_, err = l.TryAcquire(backendtest.Short(t, 100*time.Millisecond), "another")
			require.Error(t, err)
			require.NoError(t, held.Context().Err(), "they waited until the hold was lost")
			require.ErrorIs(t, <-waiting, context.DeadlineExceeded)
			select {
			case <-held.Context().Done():
				require.ErrorIs(t, context.Cause(held.Context()), lock.ErrLost)
			case <-time.After(time.Until(deadline) + ttl):
				t.Fatal("the loss was not told")
			}
			goOn()
			g := <-grants
			require.NoError(t, g.err)
			require.True(t, g.told, "the holder was told before the next one was granted")
			require.Greater(t, g.lease.Token(), held.Token())
			require.NoError(t, g.lease.Release(t.Context()))
			for _, key := range []string{"released", "held"} {
				next, err := l.Acquire(backendtest.Short(t, 2*time.Minute), key)
				require.NoError(t, err, "what was left is removed when the servers are back")
				require.NoError(t, next.Release(t.Context()))
			}
		})
	}
}
