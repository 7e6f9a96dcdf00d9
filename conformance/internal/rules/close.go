package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var closeRules = []*engine.Rule{
	{
		Name:      "CloseEndsHolds",
		Statement: "Close ends the leases of its Locker only, with ErrClosed, and frees their keys.",
		Run:       closeEndsHolds,
	},
	{
		Name:      "CloseEndsWaits",
		Statement: "Close ends waits, and refuses what comes later, with ErrClosed.",
		RestsOn:   "waiting",
		Run:       closeEndsWaits,
	},
	{
		Name:      "CloseTwice",
		Statement: "A second Close waits for the first; simultaneous ones are safe.",
		Run:       closeTwice,
	},
	{
		Name:         "CloseUnreachable",
		Statement:    "What a Locker held that was closed without a reachable server ends within its TTL, and nothing more is asked for it.",
		NeedsBackend: true,
		Run:          closeUnreachable,
	},
	{
		Name:      "IdleLockerWorks",
		Statement: "A Locker that was idle works as before, and has kept what it holds.",
		RestsOn:   "renewal",
		LimitTTLs: 30,
		Virtual:   13 * time.Minute,
		Run:       idleLockerWorks,
	},
	{
		Name:      "NoLeak",
		Statement: "After Close no goroutine of the Locker is left, and no held key.",
		Run:       noLeak,
	},
	{
		Name:      "NothingKept",
		Statement: "An open Locker keeps nothing of ended holds, refusals and waits: no memory, goroutine or watch.",
		Run:       nothingKept,
	},
	{
		Name:      "PoolClean",
		Statement: "The client that the lock was given keeps no setting, transaction or watch.",
		Run:       poolClean,
	},
}

