package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
	memlock "github.com/mortiselock/lock/memory"
)

// mustSay is mustFail for one rule, whose evidence has the words.
func mustSay(t *testing.T, cfg conformance.Config, rule, says string) {
	t.Helper()
	virtually(t, func(t *testing.T) {
		cfg.Only = []string{rule}
		rep, err := conformance.Check(t.Context(), cfg)
		require.NoError(t, err)
		for _, r := range rep.Results {
			assert.Equal(t, conformance.Fail, r.Verdict, "%s: %s", r.Rule, r.Evidence)
			assert.Contains(t, r.Evidence, says, r.Rule)
		}
	})
}

// Mutants of Lockers that are right in each call, and wrong where two meet: a wait behind a
// wait, an option of one who enters, a second release.
func TestMutantsWhereCallsMeet(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule, says string
		change     func(m *lockerMutant)
	}{
		"who waits behind another one is not told that the key is held": {"WaiterGivesUp", "expected an error that matches ErrHeld", behindAnotherIsNotTold},
		"when the first waiter gives up, the last takes its place": {"WaiterOrderLocal", "were served in the order", func(m *lockerMutant) {
			inLine(m, func(key string) string { return key }, func(q []chan struct{}) []chan struct{} {
				last := len(q) - 1
				q[0] = q[last]
				return q[:last]
			})
		}},
		"those who wait stand in line by the beginning of the key": {"IndependentKeys", "only another key is held", func(m *lockerMutant) {
			inLine(m, func(key string) string { return key[:min(len(key), 255)] }, func(q []chan struct{}) []chan struct{} { return q[1:] })
		}},
		"of an owner's waiters one has the turn until its release": {"ReentrantOverWaiters", "whoever has it now is of the same owner", ownersTurn},
		"a lost lease has no key": {"MaxHoldEnds", "the key of a lost lease", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.key = func() string {
					if errors.Is(context.Cause(l.Lease.Context()), lock.ErrLost) {
						return ""
					}
					return l.Lease.Key()
				}
			}
		}},
		"a maximum hold is a limit on the context of a call that waits": {"HoldOutlivesAcquireCtx", "which had to wait, has ended", maxHoldOnCallersContext},
		"a renewal lasts until the deadline of its context":             {"HoldOutlivesAcquireCtx", "as that of the context of the call", renewUntilDeadline},
		"a renewal by hand begins the maximum anew":                     {"MaxHoldEnds", "while the lease is renewed", renewRestartsUnrenewed},
		"an inner hold is not renewed where the outermost is not": {"ExpiryIsPerHold", "the second hold of its owner is renewed", func(m *lockerMutant) {
			recordsOf(m, func(s *lock.Settings, outermost lock.Settings) { s.NoRenewal = s.NoRenewal || outermost.NoRenewal })
		}},
		"an inner hold has the TTL of the outermost": {"OptionsOfOneCall", "whose owner has one with a TTL", func(m *lockerMutant) {
			recordsOf(m, func(s *lock.Settings, outermost lock.Settings) {
				if s.TTL == 0 {
					s.TTL = outermost.TTL
				}
			})
		}},
		"the TTL of who enters is rounded": {"TTLRange", "a TTL is never rounded", func(m *lockerMutant) {
			recordsOf(m, func(s *lock.Settings, _ lock.Settings) {
				if s.TTL > 0 {
					s.TTL = max(s.TTL, m.Client.Guarantees().MinTTL)
				}
			})
		}},
		"a second release, with an ended context, ends another hold of the owner": {"EndedContexts", "another hold of its owner was released", secondReleaseOfOwner},
		"a wait with a deadline is cancelled by Close":                            {"CloseEndsWaits", "while its Locker was closed", timedWaitIsCancelled},
		"too many holds of an owner are a refusal as held": {"ReentrantLimit", "it must not match ErrHeld", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if errors.Is(err, lock.ErrTooManyHolds) {
						err = fmt.Errorf("%w: %w", &lock.HeldError{Key: key}, err)
					}
					return l, err
				}
			})
		}},
		"an owner's try that is refused asks once more": {"TryIsImmediate", "for a lease with an owner", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if errors.Is(err, lock.ErrHeld) && with(opts).Owner != "" {
					return m.Client.TryAcquire(ctx, key, opts...)
				}
				return l, err
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			mustSay(t, wrapped(func(m *lockerMutant, _ backend.Backend) { c.change(m) }), c.rule, c.says)
		})
	}
	all.Wait()
}

