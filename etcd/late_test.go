package etcdlock

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// A request that creates a key and arrives after the release of its acquisition
// has no effect, although the lease that it names lives on with other holds.
func TestLateRequestHasNoEffect(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	other, _ := backendtest.Granted(t, b, request(backendtest.UniqueKey(t)))
	for _, queue := range []bool{false, true} {
		req := request(backendtest.UniqueKey(t))
		n := namesOf(b.prefix, req.Key)
		m, err := b.enlist(t.Context(), n, req)
		require.NoError(t, err)
		b.sending(m)
		late := b.takeTxn(n, req, m.slot.name, m.session, b.epochOf(m.session), floorNow(t, b), queue)

		require.ErrorIs(t, b.Release(t.Context(), backend.HoldOf(req)), backend.ErrNotHeld)
		_, err = c.Do(t.Context(), late)
		require.NoError(t, err)
		assert.Empty(t, keysOf(t, c, req.Key), "queue %t", queue)

		// Others of the session, which did not know of it, go on.
		next, _ := backendtest.Granted(t, b, request(req.Key))
		assert.NotEqual(t, m.slot.name, b.acquisition(next.ID, next.Key).slot.name, "the late request would have met the next user of the name")
		require.NoError(t, b.Release(t.Context(), next))
	}
	_, err := b.Renew(t.Context(), other)
	require.NoError(t, err)
}

// On a lease of its own the release revokes the lease.
func TestLateRequestOnALeaseOfItsOwn(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	req := request(backendtest.UniqueKey(t))
	req.Renewed = false
	n := namesOf(b.prefix, req.Key)
	m, err := b.enlist(t.Context(), n, req)
	require.NoError(t, err)
	b.sending(m)
	late := b.takeTxn(n, req, m.slot.name, m.session, 0, floorNow(t, b), false)
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	_, err = c.Do(t.Context(), late)
	require.True(t, leaseNotFound(err), "%v", err)
}

// A try that is refused when it is repeated, after its first attempt lost its answer,
// is over: the first attempt has no effect when it arrives, though the key is free
// by then.
func TestRefusedRepeatWithdrawsTheFirstAttempt(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	other := backendOn(t, c, nil)
	kept, _ := backendtest.Granted(t, b, request(backendtest.UniqueKey(t)))
	req := request(backendtest.UniqueKey(t))
	n := namesOf(b.prefix, req.Key)
	holder, _ := backendtest.Granted(t, other, request(req.Key))
	m, err := b.enlist(t.Context(), n, req)
	require.NoError(t, err)
	b.sending(m)
	late := b.takeTxn(n, req, m.slot.name, m.session, b.epochOf(m.session), floorNow(t, b), false)

	_, err = b.Try(t.Context(), req)
	require.ErrorIs(t, err, backend.ErrHeld)
	require.Nil(t, b.acquisition(req.ID, req.Key))
	require.NoError(t, other.Release(t.Context(), holder))
	_, err = c.Do(t.Context(), late)
	require.NoError(t, err)
	assert.Empty(t, keysOf(t, c, req.Key))
	_, err = b.Renew(t.Context(), kept)
	require.NoError(t, err)
}

