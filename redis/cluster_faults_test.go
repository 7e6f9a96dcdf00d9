package redislock

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// clusterLocker opens a Locker that is closed at the end of the test. What a member that
// is down does not answer is left to end within its TTL.
func clusterLocker(t *testing.T, addrs []string, ttl time.Duration, parameters string) *lock.Client {
	t.Helper()
	l, err := lock.Open(t.Context(), "redis://"+strings.Join(addrs, ",")+"?cluster=true"+parameters, &lock.Options{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := l.Close(); !errors.Is(err, lock.ErrOutcomeUnknown) {
			require.NoError(t, err)
		}
	})
	return l
}

func slotOf(t *testing.T, c *goredis.Client, key string) int {
	t.Helper()
	slot, err := c.ClusterKeySlot(t.Context(), namesOf(defaultPrefix, key).record()).Result()
	require.NoError(t, err)
	return int(slot)
}

// keyOn is a key of the member with the number.
func keyOn(t *testing.T, c *goredis.Client, member, members int) string {
	t.Helper()
	for {
		key := backendtest.UniqueKey(t)
		if slot := slotOf(t, c, key); slot >= member*16384/members && slot < (member+1)*16384/members {
			return key
		}
	}
}

// TestClusterMemberDown: what is on the other members goes on, and what is on the
// one that is dead or stands still is unavailable, not held by somebody.
func TestClusterMemberDown(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*servertest.Server, servertest.TB){
		"killed": func(s *servertest.Server, t servertest.TB) { s.Kill(t) },
		"frozen": func(s *servertest.Server, t servertest.TB) { s.Freeze(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addrs, servers := clusterOf(t, 3)
			const ttl = 6 * time.Second
			l, other := clusterLocker(t, addrs, ttl, ""), clusterLocker(t, addrs, ttl, "")
			c := redistest.Client(t, servers[0])
			leases := make([]lock.Lease, 3)
			for i := range leases {
				var err error
				leases[i], err = l.Acquire(t.Context(), keyOn(t, c, i, 3))
				require.NoError(t, err)
			}
			free := []string{keyOn(t, c, 0, 3), keyOn(t, c, 1, 3), keyOn(t, c, 2, 3)}
			ended := redistest.Expiry(t, leases[2])
			fault(servers[2], t)
			began := time.Now()
			for _, key := range []string{leases[2].Key(), free[2]} {
				ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
				_, err := other.TryAcquire(ctx, key)
				cancel()
				require.Error(t, err)
				require.NotErrorIs(t, err, lock.ErrHeld)
				require.NotErrorIs(t, err, lock.ErrPermanent)
			}
			for _, key := range free[:2] {
				lease, err := other.Acquire(backendtest.Short(t, time.Minute), key)
				require.NoError(t, err)
				require.NoError(t, lease.Release(t.Context()))
			}
			ended()
			// Renewals of one member's holds are not held up by another.
			wait := time.NewTimer(time.Until(began.Add(ttl + ttl/3)))
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-leases[0].Context().Done():
				t.Fatal(context.Cause(leases[0].Context()))
			case <-leases[1].Context().Done():
				t.Fatal(context.Cause(leases[1].Context()))
			}
			for _, lease := range leases[:2] {
				require.NoError(t, lease.Release(t.Context()))
			}
		})
	}
}

