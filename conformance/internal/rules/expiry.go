package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var expiryRules = []*engine.Rule{
	{
		Name:      "CrashFrees",
		Statement: "When a holder dies, others get the key within the TTL and the takeover lag, however often they ask meanwhile.",
		Run:       crashFrees,
	},
	{
		Name:      "ServerOutlivesD",
		Statement: "Nobody else is granted the key before the deadline of the holder's lease.",
		LimitTTLs: 80,
		Run:       serverOutlivesD,
	},
	{
		Name:      "HoldersTTLCounts",
		Statement: "How long a lease lasts depends on the holder's TTL, not on the TTL of those who ask for the key.",
		Run:       holdersTTLCounts,
	},
	{
		Name:      "ExpiryIsPerHold",
		Statement: "Each hold of an owner expires on its own: a longer one keeps the key, and the renewals of one keep no other alive.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       expiryIsPerHold,
	},
	{
		Name:      "TTLRange",
		Statement: "A TTL that is zero, negative, or outside the limits of the lock is refused with ErrInvalid; the limits themselves are accepted.",
		Run:       ttlRange,
	},
	{
		Name:      "TTLGrain",
		Statement: "Any TTL from a nanosecond to the largest is refused before anything is sent, with ErrInvalid and the limits, or granted as it is: none is cut or rounded.",
		LimitTTLs: 40,
		Run:       ttlGrain,
	},
	{
		Name:      "EveryTTLLasts",
		Statement: "A lease lasts for its own TTL, whichever was accepted: none is cut to a whole number of something coarser, let alone to nothing.",
		Run:       everyTTLLasts,
	},
	{
		Name:      "DeadlineFromSend",
		Statement: "A lease's deadline counts from before the request was sent: it is never later than the start of the call plus the TTL.",
		Claims:    []engine.Claim{engine.ClaimDeadline},
		Run:       deadlineFromSend,
	},
	{
		Name:      "GrantIsUsable",
		Statement: "A lease has at least a third of its TTL left when it is returned.",
		Claims:    []engine.Claim{engine.ClaimDeadline},
		Run:       grantIsUsable,
	},
	{
		Name:      "CrashBetweenSteps",
		Statement: "A request that its client gives up at any moment of its course leaves nothing that outlives the TTL, though nobody cleans up.",
		Seam:      true,
		Run:       crashBetweenSteps,
	},
}

// abandon takes the key for a client that then dies.
func abandon(e *engine.Env, key string, ttl time.Duration) *engine.Record {
	switch {
	case e.OpenBackend != nil:
		return e.Backend().MustTry(e.Request(key, "", ttl)).Record
	case e.Kill != nil:
		c := e.Locker()
		h := c.MustTryFor(key, ttl)
		c.Kill()
		return h.Record
	}
	return e.Locker().MustTryFor(key, ttl, lock.WithoutRenewal()).Record
}

// A record may outlive its lease by what the guarantees say, and somebody has to ask.
func judgeExpiry(e *engine.Env, l *engine.Lateness, why string) {
	l.Judge(e, "", e.Claimed.TakeoverLag+e.Prompt(), "%s, with a TTL of %s, and the next grant of its key came", why, e.TTL)
}

func crashFrees(e *engine.Env) {
	b := e.Locker()
	var late engine.Lateness
	e.Each(3, func(i int) {
		key := e.Key("%d", i)
		e.Pause(time.Duration(i) * e.TTL / 3)
		abandon(e, key, e.TTL)
		expiry := e.Log.Now() + e.TTL
		if i == 2 { // a waiter rather than a poller
			wait := e.TakeoverLimit(e.TTL)
			done := make(chan struct{})
			join := e.Start(func() {
				h := b.MustWait(e.Ctx, key)
				close(done)
				_ = h.Release(e.Ctx)
			})
			if !e.Within(wait, done) {
				e.Look(key)
				e.OverdueFatalf(key, "a waiter had not been granted the key after %s; its holder died, and its TTL was %s", wait, e.TTL)
			}
			join()
			return
		}
		next := b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its holder died")
		late.Add(e.Log.Now() - expiry)
		_ = next.Release(e.Ctx)
	})
	judgeExpiry(e, &late, "a holder died")
}