func closeEndsHolds(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	var holds []*engine.Hold
	for i := range 6 {
		ttl := e.Long
		if i%2 == 0 {
			ttl = e.TTL
		}
		var more []lock.Option
		if i == 5 && e.Claimed.WithoutRenewal {
			more = append(more, lock.WithoutRenewal())
		}
		holds = append(holds, a.MustTryFor(e.Key("%d", i), ttl, more...))
	}
	var mu sync.Mutex
	eachKind(e, slices.Concat([]kind{plain}, kindsAndUnrenewed(e), pairs(e)), func(k kind) {
		if h, ok := k.take(a, e.Key("%s", k.name), e.Long); ok {
			mu.Lock()
			holds = append(holds, h)
			half := len(holds)%2 == 0
			mu.Unlock()
			if half && e.Claimed.ManualRenewal {
				_ = h.Renew() // which Close has nothing to do with
			}
		}
	})
	for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
		key := e.Key("endless-by-%s", op)
		h, err := a.Get(op, get, context.Background(), key, e.Opts(e.Long))
		if err != nil {
			e.UnexpectedFatal(key, err, "%s with a context that never ends returned %s for a free key; expected a lease", op, engine.Outcome(err))
		}
		holds = append(holds, h)
	}
	if owner := oneOwner(e); owner != nil {
		for range 3 { // none of which may be left
			holds = append(holds, a.MustTry(e.Key("entered"), owner...))
		}
	}
	other := b.MustTryFor(e.Key("other"), e.TTL)
	refused := e.Locker()
	refused.MustRefuse(e.Key("other"), "another client holds it")
	if err := refused.Close(); err != nil {
		e.Latef("", "Close of a Locker that was refused a key returned %s; expected no error", engine.Outcome(err))
	}
	done := make(chan struct{})
	wait := e.Start(func() {
		if err := a.Close(); err != nil {
			e.Latef("", "Close returned %s; expected no error, since the server can be reached", engine.Outcome(err))
		}
		close(done)
	})
	limit := 5*time.Second + e.Slack() // five seconds are promised
	if e.Virtual() {                   // where nothing else takes time
		limit = 5*time.Second + e.Slack()/8
	}
	if !e.Within(limit, done) {
		e.OverdueFatalf("", "Close had not returned after %s, of a Locker with %d leases, some of which were renewed by hand", limit, len(holds))
	}
	wait()
	for _, h := range holds { // before anything takes time
		if !h.Lost() {
			e.Failf(h.Key, "the context of a lease was alive after the Close of its Locker")
		} else if cause := h.Cause(); !errors.Is(cause, lock.ErrClosed) && !errors.Is(cause, lock.ErrExpired) || errors.Is(cause, lock.ErrReleased) {
			e.Failf(h.Key, "context.Cause of a lease whose Locker was closed is %s; expected ErrClosed", engine.Outcome(cause))
		} else if errors.Is(cause, lock.ErrClosed) && errors.Is(cause, lock.ErrLost) {
			e.Failf(h.Key, "context.Cause of a lease whose Locker was closed is %s; expected ErrClosed and no loss", engine.Outcome(cause))
		}
		deadlineIsOver(e, h)
		if h.Lease.Token() != h.Token {
			e.Failf(h.Key, "the token of a lease is %d after the Close of its Locker, and was %d before; expected the same, since who is told late still shows it", h.Lease.Token(), h.Token)
		}
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	for i, h := range holds {
		next := b.Wins(h.Key, e.Slack(), 20*time.Millisecond, "the Locker of its holder was closed, and its TTL was up to "+e.Long.String())
		_ = next.Release(e.Ctx)
		ctx, what := e.Ctx, "Release after Close"
		if i%2 == 1 {
			ctx, what = ended, "Release after Close, with a context that had ended,"
		}
		if err := h.Release(ctx); err == nil || !errors.Is(err, lock.ErrClosed) && !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(h.Key, err, "%s returned %s; expected ErrClosed or ErrNotHeld", what, engine.Outcome(err))
		}
		if err := h.Release(e.Ctx); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(h.Key, err, "a second Release after Close returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
		if !e.Claimed.ManualRenewal {
			continue
		}
		if err := h.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(h.Key, err, "Renew after Close returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
	}
	if e.Virtual() {
		e.Pause(2 * e.TTL) // its renewals go on
	}
	other.MustLive("only other Lockers were closed, one of which was refused its key")
	other.MustRelease()
	e.Together(func() { closeEndsMany(e) }, func() { closeFreesMany(e) })
}

// closeFreesMany closes a Locker that holds much, of a server that answers at once.
func closeFreesMany(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	holds := make([]*engine.Hold, manyAtOnce(e))
	const atOnce = 8
	each := func(f func(i int)) {
		e.Each(atOnce, func(n int) {
			for i := n; i < len(holds); i += atOnce {
				f(i)
			}
		})
	}
	each(func(i int) { holds[i] = a.MustTry(e.Key("all-%d", i)) })
	if err := a.Close(); err != nil {
		e.Latef("", "Close of a Locker with %d leases returned %s; expected no error, since the server can be reached", len(holds), engine.Outcome(err))
		return // it says that it could not
	}
	each(func(i int) {
		b.Soon(holds[i].Key, fmt.Sprintf("the Locker of its holder, which had %d leases, was closed without an error", len(holds))).MustRelease()
	})
}

// closeEndsMany closes a Locker that holds more than can be given back one after the other
// in the time that is promised, since its server is slow.
func closeEndsMany(e *engine.Env) {
	const many, slow = 80, 100 * time.Millisecond
	if e.OpenBackend == nil || e.Claimed.Expiry == backend.ClockConnection {
		return // each of the holds would take a connection
	}
	c, server := e.FaultyWhole()
	defer server.Heal()
	holds := make([]*engine.Hold, many)
	const atOnce = 8
	e.Each(atOnce, func(n int) {
		for i := n; i < many; i += atOnce {
			holds[i] = c.MustTry(e.Key("many-%d", i))
		}
	})
	server.All(faultlock.DelayBefore(slow), faultlock.OpRelease)
	done := make(chan struct{})
	wait := e.Start(func() { _ = c.Close(); close(done) })
	if !e.Within(5*time.Second+e.Slack(), done) {
		e.OverdueFatalf("", "Close of a Locker with %d leases had not returned after %s; its server takes %s for each release", many, 5*time.Second+e.Slack(), slow)
	}
	wait()
	for _, h := range holds {
		if !h.Lost() {
			e.Failf(h.Key, "the context of one of %d leases was alive after the Close of its Locker", many)
			return
		}
	}
}

func closeEndsWaits(e *engine.Env) {
	e.Together(func() { closeEndsNewWaits(e) }, func() { closeEndsOldWaits(e) }, func() { closeEndsVainWaits(e) }, func() { closeEndsOwnWaits(e) })
}

// closeEndsOwnWaits closes a Locker that holds a key for which its own callers wait. The key becomes
// free with that, and is for none of them.
func closeEndsOwnWaits(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("its own")
	h := a.MustTry(key)
	waits := []*engine.Acquiring{a.Acquiring(key), a.Acquiring(key), a.Acquiring(key)}
	e.Settle()
	h.MustLive("nobody has released it")
	_ = a.Close()
	for _, w := range waits {
		if !e.Within(e.Slack(), w.Done) {
			e.OverdueFatalf(key, "a waiter for a key that its own Locker held had not returned %s after its Close", e.Slack())
		}
		if w.Err == nil {
			e.Fatalf(key, "a waiter for a key that its own Locker held was granted it, while that was closed; expected ErrClosed")
		}
		e.Is(key, w.Err, "Acquire of a key that its own Locker held, while that was closed,", lock.ErrClosed)
	}
	b.Soon(key, "its holder was closed, with those who waited for it").MustRelease()
}

// closeEndsVainWaits closes a Locker of which callers wait for a server that is away.
func closeEndsVainWaits(e *engine.Env) {
	if e.OpenBackend == nil {
		return
	}
	e.EachFaultSite(func(via engine.FaultSite) {
		a, c := e.FaultyAt(via, nil)
		c.All(faultlock.FailBefore())
		defer c.Heal()
		keys := []string{e.Key("%s-away", via.Name), e.Key("%s-away", via.Name), e.Key("%s-away-too", via.Name)}
		waits := make([]*engine.Acquiring, len(keys))
		for i, key := range keys {
			waits[i] = a.Acquiring(key)
		}
		e.Settle()
		_ = a.Close()
		for i, w := range waits {
			if !e.Within(e.Slack(), w.Done) {
				e.OverdueFatalf(keys[i], "a waiter had not returned %s after the Close of its Locker, whose server could not be reached", e.Slack())
			}
			e.Is(keys[i], w.Err, "Acquire, while its Locker was closed, whose server could not be reached,", lock.ErrClosed)
		}
	})
}

// closeEndsOldWaits closes a Locker of which a caller has waited for longer than many a lock
// asks in one go.
func closeEndsOldWaits(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("old")
	h := b.MustTry(key)
	w := a.Acquiring(key)
	wait := max(e.TTL*5/2, 2*time.Second)
	if e.Unhurried() {
		wait = 20 * time.Second
	}
	for end := time.Now().Add(wait); time.Now().Before(end) && !e.Within(e.TTL/4, w.Done); {
		e.Log.Patient()
	}
	h.MustLive("nobody has released it")
	_ = a.Close()
	closeEndsWait(e, w, key)
	h.MustRelease()
}

func closeEndsWait(e *engine.Env, w *engine.Acquiring, key string) {
	if !e.Within(e.Slack(), w.Done) {
		e.OverdueFatalf(key, "a waiter had not returned %s after the Close of its Locker", e.Slack())
	}
	if w.Err == nil {
		e.Fatalf(key, "a waiter was granted a key that was held")
	}
	e.Is(key, w.Err, "Acquire, while its Locker was closed,", lock.ErrClosed)
}

func closeEndsNewWaits(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("a")
	asks := append(optionKinds(e, b), optionPairs(e, b)...)
	h := b.MustTry(key)
	var waiters []*engine.Acquiring
	many := 5
	if e.Virtual() {
		many = 150
	}
	for range many {
		waiters = append(waiters, a.Acquiring(key))
	}
	for _, k := range asks {
		waiters = append(waiters, a.Acquiring(key, k.opts...))
	}
	entered := e.Key("entered")
	if owner := oneOwner(e); owner != nil {
		a.MustTry(entered, owner...)
	}
	timed := &engine.Acquiring{Done: make(chan struct{})}
	e.Start(func() {
		ctx, cancel := context.WithTimeout(e.Ctx, time.Hour)
		defer cancel()
		timed.Hold, timed.Err = a.Acquire(ctx, key)
		close(timed.Done)
	})
	waiters = append(waiters, timed)
	e.Settle()
	h.MustLive("nobody has released it")
	_ = a.Close()
	for _, w := range waiters {
		closeEndsWait(e, w, key)
	}
	_, err := a.Try(key)
	e.Is(key, err, "TryAcquire on a closed Locker", lock.ErrClosed)
	_, err = a.Acquire(e.Ctx, e.Key("free"))
	e.Is(e.Key("free"), err, "Acquire of a free key on a closed Locker", lock.ErrClosed)
	_, err = a.Acquire(e.Ctx, key)
	e.Is(key, err, "Acquire of a held key on a closed Locker", lock.ErrClosed)
	for _, k := range asks {
		for what, key := range map[string]string{"a held key": key, "a free key": e.Key("free"), "a key that Close has freed": entered} {
			for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
				if _, err := a.Get(op, get, e.Ctx, key, e.Opts(e.Long, k.opts...)); err == nil {
					e.Failf(key, "%s of %s with %s was granted by a closed Locker", op, what, k.name)
				} else {
					only(e, key, op+" of "+what+" on a closed Locker, for a lease with "+k.name+",", err, lock.ErrClosed)
				}
			}
		}
	}
	h.MustLive("only another Locker was closed")
	h.MustRelease()
	b.Soon(key, "it was released, and those who waited for it were closed").MustRelease()
}

