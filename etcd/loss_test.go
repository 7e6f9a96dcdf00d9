package etcdlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// leaseOf is the etcd lease of the key that holds.
func leaseOf(t *testing.T, c *clientv3.Client, key string) (clientv3.LeaseID, string) {
	t.Helper()
	resp, err := c.Do(t.Context(), oldestOf(namesOf(defaultPrefix, key)))
	require.NoError(t, err)
	require.Len(t, resp.Get().Kvs, 1)
	kv := resp.Get().Kvs[0]
	return clientv3.LeaseID(kv.Lease), string(kv.Key)
}

// lost requires that the holder is told of the loss, and why.
func lost(t *testing.T, l lock.Lease, cause error) {
	t.Helper()
	select {
	case <-l.Context().Done():
		require.ErrorIs(t, context.Cause(l.Context()), cause)
	case <-time.After(2 * time.Minute):
		t.Fatal("the loss was not told")
	}
}

// lostByDeadline requires that a hold that is renewed no more ends by its deadline, or a
// little later on a busy machine.
func lostByDeadline(t *testing.T, l lock.Lease) {
	t.Helper()
	deadline, _ := l.Deadline()
	select {
	case <-l.Context().Done():
		require.ErrorIs(t, context.Cause(l.Context()), lock.ErrExpired)
	case <-time.After(time.Until(deadline) + 8*time.Second):
		t.Fatal("the loss was not told by the deadline")
	}
}

func TestOperatorEndsAHold(t *testing.T) {
	t.Parallel()
	c := clientOf(t, servertest.SharedEtcd(t))
	const ttl = 9 * time.Second
	for name, k := range map[string]struct {
		end   func(t *testing.T, key string)
		cause error
	}{
		"lease revoked": {func(t *testing.T, key string) {
			id, _ := leaseOf(t, c, key)
			_, err := c.Revoke(t.Context(), id)
			require.NoError(t, err)
		}, lock.ErrSessionLost},
		"key deleted": {func(t *testing.T, key string) {
			_, name := leaseOf(t, c, key)
			_, err := c.Delete(t.Context(), name)
			require.NoError(t, err)
		}, lock.ErrTakenOver},
		"key on another lease": {func(t *testing.T, key string) {
			b := backendOn(t, c, nil)
			rec, err := b.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.NoError(t, b.Revoke(t.Context(), key, rec.Token))
		}, lock.ErrTakenOver},
	} {
		for what, opts := range map[string][]lock.Option{"renewed": nil, "owned": {lock.WithOwner("me")}} {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				l := lockerOn(t, c, ttl)
				key := backendtest.UniqueKey(t)
				lease, err := l.Acquire(t.Context(), key, opts...)
				require.NoError(t, err)
				k.end(t, key)
				lost(t, lease, k.cause) // by a renewal: at the deadline the cause is another
				require.ErrorIs(t, lease.Release(t.Context()), lock.ErrNotHeld)
				next, err := l.Acquire(backendtest.Short(t, time.Minute), key, opts...)
				require.NoError(t, err)
				require.Greater(t, next.Token(), lease.Token())
				require.NoError(t, next.Release(t.Context()))
			})
		}
	}
}

// The hold of a waiter whose lease has ended while it waited is never granted.
func TestWaiterWithoutALeaseIsNotGranted(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	other := backendOn(t, c, nil)
	for _, renewed := range []bool{true, false} {
		key := backendtest.UniqueKey(t)
		hold, _ := backendtest.Granted(t, other, request(key))
		req := request(key)
		req.Renewed = renewed
		place, err := b.Enqueue(t.Context(), req)
		require.NoError(t, err)
		got := make(chan error, 1)
		go func() {
			_, err := place.Wait(t.Context())
			got <- err
		}()
		next, err := other.Enqueue(t.Context(), request(key))
		require.NoError(t, err)
		_, err = c.Revoke(t.Context(), b.acquisition(req.ID, key).session.id)
		require.NoError(t, err)
		require.NoError(t, other.Release(t.Context(), hold))
		require.ErrorIs(t, <-got, backend.ErrNotHeld)
		_, err = next.Wait(backendtest.Short(t, time.Minute))
		require.NoError(t, err, "the place behind it is served")
		require.NoError(t, place.Withdraw(t.Context()))
		require.NoError(t, next.Withdraw(t.Context()))
	}
}

// A lost watch does not strand a waiter.
func TestCompactionUnderAWatch(t *testing.T) {
	t.Parallel()
	c := clientOf(t, servertest.Etcd(t))
	a, b := backendOn(t, c, nil), backendOn(t, c, nil)
	hold, _ := backendtest.Granted(t, a, request("k"))
	place, err := b.Enqueue(t.Context(), request("k"))
	require.NoError(t, err)
	for range 5 {
		_, err = c.Put(t.Context(), "else", "where")
		require.NoError(t, err)
	}
	resp, err := c.Get(t.Context(), "else")
	require.NoError(t, err)
	_, err = c.Compact(t.Context(), resp.Header.Revision) // the place's watch begins before it
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := place.Wait(t.Context())
		got <- err
	}()
	require.NoError(t, a.Release(t.Context(), hold))
	select {
	case err := <-got:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the waiter is stranded")
	}
	require.NoError(t, place.Withdraw(t.Context()))
}

