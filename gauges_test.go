package lock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// gauges are what an operator computes from the events of one Client, and what in these
// events was wrong in itself.
type gauges struct {
	mu                             sync.Mutex
	holders, waiters, losses, ends int
	refusals                       int                   // calls that ended without a lease
	open                           map[uint64]lock.Event // granted and not ended, by lease
	last                           uint64                // the highest lease
	wrong                          error
}

func (g *gauges) observe(_ context.Context, e lock.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	granted, isOpen := g.open[e.Lease]
	switch e.Kind {
	case lock.EventWaitBegun:
		g.waiters++
	case lock.EventWaitEnded:
		g.waiters--
		g.expect((e.Err == nil) == (e.Lease != 0), e, "a lease without a grant, or a grant without one")
		if e.Err != nil {
			g.refusals++
		}
	case lock.EventRefused:
		g.refusals++
		g.expect(e.Err != nil && e.Lease == 0 && e.Token == 0, e, "refused, and granted")
	case lock.EventGranted:
		g.holders++
		g.expect(e.Lease != 0 && !isOpen && e.Token != 0 && e.Err == nil, e, "granted twice")
		g.open[e.Lease] = e
		g.last = max(g.last, e.Lease)
	case lock.EventLost, lock.EventReleased:
		g.holders--
		g.ends++
		if e.Kind == lock.EventLost {
			g.losses++
		}
		g.expect(isOpen, e, "ended twice, or not granted before")
		g.expect(e.Key == granted.Key && e.Label == granted.Label && e.Token == granted.Token && e.Backend == granted.Backend, e, "not what was granted")
		g.expect((e.Kind == lock.EventLost) == errors.Is(e.Err, lock.ErrLost), e, "the cause")
		delete(g.open, e.Lease)
	case lock.EventRenewed, lock.EventRenewalFailed:
		g.expect(e.Lease != 0 && (e.Kind == lock.EventRenewed) == (e.Err == nil), e, "the error")
	case lock.EventAttempt:
		g.expect((e.Err == nil) == (e.Lease != 0), e, "an attempt with a lease and an error, or without both")
	}
	g.expect(e.Backend != "" && e.Key != "" && e.Duration >= 0, e, "incomplete")
	g.expect(!strings.Contains(fmt.Sprintf("%+v", e), "secret"), e, "an owner")
}

func (g *gauges) expect(ok bool, e lock.Event, what string) {
	if !ok && g.wrong == nil {
		g.wrong = fmt.Errorf("%s: %s of lease %d on %q: %+v", what, e.Kind, e.Lease, e.Key, e)
	}
}

// observedLease is a lease with what the test knows of it.
type observedLease struct {
	lock.Lease
	released bool
	lost     bool // its Release said so
}

// observedClient is a Client with its gauges and the truth.
type observedClient struct {
	*gauges
	l       *lock.Client
	faults  *faultlock.Faults
	mu      sync.Mutex
	leases  []*observedLease
	refused int                        // calls that returned an error
	waiting map[int]context.CancelFunc // calls of Acquire that have not returned
	again   func(lock.Lease)           // is told of a second Release
}

// granted takes what Acquire or TryAcquire has returned.
func (w *observedClient) granted(l lock.Lease, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.refused++
	} else {
		w.leases = append(w.leases, &observedLease{Lease: l})
	}
}

func (w *observedClient) release(ctx context.Context, h *observedLease) {
	w.mu.Lock()
	second := h.released
	h.released = true
	w.mu.Unlock()
	if second {
		w.again(h)
	}
	err := h.Release(ctx)
	if errors.Is(err, lock.ErrLost) {
		w.mu.Lock()
		h.lost = true
		w.mu.Unlock()
	}
}

// check compares the gauges with the truth, when everything has settled.
func (w *observedClient) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	holders, losses := 0, 0
	for _, h := range w.leases {
		select {
		case <-h.Context().Done():
			if h.lost || errors.Is(cause(h), lock.ErrLost) {
				losses++
			}
		default:
			holders++
		}
	}
	g := w.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.wrong != nil:
		return g.wrong
	case g.holders != holders:
		return fmt.Errorf("%d holders by the events, and %d leases are held", g.holders, holders)
	case g.waiters != len(w.waiting):
		return fmt.Errorf("%d waiters by the events, and %d calls wait", g.waiters, len(w.waiting))
	case g.refusals != w.refused:
		return fmt.Errorf("%d calls ended without a lease by the events, and %d have returned an error", g.refusals, w.refused)
	case g.losses != losses:
		return fmt.Errorf("%d losses by the events, and %d leases were lost", g.losses, losses)
	case int(g.last) != len(w.leases) || g.ends != len(w.leases)-holders:
		return fmt.Errorf("the last lease is %d of %d; %d ended by the events, and %d have", g.last, len(w.leases), g.ends, len(w.leases)-holders)
	}
	return nil
}