func closeTwice(e *engine.Env) {
	a := e.Locker()
	a.MustTry(e.Key("a"))
	_ = a.Close()
	if err := a.Close(); err != nil {
		e.Unexpected("", err, "the second Close returned %s; expected no error", engine.Outcome(err))
	}
	if e.OpenBackend != nil {
		secondCloseWaits(e)
	}
	b := e.Locker()
	for round := range 3 {
		c := e.Locker()
		e.Each(9, func(i int) {
			if i == 8 {
				takesUntilClosed(e, c, round)
				return
			}
			key := e.Key("%d-%d", round, i%3)
			if i >= 6 {
				e.Pause(e.Randomly(5 * time.Millisecond))
				_ = c.Close()
				return
			}
			for range 50 {
				h, err := c.Acquire(e.Ctx, key)
				switch {
				case err == nil:
					if err := h.Release(e.Ctx); err != nil && !errors.Is(err, lock.ErrClosed) && !errors.Is(err, lock.ErrNotHeld) {
						e.Unexpected(key, err, "Release beside Close returned %s; expected no error, ErrClosed or ErrNotHeld", engine.Outcome(err))
					}
				case errors.Is(err, lock.ErrClosed):
					return
				default:
					e.Unexpected(key, err, "Acquire beside Close returned %s; expected a lease or ErrClosed", engine.Outcome(err))
					return
				}
			}
		})
		for i := range 3 {
			key := e.Key("%d-%d", round, i)
			b.Soon(key, "all its holders were closed").MustRelease()
		}
	}
}

