package rules

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var lossRules = []*engine.Rule{
	{
		Name:      "LostByDeadline",
		Statement: "Without renewals the context of a lease ends by its deadline, with ErrExpired.",
		Claims:    []engine.Claim{engine.ClaimLossSignal, engine.ClaimWithoutRenewal},
		Run:       lostByDeadline,
	},
	{
		Name:      "LostBeforeTakeover",
		Statement: "A lease that ran out says lost before another client is granted the key.",
		Claims:    []engine.Claim{engine.ClaimLossSignal, engine.ClaimWithoutRenewal},
		LimitTTLs: 80,
		Run:       lostBeforeTakeover,
	},
	{
		Name:      "LostOnRemoval",
		Statement: "A holder whose record is removed is told within a renewal period, and by Renew and Release.",
		Claims:    []engine.Claim{engine.ClaimLossSignal},
		Run:       lostOnRemoval,
	},
	{
		Name:      "ReleaseIsNoLoss",
		Statement: "Release ends the lease's context with ErrReleased, which is never a loss.",
		Run:       releaseIsNoLoss,
	},
	{
		Name:      "ContextEndsFirst",
		Statement: "Release, maximum hold and Close end the context before others get the key.",
		RestsOn:   "close",
		Run:       contextEndsFirst,
	},
	{
		Name:      "LossEndsUse",
		Statement: "A lost lease stays lost, with its token: Renew and Release fail. The Locker can acquire anew.",
		Claims:    []engine.Claim{engine.ClaimLossSignal, engine.ClaimWithoutRenewal},
		Run:       lossEndsUse,
	},
	{
		Name:      "DeadlineEnds",
		Statement: "The deadline of a lease that has ended is not in the future.",
		Claims:    []engine.Claim{engine.ClaimDeadline},
		Run:       deadlineEnds,
	},
	{
		Name:      "HoldOutlivesAcquireCtx",
		Statement: "The end of no call's context ends a hold or its renewal.",
		RestsOn:   "renewal",
		Run:       holdOutlivesAcquireCtx,
	},
	{
		Name:      "CauseIsStable",
		Statement: "A lease's context lives while held, carries no values, and keeps its first cause.",
		Run:       causeIsStable,
	},
	{
		Name:      "NextSessionHolds",
		Statement: "When a Locker's session has ended, its holds are lost; later ones are not.",
		Claims:    []engine.Claim{engine.ClaimLossSignal},
		Run:       nextSessionHolds,
	},
	{
		Name:         "LeaseIsLocal",
		Statement:    "Reading a lease sends nothing and waits for nothing.",
		NeedsBackend: true,
		Run:          leaseIsLocal,
	},
}