func serverOutlivesD(e *engine.Env) {
	const keys = 4
	rounds := e.Rounds(e.TTL*3/2, 2, 50)
	e.EachKind(func(k engine.PartyKind) {
		a, b := k.Open(), k.Open()
		e.Each(keys, func(n int) {
			e.Pause(e.Randomly(e.TTL))
			for round := range rounds {
				key := e.Key("%s-%d-%d", k.Name, n, round)
				old := e.MustTake(a, key, e.TTL)
				renewed := e.Claimed.ManualRenewal && round%2 == 1
				if renewed {
					e.Pause(e.TTL / 4)
					if err := old.Renew(); err != nil {
						e.Latef(key, "Renew of a lease in the first third of its life returned %s; expected no error", engine.Outcome(err))
						return
					}
				}
				deadline := old.Until()
				e.Pause(time.Until(deadline) - e.TTL/16)
				next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), 2*time.Millisecond, "the lease of the holder was not renewed any more")
				if now := time.Now(); now.Before(deadline) {
					how := "the lease had not been renewed"
					if renewed {
						how = "the lease had been renewed once, and its new deadline counts"
					}
					e.Failf(key, "another client was granted the key %s before the deadline of its holder; expected nobody to get it before (%s)", engine.Short(deadline.Sub(now)), how)
				}
				_ = next.Release(e.Ctx)
			}
		})
	})
	e.Notef("%d takeovers", keys*rounds*len(e.Kinds()))
}

func holdersTTLCounts(e *engine.Env) {
	longer := e.Fit(3 * e.TTL)
	if longer < 2*e.TTL {
		e.Skipf("needs two TTLs, and only %s can be had", e.TTL)
	}
	muchLonger := e.Fit(time.Hour)
	e.EachKind(func(k engine.PartyKind) {
		e.Together(
			func() { // contenders with a short TTL don't shorten a long lease
				key := e.Key("%s-long", k.Name)
				a, b := k.Open(), k.Open()
				old := e.MustTake(a, key, longer)
				deadline := old.Until()
				next := e.TakeOver(b, key, e.TTL, e.TakeoverLimit(longer), e.TTL/25, "the holder's lease was not renewed")
				if now := time.Now(); now.Before(deadline) {
					e.Failf(key, "a client that asked with a TTL of %s was granted the key %s before the deadline of the holder, whose TTL was %s; expected nobody to get it before", e.TTL, engine.Short(deadline.Sub(now)), longer)
				}
				_ = next.Release(e.Ctx)
			},
			func() { // contenders with a long TTL don't lengthen a short lease
				key := e.Key("%s-short", k.Name)
				a, b := k.Open(), k.Open()
				e.MustTake(a, key, e.TTL)
				next := e.TakeOver(b, key, muchLonger, e.TakeoverLimit(e.TTL), e.TTL/25, "the holder's TTL was short, whatever the contender's")
				_ = next.Release(e.Ctx)
			},
		)
	})
}

func expiryIsPerHold(e *engine.Env) {
	if !e.Claimed.WithoutRenewal {
		e.Skipf("needs leases that are not renewed, and WithoutRenewal is not claimed")
	}
	e.Together(func() {
		key := e.Key("longer")
		if e.Long < 4*e.TTL {
			return
		}
		a, b := e.Locker(), e.Locker()
		owner := lock.WithOwner(e.Owner("A"))
		short := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
		long := a.MustTryFor(key, e.Long, owner, lock.WithoutRenewal())
		awaitLapse(e, short)
		e.Expire(short)
		b.MustRefuse(key, "a second and longer hold of its owner goes on")
		long.MustLive("only the other hold of its owner had a short TTL")
		long.MustRelease()
		b.MustTry(key).MustRelease()
	}, func() {
		key := e.Key("abandoned")
		a, b := e.Locker(), e.Locker()
		owner := lock.WithOwner(e.Owner("B"))
		kept := a.MustTryFor(key, e.TTL, owner)
		lapsing := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
		awaitLapse(e, lapsing)
		e.Expire(lapsing)
		b.MustRefuse(key, "one of its holds is renewed")
		kept.MustLive("it is renewed")
		end, known := kept.Deadline()
		kept.MustRelease()
		h, err := b.Try(key)
		if err == nil && known && e.Log.Now() >= end {
			e.TooSlowf(key, "the key was taken at %s; a hold that was wrongly renewed with another could have ended at %s", engine.Seconds(e.Log.Now()), engine.Seconds(end))
		}
		if err != nil {
			e.UnexpectedFatal(key, err, "a try returned %s although one hold of the owner was released and the other had run out; expected a lease: the renewals of one hold must not keep another alive", engine.Outcome(err))
		}
		h.MustRelease()
	})
}