// wrapper has all abilities of the inner backend; what embeds it changes some.
type wrapper struct{ backend.Backend }

func (w wrapper) Unwrap() backend.Backend { return w.Backend }

func ability[T any](b backend.Backend) T {
	t, ok := backend.As[T](b)
	if !ok {
		panic("the backend lacks an ability")
	}
	return t
}

// around changes a backend.
type around = func(b backend.Backend) backend.Backend

// Mutants of backends whose abilities are right with a plain hold that is held.
func TestMutantsOfAbilitiesElsewhere(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule, says string
		change     func() around
		queue      bool
	}{
		"a hand-over asks whether the key is held, not by whom": {rule: "HandOverIsOneStep", says: "of a key that another client holds by now", change: func() around {
			var handed sync.Map
			return func(b backend.Backend) backend.Backend { return handsOverXX{wrapper{b}, &handed} }
		}},
		"a revoked hold can be handed over": {rule: "RevokeByToken", says: "HandOver of a revoked hold", change: func() around {
			return func(b backend.Backend) backend.Backend { return handsOverRevoked{wrapper{b}} }
		}},
		"a batch enters for an owner's hold that has run out": {rule: "BatchRenewMixed", says: "beside another one of its owner", change: func() around {
			var released sync.Map
			return func(b backend.Backend) backend.Backend { return batchReenters{wrapper{b}, &released} }
		}},
		"an owner's record has one TTL": {rule: "RenewByID", says: "longer than that of the outer one", change: func() around {
			var ttls sync.Map
			return func(b backend.Backend) backend.Backend { return oneTTLPerRecord{wrapper{b}, &ttls} }
		}},
		"an owner's record has one TTL in batches": {rule: "BatchRenewMixed", says: "longer than that of the outer one", change: func() around {
			var ttls sync.Map
			return func(b backend.Backend) backend.Backend { return oneTTLPerRecord{wrapper{b}, &ttls} }
		}},
		"false ends a page of the list": {rule: "ListShowsHeldKeys", says: "although it returned false", change: func() around {
			return func(b backend.Backend) backend.Backend { return listsPages{wrapper{b}} }
		}},
		"inspect unescapes the key": {rule: "InspectShows", says: "Inspect of the", change: func() around {
			return func(b backend.Backend) backend.Backend { return inspectsUnescaped{wrapper{b}} }
		}},
		"a watch signals once": {rule: "WatchBeforeReturn", says: "to one watch, which had begun while the key was free", change: func() around {
			return func(b backend.Backend) backend.Backend { return watchesOnce{wrapper{b}} }
		}},
		"who raises the floor beside another one waits for that": {rule: "RaisedFloorCounts", says: "raised by several at once", change: func() around {
			f := &flight{}
			return func(b backend.Backend) backend.Backend { return raisesOnce{wrapper{b}, f} }
		}},
		"a place is withdrawn once, also if that failed": {rule: "QueueWithdraw", queue: true, change: func() around {
			return func(b backend.Backend) backend.Backend { return withdrawsOnce{wrapper{b}} }
		}},
		"a place loses its pair": {rule: "HolderIsShown", says: `; expected "next" (host another host, pid 4712), pair "fedcba9876543210"`, queue: true, change: func() around {
			return func(b backend.Backend) backend.Backend { return placesUnpaired{wrapper{b}} }
		}},
		"a batch loses the label": {rule: "InspectShows", says: "before its Locker renewed it", change: func() around {
			var renewed sync.Map
			return func(b backend.Backend) backend.Backend { return batchDropsLabel{wrapper{b}, &renewed} }
		}},
		"the tokens of owners do not count": {rule: "LastTokenCoversAll", says: "after a key of an owner", change: func() around {
			var last atomic.Uint64
			return func(b backend.Backend) backend.Backend { return lastOfNoOwner{wrapper{b}, &last} }
		}},
		"a batch whose context has ended leaves its answers empty": {rule: "CancelledSendsNothing", says: "for a hold that was released", change: func() around {
			return func(b backend.Backend) backend.Backend { return batchBreaks{wrapper{b}} }
		}},
		"inspect takes an ended context for a free key": {rule: "CancelledSendsNothing", says: "Inspect of a hold that is held", change: func() around {
			return func(b backend.Backend) backend.Backend { return inspectsNoRow{wrapper{b}} }
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			store, change := memlock.NewStore(nil), c.change()
			mustSay(t, conformance.Config{TTL: 300 * time.Millisecond, Budget: 5 * time.Second, OpenBackend: func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: c.queue})
				if err != nil {
					return nil, err
				}
				return change(b), nil
			}}, c.rule, c.says)
		})
	}
	all.Wait()
}

