package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

var expiryRules = []*rule{
	{
		Name:      "CrashFrees",
		Statement: "When a holder dies, others get the key within the TTL and the takeover lag, however often they ask meanwhile.",
		run:       crashFrees,
	},
	{
		Name:      "ServerOutlivesD",
		Statement: "Nobody else is granted the key before the deadline of the holder's lease.",
		LimitTTLs: 80,
		run:       serverOutlivesD,
	},
	{
		Name:      "HoldersTTLCounts",
		Statement: "How long a lease lasts depends on the holder's TTL, not on the TTL of those who ask for the key.",
		run:       holdersTTLCounts,
	},
	{
		Name:      "ExpiryIsPerHold",
		Statement: "Each hold of an owner expires on its own: a longer one keeps the key, and the renewals of one keep no other alive.",
		claims:    []claim{claimReentrancy},
		run:       expiryIsPerHold,
	},
	{
		Name:      "TTLRange",
		Statement: "A TTL that is zero, negative, or outside the limits of the lock is refused with ErrInvalid; the limits themselves are accepted.",
		run:       ttlRange,
	},
	{
		Name:      "TTLGrain",
		Statement: "Any TTL from a nanosecond to the largest is refused before anything is sent, with ErrInvalid and the limits, or granted as it is: none is cut or rounded.",
		LimitTTLs: 40,
		run:       ttlGrain,
	},
	{
		Name:      "EveryTTLLasts",
		Statement: "A lease lasts for its own TTL, whichever was accepted: none is cut to a whole number of something coarser, let alone to nothing.",
		run:       everyTTLLasts,
	},
	{
		Name:      "DeadlineFromSend",
		Statement: "A lease's deadline counts from before the request was sent: it is never later than the start of the call plus the TTL.",
		claims:    []claim{claimDeadline},
		run:       deadlineFromSend,
	},
	{
		Name:      "GrantIsUsable",
		Statement: "A lease has at least a third of its TTL left when it is returned.",
		claims:    []claim{claimDeadline},
		run:       grantIsUsable,
	},
	{
		Name:      "CrashBetweenSteps",
		Statement: "A request that its client gives up at any moment of its course leaves nothing that outlives the TTL, though nobody cleans up.",
		Seam:      true,
		run:       crashBetweenSteps,
	},
}

// abandon takes the key for a client that then dies.
func (e *env) abandon(key string, ttl time.Duration) *record {
	switch {
	case e.OpenBackend != nil:
		return e.backend().mustTry(e.request(key, "", ttl)).record
	case e.Kill != nil:
		c := e.locker()
		h := c.mustTryFor(key, ttl)
		c.kill()
		return h.record
	}
	return e.locker().mustTryFor(key, ttl, lock.WithoutRenewal()).record
}

// A record may outlive its lease by what the guarantees say, and somebody has to ask.
func (e *env) judgeExpiry(l *lateness, why string) {
	l.judge(e, "", e.g.TakeoverLag+e.prompt(), "%s, with a TTL of %s, and the next grant of its key came", why, e.ttl)
}

func crashFrees(e *env) {
	b := e.locker()
	var late lateness
	e.each(3, func(i int) {
		key := e.key("%d", i)
		e.pause(time.Duration(i) * e.ttl / 3)
		e.abandon(key, e.ttl)
		expiry := e.hist.now() + e.ttl
		if i == 2 { // a waiter rather than a poller
			wait := e.takeover(e.ttl)
			done := make(chan struct{})
			join := e.start(func() {
				h := b.mustWait(e.ctx, key)
				close(done)
				_ = h.release(e.ctx)
			})
			if !e.within(wait, done) {
				e.look(key)
				e.overdueFatalf(key, "a waiter had not been granted the key after %s; its holder died, and its TTL was %s", wait, e.ttl)
			}
			join()
			return
		}
		next := b.wins(key, e.takeover(e.ttl), e.ttl/50, "its holder died")
		late.add(e.hist.now() - expiry)
		_ = next.release(e.ctx)
	})
	e.judgeExpiry(&late, "a holder died")
}

