package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var renewalRules = []*engine.Rule{
	{
		Name:      "RenewKeeps",
		Statement: "A lease renews itself twice a TTL or more, and is not lost for many TTLs.",
		Limit:     2 * time.Minute,
		LimitTTLs: 80,
		Run:       renewKeeps,
	},
	{
		Name:      "ManyLeases",
		Statement: "Dozens of leases of one Locker renew themselves at a time, each twice a TTL or more.",
		LimitTTLs: 40,
		Run:       manyLeases,
	},
	{
		Name:      "RenewByHand",
		Statement: "Renew in time keeps a lease for many TTLs, and moves its deadline.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		LimitTTLs: 40,
		Run:       renewByHand,
	},
	{
		Name:      "RenewNeverResurrects",
		Statement: "Renewing a lease that ran out returns ErrNotHeld and creates nothing.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		Run:       renewNeverResurrects,
	},
	{
		Name:      "RenewNotOthers",
		Statement: "Renewing a lease that ran out does not lengthen the next holder's.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		LimitTTLs: 30,
		Run:       renewNotOthers,
	},
	{
		Name:      "RenewBounded",
		Statement: "A renewal extends to one TTL from now; many don't add up.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		LimitTTLs: 30,
		Run:       renewBounded,
	},
	{
		Name:      "RenewIdempotentCount",
		Statement: "Hundreds of renewals, however close together, succeed and never shorten the lease.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		Run:       renewQuickly,
	},
	{
		Name:      "RenewAfterRelease",
		Statement: "Renewing a released lease returns ErrNotHeld and does not take the key again.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		Run:       renewAfterRelease,
	},
	{
		Name:      "WithoutRenewalEnds",
		Statement: "With WithoutRenewal others get the key within the TTL and the takeover lag.",
		Claims:    []engine.Claim{engine.ClaimWithoutRenewal},
		Run:       withoutRenewalEnds,
	},
	{
		Name:      "MaxHoldEnds",
		Statement: "WithMaxHold ends a hold, counted from its grant and despite renewals, with ErrMaxHold.",
		Limit:     2 * time.Minute,
		Virtual:   13 * time.Minute,
		LimitTTLs: 40,
		Run:       maxHoldEnds,
	},
	{
		Name:      "UnsupportedIsRefused",
		Statement: "What the lock cannot honour is refused with ErrUnsupported, never ignored.",
		Run:       unsupportedIsRefused,
	},
}

func renewKeeps(e *engine.Env) {
	n := e.Rounds(e.TTL, 3, 20)
	a, seen := e.Watched()
	b := e.Locker()
	wait := e.Start(func() { renewKeepsLong(e, a, b) },
		func() { renewKeepsBeside(e, b, n, "the same key") },
		func() { renewKeepsBeside(e, b, n, "another key") },
		func() { renewKeepsKinds(e, a, b) },
		func() { renewKeepsShortest(e) },
		func() { renewKeepsShorter(e, b) },
		func() { renewKeepsDespiteVain(e) })
	eachWay(e, everyWay, func(w way) {
		key := e.Key("%s", w.name)
		h, told := w.take(a, key, e.TTL)
		if !told {
			return
		}
		first, known := h.Lease.Deadline()
		if w.name == "Acquire" && e.Claimed.ManualRenewal { // which takes the place of no other
			if err := h.Renew(); err != nil {
				e.UnexpectedLateFatal(key, err, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
			}
		}
		oftenEnough := countRenewals(e, seen, h.Hold)
		end := time.Now().Add(time.Duration(n) * e.TTL)
		for time.Now().Before(end) {
			b.MustRefuse(key, "its holder keeps it by automatic renewal")
			h.MustLive("it is renewed automatically")
			certainForTTL(e, h.Hold)
			e.Pause(e.TTL / 8)
		}
		oftenEnough()
		if last, ok := h.Lease.Deadline(); known && ok && !last.After(first.Add(e.TTL)) {
			e.Latef(key, "the deadline has moved from %s to %s only, after %d TTLs of renewals", engine.Seconds(e.Log.At(first)), engine.Seconds(e.Log.At(last)), n)
		}
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(key, err, "Release after %d TTLs of automatic renewal returned %s; expected no error", n, engine.Outcome(err))
		}
		b.MustTry(key).MustRelease()
	})
	wait()
	e.Notef("held for %d TTLs", n)
}