// heldNow is the error of who gives up waiting.
func heldNow(m *lockerMutant, ctx context.Context, key string, opts []lock.Option) error {
	l, err := m.Client.TryAcquire(context.Background(), key, opts...)
	if err == nil {
		_ = l.Release(context.Background())
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

func behindAnotherIsNotTold(m *lockerMutant) {
	var mu sync.Mutex
	waiting := map[string]int{}
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		line := key + "\x00" + with(opts).Owner
		mu.Lock()
		ahead := waiting[line]
		waiting[line]++
		mu.Unlock()
		defer func() {
			mu.Lock()
			if waiting[line]--; waiting[line] == 0 {
				delete(waiting, line)
			}
			mu.Unlock()
		}()
		l, err := m.Client.Acquire(ctx, key, opts...)
		if ahead > 0 && errors.Is(err, lock.ErrHeld) && ctx.Err() != nil {
			err = fmt.Errorf("lock: waiting: %w", ctx.Err())
		}
		return l, err
	}
}

// inLine has those without an owner wait in a line of the Locker, the first of whom asks the
// server. gaveUp is what is left when the first one has given up.
func inLine(m *lockerMutant, name func(key string) string, gaveUp func([]chan struct{}) []chan struct{}) {
	var mu sync.Mutex
	lines, closed := map[string][]chan struct{}{}, make(chan struct{})
	var once sync.Once
	m.close = func() error { once.Do(func() { close(closed) }); return m.Client.Close() }
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		if ctx.Err() != nil || with(opts).Owner != "" {
			return m.Client.Acquire(ctx, key, opts...)
		}
		line, me := name(key), make(chan struct{}, 1)
		mu.Lock()
		lines[line] = append(lines[line], me)
		if len(lines[line]) == 1 {
			me <- struct{}{}
		}
		mu.Unlock()
		leave := func(next func([]chan struct{}) []chan struct{}) {
			mu.Lock()
			defer mu.Unlock()
			q := lines[line]
			if q[0] != me {
				for i := range q {
					if q[i] == me {
						lines[line] = append(q[:i], q[i+1:]...)
						return
					}
				}
				return
			}
			if q = next(q); len(q) == 0 {
				delete(lines, line)
				return
			}
			lines[line] = q
			select {
			case q[0] <- struct{}{}:
			default:
			}
		}
		served := func(q []chan struct{}) []chan struct{} { return q[1:] }
		select {
		case <-me:
		case <-ctx.Done():
			err := heldNow(m, ctx, key, opts)
			leave(gaveUp)
			return nil, err
		case <-closed:
			leave(served)
			return nil, lock.ErrClosed
		}
		l, err := m.Client.Acquire(ctx, key, opts...)
		if err != nil && ctx.Err() != nil {
			leave(gaveUp)
		} else {
			leave(served)
		}
		return l, err
	}
}

