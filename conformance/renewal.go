package conformance

import (
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

var renewalRules = []*rule{
	{
		Name:      "RenewKeeps",
		Statement: "A lease renews itself: held for many TTLs it is not lost, and nobody else gets in.",
		LimitTTLs: 80,
		run:       renewKeeps,
	},
	{
		Name:      "RenewByHand",
		Statement: "Calling Renew in time keeps a lease for many TTLs, and moves its deadline.",
		claims:    []claim{claimManualRenewal},
		LimitTTLs: 40,
		run:       renewByHand,
	},
	{
		Name:      "RenewNeverResurrects",
		Statement: "Renewing a lease that ran out returns ErrNotHeld and creates nothing, also when nobody else took the key.",
		claims:    []claim{claimManualRenewal},
		run:       renewNeverResurrects,
	},
	{
		Name:      "RenewNotOthers",
		Statement: "Renewing a lease that ran out does not lengthen the hold of whoever has the key now.",
		claims:    []claim{claimManualRenewal},
		LimitTTLs: 30,
		run:       renewNotOthers,
	},
	{
		Name:      "RenewBounded",
		Statement: "A renewal extends to one TTL from now: many quick renewals don't add up.",
		claims:    []claim{claimManualRenewal},
		LimitTTLs: 30,
		run:       renewBounded,
	},
	{
		Name:      "RenewIdempotentCount",
		Statement: "A hundred renewals within one tick of the server's clock all succeed, and never shorten the lease.",
		claims:    []claim{claimManualRenewal},
		run:       renewQuickly,
	},
	{
		Name:      "RenewAfterRelease",
		Statement: "Renewing a released lease returns ErrNotHeld and does not take the key again.",
		claims:    []claim{claimManualRenewal},
		run:       renewAfterRelease,
	},
	{
		Name:      "WithoutRenewalEnds",
		Statement: "A lease taken with WithoutRenewal is not renewed: others get the key within the TTL and the takeover lag, though its Locker lives.",
		claims:    []claim{claimWithoutRenewal},
		run:       withoutRenewalEnds,
	},
	{
		Name:      "MaxHoldEnds",
		Statement: "WithMaxHold ends a hold however well renewal works, with the cause ErrMaxHold, and frees the key.",
		run:       maxHoldEnds,
	},
	{
		Name:      "UnsupportedIsRefused",
		Statement: "An option or a call that the lock cannot honour is refused with ErrUnsupported, never ignored.",
		run:       unsupportedIsRefused,
	},
}

func renewKeeps(e *env) {
	n := e.rounds(e.ttl, 3, 20)
	a, b := e.locker(), e.locker()
	e.each(2, func(i int) {
		key := e.key("%d", i)
		h := a.mustTryFor(key, e.ttl)
		first, known := h.lease.Deadline()
		end := time.Now().Add(time.Duration(n) * e.ttl)
		for time.Now().Before(end) {
			b.mustRefuse(key, "its holder keeps it by automatic renewal")
			h.mustLive("it is renewed automatically")
			e.pause(e.ttl / 8)
		}
		if last, ok := h.lease.Deadline(); known && ok && !last.After(first.Add(e.ttl)) {
			e.latef(key, "the deadline has moved from %s to %s only, after %d TTLs of renewals", seconds(e.hist.at(first)), seconds(e.hist.at(last)), n)
		}
		if err := h.release(e.ctx); err != nil {
			e.latef(key, "Release after %d TTLs of automatic renewal returned %s; expected no error", n, outcome(err))
		}
		b.mustTry(key).mustRelease()
	})
	e.notef("held for %d TTLs", n)
}

func renewByHand(e *env) {
	n := e.rounds(e.ttl, 2, 10)
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a, b := k.open(), k.open()
		g := e.mustTake(a, key, e.ttl)
		first := g.until()
		for range 4 * n {
			e.pause(e.ttl / 4)
			if err := g.renew(); err != nil {
				e.lateFatalf(key, "Renew of a lease that was held returned %s; expected no error", outcome(err))
			}
			b.refuses(key, "its holder renews it in time")
		}
		// A lock without a deadline has none to move; that it was kept has been seen.
		if last := g.until(); e.g.Deadline && last.Before(first.Add(e.ttl/2)) {
			e.failf(key, "the deadline has moved from %s to %s only, although Renew was called for %d TTLs", seconds(e.hist.at(first)), seconds(e.hist.at(last)), n)
		}
		if err := g.release(e.ctx); err != nil {
			e.latef(key, "Release of a lease that was renewed in time returned %s; expected no error", outcome(err))
		}
	})
}

// expire waits until the server has certainly ended the holds, none of which was
// renewed.
func (e *env) expire(gs ...grip) {
	for _, g := range gs {
		g.lapses()
		e.pause(g.gone(e) - e.hist.now())
	}
}

