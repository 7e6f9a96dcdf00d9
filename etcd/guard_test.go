package etcdlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	memlock "github.com/mortiselock/lock/memory"
)

// TestGuardedWriteEndsWithItsLease: a transaction that gets no answer is not waited for
// longer than its lease lasts, also when its context has no end.
func TestGuardedWriteEndsWithItsLease(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + server.Addr()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close()
	l := lockerOn(t, c, 8*time.Second)
	lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t))
	require.NoError(t, err)
	server.Freeze(t)
	defer server.Resume(t)
	type result struct {
		err   error
		ended bool
	}
	committed := make(chan result, 1)
	go func() {
		_, err := Txn(context.Background(), lease).Then(clientv3.OpPut("effect", "x")).Commit()
		committed <- result{err, lease.Context().Err() != nil}
	}()
	select {
	case r := <-committed:
		require.ErrorIs(t, r.err, lock.ErrOutcomeUnknown)
		require.ErrorContains(t, r.err, "the lease has ended")
		for _, sentinel := range []error{lock.ErrNotHeld, lock.ErrUnavailable, context.Canceled} {
			require.NotErrorIs(t, r.err, sentinel)
		}
		require.True(t, r.ended, "the transaction was given up while its lease was held")
	case <-time.After(time.Minute):
		t.Fatal("the transaction was waited for long after its lease had ended")
	}
}

// TestGuardedWriteErrors: an error says whether the transaction may have taken effect.
func TestGuardedWriteErrors(t *testing.T) {
	t.Parallel()
	c := clientOf(t, servertest.SharedEtcd(t))
	lease, err := lockerOn(t, c, ttl).Acquire(t.Context(), backendtest.UniqueKey(t))
	require.NoError(t, err)
	effect := backendtest.UniqueKey(t)
	put := clientv3.OpPut(effect, "x")
	_, err = Txn(t.Context(), lease).Then(put, put).Commit()
	require.ErrorIs(t, err, rpctypes.ErrDuplicateKey)
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Txn(ended, lease).Then(put).Commit()
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	resp, err := c.Get(t.Context(), effect)
	require.NoError(t, err)
	require.Empty(t, resp.Kvs)
}

func TestGuardedWrite(t *testing.T) {
	t.Parallel()
	c := clientOf(t, servertest.SharedEtcd(t))
	a, b := lockerOn(t, c, ttl), lockerOn(t, c, ttl)
	key, effect := backendtest.UniqueKey(t), backendtest.UniqueKey(t)
	write := func(l lock.Lease, text string) error {
		_, err := Txn(t.Context(), l).Then(clientv3.OpPut(effect, text)).Commit()
		return err
	}
	written := func() string {
		resp, err := c.Get(t.Context(), effect)
		require.NoError(t, err)
		if len(resp.Kvs) == 0 {
			return ""
		}
		return string(resp.Kvs[0].Value)
	}
	old, err := a.Acquire(t.Context(), key, lock.WithOwner("me"))
	require.NoError(t, err)
	inner, err := a.Acquire(t.Context(), key, lock.WithOwner("me"), lock.WithTTL(20*time.Second))
	require.NoError(t, err)
	require.NoError(t, write(old, "one"))
	require.NoError(t, write(inner, "two"))
	require.Equal(t, "two", written())

	// The conditions of the caller decide as usual.
	resp, err := Txn(t.Context(), old).If(clientv3.Compare(clientv3.Value(effect), "=", "one")).
		Then(clientv3.OpPut(effect, "never")).Else(clientv3.OpGet(effect)).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
	require.Equal(t, "two", string(resp.Responses[0].GetResponseRange().Kvs[0].Value))
	require.NotZero(t, resp.Header.Revision)

	// An operator takes the lock away; the holder does not know yet.
	admin := backendOn(t, c, nil)
	require.NoError(t, admin.ForceRelease(t.Context(), key, old.Token()))
	next, err := b.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, write(next, "three"))
	require.ErrorIs(t, write(old, "late"), lock.ErrNotHeld)
	require.ErrorIs(t, write(inner, "late"), lock.ErrNotHeld)
	require.Equal(t, "three", written())

	// Revoked, the key is still there, but no longer its holder's.
	require.NoError(t, admin.Revoke(t.Context(), key, next.Token()))
	require.ErrorIs(t, write(next, "late"), lock.ErrNotHeld)
	_ = next.Release(t.Context())
	require.ErrorIs(t, write(next, "late"), lock.ErrNotHeld)

	elsewhere, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	defer elsewhere.Close()
	stranger, err := elsewhere.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.ErrorIs(t, write(stranger, "late"), lock.ErrUnsupported)
	require.Equal(t, "three", written())
}