func lostByDeadline(e *engine.Env) {
	a := e.Locker()
	all := kinds(e)
	late := make([]engine.Lateness, len(all))
	for i := range late {
		late[i].By = engine.ThisProcess
	}
	defer func() {
		for i := range late {
			late[i].Judge(e, "", 100*time.Millisecond, "leases with %s were not renewed, and their contexts ended", all[i].name)
		}
	}()
	n := 3 * len(all)
	e.Each(n, func(i int) {
		k, late := all[i%len(all)], &late[i%len(all)]
		key := e.Key("%d", i)
		e.Pause(time.Duration(i) * e.TTL / time.Duration(n)) // at moments of their own: what delays one delays no other
		h, ok := k.take(a, key, e.TTL, lock.WithoutRenewal())
		if !ok {
			return
		}
		h.Lapses()
		if k.owned {
			e.Pause(e.TTL / 3)
			inner, ok := k.take(a, key, e.TTL, lock.WithoutRenewal())
			if !ok {
				return
			}
			inner.Lapses()
			if e.Claimed.Deadline && inner.Until().Before(h.Until().Add(e.TTL/6)) {
				e.Latef(key, "the deadline of an owner's second hold, with a TTL of %s, is %s, and that of the first, which is a third of a TTL older, is %s; expected each to have its own", e.TTL, engine.Seconds(e.Log.At(inner.Until())), engine.Seconds(e.Log.At(h.Until())))
			}
			defer func() { _ = inner.Release(e.Ctx) }()
		}
		deadline, latest := h.Until(), h.UntilAtMost()
		e.Within(time.Until(deadline)-e.TTL/4, h.Lease.Context().Done())
		if d, known := h.Lease.Deadline(); e.Claimed.Deadline && !h.Lost() && (!known || d.Sub(deadline).Abs() > e.TTL/20) {
			e.Failf(key, "the deadline of a lease in the last quarter of its life is %s (known: %t), and was %s before; expected the same, since nobody has renewed it", engine.Seconds(e.Log.At(d)), known, engine.Seconds(e.Log.At(deadline)))
		}
		if !e.Within(time.Until(deadline)+e.Slack(), h.Lease.Context().Done()) {
			e.OverdueFatalf(key, "the context of a lease that is not renewed had not ended %s after its deadline", e.Slack())
		}
		late.Add(e, time.Since(latest))
		if now := time.Now(); now.Before(deadline.Add(-e.TTL / 3)) {
			e.Failf(key, "the lease ended %s before its deadline, with cause %s; nobody had removed or released it", deadline.Sub(now), engine.Outcome(h.Cause()))
		}
		isLoss(e, key, h.Cause(), "context.Cause of a lease that ran out")
		not(e, key, h.Cause(), "context.Cause of a lease that ran out", lock.ErrReleased, lock.ErrClosed, lock.ErrTakenOver, lock.ErrSessionLost, lock.ErrMaxHold)
	})
}

// reasons are what a loss matches besides ErrLost.
var reasons = []error{lock.ErrExpired, lock.ErrTakenOver, lock.ErrSessionLost, lock.ErrMaxHold}

// isLoss requires that the cause is a loss, and says of which kind.
func isLoss(e *engine.Env, key string, cause error, what string) {
	e.Is(key, cause, what, lock.ErrLost, lock.ErrNotHeld)
	if errors.Is(cause, lock.ErrLost) && !slices.ContainsFunc(reasons, func(r error) bool { return errors.Is(cause, r) }) {
		e.Failf(key, "%s says that the hold was lost, and not why; expected ErrExpired, ErrTakenOver, ErrSessionLost or ErrMaxHold", what)
	}
}

func lostBeforeTakeover(e *engine.Env) {
	const keys = 4
	rounds := e.Rounds(e.TTL*3/2, 2, 50)
	a, b := e.Locker(), e.Locker()
	e.Each(keys, func(n int) {
		e.Pause(e.Randomly(e.TTL))
		for round := range rounds {
			key := e.Key("%d-%d", n, round)
			h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
			h.Lapses()
			e.Pause(time.Until(h.Until()) - e.TTL/16)
			next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), 2*time.Millisecond, "the holder's lease was not renewed")
			if !h.Lost() {
				e.Latef(key, "another client was granted the key, and the earlier holder's context had not ended")
			}
			_ = next.Release(e.Ctx)
		}
	})
	e.Notef("%d takeovers", keys*rounds)
}

// leavesNext has the Locker that has lost a lease hold the key by the next one, which nothing that
// is done with the lost one concerns.
func leavesNext(e *engine.Env, lost, next *engine.Hold, how string, inTime bool) {
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	if !inTime {
		cancel()
	}
	const when = ", while its Locker has the key by another one,"
	if e.Claimed.ManualRenewal {
		e.Is(lost.Key, lost.Renew(), "Renew of a lease "+how+when, lock.ErrNotHeld)
	}
	e.Is(lost.Key, lost.Release(ctx), "Release of a lease "+how+when, lock.ErrLost, lock.ErrNotHeld)
	e.Settle() // a release in the background is through by then
	if err := next.Release(e.Ctx); err != nil {
		e.UnexpectedLate(lost.Key, err, "Release returned %s; expected no error, since only an earlier lease of the same Locker, %s, was released", engine.Outcome(err), how)
	}
}