// countRenewals counts the renewals of a lease from now on, where they are seen. One is due
// every third of the TTL. The function that it returns demands two in each TTL, so that one
// may fail.
func countRenewals(e *engine.Env, seen *faultlock.Faults, h *engine.Hold) (oftenEnough func()) {
	if seen == nil {
		return func() {}
	}
	begun, before := time.Now(), engine.Requests(seen, h.Key, engine.OpsToKeep...)
	return func() {
		took := time.Since(begun)
		least := int(2 * took / h.EffectiveTTL())
		if n := engine.Requests(seen, h.Key, engine.OpsToKeep...) - before; n < least {
			e.Latef(h.Key, "automatic renewals in %s: %d; expected %d or more, since one is due every third of the TTL, which is %s", engine.Short(took), n, least, h.EffectiveTTL())
		} else if most := 9*int(took/h.EffectiveTTL()) + 9; e.Virtual() && n > most {
			e.Failf(h.Key, "automatic renewals in %s: %d; expected no more than %d, since one is due every third of the TTL, which is %s", engine.Short(took), n, most, h.EffectiveTTL())
		}
	}
}

// renewKeepsBeside keeps a lease while another caller of its Locker waits.
func renewKeepsBeside(e *engine.Env, b *engine.Client, n int, waitsFor string) {
	a, _ := e.Watched()
	key, awaited := e.Key("beside a wait for %s", waitsFor), e.Key("awaited")
	h := a.MustTryFor(key, e.TTL)
	other := h
	if waitsFor == "the same key" {
		awaited = key
	} else {
		other = b.MustTry(awaited)
	}
	w := a.Acquiring(awaited)
	why := "it is renewed automatically, while a caller of its Locker waits for " + waitsFor
	for end := time.Now().Add(time.Duration(n) * e.TTL); time.Now().Before(end); e.Pause(e.TTL / 8) {
		b.MustRefuse(key, why)
		h.MustLive(why)
	}
	other.MustRelease()
	w.MustGet(e, awaited, e.WaitBound(), "it was released").MustRelease()
	if other != h {
		h.MustRelease()
	}
}

// renewKeepsKinds keeps leases of each kind for two TTLs, after renewals by hand, and after
// another hold of the owner was released. Neither takes the place of what is renewed automatically.
func renewKeepsKinds(e *engine.Env, a, b *engine.Client) {
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	type renewal struct {
		kind
		by context.Context
	}
	var all []renewal
	for _, k := range kinds(e) {
		all = append(all, renewal{k, e.Ctx}, renewal{k, ended})
	}
	for i, k := range renewedPairs(e) {
		all = append(all, renewal{k, []context.Context{e.Ctx, ended}[i%2]})
	}
	e.Each(len(all), func(i int) {
		k, by := all[i].kind, all[i].by
		key := e.Key("%s-%d", k.name, i%2)
		h, ok := k.take(a, key, e.TTL)
		if !ok {
			return
		}
		why := "it is renewed automatically; it has " + k.name
		if e.Claimed.ManualRenewal {
			if err := h.Lease.Renew(by); err != nil && by == e.Ctx {
				e.UnexpectedLateFatal(key, err, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
			}
			why += ", and was renewed once by hand"
			if by == ended {
				why += ", with a context that had ended"
			}
		}
		if k.owned {
			if inner, ok := k.take(a, key, e.TTL); ok {
				inner.MustRelease()
				why += ", and another hold of its owner was released"
			}
		}
		for end := time.Now().Add(2 * e.TTL); time.Now().Before(end); e.Pause(e.TTL / 8) {
			h.MustLive(why)
			certainForTTL(e, h)
			b.MustRefuse(key, why)
		}
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(key, err, "Release after two TTLs returned %s; expected no error, since %s", engine.Outcome(err), why)
		}
	})
}