// renewsJustLate renews leases shortly after they ran out: the server granted each
// before its grant arrived, so that it has ended a TTL later at the latest.
func (e *env) renewsJustLate(k kind) {
	late := []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond}
	a := k.open()
	e.each(len(late), func(i int) {
		key := e.key("%s-%s", k.name, late[i])
		g := e.mustTake(a, key, e.ttl)
		g.lapses()
		e.pause(e.ttl + e.g.TTLGrain + late[i])
		if err := g.renew(); err == nil {
			e.latef(key, "Renew of a lease that had run out %s ago returned no error, although nobody else had taken the key; expected ErrNotHeld", late[i])
		}
	})
}

func renewNeverResurrects(e *env) {
	e.eachKind(func(k kind) {
		if e.g.TakeoverLag == 0 {
			e.renewsJustLate(k)
		}
		key := e.key("%s", k.name)
		a, b := k.open(), k.open()
		g := e.mustTake(a, key, e.ttl)
		e.expire(g)
		for range 3 {
			if err := g.renew(); err == nil {
				e.failf(key, "Renew of a lease that ran out returned no error, although nobody else had taken the key; expected ErrNotHeld")
			} else {
				e.is(key, err, "Renew of a lease that ran out", lock.ErrNotHeld)
			}
		}
		next, err := b.take(key, e.long)
		if err != nil {
			e.unexpected(key, err, "a try returned %s after a lease that ran out was renewed; expected a grant, since the renewal must create nothing", outcome(err))
			return
		}
		if err := g.renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.unexpected(key, err, "Renew by the earlier holder returned %s; expected ErrNotHeld, since somebody else holds the key", outcome(err))
		}
		e.mustGiveBack(next, key, ", since only a lease that ran out was renewed")
		// Taken and released by somebody else in between: still not ours.
		if err := g.renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.unexpected(key, err, "Renew of a lease that ran out returned %s after somebody else had taken and released the key; expected ErrNotHeld", outcome(err))
		}
		again, err := b.take(key, e.long)
		if err != nil {
			e.unexpected(key, err, "a try returned %s after a lease that ran out was renewed; expected a grant", outcome(err))
			return
		}
		_ = again.release(e.ctx)
	})
}

func renewNotOthers(e *env) {
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a, b, c := k.open(), k.open(), k.open()
		old := e.mustTake(a, key, e.ttl)
		taken := e.takeOver(b, key, e.ttl, e.takeover(e.ttl), e.ttl/20, "the earlier holder did not renew")
		fence, deadline := taken.fence(), taken.until()
		next := e.poll(key, e.takeover(e.ttl), e.ttl/20, "its holder did not renew it, and the renewals of an earlier holder must not count", func() (grip, error) {
			if err := old.renew(); err == nil {
				e.fatalf(key, "Renew by a holder whose lease had run out returned no error, although somebody else holds the key; expected ErrNotHeld")
			} else if !errors.Is(err, lock.ErrNotHeld) {
				e.unexpected(key, err, "Renew by a holder whose lease had run out returned %s; expected ErrNotHeld", outcome(err))
			}
			return c.take(key, e.long)
		})
		if now := time.Now(); now.Before(deadline) {
			e.failf(key, "the key was granted %s before the deadline of its holder, while an earlier holder tried to renew it; expected nobody to get it before", short(deadline.Sub(now)))
		}
		if taken.fence() != fence {
			e.failf(key, "the token of the holder changed from %d to %d while an earlier holder tried to renew", fence, taken.fence())
		}
		_ = next.release(e.ctx)
	})
}

func renewBounded(e *env) {
	e.eachKind(func(k kind) {
		a, b := k.open(), k.open()
		var late lateness
		e.each(3, func(i int) {
			key := e.key("%s-%d", k.name, i)
			g := e.mustTake(a, key, e.ttl)
			for range 50 / (1 + 4*i) { // the first piles them up
				if err := g.renew(); err != nil {
					e.lateFatalf(key, "Renew of a lease that was held returned %s; expected no error", outcome(err))
				}
			}
			expiry := e.hist.now() + e.ttl
			if latest := time.Now().Add(e.ttl); g.until().After(latest) {
				e.failf(key, "after many renewals the deadline is %s; expected at most one TTL from now, %s", seconds(e.hist.at(g.until())), seconds(e.hist.at(latest)))
			}
			next := e.takeOver(b, key, e.long, e.takeover(e.ttl), e.ttl/20, "its holder stopped renewing, and many renewals are worth one TTL")
			late.add(e.hist.now() - expiry)
			_ = next.release(e.ctx)
		})
		e.judgeExpiry(&late, "a holder stopped renewing")
	})
}

func renewQuickly(e *env) {
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		g := e.mustTake(k.open(), key, e.fit(10*e.ttl))
		for i := range 100 {
			before := g.until()
			if err := g.renew(); err != nil {
				if time.Now().After(before) {
					e.tooSlowf(key, "the lease ran out between two renewals")
				}
				e.unexpectedFatal(key, err, "renewal %d of a lease that was held returned %s; expected no error", i+1, outcome(err))
			}
			if after := g.until(); after.Before(before.Add(-5 * time.Millisecond)) {
				e.latef(key, "renewal %d moved the deadline back, from %s to %s", i+1, seconds(e.hist.at(before)), seconds(e.hist.at(after)))
			}
		}
		e.mustGiveBack(g, key, " after 100 renewals")
	})
}