// wakesAfterLoss has the Locker a wait anew for a key of which it has lost a hold.
func wakesAfterLoss(e *engine.Env, a, b *engine.Client, key, lost string) {
	h := b.Soon(key, "the hold of another Locker "+lost)
	w := a.Acquiring(key)
	e.Settle()
	h.MustRelease()
	w.MustGet(e, key, e.WaitBound(), "it was released after a wait had begun whose Locker had held the key before, by a hold that "+lost).MustRelease()
}

func releaseIsNoLoss(e *engine.Env) {
	a := e.Locker()
	const least, most = 20, 400
	end := time.Now().Add(e.Budget / 10)
	short := e.TTL
	eachLease(e, a, "kind", func(h *engine.Hold) {
		h.MustRelease()
		if h.Lease.Context().Err() == nil {
			e.Failf(h.Key, "the context of a lease was alive after its Release had returned")
		} else if cause := h.Cause(); !errors.Is(cause, lock.ErrReleased) || errors.Is(cause, lock.ErrLost) {
			e.Failf(h.Key, "context.Cause after Release is %s; expected ErrReleased and no loss", engine.Outcome(cause))
		}
	})
	e.Each(5, func(i int) {
		key := e.Key("%d", i)
		if i == 4 { // nor does it become one when the lease would have run out
			h := a.MustTryFor(key, short)
			h.MustRelease()
			e.Pause(short + e.TTL/10)
			if cause := h.Cause(); !errors.Is(cause, lock.ErrReleased) || errors.Is(cause, lock.ErrLost) {
				e.Failf(key, "context.Cause is %s, a TTL after Release; expected ErrReleased and no loss", engine.Outcome(cause))
			}
			return
		}
		for round := 0; round < most && (round < least || time.Now().Before(end)); round++ {
			h := a.MustTryFor(key, short)
			if round%10 == 9 && round < 20*least {
				e.Pause(e.Randomly(e.TTL / 20))
			}
			if err := h.Release(e.Ctx); err != nil {
				e.UnexpectedLate(key, err, "Release of a lease that was held returned %s; expected no error", engine.Outcome(err))
				return
			}
			if h.Lease.Context().Err() == nil {
				e.Failf(key, "the context of a lease was alive after its Release had returned")
				return
			}
			if cause := h.Cause(); !errors.Is(cause, lock.ErrReleased) || errors.Is(cause, lock.ErrLost) {
				e.Failf(key, "context.Cause after Release is %s; expected ErrReleased and no loss", engine.Outcome(cause))
				return
			}
		}
	})
}

func lossEndsUse(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	wait := e.Start(func() { lostLeavesRenewal(e, b) })
	key := e.Key("a")
	h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
	unreleased := a.MustTryFor(e.Key("released after Close"), e.TTL, lock.WithoutRenewal())
	awaitLapse(e, h)
	first := h.Cause()
	again := a.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease of the same Locker had run out")
	if e.Claimed.ManualRenewal {
		e.Is(key, h.Renew(), "Renew of a lost lease", lock.ErrNotHeld)
	}
	e.Is(key, h.Release(e.Ctx), "Release of a lost lease", lock.ErrLost, lock.ErrNotHeld)
	if h.Lease.Context().Err() == nil {
		e.Failf(key, "the context of a lost lease came back to life")
	}
	if d, ok := h.Lease.Deadline(); ok && d.After(time.Now()) {
		e.Failf(key, "the deadline of a lost lease is in the future")
	}
	keepsToken(e, h)
	again.MustLive("only an earlier lease of the same Locker was lost")
	again.MustRelease()
	wakesAfterLoss(e, a, b, key, "ran out")
	var ended endedLeases
	e.Together(
		func() { waitsForLost(e, a) },
		func() { runsOutBeforeNext(e, a) },
		func() { eachKind(e, append(kinds(e), pairs(e)...), func(k kind) { lossEndsKind(e, k, a, &ended) }) })
	awaitLapse(e, unreleased)
	wait()
	ended.outliveClose(e, a, "a lease that had run out")
	if now := h.Cause(); now != first {
		e.Failf(key, "the cause of a lost lease changed from %s to %s, after its release and the Close of its Locker", engine.Outcome(first), engine.Outcome(now))
	}
	isLoss(e, unreleased.Key, unreleased.Release(e.Ctx), "Release after Close of a lease that was lost before")
}