// TestClusterOpensWithoutAMember: what the others serve can be used, and the log says
// what was not looked at. Without any member it can't be opened.
func TestClusterOpensWithoutAMember(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*servertest.Server, servertest.TB){
		"killed": func(s *servertest.Server, t servertest.TB) { s.Kill(t) },
		"frozen": func(s *servertest.Server, t servertest.TB) { s.Freeze(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addrs, servers := clusterOf(t, 3)
			c := redistest.Client(t, servers[0])
			fault(servers[2], t)
			var log bytes.Buffer
			l, err := lock.Open(t.Context(), "redis://"+strings.Join(addrs, ",")+"?cluster=true", &lock.Options{TTL: 4 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			away, forget, ok := strings.Cut(log.String(), "\n")
			require.True(t, ok)
			require.Contains(t, away, "does not answer")
			require.Contains(t, away, addrs[2])
			require.NotContains(t, away, addrs[0])
			require.Equal(t, 1, strings.Count(forget, "\n"), "the others are told of at once: %s", forget)
			require.Contains(t, forget, "keeps no append-only file")
			require.Contains(t, forget, addrs[0])
			require.Contains(t, forget, addrs[1])
			require.NotContains(t, forget, addrs[2])
			for member := range 2 {
				lease, err := l.Acquire(t.Context(), keyOn(t, c, member, 3))
				require.NoError(t, err)
				require.NoError(t, lease.Release(t.Context()))
			}
			require.NoError(t, l.Close())
			for _, s := range servers[:2] {
				fault(s, t)
			}
			_, err = lock.Open(t.Context(), "redis://"+strings.Join(addrs, ",")+"?cluster=true", &lock.Options{TTL: time.Second})
			require.ErrorIs(t, err, lock.ErrUnavailable)
		})
	}
}

// TestClusterFrozenMemberCostsNoOtherLease: however many leases are on a member that
// stands still, those on the others are renewed in time.
func TestClusterFrozenMemberCostsNoOtherLease(t *testing.T) {
	t.Parallel()
	addrs, servers := clusterOf(t, 3)
	leases := map[string][]lock.Lease{}
	for _, parameters := range []string{"", "&fair=true"} {
		l := clusterLocker(t, addrs, 6*time.Second, parameters)
		b := l.Backend().(backend.Partitioner)
		for range 750 {
			lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
			require.NoError(t, err)
			member := b.Partition(lease.Key())
			leases[member] = append(leases[member], lease)
		}
	}
	require.Len(t, leases, len(addrs))
	servers[2].Freeze(t)
	for _, lease := range leases[addrs[2]] {
		<-lease.Context().Done()
	}
	// Those of the others have gone through as many renewals meanwhile.
	for _, member := range addrs[:2] {
		lost := 0
		for _, lease := range leases[member] {
			if lease.Context().Err() != nil {
				lost++
			}
		}
		require.Zero(t, lost, "of %d on %s", len(leases[member]), member)
	}
	servers[2].Resume(t)
}

// move takes the slot of the key from one member to another, keys and all, and calls
// halfway when the keys have gone and the slot has not.
func move(t *testing.T, from, to *servertest.Server, key string, halfway func()) {
	t.Helper()
	src, dst := redistest.Client(t, from), redistest.Client(t, to)
	slot := slotOf(t, src, key)
	id := func(c *goredis.Client) string {
		id, err := c.ClusterMyID(t.Context()).Result()
		require.NoError(t, err)
		return id
	}
	require.NoError(t, dst.Do(t.Context(), "cluster", "setslot", slot, "importing", id(src)).Err())
	require.NoError(t, src.Do(t.Context(), "cluster", "setslot", slot, "migrating", id(dst)).Err())
	names, err := src.ClusterGetKeysInSlot(t.Context(), slot, 1000).Result()
	require.NoError(t, err)
	host, port, _ := strings.Cut(to.Addr(), ":")
	for _, name := range names {
		require.NoError(t, src.Do(t.Context(), "migrate", host, port, name, 0, 5000).Err())
	}
	halfway()
	for _, c := range []*goredis.Client{dst, src} {
		require.NoError(t, c.Do(t.Context(), "cluster", "setslot", slot, "node", id(dst)).Err())
	}
}

// TestClusterSlotMoves: a hold outlasts the move of its slot to another member, and
// so do those who wait for it.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	for _, parameters := range []string{"", "&fair=true"} {
		t.Run("with "+parameters, func(t *testing.T) {
			t.Parallel()
			addrs, servers := clusterOf(t, 3)
			l, other := clusterLocker(t, addrs, ttl, parameters), clusterLocker(t, addrs, ttl, parameters)
			key := keyOn(t, redistest.Client(t, servers[0]), 0, 3)
			lease, err := l.Acquire(t.Context(), key)
			require.NoError(t, err)
			next := make(chan lock.Lease, 1)
			go func() {
				defer close(next)
				if got, err := other.Acquire(t.Context(), key); assert.NoError(t, err) {
					next <- got
				}
			}()
			move(t, servers[0], servers[2], key, func() {
				backendtest.Eventually(t, "renewed where it is now", func() bool { return lease.Renew(t.Context()) == nil })
				_, err := l.TryAcquire(t.Context(), key)
				require.ErrorIs(t, err, lock.ErrHeld)
			})
			require.NoError(t, lease.Renew(t.Context()))
			_, err = l.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, lock.ErrHeld)
			require.NoError(t, lease.Context().Err())
			require.NoError(t, lease.Release(t.Context()))
			got := <-next
			require.NotNil(t, got)
			require.Greater(t, got.Token(), lease.Token(), "the counter went along")
			require.NoError(t, got.Release(t.Context()))
			c := redistest.Client(t, servers[2])
			n, err := c.Exists(t.Context(), namesOf(defaultPrefix, key).counter()).Result()
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		})
	}
}