// A server that stands still gets requests, cancelled meanwhile, that it answers
// later. Nothing of them is left although the lease lives on.
func TestFrozenServerAnswersLate(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	c := clientOf(t, server)
	l := lockerOn(t, c, ttl)
	kept, err := l.TryAcquire(t.Context(), "kept") // its renewals keep the lease alive
	require.NoError(t, err)
	server.Freeze(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			acquire := l.TryAcquire
			if i%2 == 1 {
				acquire = l.Acquire
			}
			_, err := acquire(ctx, fmt.Sprint("late ", i%5))
			assert.Error(t, err)
		})
	}
	wg.Wait()
	server.Resume(t)
	backendtest.Eventually(t, "only the hold that was kept is left", func() bool {
		resp, err := c.Get(t.Context(), defaultPrefix+"keys/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == 1
	})
	require.Never(t, func() bool {
		resp, err := c.Get(t.Context(), defaultPrefix+"keys/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count != 1
	}, 500*time.Millisecond, 20*time.Millisecond, "nothing appears later")
	for i := range 5 {
		lease, err := l.TryAcquire(t.Context(), fmt.Sprint("late ", i))
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
	}
	require.NoError(t, kept.Context().Err())
	require.NoError(t, kept.Release(t.Context()))
}

// After 1000 cancelled acquisitions no lease, key or watch is left on the server.
func TestCancelledAcquiresLeaveNothing(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t)
	c := clientOf(t, server)
	const ttl = 10 * time.Minute // no lease ends by itself
	a, b := lockerOn(t, c, ttl), lockerOn(t, c, ttl)
	held, err := a.TryAcquire(t.Context(), "held")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i*50+j)%40)*time.Millisecond)
				l := a
				if i%2 == 1 {
					l = b
				}
				var opts []lock.Option
				if j%2 == 1 {
					opts = append(opts, lock.WithoutRenewal(), lock.WithTTL(ttl)) // on a lease of its own
				}
				_, err := l.Acquire(ctx, "held", opts...)
				assert.Error(t, err)
				if lease, err := l.Acquire(ctx, fmt.Sprint("free ", i), opts...); err == nil {
					assert.NoError(t, lease.Release(t.Context()))
				}
				cancel()
			}
		})
	}
	wg.Wait()
	backendtest.Eventually(t, "only the holder's key is left", func() bool {
		resp, err := c.Get(t.Context(), defaultPrefix+"keys/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == 1
	})
	backendtest.Eventually(t, "no watch is left", func() bool { return metric(t, server, "etcd_debugging_mvcc_watcher_total") == "0" })
	require.NoError(t, held.Release(t.Context()))
	backendtest.Eventually(t, "one lease is left for each Locker: those of holds without renewal have ended", func() bool {
		resp, err := c.Leases(t.Context())
		return err == nil && len(resp.Leases) <= 2
	})
	for _, l := range []lock.Locker{a, b} {
		begun := time.Now()
		require.NoError(t, l.Close())
		if took := time.Since(begun); took >= closeLimit {
			t.Skipf("inconclusive: Close took %s, and waits for the end of its leases no longer than %s", took, closeLimit)
		}
	}
	backendtest.Eventually(t, "no lease is left", func() bool {
		resp, err := c.Leases(t.Context())
		return err == nil && len(resp.Leases) == 0
	})
	all, err := c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	require.Len(t, all.Kvs, 1)
	require.Equal(t, floorName(defaultPrefix), string(all.Kvs[0].Key))
}

func metric(t testing.TB, s *servertest.Server, name string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.Addr() + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func TestIdleLeaseEnds(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t)
	c := clientOf(t, server)
	l := lockerOn(t, c, 5*time.Second)
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	backendtest.Eventually(t, "a lease without holds ends", func() bool {
		resp, err := c.Leases(t.Context())
		return err == nil && len(resp.Leases) == 0
	})
	lease, err = l.Acquire(t.Context(), "k")
	require.NoError(t, err, "the next acquisition has a new one")
	require.NoError(t, lease.Release(t.Context()))
}

// The token is the create revision of the key, which grows with every grant, above the
// floor; and not the lease, which is shared.
func TestTokenIsTheCreateRevision(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	var last uint64
	for range 3 {
		hold, g := backendtest.Granted(t, b, request(key))
		names := keysOf(t, c, key)
		require.Len(t, names, 1)
		resp, err := c.Get(t.Context(), names[0])
		require.NoError(t, err)
		require.Equal(t, floorNow(t, b).add+uint64(resp.Kvs[0].CreateRevision), g.Token)
		require.Greater(t, g.Token, last)
		last = g.Token
		require.NoError(t, b.Release(t.Context(), hold))
	}
}

func TestNamesAreUsedAgain(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	key := backendtest.UniqueKey(t)
	seen := map[string]bool{}
	for range 20 {
		hold, _ := backendtest.Granted(t, b, request(key))
		for _, name := range keysOf(t, c, key) {
			seen[name] = true
		}
		require.NoError(t, b.Release(t.Context(), hold))
	}
	require.Len(t, seen, 1)
	require.Empty(t, b.acquisitions)
	require.Empty(t, b.slots.used)
}

// Where callers leave all the time, and the fence of their session moves with each,
// the others are granted their keys all the same.
func TestFenceThatMovesAllTheTime(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	hold, _ := backendtest.Granted(t, b, request(backendtest.UniqueKey(t)))
	s := b.acquisition(hold.ID, hold.Key).session
	require.True(t, s.shared)
	ctx, stop := context.WithCancel(t.Context())
	var mover sync.WaitGroup
	mover.Go(func() {
		for ctx.Err() == nil {
			_, _ = c.Put(ctx, s.fence, "", clientv3.WithLease(s.id))
		}
	})
	defer mover.Wait()
	defer stop()
	for i := range 40 {
		req := request(backendtest.UniqueKey(t))
		if i%2 == 0 {
			backendtest.Granted(t, b, req)
		} else {
			ticket, err := b.Enqueue(t.Context(), req)
			require.NoError(t, err)
			_, err = ticket.Wait(t.Context())
			require.NoError(t, err)
		}
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	}
}