// feed is what is between a Client and the gauges: it may pass the events on wrongly.
type feed func(next lock.Observer) (observe lock.Observer, again func(lock.Lease))

func faithful(next lock.Observer) (lock.Observer, func(lock.Lease)) {
	return next, func(lock.Lease) {}
}

// without is a feed that leaves events out.
func without(out func(lock.Event) bool) feed {
	return func(next lock.Observer) (lock.Observer, func(lock.Lease)) {
		return func(ctx context.Context, e lock.Event) {
			if !out(e) {
				next(ctx, e)
			}
		}, func(lock.Lease) {}
	}
}

// releasedAgain is a feed that tells of each Release, and not of the first alone.
func releasedAgain(next lock.Observer) (lock.Observer, func(lock.Lease)) {
	var mu sync.Mutex
	ends := map[uint64]lock.Event{} // by token
	return func(ctx context.Context, e lock.Event) {
			if e.Kind == lock.EventReleased {
				mu.Lock()
				ends[e.Token] = e
				mu.Unlock()
			}
			next(ctx, e)
		}, func(l lock.Lease) {
			mu.Lock()
			e, ok := ends[l.Token()]
			mu.Unlock()
			if ok {
				next(context.Background(), e)
			}
		}
}

// releasedAndLost is a feed that tells of a loss as a release first.
func releasedAndLost(next lock.Observer) (lock.Observer, func(lock.Lease)) {
	return func(ctx context.Context, e lock.Event) {
		if e.Kind == lock.EventLost {
			released := e
			released.Kind = lock.EventReleased
			next(ctx, released)
		}
		next(ctx, e)
	}, func(lock.Lease) {}
}

// onlyAttempts is a feed that tells of the grants that the server was asked for.
func onlyAttempts(next lock.Observer) (lock.Observer, func(lock.Lease)) {
	var asked sync.Map
	return without(func(e lock.Event) bool {
		if e.Kind == lock.EventAttempt {
			asked.Store(e.Lease, true)
		}
		_, ok := asked.Load(e.Lease)
		return e.Kind == lock.EventGranted && !ok
	})(next)
}

// firstOfToken is a feed that takes the leases of one owner on one key for one.
func firstOfToken(next lock.Observer) (lock.Observer, func(lock.Lease)) {
	var seen sync.Map
	return without(func(e lock.Event) bool {
		if e.Kind != lock.EventGranted {
			return false
		}
		_, again := seen.LoadOrStore(fmt.Sprint(e.Key, e.Token), true)
		return again
	})(next)
}

// gaugeWorld is two Clients of one store, at whose keys anything may happen.
type gaugeWorld struct {
	t       *testing.T
	store   *memlock.Store
	on      string // a kind of backend
	feed    feed
	rnd     *rand.Rand
	clients [2]*observedClient
	calls   int
}

func (g *gaugeWorld) open() *observedClient {
	w := &observedClient{gauges: &gauges{open: map[uint64]lock.Event{}}, waiting: map[int]context.CancelFunc{}}
	var observe lock.Observer
	observe, w.again = g.feed(w.observe)
	var b backend.Backend
	if g.on == "slow" {
		s := newSlow(g.t, g.store)
		w.faults = s.disturbed()
		for _, op := range []faultlock.Op{faultlock.OpTry, faultlock.OpRenew, faultlock.OpRelease} {
			s.delay(op, time.Duration(g.rnd.IntN(300))*time.Millisecond, time.Duration(g.rnd.IntN(300))*time.Millisecond)
		}
		b = s
	} else {
		b, w.faults = disturbedBackend(g.t, &memlock.Options{Store: g.store, Queue: g.on == "queue"})
	}
	var err error
	w.l, err = lock.New(b, &lock.Options{Observer: observe})
	require.NoError(g.t, err)
	return w
}