func renewAfterRelease(e *env) {
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a, b := k.open(), k.open()
		g := e.mustTake(a, key, e.long)
		e.mustGiveBack(g, key, "")
		for range 2 {
			if err := g.renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
				e.unexpected(key, err, "Renew after Release returned %s; expected ErrNotHeld", outcome(err))
			}
		}
		other, err := b.take(key, e.long)
		if err != nil {
			e.unexpectedFatal(key, err, "a try returned %s after a released lease was renewed; expected a grant", outcome(err))
		}
		if err := g.renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.unexpected(key, err, "Renew after Release, while somebody else holds the key, returned %s; expected ErrNotHeld", outcome(err))
		}
		e.mustGiveBack(other, key, ", since only a lease that was released before was renewed")
	})
}

func withoutRenewalEnds(e *env) {
	a, b := e.locker(), e.locker()
	var late lateness
	e.each(3, func(i int) {
		key := e.key("%d", i)
		h := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
		expiry := e.hist.now() + e.ttl
		next := e.takeOver(b, key, e.long, e.takeover(e.ttl), e.ttl/20, "its holder asked for a lease without renewal")
		late.add(e.hist.now() - expiry)
		if e.g.LossSignal && !h.lost() {
			e.latef(key, "the lease still says that it is held, although another client was granted the key")
		}
		_ = next.release(e.ctx)
	})
	e.judgeExpiry(&late, "a holder did not renew its lease")
}

func maxHoldEnds(e *env) {
	key := e.key("a")
	a, b := e.locker(), e.locker()
	limit := e.ttl * 3 / 2
	h, err := a.tryFor(e.ctx, key, e.long, lock.WithMaxHold(limit))
	if errors.Is(err, lock.ErrUnsupported) {
		e.skipf("WithMaxHold is refused as unsupported")
	}
	if err != nil {
		e.unexpectedFatal(key, err, "TryAcquire with a maximum hold returned %s; expected a lease", outcome(err))
	}
	b.mustRefuse(key, "the maximum hold has not been reached")
	if !e.within(limit+e.slack(), h.lease.Context().Done()) {
		e.overdueFatalf(key, "the lease had not ended %s after the grant; its maximum hold was %s", limit+e.slack(), limit)
	}
	if held := e.hist.now() - h.invoked; held < limit-limit/50 {
		e.unexpected(key, h.cause(), "the lease ended %s after its request, with cause %s; its maximum hold was %s and its TTL %s", held, outcome(h.cause()), limit, h.effectiveTTL())
	}
	e.is(key, h.cause(), "context.Cause of a lease that reached its maximum hold", lock.ErrMaxHold, lock.ErrLost)
	next := b.wins(key, e.slack(), e.ttl/50, "the maximum hold of its holder was reached, and the key must be given back then")
	_ = next.release(e.ctx)
	if err := h.release(e.ctx); err == nil || !errors.Is(err, lock.ErrNotHeld) {
		e.unexpected(key, err, "Release after the maximum hold returned %s; expected an error that matches ErrLost", outcome(err))
	}
	for _, bad := range []time.Duration{0, -time.Second} {
		if _, err := b.try(key, lock.WithMaxHold(bad)); err == nil || !errors.Is(err, lock.ErrInvalid) {
			e.unexpected(key, err, "a maximum hold of %s returned %s; expected ErrInvalid", bad, outcome(err))
		}
	}
}

func unsupportedIsRefused(e *env) {
	c := e.locker()
	tested := false
	refused := func(what string, option lock.Option) {
		tested = true
		key := e.key("%s", what)
		h, err := c.try(key, option)
		if err == nil {
			_ = h.release(e.ctx)
			e.failf(key, "%s was accepted, although the guarantees say that it does not work; expected ErrUnsupported", what)
			return
		}
		e.is(key, err, "TryAcquire "+what, lock.ErrUnsupported)
	}
	// A lock that says nothing about itself is not contradicted here.
	if stated := e.says || e.Guarantees != nil; !stated {
		e.skipf("the lock does not state its guarantees")
	}
	if !e.g.WithoutRenewal {
		refused("without renewal", lock.WithoutRenewal())
	}
	if !claimReentrancy.made(e.settings) {
		refused("with an owner", lock.WithOwner(e.owner("A")))
	}
	if !e.g.ManualRenewal {
		tested = true
		key := e.key("renew")
		h := c.mustTry(key)
		if err := h.renew(); err == nil {
			e.notef("Renew returned no error, although it is not claimed to work")
		} else {
			e.is(key, err, "Renew", lock.ErrUnsupported)
		}
		h.mustRelease()
	}
	if !tested {
		e.skipf("the guarantees exclude nothing that could be asked for")
	}
}
