package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		func() { renewKeepsBeside(e, b, n, "another key") })
	eachWay(e, everyWay, func(w way) {
		key := e.Key("%s", w.name)
		h, told := w.take(a, key, e.TTL)
		if !told {
			return
		}
		first, known := h.Lease.Deadline()
		if w.name == "Acquire" && e.Claimed.ManualRenewal { // which takes the place of no other
			if err := h.Renew(); err != nil {
				e.LateFatalf(key, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
			}
		}
		oftenEnough := countRenewals(e, seen, h.Hold)
		end := time.Now().Add(time.Duration(n) * e.TTL)
		for time.Now().Before(end) {
			b.MustRefuse(key, "its holder keeps it by automatic renewal")
			h.MustLive("it is renewed automatically")
			e.Pause(e.TTL / 8)
		}
		oftenEnough()
		if last, ok := h.Lease.Deadline(); known && ok && !last.After(first.Add(e.TTL)) {
			e.Latef(key, "the deadline has moved from %s to %s only, after %d TTLs of renewals", engine.Seconds(e.Log.At(first)), engine.Seconds(e.Log.At(last)), n)
		}
		if err := h.Release(e.Ctx); err != nil {
			e.Latef(key, "Release after %d TTLs of automatic renewal returned %s; expected no error", n, engine.Outcome(err))
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
			e.Latef(key, "Release after one TTL of %s and its automatic renewal returned %s; expected no error", ttl, engine.Outcome(err))
		}
	})
}

func renewByHand(e *engine.Env) {
	n := e.Rounds(e.TTL, 2, 10)
	wait := e.Start(func() { renewByHandLong(e) }, func() {
		a, b := e.Locker(), e.Locker()
		eachKind(e, kinds(e)[1:], func(k kind) { renewKindByHand(e, k, a, b) })
	})
	defer wait()
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		g := e.MustTake(a, key, e.TTL)
		first := g.Until()
		for range 4 * n {
			e.Pause(e.TTL / 4)
			if err := g.Renew(); err != nil {
				e.LateFatalf(key, "Renew of a lease that was held returned %s; expected no error", engine.Outcome(err))
			}
			b.Refuses(key, "its holder renews it in time")
			if h, ok := g.(*engine.Hold); ok {
				h.MustLive("its holder renews it in time")
			}
		}
		if last := e.TTL / 5; e.Work(2*time.Millisecond) < last { // the last moment counts too
			e.Pause(time.Until(g.Until()) - last)
			if err := g.Renew(); err != nil {
				e.LateFatalf(key, "Renew of a lease that was held for another %s returned %s; expected no error", last, engine.Outcome(err))
			}
		}
		// A lock without a deadline has none to move; that it was kept has been seen.
		if last := g.Until(); e.Claimed.Deadline && last.Before(first.Add(e.TTL/2)) {
			e.Failf(key, "the deadline has moved from %s to %s only, although Renew was called for %d TTLs", engine.Seconds(e.Log.At(first)), engine.Seconds(e.Log.At(last)), n)
		}
		before := g.Until() // one renewal soon after another counts as much
		e.Pause(e.TTL / 8)
		if err := g.Renew(); err != nil {
			e.LateFatalf(key, "Renew of a lease that was held returned %s; expected no error", engine.Outcome(err))
		}
		if e.Claimed.Deadline && !g.Until().After(before) {
			e.Failf(key, "the deadline is %s, as before a Renew that returned no error %s after the last one; expected it to move", engine.Seconds(e.Log.At(before)), e.TTL/8)
		}
		if err := g.Release(e.Ctx); err != nil {
			e.Latef(key, "Release of a lease that was renewed in time returned %s; expected no error", engine.Outcome(err))
		}
	})
}

// renewKindByHand keeps a lease of the kind for twice its TTL.
func renewKindByHand(e *engine.Env, k kind, a, b *engine.Client) {
	key := e.Key("with-%s", k.name)
	h, ok := k.take(a, key, e.TTL, unrenewed(e)...)
	if !ok {
		return
	}
	first := h.Until()
	for range 8 {
		e.Pause(e.TTL / 4)
		if err := h.Renew(); err != nil {
			e.LateFatalf(key, "Renew of a lease with %s that was held returned %s; expected no error", k.name, engine.Outcome(err))
		}
		b.MustRefuse(key, "its holder renews it in time; it has "+k.name)
		h.MustLive("its holder renews it in time; it has " + k.name)
	}
	if last := h.Until(); e.Claimed.Deadline && last.Before(first.Add(e.TTL/2)) {
		e.Failf(key, "the deadline of a lease with %s has moved from %s to %s only, although Renew was called for two TTLs", k.name, engine.Seconds(e.Log.At(first)), engine.Seconds(e.Log.At(last)))
	}
	h.MustRelease()
}