func serverOutlivesD(e *env) {
	const keys = 4
	rounds := e.rounds(e.ttl*3/2, 2, 50)
	e.eachKind(func(k kind) {
		a, b := k.open(), k.open()
		e.each(keys, func(n int) {
			e.pause(e.randomly(e.ttl))
			for round := range rounds {
				key := e.key("%s-%d-%d", k.name, n, round)
				old := e.mustTake(a, key, e.ttl)
				renewed := e.g.ManualRenewal && round%2 == 1
				if renewed {
					e.pause(e.ttl / 4)
					if err := old.renew(); err != nil {
						e.latef(key, "Renew of a lease in the first third of its life returned %s; expected no error", outcome(err))
						return
					}
				}
				deadline := old.until()
				e.pause(time.Until(deadline) - e.ttl/16)
				next := e.takeOver(b, key, e.long, e.takeover(e.ttl), 2*time.Millisecond, "the lease of the holder was not renewed any more")
				if now := time.Now(); now.Before(deadline) {
					how := "the lease had not been renewed"
					if renewed {
						how = "the lease had been renewed once, and its new deadline counts"
					}
					e.failf(key, "another client was granted the key %s before the deadline of its holder; expected nobody to get it before (%s)", short(deadline.Sub(now)), how)
				}
				_ = next.release(e.ctx)
			}
		})
	})
	e.notef("%d takeovers", keys*rounds*len(e.kinds()))
}

func holdersTTLCounts(e *env) {
	longer := e.fit(3 * e.ttl)
	if longer < 2*e.ttl {
		e.skipf("needs two TTLs, and only %s can be had", e.ttl)
	}
	muchLonger := e.fit(time.Hour)
	e.eachKind(func(k kind) {
		e.together(
			func() { // contenders with a short TTL don't shorten a long lease
				key := e.key("%s-long", k.name)
				a, b := k.open(), k.open()
				old := e.mustTake(a, key, longer)
				deadline := old.until()
				next := e.takeOver(b, key, e.ttl, e.takeover(longer), e.ttl/25, "the holder's lease was not renewed")
				if now := time.Now(); now.Before(deadline) {
					e.failf(key, "a client that asked with a TTL of %s was granted the key %s before the deadline of the holder, whose TTL was %s; expected nobody to get it before", e.ttl, short(deadline.Sub(now)), longer)
				}
				_ = next.release(e.ctx)
			},
			func() { // contenders with a long TTL don't lengthen a short lease
				key := e.key("%s-short", k.name)
				a, b := k.open(), k.open()
				e.mustTake(a, key, e.ttl)
				next := e.takeOver(b, key, muchLonger, e.takeover(e.ttl), e.ttl/25, "the holder's TTL was short, whatever the contender's")
				_ = next.release(e.ctx)
			},
		)
	})
}

func expiryIsPerHold(e *env) {
	if !e.g.WithoutRenewal {
		e.skipf("needs leases that are not renewed, and WithoutRenewal is not claimed")
	}
	e.together(func() {
		key := e.key("longer")
		if e.long < 4*e.ttl {
			return
		}
		a, b := e.locker(), e.locker()
		owner := lock.WithOwner(e.owner("A"))
		short := a.mustTryFor(key, e.ttl, owner, lock.WithoutRenewal())
		long := a.mustTryFor(key, e.long, owner, lock.WithoutRenewal())
		e.awaitLapse(short)
		e.expire(short)
		b.mustRefuse(key, "a second and longer hold of its owner goes on")
		long.mustLive("only the other hold of its owner had a short TTL")
		long.mustRelease()
		b.mustTry(key).mustRelease()
	}, func() {
		key := e.key("abandoned")
		a, b := e.locker(), e.locker()
		owner := lock.WithOwner(e.owner("B"))
		kept := a.mustTryFor(key, e.ttl, owner)
		lapsing := a.mustTryFor(key, e.ttl, owner, lock.WithoutRenewal())
		e.awaitLapse(lapsing)
		e.expire(lapsing)
		b.mustRefuse(key, "one of its holds is renewed")
		kept.mustLive("it is renewed")
		end, known := kept.deadline()
		kept.mustRelease()
		h, err := b.try(key)
		if err == nil && known && e.hist.now() >= end {
			e.tooSlowf(key, "the key was taken at %s; a hold that was wrongly renewed with another could have ended at %s", seconds(e.hist.now()), seconds(end))
		}
		if err != nil {
			e.unexpectedFatal(key, err, "a try returned %s although one hold of the owner was released and the other had run out; expected a lease: the renewals of one hold must not keep another alive", outcome(err))
		}
		h.mustRelease()
	})
}