func ownersTurn(m *lockerMutant) {
	var mu sync.Mutex
	turns, closed := map[string]chan struct{}{}, make(chan struct{})
	var once sync.Once
	m.close = func() error { once.Do(func() { close(closed) }); return m.Client.Close() }
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		owner := with(opts).Owner
		if owner == "" || ctx.Err() != nil {
			return m.Client.Acquire(ctx, key, opts...)
		}
		if l, err := m.Client.TryAcquire(ctx, key, opts...); err == nil {
			return l, nil // it enters at once
		} else if ctx.Err() != nil {
			return nil, err
		} else if !errors.Is(err, lock.ErrHeld) {
			return m.Client.Acquire(ctx, key, opts...)
		}
		mu.Lock()
		turn := turns[key+"\x00"+owner]
		if turn == nil {
			turn = make(chan struct{}, 1)
			turns[key+"\x00"+owner] = turn // dropped below when nobody has it; good enough here
		}
		mu.Unlock()
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return nil, heldNow(m, ctx, key, nil)
		case <-closed:
			return nil, lock.ErrClosed
		}
		done := func() {
			<-turn
			mu.Lock()
			if len(turn) == 0 && turns[key+"\x00"+owner] == turn {
				delete(turns, key+"\x00"+owner)
			}
			mu.Unlock()
		}
		l, err := m.Client.Acquire(ctx, key, opts...)
		if err != nil {
			done()
			return nil, err
		}
		context.AfterFunc(l.Context(), done)
		return l, nil
	}
}

func maxHoldOnCallersContext(m *lockerMutant) {
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		begun := time.Now()
		l, err := m.Client.Acquire(ctx, key, opts...)
		if waited := time.Since(begun) > time.Millisecond; err == nil && waited && with(opts).MaxHold > 0 {
			stop := context.AfterFunc(ctx, func() { _ = l.Release(context.Background()) })
			context.AfterFunc(l.Context(), func() { stop() })
		}
		return l, err
	}
}

// endsEarlier gives the lease a context that can end before that of the inner one.
func endsEarlier(l *leaseMutant) (end func(cause error)) {
	ctx, cancel := context.WithCancelCause(context.Background())
	inner := l.Lease.Context()
	context.AfterFunc(inner, func() { cancel(context.Cause(inner)) })
	l.now = func() context.Context {
		if inner.Err() != nil {
			cancel(context.Cause(inner))
		}
		return ctx
	}
	l.release = func(ctx context.Context) error {
		err := l.Lease.Release(ctx)
		cancel(context.Cause(inner))
		return err
	}
	return cancel
}

func renewUntilDeadline(m *lockerMutant) {
	m.lease = func(_ context.Context, l *leaseMutant) {
		end := endsEarlier(l)
		var mu sync.Mutex
		var until, of time.Time // the deadline of the call, and that of the lease that it is for
		limit := func() (time.Time, bool) {
			mu.Lock()
			defer mu.Unlock()
			d, ok := l.Lease.Deadline()
			if ok && d.Equal(of) && until.Before(d) {
				d = until
			}
			return d, ok
		}
		l.deadline = limit
		l.renew = func(ctx context.Context) error {
			err := l.Lease.Renew(ctx)
			if deadline, timed := ctx.Deadline(); err == nil && timed {
				mu.Lock()
				until = deadline
				of, _ = l.Lease.Deadline()
				mu.Unlock()
				time.AfterFunc(time.Until(deadline), func() {
					if d, _ := limit(); !d.After(time.Now()) && l.Lease.Context().Err() == nil {
						end(lock.ErrExpired)
						_ = l.Lease.Release(context.Background())
					}
				})
			}
			return err
		}
	}
}