// renewByHandLong moves the deadline of a lease that is far from it.
func renewByHandLong(e *engine.Env) {
	if !e.Claimed.Deadline || e.Fixed {
		return
	}
	ttl := e.Fit(30 * time.Second)
	key := e.Key("%s", ttl)
	h := e.Locker().MustTryFor(key, ttl, unrenewed(e)...)
	first := h.Until()
	e.Pause(max(e.TTL/2, ttl/30))
	if err := h.Renew(); err != nil {
		e.LateFatalf(key, "Renew of a lease with a TTL of %s that was held returned %s; expected no error", ttl, engine.Outcome(err))
	}
	if moved := h.Until().Sub(first); moved < ttl/60 {
		e.Failf(key, "Renew of a lease with a TTL of %s has moved its deadline by %s, %s after the grant; expected it to count from now", ttl, engine.Short(moved), engine.Short(max(e.TTL/2, ttl/30)))
	}
	h.MustRelease()
}

// renewsJustLate renews leases shortly after they ran out: the server granted each
// before its grant arrived, so that it has ended a TTL later at the latest.
func renewsJustLate(e *engine.Env, layer engine.Layer) {
	late := []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond}
	a := layer.Open()
	e.Each(len(late), func(i int) {
		key := e.Key("%s-%s", layer.Name, late[i])
		g := e.MustTake(a, key, e.TTL)
		g.Lapses()
		e.Pause(e.TTL + e.Claimed.TTLGrain + late[i])
		if err := g.Renew(); err == nil {
			e.Latef(key, "Renew of a lease that had run out %s ago returned no error, although nobody else had taken the key; expected ErrNotHeld", late[i])
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
					e.LateFatalf(key, "Renew of a lease that was held returned %s; expected no error", engine.Outcome(err))
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

func renewAfterRelease(e *engine.Env) {
	locker := e.Locker()
	eachLease(e, locker, "kind", func(h *engine.Hold) {
		h.MustRelease()
		err := h.Renew()
		e.Is(h.Key, err, "Renew after Release", lock.ErrNotHeld)
		not(e, h.Key, err, "Renew after Release", lock.ErrLost, lock.ErrClosed)
		locker.MustTry(h.Key).MustRelease()
	})
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		g := e.MustTake(a, key, e.Long)
		e.MustGiveBack(g, key, "")
		for range 2 {
			if err := g.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
				e.Unexpected(key, err, "Renew after Release returned %s; expected ErrNotHeld", engine.Outcome(err))
			}
		}
		other, err := b.Take(key, e.Long)
		if err != nil {
			e.UnexpectedFatal(key, err, "a try returned %s after a released lease was renewed; expected a grant", engine.Outcome(err))
		}
		if err := g.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "Renew after Release, while somebody else holds the key, returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
		e.MustGiveBack(other, key, ", since only a lease that was released before was renewed")
	})
}

func withoutRenewalEnds(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	var late engine.Lateness
	wait := e.Start(func() {
		eachKind(e, kinds(e)[1:], func(k kind) {
			key := e.Key("with-%s", k.name)
			h, ok := k.take(a, key, e.TTL, lock.WithoutRenewal())
			if !ok {
				return
			}
			h.Lapses()
			expiry := e.Log.Now() + e.TTL
			next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "its holder asked for a lease without renewal, with "+k.name)
			late.Add(e, e.Log.Now()-expiry)
			_ = next.Release(e.Ctx)
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

// refuseOption asks with an option that must be refused with one of the errors, by
// TryAcquire and by Acquire, and returns the refusals of the two.
func refuseOption(e *engine.Env, what string, option lock.Option, or ...error) map[string]error {
	c, refusals := e.Locker(), map[string]error{}
	for op, get := range map[string]engine.Getter{"TryAcquire": c.Locker.TryAcquire, "Acquire": c.Locker.Acquire} {
		key := e.Key("%s-%s", what, op)
		ctx, cancel := context.WithTimeout(e.Ctx, e.WaitBound())
		h, err := c.Get(op, get, ctx, key, append(e.Opts(e.Long), option))
		cancel()
		if err == nil {
			_ = h.Release(e.Ctx)
			e.Failf(key, "%s accepted %s; expected %s", op, what, engine.ErrorName(or[0]))
			continue
		}
		refusals[op] = err
		if !slices.ContainsFunc(or, func(x error) bool { return errors.Is(err, x) }) {
			e.Is(key, err, op+" with "+what, or[0])
		}
	}
	return refusals
}

func unsupportedIsRefused(e *engine.Env) {
	tested := false
	refused := func(what string, option lock.Option) {
		tested = true
		refuseOption(e, what, option, lock.ErrUnsupported)
	}
	// A lock that says nothing about itself is not contradicted here.
	if stated := e.Says || e.Guarantees != nil; !stated {
		e.Skipf("the lock does not state its guarantees")
	}
	if !e.Claimed.WithoutRenewal {
		refused("WithoutRenewal, although the guarantees don't claim it", lock.WithoutRenewal())
	}
	if !engine.ClaimReentrancy.Made(e.Settings) {
		refused("an owner, although the guarantees claim no re-entry", lock.WithOwner(e.Owner("A")))
	}
	if !e.Claimed.ManualRenewal {
		tested = true
		key := e.Key("renew")
		h := e.Locker().MustTry(key)
		if err := h.Renew(); err == nil {
			e.Notef("Renew returned no error, although it is not claimed to work")
		} else {
			e.Is(key, err, "Renew", lock.ErrUnsupported)
		}
		h.MustRelease()
	}
	if !tested {
		e.Skipf("the guarantees exclude nothing that could be asked for")
	}
}