func ttlRange(e *env) {
	c := e.locker()
	refuse := func(what string, ttl time.Duration, or ...error) {
		key := e.key("%s", what)
		h, err := c.get("TryAcquire", c.l.TryAcquire, e.ctx, key, []lock.Option{lock.WithTTL(ttl)})
		if err == nil {
			_ = h.release(e.ctx)
			e.failf(key, "a TTL of %s (%s) was accepted; expected ErrInvalid", ttl, what)
			return
		}
		for _, x := range or {
			if errors.Is(err, x) {
				return
			}
		}
		e.is(key, err, "TryAcquire with a TTL of "+ttl.String()+" ("+what+")", lock.ErrInvalid)
	}
	refuse("zero", 0)
	refuse("negative", -time.Second)
	grain := max(e.g.TTLGrain, 1)
	if below := e.g.MinTTL - grain; below > 0 {
		refuse("below the minimum", below, lock.ErrUnsupported)
	}
	if e.g.MinTTL > 1 {
		refuse("one nanosecond", 1, lock.ErrUnsupported)
	}
	if e.g.MaxTTL > 0 {
		refuse("above the maximum", e.g.MaxTTL+grain, lock.ErrUnsupported)
	}
	if e.fixed {
		return
	}
	for _, ttl := range []time.Duration{e.ttl, e.g.MaxTTL} {
		if ttl == 0 {
			continue
		}
		key := e.key("accepted-%s", ttl)
		c.mustTryFor(key, ttl).mustRelease()
	}
	if e.g.MinTTL > 0 {
		// So short a lease may have run out before its reply arrives.
		key := e.key("minimum")
		h, err := c.tryFor(e.ctx, key, e.g.MinTTL)
		if err == nil {
			_ = h.release(e.ctx)
		} else if errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrUnsupported) {
			e.unexpected(key, err, "the smallest TTL of the guarantees, %s, was refused: %s", e.g.MinTTL, outcome(err))
		}
	}
}

// grainTTLs are where a TTL gets lost when it is put into coarser units: below them, at
// them, and just beside them; and the limits of the lock.
func (e *env) grainTTLs() []time.Duration {
	grain := max(e.g.TTLGrain, 1)
	out := []time.Duration{
		1, time.Microsecond, time.Millisecond - time.Microsecond, time.Millisecond,
		time.Second - time.Millisecond, time.Second, time.Second + 1,
		e.g.MinTTL, e.g.MinTTL + 1, e.g.MaxTTL, grain, grain + 1,
	}
	for _, off := range []time.Duration{1, grain / 2, grain - 1} {
		out = append(out, e.fit(2*e.ttl)+off)
	}
	slices.Sort(out)
	return slices.Compact(slices.DeleteFunc(out, func(ttl time.Duration) bool { return ttl <= 0 }))
}

func ttlGrain(e *env) {
	ttls := e.grainTTLs()
	b := e.locker()
	a, sent := e.locker(), func(string) int { return 0 }
	if e.OpenBackend != nil {
		var f *faultlock.Faults
		a, f = e.faulty()
		sent = func(key string) int { return requests(f, key, sending...) }
	}
	var granted atomic.Int64
	e.each(len(ttls), func(i int) {
		ttl, key := ttls[i], e.key("%s", ttls[i])
		h, err := a.get("TryAcquire", a.l.TryAcquire, e.ctx, key, append(e.unrenewed(), lock.WithTTL(ttl)))
		switch {
		case err == nil:
			granted.Add(1)
			e.judgeTTL(h, b)
			return
		case errors.Is(err, lock.ErrInvalid) || e.fixed && errors.Is(err, lock.ErrUnsupported):
			e.judgeRefusedTTL(key, ttl, err)
			if n := sent(key); n > 0 {
				e.failf(key, "a TTL of %s was refused, but only after %d requests for the key; expected the refusal before anything is sent", ttl, n)
			}
		case ttl < e.ttl && (errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrOutcomeUnknown)):
			// Accepted, and over before the answer came: shorter than what is honest here.
		case !e.says: // a server may have refused it in words of its own
		default:
			e.unexpected(key, err, "TryAcquire with a TTL of %s returned %s; expected a lease, or ErrInvalid", ttl, outcome(err))
		}
		b.soon(key, "a request with a TTL of "+ttl.String()+" was not granted, and must leave nothing").mustRelease()
	})
	e.notef("%d TTLs, %d of them granted", len(ttls), granted.Load())
}