func ttlRange(e *engine.Env) {
	c := e.Locker()
	refuse := func(what string, ttl time.Duration, or ...error) {
		key := e.Key("%s", what)
		h, err := c.Get("TryAcquire", c.Locker.TryAcquire, e.Ctx, key, []lock.Option{lock.WithTTL(ttl)})
		if err == nil {
			_ = h.Release(e.Ctx)
			e.Failf(key, "a TTL of %s (%s) was accepted; expected ErrInvalid", ttl, what)
			return
		}
		for _, x := range or {
			if errors.Is(err, x) {
				return
			}
		}
		e.Is(key, err, "TryAcquire with a TTL of "+ttl.String()+" ("+what+")", lock.ErrInvalid)
	}
	refuse("zero", 0)
	refuse("negative", -time.Second)
	grain := max(e.Claimed.TTLGrain, 1)
	if below := e.Claimed.MinTTL - grain; below > 0 {
		refuse("below the minimum", below, lock.ErrUnsupported)
	}
	if e.Claimed.MinTTL > 1 {
		refuse("one nanosecond", 1, lock.ErrUnsupported)
	}
	if e.Claimed.MaxTTL > 0 {
		refuse("above the maximum", e.Claimed.MaxTTL+grain, lock.ErrUnsupported)
	}
	if e.Fixed {
		return
	}
	for _, ttl := range []time.Duration{e.TTL, e.Claimed.MaxTTL} {
		if ttl == 0 {
			continue
		}
		key := e.Key("accepted-%s", ttl)
		c.MustTryFor(key, ttl).MustRelease()
	}
	if e.Claimed.MinTTL > 0 {
		// So short a lease may have run out before its reply arrives.
		key := e.Key("minimum")
		h, err := c.TryFor(e.Ctx, key, e.Claimed.MinTTL)
		if err == nil {
			_ = h.Release(e.Ctx)
		} else if errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrUnsupported) {
			e.Unexpected(key, err, "the smallest TTL of the guarantees, %s, was refused: %s", e.Claimed.MinTTL, engine.Outcome(err))
		}
	}
}

// grainTTLs are where a TTL gets lost when it is put into coarser units: below them, at
// them, and just beside them; and the limits of the lock.
func grainTTLs(e *engine.Env) []time.Duration {
	grain := max(e.Claimed.TTLGrain, 1)
	out := []time.Duration{
		1, time.Microsecond, time.Millisecond - time.Microsecond, time.Millisecond,
		time.Second - time.Millisecond, time.Second, time.Second + 1,
		e.Claimed.MinTTL, e.Claimed.MinTTL + 1, e.Claimed.MaxTTL, grain, grain + 1,
	}
	for _, off := range []time.Duration{1, grain / 2, grain - 1} {
		out = append(out, e.Fit(2*e.TTL)+off)
	}
	slices.Sort(out)
	return slices.Compact(slices.DeleteFunc(out, func(ttl time.Duration) bool { return ttl <= 0 }))
}

func ttlGrain(e *engine.Env) {
	ttls := grainTTLs(e)
	b := e.Locker()
	a, sent := e.Locker(), func(string) int { return 0 }
	if e.OpenBackend != nil {
		var f *faultlock.Faults
		a, f = e.Faulty()
		sent = func(key string) int { return engine.Requests(f, key, sending...) }
	}
	var granted atomic.Int64
	e.Each(len(ttls), func(i int) {
		ttl, key := ttls[i], e.Key("%s", ttls[i])
		h, err := a.Get("TryAcquire", a.Locker.TryAcquire, e.Ctx, key, append(unrenewed(e), lock.WithTTL(ttl)))
		switch {
		case err == nil:
			granted.Add(1)
			judgeTTL(e, h, b)
			return
		case errors.Is(err, lock.ErrInvalid) || e.Fixed && errors.Is(err, lock.ErrUnsupported):
			judgeRefusedTTL(e, key, ttl, err)
			if n := sent(key); n > 0 {
				e.Failf(key, "a TTL of %s was refused, but only after %d requests for the key; expected the refusal before anything is sent", ttl, n)
			}
		case ttl < e.TTL && (errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrOutcomeUnknown)):
			// Accepted, and over before the answer came: shorter than what is honest here.
		case !e.Says: // a server may have refused it in words of its own
		default:
			e.Unexpected(key, err, "TryAcquire with a TTL of %s returned %s; expected a lease, or ErrInvalid", ttl, engine.Outcome(err))
		}
		b.Soon(key, "a request with a TTL of "+ttl.String()+" was not granted, and must leave nothing").MustRelease()
	})
	e.Notef("%d TTLs, %d of them granted", len(ttls), granted.Load())
}