// certainForTTL looks at a deadline that automatic renewals move: each is worth one TTL.
func certainForTTL(e *engine.Env, h *engine.Hold) {
	ctx := h.Lease.Context()
	if d, ok := ctx.Deadline(); ok && ctx.Err() == nil && time.Since(d) > e.TTL/2 && ctx.Err() == nil {
		e.Fatalf(h.Key, "the deadline of a lease's context has passed %s ago, and the context is alive; expected it to move with the renewals, or to be unknown", engine.Short(time.Since(d)))
	}
	if d, known := h.Lease.Deadline(); known && time.Until(d) > h.EffectiveTTL()+time.Millisecond {
		e.Fatalf(h.Key, "a lease that is renewed automatically is certain for another %s; expected its TTL of %s at most", engine.Short(time.Until(d)), h.EffectiveTTL())
	}
}

// renewKeepsShortest keeps a lease of the smallest TTL, of a server that is fast enough for it.
func renewKeepsShortest(e *engine.Env) {
	ttl := e.Claimed.MinTTL
	if !e.Virtual() || e.Fixed || ttl <= 0 || ttl >= e.TTL || e.Work(ttl) > ttl {
		return
	}
	key := e.Key("shortest")
	l := e.Locker()
	for range 6 { // some of which show that the server is too far away now and then
		begun := time.Now()
		probe, err := l.TryFor(e.Ctx, key, ttl)
		if err != nil || probe.Release(e.Ctx) != nil || time.Since(begun) > ttl/5 {
			return
		}
	}
	h, err := l.TryFor(e.Ctx, key, ttl)
	if err != nil {
		return // it may have run out before the answer came
	}
	for range 40 {
		if e.Pause(ttl / 4); h.Lost() {
			e.Fail(engine.TimelyFor(ttl), key, "a lease with a TTL of %s, the smallest of the guarantees, has ended with cause %s; expected it to be renewed automatically", ttl, engine.Outcome(h.Cause()))
			break
		}
	}
	_ = h.Release(e.Ctx)
}

// renewKeepsShorter keeps a lease whose renewals are due long before that of another lease, which
// its Locker has had for a while.
func renewKeepsShorter(e *engine.Env, b *engine.Client) {
	if e.Long <= e.TTL {
		return
	}
	a, key := e.Locker(), e.Key("shorter")
	longer := a.MustTry(e.Key("longer"))
	e.Settle() // what renews it may sleep by now
	h := a.MustTryFor(key, e.TTL)
	const why = "it is renewed automatically; its TTL is shorter than that of another lease, which its Locker had before"
	for end := time.Now().Add(2 * e.TTL); time.Now().Before(end); e.Pause(e.TTL / 8) {
		h.MustLive(why)
		b.MustRefuse(key, why)
	}
	h.MustRelease()
	longer.MustRelease()
}