// judgeRefusedTTL looks at a refusal.
func (e *env) judgeRefusedTTL(key string, ttl time.Duration, err error) {
	if !e.says {
		return
	}
	if e.g.CheckTTL(ttl) == nil {
		e.failf(key, "a TTL of %s was refused (%s), although the guarantees accept it", ttl, outcome(err))
	}
	for what, limit := range map[string]time.Duration{"smallest TTL": e.g.MinTTL, "largest TTL": e.g.MaxTTL, "grain": e.g.TTLGrain} {
		if limit > 1 && !strings.Contains(err.Error(), limit.String()) && !e.fixed {
			e.failf(key, "the refusal of a TTL of %s is %q; expected it to name the %s, %s, so that its reader knows which TTL to take", ttl, err, what, limit)
		}
	}
}

// judgeTTL has a client b ask for the key of a lease until its deadline, unless that
// is far away.
func (e *env) judgeTTL(h *hold, b *client) {
	ttl, key := h.set.TTL, h.key
	if err := e.g.CheckTTL(ttl); err != nil {
		_ = h.release(e.ctx)
		e.failf(key, "a TTL of %s was accepted; expected ErrInvalid: %v", ttl, err)
		return
	}
	deadline := h.until()
	least := ttl * 9 / 10
	if e.fixed {
		least = ttl / 2 // a session may be proved for a part of its time only
	}
	if left := deadline.Sub(e.hist.base.Add(h.invoked)); left <= 0 || left < least-10*time.Millisecond {
		e.latef(key, "a lease with a TTL of %s has its deadline %s after the start of the call; expected nearly the whole TTL, and never nothing", ttl, left)
	}
	if !e.g.WithoutRenewal || time.Until(deadline) > 3*time.Second {
		b.mustRefuse(key, "its holder's TTL is "+ttl.String())
		if err := h.release(e.ctx); errors.Is(err, lock.ErrExpired) && !time.Now().Before(deadline) {
			e.tooSlowf(key, "a lease with a TTL of %s had run out before it was released", ttl)
		} else if err != nil {
			e.unexpectedFatal(key, err, "Release of a lease that was held returned %s; expected no error", outcome(err))
		}
		return
	}
	next := e.takeOver(b, key, e.long, e.takeover(ttl), stepOf(ttl), "its holder's TTL was "+ttl.String())
	if now := time.Now(); now.Before(deadline) {
		e.failf(key, "another client was granted the key %s before the deadline of its holder, whose TTL was %s; expected nobody to get it before", short(deadline.Sub(now)), ttl)
	}
	_ = next.release(e.ctx)
}

// stepOf is the pause between two tries for a key from the grant on: a part of the TTL that
// no coarser unit is as small as.
func stepOf(ttl time.Duration) time.Duration { return max(5*time.Millisecond, ttl/50) }

// uneven are TTLs between the usual ones, as far as the guarantees accept them.
func (e *env) uneven() []time.Duration {
	var out []time.Duration
	grain := max(e.g.TTLGrain, 1)
	for _, ttl := range []time.Duration{max(e.ttl/4, minTTL), e.ttl * 3 / 2, e.ttl*2 - 1} {
		ttl -= ttl % grain
		if e.g.CheckTTL(ttl) == nil && !slices.Contains(out, ttl) {
			out = append(out, ttl)
		}
	}
	return out
}

func everyTTLLasts(e *env) {
	if e.fixed {
		e.skipf("needs several TTLs, and only %s can be had", e.ttl)
	}
	ttls := append(e.uneven(), e.lasting())
	last := len(ttls) // the longest once more, renewed
	e.eachKind(func(k kind) {
		a, b := k.open(), k.open()
		e.each(last+1, func(i int) {
			ttl, renewed := ttls[min(i, last-1)], i == last
			if renewed && !e.g.ManualRenewal {
				return
			}
			key, why := e.key("%s-%s-%t", k.name, ttl, renewed), "its holder did not renew it"
			old := e.mustTake(a, key, ttl)
			if renewed {
				why = "its holder renewed it once"
				e.pause(ttl / 10)
				if err := old.renew(); err != nil {
					e.lateFatalf(key, "Renew of a lease in the first third of its life returned %s; expected no error", outcome(err))
				}
			}
			deadline := old.until()
			next := e.takeOver(b, key, e.long, time.Until(deadline)+e.takeover(ttl/8), stepOf(ttl), why)
			if now := time.Now(); now.Before(deadline) {
				e.failf(key, "another client was granted the key %s before the deadline of its holder, whose TTL was %s (%s); expected nobody to get it before", short(deadline.Sub(now)), ttl, why)
			}
			_ = next.release(e.ctx)
		})
	})
	e.notef("TTLs of %s", ttls)
}