// TestClusterUnsettledSlot: members that send a client to and fro are unavailable for
// a while; it is no reason to give up.
func TestClusterUnsettledSlot(t *testing.T) {
	t.Parallel()
	addrs, servers := clusterOf(t, 3)
	b, err := backend.DefaultMux.Open(t.Context(), "redis://"+strings.Join(addrs, ",")+"?cluster=true", backend.OpenConfig{TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	src, dst := redistest.Client(t, servers[0]), redistest.Client(t, servers[2])
	key := keyOn(t, src, 0, 3)
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))
	// The one has given the slot away, and the other has not heard of it.
	id, err := dst.ClusterMyID(t.Context()).Result()
	require.NoError(t, err)
	slot := slotOf(t, src, key)
	require.NoError(t, src.Do(t.Context(), "cluster", "setslot", slot, "migrating", id).Err())
	n := namesOf(defaultPrefix, key)
	kept := src.Dump(t.Context(), n.record()).Val()
	require.NoError(t, src.Del(t.Context(), n.record(), n.counter()).Err())
	for what, err := range map[string]error{
		"Try":        func() error { _, err := b.Try(t.Context(), redistest.Request(key)); return err }(),
		"Renew":      func() error { _, err := b.Renew(t.Context(), hold); return err }(),
		"RenewBatch": b.(backend.BatchRenewer).RenewBatch(t.Context(), []backend.Hold{hold})[0].Err,
		"Release":    b.Release(t.Context(), hold),
	} {
		require.ErrorIs(t, err, backend.ErrUnavailable, what)
		require.NotErrorIs(t, err, backend.ErrPermanent, what)
		require.NotErrorIs(t, err, backend.ErrNotHeld, what)
	}
	require.NoError(t, src.Do(t.Context(), "cluster", "setslot", slot, "stable").Err())
	require.NoError(t, src.Restore(t.Context(), n.record(), ttl, kept).Err())
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
}

// A queue is on one member, and its channels are everywhere.
func testClusterFair(t *testing.T, addrs []string, servers []*servertest.Server) {
	c := redistest.Client(t, servers[0])
	const waiters = 6
	lockers := make([]lock.Locker, waiters+1)
	for i := range lockers {
		lockers[i] = clusterLocker(t, addrs, ttl, "&fair=true")
	}
	for member := range 3 {
		key := keyOn(t, c, member, 3)
		lease, err := lockers[waiters].Acquire(t.Context(), key)
		require.NoError(t, err)
		on := redistest.Client(t, servers[member])
		var all sync.WaitGroup
		var order []int // guarded by the lock
		for i, l := range lockers[:waiters] {
			all.Go(func() {
				got, err := l.Acquire(t.Context(), key)
				if assert.NoError(t, err) {
					order = append(order, i)
					assert.NoError(t, got.Release(t.Context()))
				}
			})
			backendtest.Eventually(t, "the place is taken", func() bool {
				return on.ZCard(t.Context(), namesOf(defaultPrefix, key).queue()).Val() == int64(i+1)
			})
		}
		require.NoError(t, lease.Release(t.Context()))
		all.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, order)
	}
}