// A watch that is resumed on a new connection, and whose revision was compacted
// meanwhile, is given up, and the waiter looks for itself.
func TestCompactionWhileAWatchIsAway(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t)
	proxy := servertest.Proxy(t, server.Addr())
	c := clientOf(t, server)
	a := backendOn(t, c, nil)
	b, err := adminOf("etcd://" + proxy.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	hold, _ := backendtest.Granted(t, a, request("k"))
	place, err := b.Enqueue(t.Context(), request("k"))
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := place.Wait(t.Context())
		got <- err
	}()
	backendtest.Eventually(t, "it watches", func() bool { return metric(t, server, "etcd_debugging_mvcc_watcher_total") == "1" })
	proxy.Refuse()
	proxy.Cut()
	require.NoError(t, a.Release(t.Context(), hold))
	resp, err := c.Put(t.Context(), "else", "where")
	require.NoError(t, err)
	_, err = c.Compact(t.Context(), resp.Header.Revision)
	require.NoError(t, err)
	proxy.Accept(t)
	select {
	case err := <-got:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the waiter is stranded")
	}
	require.NoError(t, place.Withdraw(t.Context()))
}

// While the server stands still a release is bounded, and the loss is told by the
// deadline.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	c := clientOf(t, server)
	const ttl = 8 * time.Second
	l := lockerOn(t, c, ttl)
	lease, err := l.Acquire(t.Context(), "a")
	require.NoError(t, err)
	released, err := l.Acquire(t.Context(), "b")
	require.NoError(t, err)
	takenOver := waitsFor(t, lockerOn(t, clientOf(t, server), ttl), lease)
	waiting := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Acquire(ctx, "a")
		waiting <- err
	}()
	server.Freeze(t)
	err = released.Release(backendtest.Short(t, 100*time.Millisecond))
	require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
	require.NoError(t, lease.Context().Err(), "it waited until the hold was lost")
	require.ErrorIs(t, <-waiting, context.DeadlineExceeded)
	lostByDeadline(t, lease)
	server.Resume(t)
	takenOver()
	next, err := l.Acquire(backendtest.Short(t, time.Minute), "b")
	require.NoError(t, err, "the release is repeated when the server is back")
	require.NoError(t, next.Release(t.Context()))
}

// A kill and restart within the TTL is no loss.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	c := clientOf(t, server)
	l := lockerOn(t, c, time.Minute)
	lease, err := l.Acquire(t.Context(), "a")
	require.NoError(t, err)
	server.Kill(t)
	_, err = l.TryAcquire(backendtest.Short(t, 2*time.Second), "b")
	require.Error(t, err)
	server.Restart(t, true)
	backendtest.Eventually(t, "the lock can be asked again", func() bool {
		other, err := l.TryAcquire(backendtest.Short(t, 5*time.Second), "b")
		if err == nil {
			assert.Greater(t, other.Token(), lease.Token())
			_ = other.Release(t.Context())
		}
		return err == nil
	})
	require.NoError(t, lease.Renew(t.Context()))
	_, err = l.TryAcquire(t.Context(), "a")
	require.ErrorIs(t, err, lock.ErrHeld)
	require.NoError(t, lease.Release(t.Context()))
}

func TestRestartWithoutData(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	l := lockerOn(t, clientOf(t, server), time.Minute)
	lease, err := l.Acquire(t.Context(), "a")
	require.NoError(t, err)
	server.Restart(t, false)
	backendtest.Eventually(t, "the loss is told", func() bool {
		err := lease.Renew(backendtest.Short(t, 5*time.Second))
		return errors.Is(err, lock.ErrNotHeld)
	})
	lost(t, lease, lock.ErrLost)
}

// TestClosedClientEndsItsHolds: a client that its owner closes renews nothing any more:
// its holds end at the next renewal, and not only at the deadline, and their release
// does not hang.
func TestClosedClientEndsItsHolds(t *testing.T) {
	t.Parallel()
	server := servertest.SharedEtcd(t)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + server.Addr()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	l := lockerOn(t, c, 12*time.Second)
	var leases []lock.Lease
	for _, opts := range [][]lock.Option{nil, nil, {lock.WithTTL(15 * time.Second)}} {
		lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t), opts...)
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	require.NoError(t, c.Close())
	for _, lease := range leases {
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrSessionLost)
		require.ErrorContains(t, context.Cause(lease.Context()), "the client was closed before the Locker")
		require.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost)
	}
	_, err = l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
	require.ErrorIs(t, err, lock.ErrPermanent)
}