// judgeRefusedTTL looks at a refusal.
func judgeRefusedTTL(e *engine.Env, key string, ttl time.Duration, err error) {
	if !e.Says {
		return
	}
	if e.Claimed.CheckTTL(ttl) == nil {
		e.Failf(key, "a TTL of %s was refused (%s), although the guarantees accept it", ttl, engine.Outcome(err))
	}
	for what, limit := range map[string]time.Duration{"smallest TTL": e.Claimed.MinTTL, "largest TTL": e.Claimed.MaxTTL, "grain": e.Claimed.TTLGrain} {
		if limit > 1 && !strings.Contains(err.Error(), limit.String()) && !e.Fixed {
			e.Failf(key, "the refusal of a TTL of %s is %q; expected it to name the %s, %s, so that its reader knows which TTL to take", ttl, err, what, limit)
		}
	}
}

// judgeTTL has a client b ask for the key of a lease until its deadline, unless that
// is far away.
func judgeTTL(e *engine.Env, h *engine.Hold, b *engine.Client) {
	ttl, key := h.Settings.TTL, h.Key
	if err := e.Claimed.CheckTTL(ttl); err != nil {
		_ = h.Release(e.Ctx)
		e.Failf(key, "a TTL of %s was accepted; expected ErrInvalid: %v", ttl, err)
		return
	}
	deadline := h.Until()
	least := ttl * 9 / 10
	if e.Fixed {
		least = ttl / 2 // a session may be proved for a part of its time only
	}
	if left := deadline.Sub(e.Log.Base.Add(h.Invoked)); left <= 0 || left < least-10*time.Millisecond {
		e.Latef(key, "a lease with a TTL of %s has its deadline %s after the start of the call; expected nearly the whole TTL, and never nothing", ttl, left)
	}
	if !e.Claimed.WithoutRenewal || time.Until(deadline) > 3*time.Second {
		b.MustRefuse(key, "its holder's TTL is "+ttl.String())
		if err := h.Release(e.Ctx); errors.Is(err, lock.ErrExpired) && !time.Now().Before(deadline) {
			e.TooSlowf(key, "a lease with a TTL of %s had run out before it was released", ttl)
		} else if err != nil {
			e.UnexpectedFatal(key, err, "Release of a lease that was held returned %s; expected no error", engine.Outcome(err))
		}
		return
	}
	next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(ttl), stepOf(ttl), "its holder's TTL was "+ttl.String())
	if now := time.Now(); now.Before(deadline) {
		e.Failf(key, "another client was granted the key %s before the deadline of its holder, whose TTL was %s; expected nobody to get it before", engine.Short(deadline.Sub(now)), ttl)
	}
	_ = next.Release(e.Ctx)
}

// stepOf is the pause between two tries for a key from the grant on: a part of the TTL that
// no coarser unit is as small as.
func stepOf(ttl time.Duration) time.Duration { return max(5*time.Millisecond, ttl/50) }

// uneven are TTLs between the usual ones, as far as the guarantees accept them.
func uneven(e *engine.Env) []time.Duration {
	var out []time.Duration
	grain := max(e.Claimed.TTLGrain, 1)
	for _, ttl := range []time.Duration{max(e.TTL/4, engine.MinTTL), e.TTL * 3 / 2, e.TTL*2 - 1} {
		ttl -= ttl % grain
		if e.Claimed.CheckTTL(ttl) == nil && !slices.Contains(out, ttl) {
			out = append(out, ttl)
		}
	}
	return out
}

func everyTTLLasts(e *engine.Env) {
	if e.Fixed {
		e.Skipf("needs several TTLs, and only %s can be had", e.TTL)
	}
	ttls := append(uneven(e), lasting(e))
	last := len(ttls) // the longest once more, renewed
	e.EachKind(func(k engine.PartyKind) {
		a, b := k.Open(), k.Open()
		e.Each(last+1, func(i int) {
			ttl, renewed := ttls[min(i, last-1)], i == last
			if renewed && !e.Claimed.ManualRenewal {
				return
			}
			key, why := e.Key("%s-%s-%t", k.Name, ttl, renewed), "its holder did not renew it"
			old := e.MustTake(a, key, ttl)
			if renewed {
				why = "its holder renewed it once"
				e.Pause(ttl / 10)
				if err := old.Renew(); err != nil {
					e.LateFatalf(key, "Renew of a lease in the first third of its life returned %s; expected no error", engine.Outcome(err))
				}
			}
			deadline := old.Until()
			next := e.TakeOver(b, key, e.Long, time.Until(deadline)+e.TakeoverLimit(ttl/8), stepOf(ttl), why)
			if now := time.Now(); now.Before(deadline) {
				e.Failf(key, "another client was granted the key %s before the deadline of its holder, whose TTL was %s (%s); expected nobody to get it before", engine.Short(deadline.Sub(now)), ttl, why)
			}
			_ = next.Release(e.Ctx)
		})
	})
	e.Notef("TTLs of %s", ttls)
}