func (g *gaugeWorld) options() []lock.Option {
	opts := []lock.Option{lock.WithTTL(time.Duration(3+g.rnd.IntN(30)) * time.Second), lock.WithLabel(fmt.Sprint("label ", g.rnd.IntN(100)))}
	if g.rnd.IntN(3) == 0 {
		opts = append(opts, lock.WithOwner(fmt.Sprint("secret ", g.rnd.IntN(2))))
	}
	if g.rnd.IntN(5) == 0 {
		opts = append(opts, lock.WithoutRenewal())
	}
	if g.rnd.IntN(8) == 0 {
		opts = append(opts, lock.WithMaxHold(time.Duration(1+g.rnd.IntN(20))*time.Second))
	}
	return opts
}

// ops are the requests of a kind.
func (g *gaugeWorld) ops() []faultlock.Op {
	return [][]faultlock.Op{opsTry, {faultlock.OpRenew}, opsRelease}[g.rnd.IntN(3)]
}

// step does one thing, and compares when nothing moves any more.
func (g *gaugeWorld) step() error {
	i := g.rnd.IntN(len(g.clients))
	w := g.clients[i]
	key := fmt.Sprint("key ", g.rnd.IntN(3))
	ctx := g.t.Context()
	w.mu.Lock()
	leases := w.leases
	w.mu.Unlock()
	var recent *observedLease
	if n := len(leases); n > 0 {
		recent = leases[n-1-g.rnd.IntN(min(n, 8))]
	}
	switch p := g.rnd.IntN(100); {
	case p < 25:
		opts := g.options()
		g.calls++
		call := g.calls
		waiting, cancel := context.WithCancel(ctx)
		w.mu.Lock()
		w.waiting[call] = cancel
		w.mu.Unlock()
		go func() {
			l, err := w.l.Acquire(waiting, key, opts...)
			w.mu.Lock()
			delete(w.waiting, call)
			w.mu.Unlock()
			w.granted(l, err)
			cancel()
		}()
	case p < 35:
		l, err := w.l.TryAcquire(ctx, key, g.options()...)
		w.granted(l, err)
	case p < 45:
		w.mu.Lock()
		if calls := slices.Sorted(maps.Keys(w.waiting)); len(calls) > 0 {
			w.waiting[calls[g.rnd.IntN(len(calls))]]()
		}
		w.mu.Unlock()
	case p < 70 && recent != nil:
		w.release(ctx, recent)
	case p < 75 && recent != nil:
		for range 3 {
			go func() { _ = recent.Lease.Renew(ctx) }()
			go w.release(ctx, recent)
		}
	case p < 80:
		g.store.Remove(key)
	case p < 83:
		w.faults.Next(1, faultlock.FailAfter(), g.ops()...)
	case p < 86:
		if n := g.rnd.IntN(6); n > 0 {
			w.faults.Next(n, faultlock.Drop(), g.ops()...)
		} else {
			w.faults.Heal()
		}
	case p < 87:
		if err := g.close(w); err != nil {
			return err
		}
		g.clients[i] = g.open()
	default:
		time.Sleep(time.Duration(g.rnd.Int64N(int64(6 * time.Second))))
	}
	if g.on == "slow" {
		time.Sleep(4 * time.Second) // for what is under way
	}
	synctest.Wait()
	return errors.Join(g.clients[0].check(), g.clients[1].check())
}

// close closes a Client, of which nothing is held and nobody waits then, and releases some
// leases once more.
func (g *gaugeWorld) close(w *observedClient) error {
	_ = w.l.Close() // whatever its faults are
	if g.on == "slow" {
		time.Sleep(4 * time.Second) // for calls that Close has ended
	}
	synctest.Wait()
	if err := w.check(); err != nil {
		return fmt.Errorf("after Close: %w", err)
	}
	for _, h := range w.leases[max(0, len(w.leases)-8):] {
		w.release(g.t.Context(), h)
	}
	if err := w.check(); err != nil {
		return fmt.Errorf("released after Close: %w", err)
	}
	if w.holders != 0 || w.waiters != 0 || len(w.gauges.open) != 0 {
		return fmt.Errorf("after Close there are %d holders and %d waiters", w.holders, w.waiters)
	}
	return nil
}