func renewRestartsUnrenewed(m *lockerMutant) {
	changed := func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			return get(ctx, key, append(slices.Clone(opts), func(s *lock.Settings) {
				if s.NoRenewal {
					s.MaxHold = 0
				}
			})...)
		}
	}
	m.try, m.acquire = changed(m.try), changed(m.acquire)
	m.lease = func(_ context.Context, l *leaseMutant) {
		if !l.set.NoRenewal || l.set.MaxHold == 0 {
			return
		}
		end := endsEarlier(l)
		release := l.release
		var mu sync.Mutex
		limit, over, told := time.Now().Add(min(l.set.MaxHold, 1000*time.Hour)), false, false
		var timer *time.Timer
		reach := func() {
			mu.Lock()
			defer mu.Unlock()
			if left := time.Until(limit); left > 0 {
				timer.Reset(left)
				return
			}
			if l.Lease.Context().Err() == nil {
				over = true
				end(lock.ErrMaxHold)
				_ = l.Lease.Release(context.Background())
			}
		}
		timer = time.AfterFunc(time.Until(limit), reach)
		context.AfterFunc(l.Lease.Context(), func() { timer.Stop() })
		l.deadline = func() (time.Time, bool) {
			mu.Lock()
			defer mu.Unlock()
			d, ok := l.Lease.Deadline()
			if limit.Before(d) {
				d = limit
			}
			return d, ok
		}
		l.release = func(ctx context.Context) error {
			mu.Lock()
			first := over && !told
			told = told || over
			ended := over
			mu.Unlock()
			switch {
			case first:
				return lock.ErrMaxHold
			case ended:
				return lock.ErrNotHeld
			}
			return release(ctx)
		}
		l.renew = func(ctx context.Context) error {
			err := l.Lease.Renew(ctx)
			mu.Lock()
			defer mu.Unlock()
			if over {
				return lock.ErrMaxHold
			}
			if err == nil {
				limit = time.Now().Add(min(l.set.MaxHold, 1000*time.Hour))
			}
			return err
		}
	}
}

// records are what a Locker knows of the keys that owners hold.
type records struct {
	mu sync.Mutex
	m  map[string]*record
}

type record struct {
	lock.Settings // of the outermost hold
	holds         int
}

func recordsOf(m *lockerMutant, enters func(s *lock.Settings, outermost lock.Settings)) {
	r := &records{m: map[string]*record{}}
	changed := func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			set := with(opts)
			if set.Owner == "" {
				return get(ctx, key, opts...)
			}
			id := key + "\x00" + set.Owner
			r.mu.Lock()
			if rec := r.m[id]; rec != nil {
				outermost := rec.Settings
				opts = append(slices.Clone(opts), func(s *lock.Settings) { enters(s, outermost) })
			}
			r.mu.Unlock()
			l, err := get(ctx, key, opts...)
			if err != nil {
				return l, err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			rec := r.m[id]
			if rec == nil {
				rec = &record{Settings: set}
				r.m[id] = rec
			}
			rec.holds++
			context.AfterFunc(l.Context(), func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				if rec.holds--; rec.holds == 0 {
					delete(r.m, id)
				}
			})
			return l, nil
		}
	}
	m.try, m.acquire = changed(m.try), changed(m.acquire)
}

func secondReleaseOfOwner(m *lockerMutant) {
	var mu sync.Mutex
	holds := map[string]map[*leaseMutant]bool{}
	m.lease = func(_ context.Context, l *leaseMutant) {
		if l.set.Owner == "" {
			return
		}
		id := l.Lease.Key() + "\x00" + l.set.Owner
		mu.Lock()
		if holds[id] == nil {
			holds[id] = map[*leaseMutant]bool{}
		}
		holds[id][l] = true
		mu.Unlock()
		context.AfterFunc(l.Lease.Context(), func() {
			mu.Lock()
			defer mu.Unlock()
			if delete(holds[id], l); len(holds[id]) == 0 {
				delete(holds, id)
			}
		})
		l.release = func(ctx context.Context) error {
			err := l.Lease.Release(ctx)
			if ctx.Err() == nil || !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for other := range holds[id] {
				if other != l {
					_ = other.Lease.Release(ctx)
					break
				}
			}
			return err
		}
	}
}

func timedWaitIsCancelled(m *lockerMutant) {
	m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
		begun := time.Now()
		l, err := m.Client.Acquire(ctx, key, opts...)
		if _, timed := ctx.Deadline(); timed && time.Since(begun) > time.Millisecond && errors.Is(err, lock.ErrClosed) {
			err = context.Canceled
		}
		return l, err
	}
}

type handsOverXX struct {
	wrapper
	handed *sync.Map // what was handed over, by ID, which it knows
}

func (b handsOverXX) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	g, err := ability[backend.HandOverer](b.Backend).HandOver(ctx, from, to)
	if err == nil {
		b.handed.Store(from.ID, true)
	}
	if _, ok := b.handed.Load(from.ID); ok || !errors.Is(err, backend.ErrNotHeld) {
		return g, err
	}
	rec, held := ability[backend.Inspector](b.Backend).Inspect(ctx, from.Key)
	if held != nil || ability[backend.ForceReleaser](b.Backend).ForceRelease(ctx, from.Key, rec.Token) != nil {
		return g, err
	}
	return b.Backend.Try(ctx, to)
}