// takesUntilClosed takes one key after the other, and leaves them to a Close under way: each
// lease that was granted is ended by it.
func takesUntilClosed(e *engine.Env, c *engine.Client, round int) {
	var holds []*engine.Hold
	for n := range 200 {
		key := e.Key("%d-left-%d", round, n)
		h, err := c.Try(key)
		if err != nil {
			if !errors.Is(err, lock.ErrClosed) {
				e.Unexpected(key, err, "TryAcquire beside Close returned %s; expected a lease or ErrClosed", engine.Outcome(err))
			}
			break
		}
		holds = append(holds, h)
		e.Pause(50 * time.Microsecond)
	}
	_ = c.Close() // waits for the one under way
	for _, h := range holds {
		if !h.Lost() {
			e.Failf(h.Key, "the context of a lease that was granted beside Close was alive after Close had returned")
		}
	}
}

// secondCloseWaits closes a Locker twice, the second time while the server has not yet
// answered to the release that the first Close has sent.
func secondCloseWaits(e *engine.Env) {
	c, server := e.FaultyWhole()
	defer server.Heal()
	key := e.Key("under way")
	c.MustTry(key)
	server.All(faultlock.HangBefore(), faultlock.OpRelease)
	first, other := make(chan struct{}), make(chan struct{}, 2)
	wait := e.Start(func() { _ = c.Close(); close(first) })
	for limit := time.Now().Add(e.Slack()); server.Calls(faultlock.OpRelease, key) == 0 && time.Now().Before(limit); {
		e.Pause(time.Millisecond)
	}
	var waits []func()
	for range 2 {
		waits = append(waits, e.Start(func() { _ = c.Locker.Close(); other <- struct{}{} }))
	}
	if e.Within(200*time.Millisecond, other) {
		select {
		case <-first:
		default:
			e.Failf(key, "another Close returned while the first one waited for the answer to a release; it must wait for the first")
		}
	}
	server.Heal()
	for _, ended := range append(waits, wait) {
		ended()
	}
}