// lostLeavesRenewal has a Locker take a key again of which it has lost a lease. One call of that
// lease is made then, and the next one is renewed on.
func lostLeavesRenewal(e *engine.Env, b *engine.Client) {
	if e.Declared("RenewKeeps", "renewal") {
		return
	}
	calls := map[string]func(h *engine.Hold) error{"Release": func(h *engine.Hold) error { return h.Release(e.Ctx) }}
	if e.Claimed.ManualRenewal {
		calls["Renew"] = func(h *engine.Hold) error { return h.Renew() }
	}
	var cases []func()
	for name, call := range calls {
		cases = append(cases, func() {
			a, key := e.Locker(), e.Key("renewed-after-%s", name)
			lost := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
			awaitLapse(e, lost)
			a.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease of the same Locker had run out").MustRelease()
			next := a.MustTryFor(key, e.TTL)
			e.Is(key, call(lost), name+" of a lost lease, while its Locker has the key by another one,", lock.ErrNotHeld)
			staysHeld(e, next, b, "it is renewed automatically; only "+name+" of an earlier lease of its Locker, which was lost, was called")
		})
	}
	e.Together(cases...)
}

// runsOutBeforeNext has leases of one Locker and key run out.
func runsOutBeforeNext(e *engine.Env, a *engine.Client) {
	if !e.Virtual() {
		return
	}
	key := e.Key("next")
	for i := range 2 {
		h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
		awaitLapse(e, h)
		next := a.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease of the same Locker had run out")
		leavesNext(e, h, next, "that has run out", i%2 == 0)
	}
}

// lossEndsKind has a lease of the kind run out, and makes each call of it. An owner has entered
// the key once more.
func lossEndsKind(e *engine.Env, k kind, a *engine.Client, ended *endedLeases) {
	key := e.Key("with-%s", k.name)
	h, ok := k.take(a, key, e.TTL, lock.WithoutRenewal())
	if !ok {
		return
	}
	holds := []*engine.Hold{h}
	if k.owned {
		inner, ok := k.take(a, key, e.TTL, lock.WithoutRenewal())
		if !ok {
			return
		}
		holds = append(holds, inner)
	}
	for _, h := range holds {
		awaitLapse(e, h)
	}
	for _, h := range holds {
		which := "a lost lease, with " + k.name + ","
		cause := h.Cause()
		if e.Claimed.ManualRenewal {
			e.Is(key, h.Renew(), "Renew of "+which, lock.ErrNotHeld)
		}
		isLoss(e, key, h.Release(e.Ctx), "Release of "+which)
		e.Is(key, h.Release(e.Ctx), "a second Release of "+which, lock.ErrNotHeld)
		if now := h.Cause(); now != cause {
			e.Failf(key, "the cause of %s changed from %s to %s with its release", which, engine.Outcome(cause), engine.Outcome(now))
		}
		deadlineIsOver(e, h)
		keepsToken(e, h)
		ended.add(h)
	}
}

// keepsToken looks at the token and the key of a lease that was lost.
func keepsToken(e *engine.Env, h *engine.Hold) {
	if h.Lease.Key() != h.Key {
		e.Failf(h.Key, "the key of a lost lease is %s; expected %s, as while it was held", engine.QuoteKey(h.Lease.Key()), engine.QuoteKey(h.Key))
	}
	if h.Lease.Token() != h.Token {
		e.Failf(h.Key, "the token of a lost lease is %d, and was %d while it was held; expected the same, since who is told late still shows it", h.Lease.Token(), h.Token)
	}
}

// waitsForLost waits for a key whose holder, in the same Locker, loses it and never releases.
func waitsForLost(e *engine.Env, a *engine.Client) {
	key := e.Key("not released")
	h, err := a.AcquireFor(e.Ctx, key, e.TTL, lock.WithoutRenewal())
	if err != nil {
		e.UnexpectedFatal(key, err, "Acquire of a free key returned %s; expected a lease", engine.Outcome(err))
	}
	h.Lapses()
	w := a.Acquiring(key)
	w.MustGet(e, key, e.TakeoverLimit(e.TTL)+e.WaitBound(), "the lease of another caller of the Locker has run out, who does not release it").MustRelease()
}

