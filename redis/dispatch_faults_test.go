package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// expiring is a context whose deadline passes when the test says so.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Deadline() (time.Time, bool) { return time.Now(), true }
func (e expiring) Done() <-chan struct{}       { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A context that ends while its command is under way ends only its own wait. What
// became of the command is unknown to its caller, and the others get their replies.
func TestEndedInFlightIsUnknownToItsCallerOnly(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	p := servertest.Proxy(t, server.Addr())
	b, h, open := busy(t, p.Addr())
	prefix := backendtest.UniqueKey(t)
	expired := expiring{t.Context(), make(chan struct{})}
	withdrawn, withdraw := context.WithCancel(t.Context())
	outs := map[string]<-chan outcome{
		"expired":   trying(expired, t, b, redistest.Request(prefix+"/expired")),
		"cancelled": trying(withdrawn, t, b, redistest.Request(prefix+"/cancelled")),
		"patient":   trying(t.Context(), t, b, redistest.Request(prefix+"/patient")),
	}
	met, send := h.holdUp(t, prefix)
	open()
	met(1)
	p.Freeze(servertest.ToClient)
	send()
	direct := backendOn(t, redistest.Client(t, server))
	backendtest.Eventually(t, "the commands were applied", func() bool {
		_, err := direct.Inspect(t.Context(), prefix+"/patient")
		return err == nil
	})
	withdraw()
	close(expired.done)
	o := <-outs["expired"]
	require.ErrorIs(t, o.err, context.DeadlineExceeded)
	require.NotContains(t, o.err.Error(), "nothing was sent")
	for _, sentinel := range []error{backend.ErrUnavailable, backend.ErrPermanent, backend.ErrHeld, backend.ErrNotHeld} {
		require.NotErrorIs(t, o.err, sentinel)
	}
	_, err := direct.Inspect(t.Context(), prefix+"/expired")
	require.NoError(t, err, "it was applied")
	for _, name := range []string{"cancelled", "patient"} {
		select {
		case o := <-outs[name]:
			require.Fail(t, "a call returned before its reply", "%s: %v", name, o.err)
		default:
		}
	}
	p.Resume(servertest.ToClient)
	require.NoError(t, (<-outs["patient"]).err)
	require.NoError(t, (<-outs["cancelled"]).err, "the reply is there, so that the clean-up comes after the command")
	require.Equal(t, []int{3}, h.with(prefix))
}

// A connection that hangs holds up the commands that are on it, and no others.
func TestCommandsPassAConnectionThatHangs(t *testing.T) {
	t.Parallel()
	p := servertest.Proxy(t, servertest.SharedRedis(t).Addr())
	c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	require.NoError(t, b.Release(t.Context(), hold))
	prefix := backendtest.UniqueKey(t)
	p.StallReplies(maxFlights, prefix+"/stalled")
	var stalled, others sync.WaitGroup
	for i := range maxFlights {
		stalled.Go(func() {
			_, err := b.Try(t.Context(), redistest.Request(fmt.Sprintf("%s/stalled/%d", prefix, i)))
			require.Error(t, err)
		})
	}
	backendtest.Eventually(t, "the flights hang", func() bool { return p.Lost() == maxFlights })
	var hung sync.WaitGroup
	ended := make(chan struct{})
	hung.Go(func() { stalled.Wait(); close(ended) })
	for i := range 20 {
		others.Go(func() {
			for j := range 10 {
				_, err := b.Try(t.Context(), redistest.Request(fmt.Sprintf("%s/%d/%d", prefix, i, j)))
				require.NoError(t, err)
			}
		})
	}
	others.Wait()
	select {
	case <-ended:
		require.Fail(t, "the others were only served when the hanging connections had ended")
	default:
	}
	p.Refuse()
	p.Cut()
	hung.Wait()
}

func TestTogetherAfterTheServerForgotTheScript(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	b, _, open := busy(t, server.Addr())
	prefix := backendtest.UniqueKey(t)
	var outs []<-chan outcome
	for i := range leastTogether {
		outs = append(outs, trying(t.Context(), t, b, redistest.Request(fmt.Sprintf("%s/%d", prefix, i))))
	}
	require.NoError(t, redistest.Client(t, server).ScriptFlush(t.Context()).Err())
	open()
	for _, out := range outs {
		require.NoError(t, (<-out).err)
	}
}

// Every command of a connection that broke is sent again, and finds its own grant.
func TestTogetherOnABrokenConnection(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	p := servertest.Proxy(t, server.Addr())
	b, h, open := busy(t, p.Addr())
	prefix := backendtest.UniqueKey(t)
	const callers = leastTogether - maxFlights // which are away with one command each
	var outs []<-chan outcome
	for i := range callers {
		outs = append(outs, trying(t.Context(), t, b, redistest.Request(fmt.Sprintf("%s/%d", prefix, i))))
	}
	p.DropReplies(1, prefix)
	open()
	direct := backendOn(t, redistest.Client(t, server))
	for _, out := range outs {
		o := <-out
		require.NoError(t, o.err)
		require.Equal(t, 1, o.grant.Holds)
		rec, err := direct.Inspect(t.Context(), o.req.Key)
		require.NoError(t, err)
		require.Equal(t, 1, rec.Holds)
		require.Equal(t, o.grant.Token, rec.Token)
	}
	require.Equal(t, 1, p.Lost())
	sent := 0
	for _, n := range h.with(prefix) {
		sent += n
	}
	require.Equal(t, 2*callers, sent, "each command once more")
}

func TestHookThatRefusesRequests(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	refused := errors.New("refused by a hook")
	h.mu.Lock()
	h.refuse = refused
	h.mu.Unlock()
	var outs []<-chan outcome
	for range 3 {
		outs = append(outs, trying(t.Context(), t, b, redistest.Request(backendtest.UniqueKey(t))))
	}
	open()
	for _, out := range outs {
		require.ErrorIs(t, (<-out).err, refused)
	}
}

func TestCloseRefusesWhatWaits(t *testing.T) {
	t.Parallel()
	b, h, open := busy(t, servertest.SharedRedis(t).Addr())
	prefix := backendtest.UniqueKey(t)
	out := trying(t.Context(), t, b, redistest.Request(prefix))
	require.NoError(t, b.Close())
	require.ErrorIs(t, (<-out).err, backend.ErrClosed)
	open()
	require.Empty(t, h.with(prefix))
}

// Contexts that end at any moment fail no call of others, and every call that had an
// error can be cleaned up after.
func TestCancellationsBesideOthers(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for range 40 {
				req := redistest.Request(backendtest.UniqueKey(t))
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if i%2 == 0 {
					ctx, cancel = context.WithTimeout(ctx, rand.N(2*time.Millisecond))
				}
				_, err := b.Try(ctx, req)
				cancel()
				if i%2 == 1 {
					require.NoError(t, err)
				} else if err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				if err := b.Release(t.Context(), backend.HoldOf(req)); i%2 == 1 {
					require.NoError(t, err)
				} else if err != nil {
					require.ErrorIs(t, err, backend.ErrNotHeld)
				}
				value, _ := raw(t, c, req.Key)
				for begun := time.Now(); value != "" && err != nil && time.Since(begun) < req.TTL/2; value, _ = raw(t, c, req.Key) {
					// The request of who gave up came after the release, which is repeated then.
					_ = b.Release(t.Context(), backend.HoldOf(req))
				}
				require.Empty(t, value)
			}
		})
	}
	wg.Wait()
	require.Zero(t, queueLength(b))
	b.together.away.Wait() // a flight ends after its last caller was told
	b.together.mu.Lock()
	defer b.together.mu.Unlock()
	require.Empty(t, b.together.flights)
}