// closeUnreachable closes a Locker that renews a hold, and has the server reachable again
// afterwards.
func closeUnreachable(e *engine.Env) {
	defer e.Start(func() { closeUnreleased(e) })()
	a, server := e.FaultyWhole()
	defer server.Heal()
	b := e.Locker()
	key := e.Key("a")
	h := a.MustTryFor(key, e.TTL)
	h.Lapses()
	server.All(faultlock.FailBefore())
	_ = a.Close() // CallsAreBounded asks when it returns
	asked := func() int { return engine.Requests(server, key, append(engine.OpsToKeep, engine.OpsToGet...)...) }
	before, closed := asked(), time.Now()
	server.Heal()
	b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "the Locker of its holder was closed while no server could be reached, and must not renew it any more").MustRelease()
	e.Pause(time.Until(closed.Add(e.TTL))) // it may have been free at once
	if n := asked() - before; n > 0 {
		e.Failf(key, "a Locker asked %d times for the key, or for its renewal, after its Close had returned; expected nothing of it any more", n)
	}
}

// closeUnreleased closes a Locker that can't give back a lease with a TTL that outlasts the Close, which
// takes its time.
func closeUnreleased(e *engine.Env) {
	if !e.Virtual() {
		return
	}
	a, server := e.FaultyWhole()
	defer server.Heal()
	h := a.MustTry(e.Key("for long"))
	h.Lapses()
	server.All(faultlock.FailBefore())
	_ = a.Close()
	if d, known := h.Lease.Deadline(); known && d.After(time.Now()) {
		e.Failf(h.Key, "the deadline of a lease is %s from now, after a Close that could not release it; expected one that is not in the future, since Close ends every lease", engine.Short(time.Until(d)))
	}
}

// closingAtOnce is how many cycles may be closing their Lockers at a time.
const closingAtOnce = 8