func causeIsStable(e *engine.Env) {
	a := e.Locker()
	var mu sync.Mutex
	first := map[*engine.Hold]error{}
	eachLease(e, a, "a", func(h *engine.Hold) {
		cause := keepsCause(e, h)
		mu.Lock()
		defer mu.Unlock()
		first[h] = cause
	})
	if h := a.MustTry(e.Key("lost later")); e.Claimed.WithoutRenewal && e.Claimed.LossSignal && e.Virtual() {
		cause := keepsCause(e, h)
		next := a.MustTryFor(h.Key, e.TTL, lock.WithoutRenewal())
		next.Lapses()
		e.Within(e.TTL+e.Slack(), next.Lease.Context().Done()) // other rules say when it ends
		if now := h.Cause(); now != cause {
			e.Failf(h.Key, "the cause of a lease that was released changed from %s to %s, when the next lease of its key was lost", engine.Outcome(cause), engine.Outcome(now))
		}
		_ = next.Release(e.Ctx)
		first[h] = cause
	} else {
		_ = h.Release(e.Ctx)
	}
	_ = a.Close()
	for h, first := range first {
		if now := h.Cause(); now != first {
			e.Failf(h.Key, "the cause of the lease changed from %s to %s", engine.Outcome(first), engine.Outcome(now))
		}
	}
	closesBesideRelease(e)
}

// closesBesideRelease closes a Locker while the server has not answered yet to the release of a lease,
// whose context has ended.
func closesBesideRelease(e *engine.Env) {
	if e.OpenBackend == nil {
		return
	}
	a, server := e.FaultyWhole()
	defer server.Heal()
	h := a.MustTry(e.Key("closed beside its release"))
	server.All(faultlock.DelayBefore(50*time.Millisecond), engine.OpsToEnd...)
	wait := e.Start(func() { _ = h.Release(e.Ctx) })
	if !e.Within(e.Slack(), h.Lease.Context().Done()) {
		wait()
		return // other rules say so
	}
	first := h.Cause()
	_ = a.Close()
	wait()
	if now := h.Cause(); now != first {
		e.Failf(h.Key, "the cause of a lease changed from %s to %s with the Close of its Locker, which began while its release had no answer yet", engine.Outcome(first), engine.Outcome(now))
	}
}

// keepsCause looks at the context of a lease, which it releases. It returns the cause.
func keepsCause(e *engine.Env, h *engine.Hold) error {
	ctx := h.Lease.Context()
	if ctx.Value(engine.CallersValue{}) != nil {
		e.Failf(h.Key, "the lease's context carries a value of the context of the call that acquired it")
	}
	if ctx.Err() != nil || context.Cause(ctx) != nil {
		e.Latef(h.Key, "the context of a lease that is held has ended: %s", engine.Outcome(context.Cause(ctx)))
	}
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	if e.Claimed.ManualRenewal { // which makes no other context of it
		if err := h.Renew(); err != nil {
			e.UnexpectedLate(h.Key, err, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
		}
		if h.Lease.Context().Value(engine.CallersValue{}) != nil {
			e.Failf(h.Key, "the lease's context carries a value of the context of a Renew by hand; expected it to carry none")
		}
	}
	h.MustRelease()
	if !e.Within(e.Slack(), child.Done()) {
		e.Overduef(h.Key, "a context derived from the lease's, as it was before a Renew, had not ended %s after Release", e.Slack())
	} else if cause := context.Cause(child); !errors.Is(cause, lock.ErrReleased) || ctx.Err() == nil {
		e.Failf(h.Key, "the cause of a context derived from the lease's is %s; expected ErrReleased", engine.Outcome(cause))
	}
	first := h.Cause()
	_ = h.Release(e.Ctx)
	return first
}