// renewKeepsDespiteVain has each Renew by hand fail, with a context that has ended. They are more
// frequent than the automatic renewals, and take the place of none.
func renewKeepsDespiteVain(e *engine.Env) {
	if !e.Claimed.ManualRenewal {
		return
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	key := e.Key("renewed in vain")
	h := e.Locker().MustTryFor(key, e.TTL)
	const why = "it is renewed automatically; each Renew by hand had a context that had ended"
	for end := time.Now().Add(3 * e.TTL); time.Now().Before(end); e.Pause(e.TTL / 5) {
		h.MustLive(why)
		_ = h.Lease.Renew(ended)
	}
	if err := h.Release(e.Ctx); err != nil {
		e.UnexpectedLate(key, err, "Release after three TTLs returned %s; expected no error, since %s", engine.Outcome(err), why)
	}
}

// renewKeepsLong keeps leases whose TTL is many times that of the run until they would have
// run out.
func renewKeepsLong(e *engine.Env, a, b *engine.Client) {
	ttl := lasting(e)
	if e.Unhurried() {
		ttl = e.Fit(time.Minute)
	}
	if ttl <= e.TTL {
		return
	}
	eachWay(e, ways, func(w way) {
		key := e.Key("%s-%s", ttl, w.name)
		var more []lock.Option
		if e.Claimed.HolderDetails {
			more = append(more, lock.WithLabel(w.name))
		}
		h := w.mustGet(a, key, ttl, more...)
		for end := h.Until().Add(e.Claimed.TakeoverLag + ttl/20); time.Now().Before(end); e.Pause(ttl / 20) {
			h.MustLive("it is renewed automatically; its TTL is " + ttl.String())
			e.Log.Patient()
		}
		b.MustRefuse(key, "its holder keeps it by automatic renewal; its TTL is "+ttl.String())
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(key, err, "Release after one TTL of %s and its automatic renewal returned %s; expected no error", ttl, engine.Outcome(err))
		}
	})
}

func renewNeverResurrects(e *engine.Env) {
	e.EachLayer(func(layer engine.Layer) {
		if e.Claimed.TakeoverLag == 0 {
			renewsJustLate(e, layer)
		}
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		g := e.MustTake(a, key, e.TTL)
		e.Expire(g)
		for range 3 {
			if err := g.Renew(); err == nil {
				e.Failf(key, "Renew of a lease that ran out returned no error, although nobody else had taken the key; expected ErrNotHeld")
			} else {
				e.Is(key, err, "Renew of a lease that ran out", lock.ErrNotHeld)
			}
		}
		next, err := b.Take(key, e.Long)
		if err != nil {
			e.Unexpected(key, err, "a try returned %s after a lease that ran out was renewed; expected a grant, since the renewal must create nothing", engine.Outcome(err))
			return
		}
		if err := g.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "Renew by the earlier holder returned %s; expected ErrNotHeld, since somebody else holds the key", engine.Outcome(err))
		}
		e.MustGiveBack(next, key, ", since only a lease that ran out was renewed")
		// Taken and released by somebody else in between: still not ours.
		if err := g.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "Renew of a lease that ran out returned %s after somebody else had taken and released the key; expected ErrNotHeld", engine.Outcome(err))
		}
		again, err := b.Take(key, e.Long)
		if err != nil {
			e.Unexpected(key, err, "a try returned %s after a lease that ran out was renewed; expected a grant", engine.Outcome(err))
			return
		}
		_ = again.Release(e.Ctx)
	})
}

func renewNotOthers(e *engine.Env) {
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b, c := layer.Open(), layer.Open(), layer.Open()
		old := e.MustTake(a, key, e.TTL)
		taken := e.TakeOver(b, key, e.TTL, e.TakeoverLimit(e.TTL), e.TTL/20, "the earlier holder did not renew")
		fence, deadline := taken.Fence(), taken.Until()
		next := e.Poll(key, e.TakeoverLimit(e.TTL), e.TTL/20, "its holder did not renew it, and the renewals of an earlier holder must not count", func() (engine.Grip, error) {
			if err := old.Renew(); err == nil {
				e.Fatalf(key, "Renew by a holder whose lease had run out returned no error, although somebody else holds the key; expected ErrNotHeld")
			} else if !errors.Is(err, lock.ErrNotHeld) {
				e.Unexpected(key, err, "Renew by a holder whose lease had run out returned %s; expected ErrNotHeld", engine.Outcome(err))
			}
			return c.Take(key, e.Long)
		})
		if now := time.Now(); now.Before(deadline) {
			e.Failf(key, "the key was granted %s before the deadline of its holder, while an earlier holder tried to renew it; expected nobody to get it before", engine.Short(deadline.Sub(now)))
		}
		if taken.Fence() != fence {
			e.Failf(key, "the token of the holder changed from %d to %d while an earlier holder tried to renew", fence, taken.Fence())
		}
		_ = next.Release(e.Ctx)
	})
}