// lasting is the longest TTL that is waited for.
func lasting(e *engine.Env) time.Duration {
	return e.Fit(max(3*e.TTL, min(e.Budget/2, 10*time.Second)))
}

// deadlineFromSend compares with the start of the call. The request is sent a little
// later than that, so a deadline is too late only if it counts from the second half of
// the call. The rule is broken when more than half of them are. Where answers can be
// delayed, one is enough.
func deadlineFromSend(e *engine.Env) {
	if e.OpenBackend != nil {
		deadlineOfLateAnswers(e)
	}
	c := e.Locker()
	for _, op := range []string{"TryAcquire", "Renew"} {
		if op == "Renew" && !(e.Claimed.ManualRenewal && e.Claimed.WithoutRenewal) {
			continue
		}
		const (
			calls = 21
			grain = 50 * time.Microsecond // a call that took less tells nothing
		)
		late, example := 0, ""
		for i := range calls {
			key := e.Key("%s-%d", op, i)
			before := time.Now()
			h := c.MustTryFor(key, e.TTL, unrenewed(e)...)
			after := time.Now()
			if op == "Renew" {
				e.Pause(e.TTL / 50)
				before = time.Now()
				if err := h.Renew(); err != nil {
					e.Latef(key, "Renew of a fresh lease returned %s; expected no error", engine.Outcome(err))
				}
				after = time.Now()
			}
			d, ok := h.Lease.Deadline()
			if !ok {
				e.Fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
			}
			took := after.Sub(before)
			if over := d.Sub(before.Add(h.EffectiveTTL())); over > max(took/2, grain) {
				late++
				example = fmt.Sprintf("by %s, of a call that took %s", over.Round(time.Microsecond), took.Round(time.Microsecond))
			}
			_ = h.Release(e.Ctx)
		}
		if late > calls/2 {
			e.Latef("", "in %d of %d calls of %s the deadline is later than the start of the call plus the TTL of %s, the last time %s; expected it to count from before the request", late, calls, op, e.TTL, example)
		}
	}
}

func deadlineOfLateAnswers(e *engine.Env) {
	a, f := e.Faulty()
	key, delay := e.Key("late-answers"), e.TTL/5 // a session is proved for two thirds of its time, and of no use below one
	f.All(faultlock.DelayAfter(delay), faultlock.OpTry, faultlock.OpRenew)
	before := time.Now()
	h := a.MustTryFor(key, e.TTL, unrenewed(e)...)
	judge := func(op string) {
		d, ok := h.Lease.Deadline()
		if !ok {
			e.Fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
		}
		if latest := before.Add(h.EffectiveTTL()); d.After(latest) {
			e.Failf(key, "the answer to a %s came %s after the request, and the deadline of the lease is %s; expected at most %s, the start of the call plus the TTL of %s, since the server counts from when it got the request",
				op, delay, engine.Seconds(e.Log.At(d)), engine.Seconds(e.Log.At(latest)), h.EffectiveTTL())
		}
	}
	judge("TryAcquire")
	if e.Claimed.ManualRenewal && e.Claimed.WithoutRenewal {
		before = time.Now()
		if err := h.Renew(); err != nil {
			e.Latef(key, "Renew, with the answer delayed by %s, returned %s; expected no error: the TTL is %s", delay, engine.Outcome(err), e.TTL)
		}
		judge("Renew")
	}
	f.Heal()
	_ = h.Release(e.Ctx)
}

// unrenewed is lock.WithoutRenewal where it works.
func unrenewed(e *engine.Env) []lock.Option {
	if e.Claimed.WithoutRenewal {
		return []lock.Option{lock.WithoutRenewal()}
	}
	return nil
}

func grantIsUsable(e *engine.Env) {
	c := e.Locker()
	for i := range 20 {
		key := e.Key("%d", i)
		h := c.MustTryFor(key, e.TTL, unrenewed(e)...)
		d, ok := h.Lease.Deadline()
		switch left := d.Sub(e.Log.Base.Add(h.Granted)); {
		case !ok:
			e.Fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
		case left < e.TTL/3-5*time.Millisecond:
			e.Fail(engine.Excuse{From: e.Timely().From, By: engine.ThisProcess}, key, "a lease with a TTL of %s was returned with %s left; expected at least a third", e.TTL, left)
		}
		h.MustRelease()
	}
}