// Renewals go past connections that hang, those of one hold and those that are sent
// together: a lease is not lost because the commands beside it got no answer.
func TestRenewalsPassConnectionsThatHang(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	for _, leases := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d leases", leases), func(t *testing.T) {
			t.Parallel()
			p := servertest.Proxy(t, servertest.SharedRedis(t).Addr())
			// Without its own limits the client waits for a minute, which is longer than
			// any lease here.
			c := goredis.NewClient(&goredis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true, ReadTimeout: time.Minute, PoolSize: 100})
			t.Cleanup(func() { _ = c.Close() })
			b := backendOn(t, c)
			l, err := lock.New(b, &lock.Options{TTL: ttl})
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			prefix := backendtest.UniqueKey(t)
			var held []lock.Lease
			for i := range leases {
				lease, err := l.Acquire(t.Context(), fmt.Sprintf("%s/held/%d", prefix, i))
				require.NoError(t, err)
				held = append(held, lease)
			}
			end := time.Now().Add(2 * ttl)
			var others sync.WaitGroup
			var served atomic.Int64
			for i := range 8 {
				others.Go(func() {
					for time.Now().Before(end) {
						lease, err := l.TryAcquire(t.Context(), fmt.Sprintf("%s/other/%d/%s", prefix, i, backendtest.UniqueKey(t)))
						if err == nil {
							err = lease.Release(t.Context())
						}
						if err == nil {
							served.Add(1)
						}
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
			for bursts := 1; time.Now().Before(end); bursts++ {
				// Often enough to meet some renewals, and seldom enough that what is sent
				// when one got no answer is not met, too.
				p.StallReplies(maxFlights, prefix+"/other")
				backendtest.Eventually(t, "the flights hang", func() bool { return p.Lost() >= bursts*maxFlights })
				time.Sleep(2 * ttl / 5)
				for _, lease := range held {
					require.NoError(t, lease.Context().Err(), "a lease was lost: %v", context.Cause(lease.Context()))
				}
			}
			p.Cut()
			others.Wait()
			require.Positive(t, served.Load())
		})
	}
}