func renewBounded(e *engine.Env) {
	e.EachLayer(func(layer engine.Layer) {
		a, b := layer.Open(), layer.Open()
		var late engine.Lateness
		e.Each(3, func(i int) {
			key := e.Key("%s-%d", layer.Name, i)
			g := e.MustTake(a, key, e.TTL)
			for range 50 / (1 + 4*i) { // the first piles them up
				if err := g.Renew(); err != nil {
					e.UnexpectedLateFatal(key, err, "Renew of a lease that was held returned %s; expected no error", engine.Outcome(err))
				}
			}
			expiry := e.Log.Now() + e.TTL
			if latest := time.Now().Add(e.TTL); g.Until().After(latest) {
				e.Failf(key, "after many renewals the deadline is %s; expected at most one TTL from now, %s", engine.Seconds(e.Log.At(g.Until())), engine.Seconds(e.Log.At(latest)))
			}
			next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "its holder stopped renewing, and many renewals are worth one TTL")
			late.Add(e, e.Log.Now()-expiry)
			_ = next.Release(e.Ctx)
		})
		judgeExpiry(e, &late, "a holder stopped renewing")
	})
}

func renewQuickly(e *engine.Env) {
	const least, most = 100, 1000 // as many as there is time for
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		g := e.MustTake(layer.Open(), key, e.Fit(10*e.TTL))
		n, end := 0, time.Now().Add(e.Window())
		for ; n < least || n < most && time.Now().Before(end); n++ {
			before := g.Until()
			if err := g.Renew(); err != nil {
				if time.Now().After(before) {
					e.TooSlowf(key, "the lease ran out between two renewals")
				}
				e.UnexpectedFatal(key, err, "renewal %d of a lease that was held returned %s; expected no error", n+1, engine.Outcome(err))
			}
			if after := g.Until(); after.Before(before.Add(-5 * time.Millisecond)) {
				e.Latef(key, "renewal %d moved the deadline back, from %s to %s", n+1, engine.Seconds(e.Log.At(before)), engine.Seconds(e.Log.At(after)))
			}
		}
		e.MustGiveBack(g, key, fmt.Sprintf(" after %d renewals", n))
	})
}

func withoutRenewalEnds(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	var late engine.Lateness
	wait := e.Start(func() {
		eachKind(e, kinds(e)[1:], func(k kind) {
			eachWay(e, ways, func(w way) {
				if len(k.opts) == 0 || k.waited {
					return // as below
				}
				key := e.Key("%s-with-%s", w.name, k.name)
				h, ok := k.takeBy(w, a, key, e.TTL, lock.WithoutRenewal())
				if !ok {
					return
				}
				h.Lapses()
				expiry := e.Log.Now() + e.TTL
				next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "its holder asked for a lease without renewal, by "+w.name+" with "+k.name)
				late.Add(e, e.Log.Now()-expiry)
				_ = next.Release(e.Ctx)
			})
		})
	})
	eachWay(e, everyWay, func(w way) {
		key := e.Key("%s", w.name)
		h, told := w.take(a, key, e.TTL, lock.WithoutRenewal())
		if !told {
			return
		}
		expiry := e.Log.Now() + e.TTL
		next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "its holder asked for a lease without renewal, by "+w.name)
		late.Add(e, e.Log.Now()-expiry)
		if e.Claimed.LossSignal && !h.Lost() {
			e.Latef(key, "the lease still says that it is held, although another client was granted the key")
		}
		_ = next.Release(e.Ctx)
	})
	wait()
	judgeExpiry(e, &late, "a holder did not renew its lease")
}