// lasting is the longest TTL that is waited for.
func (e *env) lasting() time.Duration { return e.fit(max(3*e.ttl, min(e.Budget/2, 10*time.Second))) }

// deadlineFromSend compares with the start of the call. The request is sent a little
// later than that, so that only a deadline is too late that counts from the second half
// of the call, and only one that is so more often than not is a broken rule. Where
// answers can be delayed, one is enough.
func deadlineFromSend(e *env) {
	if e.OpenBackend != nil {
		e.deadlineOfLateAnswers()
	}
	c := e.locker()
	for _, op := range []string{"TryAcquire", "Renew"} {
		if op == "Renew" && !(e.g.ManualRenewal && e.g.WithoutRenewal) {
			continue
		}
		const (
			calls = 21
			grain = 50 * time.Microsecond // a call that took less tells nothing
		)
		late, example := 0, ""
		for i := range calls {
			key := e.key("%s-%d", op, i)
			before := time.Now()
			h := c.mustTryFor(key, e.ttl, e.unrenewed()...)
			after := time.Now()
			if op == "Renew" {
				e.pause(e.ttl / 50)
				before = time.Now()
				if err := h.renew(); err != nil {
					e.latef(key, "Renew of a fresh lease returned %s; expected no error", outcome(err))
				}
				after = time.Now()
			}
			d, ok := h.lease.Deadline()
			if !ok {
				e.fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
			}
			took := after.Sub(before)
			if over := d.Sub(before.Add(h.effectiveTTL())); over > max(took/2, grain) {
				late++
				example = fmt.Sprintf("by %s, of a call that took %s", over.Round(time.Microsecond), took.Round(time.Microsecond))
			}
			_ = h.release(e.ctx)
		}
		if late > calls/2 {
			e.latef("", "in %d of %d calls of %s the deadline is later than the start of the call plus the TTL of %s, the last time %s; expected it to count from before the request", late, calls, op, e.ttl, example)
		}
	}
}

func (e *env) deadlineOfLateAnswers() {
	a, f := e.faulty()
	key, delay := e.key("late-answers"), e.ttl/5 // a session is proved for two thirds of its time, and of no use below one
	f.All(faultlock.DelayAfter(delay), faultlock.OpTry, faultlock.OpRenew)
	before := time.Now()
	h := a.mustTryFor(key, e.ttl, e.unrenewed()...)
	judge := func(op string) {
		d, ok := h.lease.Deadline()
		if !ok {
			e.fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
		}
		if latest := before.Add(h.effectiveTTL()); d.After(latest) {
			e.failf(key, "the answer to a %s came %s after the request, and the deadline of the lease is %s; expected at most %s, the start of the call plus the TTL of %s, since the server counts from when it got the request",
				op, delay, seconds(e.hist.at(d)), seconds(e.hist.at(latest)), h.effectiveTTL())
		}
	}
	judge("TryAcquire")
	if e.g.ManualRenewal && e.g.WithoutRenewal {
		before = time.Now()
		if err := h.renew(); err != nil {
			e.latef(key, "Renew, with the answer delayed by %s, returned %s; expected no error: the TTL is %s", delay, outcome(err), e.ttl)
		}
		judge("Renew")
	}
	f.Heal()
	_ = h.release(e.ctx)
}

// unrenewed is lock.WithoutRenewal where it works.
func (e *env) unrenewed() []lock.Option {
	if e.g.WithoutRenewal {
		return []lock.Option{lock.WithoutRenewal()}
	}
	return nil
}

func grantIsUsable(e *env) {
	c := e.locker()
	for i := range 20 {
		key := e.key("%d", i)
		h := c.mustTryFor(key, e.ttl, e.unrenewed()...)
		d, ok := h.lease.Deadline()
		switch left := d.Sub(e.hist.base.Add(h.granted)); {
		case !ok:
			e.fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
		case left < e.ttl/3-5*time.Millisecond:
			e.fail(excuse{e.timely().from, thisProcess}, key, "a lease with a TTL of %s was returned with %s left; expected at least a third", e.ttl, left)
		}
		h.mustRelease()
	}
}