// compareGauges takes random steps until the gauges differ from the truth, and returns how
// they do.
func compareGauges(t *testing.T, on string, f feed, seed uint64, steps int) (differ error) {
	synctest.Test(t, func(t *testing.T) {
		g := &gaugeWorld{t: t, store: memlock.NewStore(nil), on: on, feed: f, rnd: rand.New(rand.NewPCG(seed, 0))}
		for i := range g.clients {
			g.clients[i] = g.open()
		}
		for i := range steps {
			if err := g.step(); err != nil {
				differ = fmt.Errorf("seed %d, step %d: %w", seed, i, err)
				break
			}
		}
		for _, w := range g.clients {
			if err := g.close(w); err != nil && differ == nil {
				differ = fmt.Errorf("seed %d, at the end: %w", seed, err)
			}
		}
	})
	return differ
}

func TestGaugesFromEventsAreExact(t *testing.T) {
	t.Parallel()
	for on, steps := range map[string]int{"record": 3000, "queue": 3000, "slow": 500} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			for range 4 {
				require.NoError(t, compareGauges(t, on, faithful, rand.Uint64(), steps))
			}
		})
	}
}

// TestCloseTellsTheEndsOfCallsThatHang: a backend that never looks at its context keeps a
// Release and an Acquire longer than Close waits for them.
func TestCloseTellsTheEndsOfCallsThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlow(t, memlock.NewStore(nil))
		g := &gauges{open: map[uint64]lock.Event{}}
		l, err := lock.New(s, &lock.Options{TTL: time.Hour, Observer: g.observe})
		require.NoError(t, err)
		ctx := context.Background() // so that the calls are made on the callers' goroutines
		lease, err := l.Acquire(ctx, "released")
		require.NoError(t, err)
		kept, err := l.Acquire(ctx, "kept")
		require.NoError(t, err)
		var calls sync.WaitGroup
		for range 2 {
			calls.Go(func() {
				_, err := l.Acquire(ctx, "kept")
				assert.ErrorIs(t, err, lock.ErrClosed)
			})
		}
		time.Sleep(time.Second)
		s.delay(faultlock.OpTry, time.Minute, 0)
		s.delay(faultlock.OpRelease, time.Minute, 0)
		calls.Go(func() { _ = lease.Release(ctx) })
		calls.Go(func() { _ = kept.Release(ctx) })
		time.Sleep(2 * time.Second) // who waits asks again, and has no answer
		synctest.Wait()
		require.Equal(t, 2, g.holders)
		require.Equal(t, 2, g.waiters)
		start := time.Now()
		require.ErrorIs(t, l.Close(), lock.ErrOutcomeUnknown)
		require.LessOrEqual(t, time.Since(start), 5*time.Second)
		require.NoError(t, g.wrong)
		require.Zero(t, g.holders)
		require.Zero(t, g.waiters)
		calls.Wait()
		require.Equal(t, 2, g.ends)
		require.Zero(t, g.waiters)
		require.NoError(t, g.wrong)
	})
}

// TestGaugesFromWrongEventsDiffer is about the test before: it notices what the events of
// other Observers get wrong.
func TestGaugesFromWrongEventsDiffer(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]feed{
		"each Release is told":            releasedAgain,
		"a loss is told as a release too": releasedAndLost,
		"a hand-over is not told":         onlyAttempts,
		"a wait that failed is not told":  without(func(e lock.Event) bool { return e.Kind == lock.EventWaitEnded && e.Err != nil }),
		"a refusal is not told":           without(func(e lock.Event) bool { return e.Kind == lock.EventRefused }),
		"the beginning of waits is not":   without(func(e lock.Event) bool { return e.Kind == lock.EventWaitBegun }),
		"what Close ends is not told":     without(func(e lock.Event) bool { return errors.Is(e.Err, lock.ErrClosed) }),
		"a loss is not told":              without(func(e lock.Event) bool { return e.Kind == lock.EventLost }),
		"a release in doubt is not told": without(func(e lock.Event) bool {
			return e.Kind == lock.EventReleased && errors.Is(e.Err, lock.ErrOutcomeUnknown)
		}),
		"leases with an owner are told once": firstOfToken,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Error(t, compareGauges(t, "record", wrong, rand.Uint64(), 3000))
		})
	}
}