type handsOverRevoked struct{ wrapper }

func (b handsOverRevoked) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	g, err := ability[backend.HandOverer](b.Backend).HandOver(ctx, from, to)
	if !errors.Is(err, backend.ErrNotHeld) {
		return g, err
	}
	rec, held := ability[backend.Inspector](b.Backend).Inspect(ctx, from.Key)
	if held != nil || !rec.Revoked || rec.Token != from.Token ||
		ability[backend.ForceReleaser](b.Backend).ForceRelease(ctx, from.Key, rec.Token) != nil {
		return g, err
	}
	return b.Backend.Try(ctx, to)
}

type batchReenters struct {
	wrapper
	released *sync.Map
}

func (b batchReenters) Release(ctx context.Context, h backend.Hold) error {
	b.released.Store(h.ID, true)
	return b.Backend.Release(ctx, h)
}

func (b batchReenters) ReleaseTelling(ctx context.Context, h backend.Hold) (int, error) {
	b.released.Store(h.ID, true)
	return ability[backend.ReleaseTeller](b.Backend).ReleaseTelling(ctx, h)
}

func (b batchReenters) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := ability[backend.BatchRenewer](b.Backend).RenewBatch(ctx, holds)
	for i, h := range holds {
		if _, gone := b.released.Load(h.ID); gone || h.Owner == "" || !errors.Is(out[i].Err, backend.ErrNotHeld) {
			continue
		}
		if _, err := ability[backend.Inspector](b.Backend).Inspect(ctx, h.Key); err != nil {
			continue // no record, so there is nothing to write to
		}
		g, err := b.Backend.Try(ctx, backend.Request{Key: h.Key, ID: h.ID, Owner: h.Owner, TTL: h.TTL})
		if err == nil && (h.Token == 0 || g.Token == h.Token) {
			out[i] = backend.Renewal{Validity: g.Validity}
		} else if err == nil {
			_ = b.Backend.Release(ctx, h)
		}
	}
	return out
}

type oneTTLPerRecord struct {
	wrapper
	ttls *sync.Map // by token
}

func (b oneTTLPerRecord) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if err == nil && req.Owner != "" {
		b.ttls.LoadOrStore(g.Token, req.TTL)
		if g.Holds == 1 {
			b.ttls.Store(req.Key, g.Token)
		}
	}
	return g, err
}

func (b oneTTLPerRecord) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	ttl := h.TTL
	if token, ok := b.ttls.Load(h.Key); ok && h.Owner != "" {
		if first, ok := b.ttls.Load(token); ok {
			h.TTL = first.(time.Duration)
		}
	}
	v, err := b.Backend.Renew(ctx, h)
	if err == nil {
		v.For = backend.ValidFor(ttl)
	}
	return v, err
}

func (b oneTTLPerRecord) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	for i, h := range holds {
		out[i].Validity, out[i].Err = b.Renew(ctx, h)
	}
	return out
}

type listsPages struct{ wrapper }

func (b listsPages) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	n, ended := 0, false // within a page
	return ability[backend.Lister](b.Backend).List(ctx, prefix, func(rec backend.Record) bool {
		if n++; n > 50 {
			n, ended = 1, false
		}
		if !ended {
			ended = !visit(rec)
		}
		return true
	})
}

type inspectsUnescaped struct{ wrapper }

func (b inspectsUnescaped) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := ability[backend.Inspector](b.Backend).Inspect(ctx, strings.NewReplacer("%25", "%", "%2F", "/", "%20", " ").Replace(key))
	return rec, err
}

type watchesOnce struct{ wrapper }

func (b watchesOnce) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	inner, stop := context.WithCancel(ctx)
	hints, err := ability[backend.Watcher](b.Backend).Watch(inner, key)
	if err != nil {
		stop()
		return nil, err
	}
	out := make(chan backend.Hint, 1)
	go func() {
		defer stop()
		select {
		case hint := <-hints:
			out <- hint
		case <-ctx.Done():
		}
	}()
	return out, nil
}

