package etcdlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	memlock "github.com/mortiselock/lock/backend/memory"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestGuardedWrite(t *testing.T) {
	t.Parallel()
	c := clientOf(t, servertest.SharedEtcd(t))
	a, b := lockerOn(t, c, 5*time.Second), lockerOn(t, c, 5*time.Second)
	key, effect := uniqueKey(t), uniqueKey(t)
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