// flight is one call of RaiseFloor at a time, whose answer is that of all who come meanwhile.
type flight struct {
	mu   sync.Mutex
	call *raising
}

type raising struct {
	done chan struct{}
	err  error
}

type raisesOnce struct {
	wrapper
	f *flight
}

func (b raisesOnce) RaiseFloor(ctx context.Context, above uint64) error {
	b.f.mu.Lock()
	if c := b.f.call; c != nil {
		b.f.mu.Unlock()
		<-c.done
		return c.err
	}
	c := &raising{done: make(chan struct{})}
	b.f.call = c
	b.f.mu.Unlock()
	time.Sleep(time.Millisecond) // the way to the server
	c.err = ability[backend.FloorRaiser](b.Backend).RaiseFloor(ctx, above)
	b.f.mu.Lock()
	b.f.call = nil
	b.f.mu.Unlock()
	close(c.done)
	return c.err
}

type withdrawsOnce struct{ wrapper }

func (b withdrawsOnce) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := ability[backend.Queuer](b.Backend).Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	return &onceTicket{Ticket: t}, nil
}

type onceTicket struct {
	backend.Ticket
	once sync.Once
}

func (t *onceTicket) Withdraw(ctx context.Context) (err error) {
	t.once.Do(func() { err = t.Ticket.Withdraw(ctx) })
	return err
}

type placesUnpaired struct{ wrapper }

func (b placesUnpaired) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	req.Holder.PairID = ""
	return ability[backend.Queuer](b.Backend).Enqueue(ctx, req)
}

type batchDropsLabel struct {
	wrapper
	renewed *sync.Map // tokens of records, by batches
}

func (b batchDropsLabel) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := ability[backend.BatchRenewer](b.Backend).RenewBatch(ctx, holds)
	for i, h := range holds {
		if rec, err := ability[backend.Inspector](b.Backend).Inspect(ctx, h.Key); out[i].Err == nil && err == nil {
			b.renewed.Store(rec.Token, true)
		}
	}
	return out
}

func (b batchDropsLabel) shown(rec backend.Record) backend.Record {
	if _, ok := b.renewed.Load(rec.Token); ok {
		rec.Holder.Label = ""
	}
	return rec
}

func (b batchDropsLabel) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := ability[backend.Inspector](b.Backend).Inspect(ctx, key)
	return b.shown(rec), err
}

func (b batchDropsLabel) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return ability[backend.Lister](b.Backend).List(ctx, prefix, func(rec backend.Record) bool { return visit(b.shown(rec)) })
}

func (b batchDropsLabel) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if held := (*backend.HeldError)(nil); errors.As(err, &held) {
		if rec, err := b.Inspect(ctx, req.Key); err == nil {
			said := *held
			said.Holder.Label = rec.Holder.Label
			return g, &said
		}
	}
	return g, err
}

type lastOfNoOwner struct {
	wrapper
	last *atomic.Uint64
}

func (b lastOfNoOwner) granted(owner string, g backend.Grant, err error) (backend.Grant, error) {
	for last := b.last.Load(); err == nil && owner == "" && g.Token > last && !b.last.CompareAndSwap(last, g.Token); {
		last = b.last.Load()
	}
	return g, err
}

func (b lastOfNoOwner) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	return b.granted(req.Owner, g, err)
}

func (b lastOfNoOwner) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	g, err := ability[backend.HandOverer](b.Backend).HandOver(ctx, from, to)
	return b.granted(to.Owner, g, err)
}

func (b lastOfNoOwner) LastToken(ctx context.Context) (uint64, error) {
	return b.last.Load(), ctx.Err()
}

type batchBreaks struct{ wrapper }

func (b batchBreaks) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	for i, h := range holds {
		if ctx.Err() != nil {
			break
		}
		out[i].Validity, out[i].Err = b.Backend.Renew(ctx, h)
	}
	return out
}

type inspectsNoRow struct{ wrapper }

func (b inspectsNoRow) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := ability[backend.Inspector](b.Backend).Inspect(ctx, key)
	if ctx.Err() != nil {
		err = backend.ErrNotHeld
	}
	return rec, err
}
