package rules

import (
	"errors"
	"math"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func maxHoldEnds(e *engine.Env) {
	for _, bad := range []time.Duration{0, -time.Second} {
		refuseOption(e, "a maximum hold of "+bad.String(), lock.WithMaxHold(bad), lock.ErrInvalid)
	}
	a, b := e.Locker(), e.Locker()
	eachWay(e, everyWay, func(w way) {
		cases := []func(){
			func() { neverReachMaxHold(e, a, w) },
			func() { longMaxHoldIsTold(e, a, w) },
			func() { reachMaxHold(e, a, b, w, e.Long, e.TTL*3/2) },
			func() { reachMaxHold(e, a, b, w, e.TTL, e.TTL*5/2) }, // renewed several times
		}
		if e.Claimed.WithoutRenewal {
			cases = append(cases, func() { reachMaxHold(e, a, b, w, e.Long, e.TTL/2, lock.WithoutRenewal()) })
		}
		if e.Claimed.HolderDetails {
			cases = append(cases, func() { reachMaxHold(e, a, b, w, e.Long, e.TTL*5/8, lock.WithLabel("limited")) })
		}
		if e.Unhurried() && w.name == ways[0].name {
			cases = append(cases, func() { reachMaxHold(e, a, b, w, e.Long, 75*time.Second) })
		}
		if engine.ClaimReentrancy.Made(e.Settings) {
			cases = append(cases,
				func() { reachMaxHold(e, a, b, w, e.Long, e.TTL*3/4, lock.WithOwner(e.Owner("A"))) },
				func() { reachInnerMaxHold(e, a, b, w) })
		}
		e.Together(cases...)
	})
}

func reachMaxHold(e *engine.Env, a, b *engine.Client, w way, ttl, limit time.Duration, more ...lock.Option) {
	key := e.Key("%s-%s", w.name, limit)
	h, err := w.get(a, key, ttl, append(more, lock.WithMaxHold(limit))...)
	if errors.Is(err, lock.ErrUnsupported) {
		e.Skipf("WithMaxHold is refused as unsupported")
	}
	if w.untold(err) {
		return
	}
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with a maximum hold returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	// Nothing goes on for longer than from the return of the call, whatever was renewed.
	if d, known := h.Lease.Deadline(); known && !h.Lost() && e.Log.At(d) > h.Granted+limit+time.Millisecond {
		e.Failf(key, "the deadline is %s after the grant; nothing is certain after the maximum hold, which was %s", engine.Short(e.Log.At(d)-h.Granted), limit)
	}
	ended := h.Lease.Context().Done()
	for !h.Lost() && e.Log.Now() < h.since+limit-e.TTL/4 {
		b.MustRefuse(key, "the maximum hold has not been reached")
		e.Within(max(e.TTL/5, min(limit/100, e.Long/50)), ended)
		e.Log.Patient()
		if e.Claimed.ManualRenewal && limit > e.TTL && ttl > e.TTL {
			_ = h.Renew() // which is no new hold
		}
		if d, known := h.Lease.Deadline(); known && !h.Lost() && e.Log.At(d) > h.Granted+limit+time.Millisecond {
			e.Fatalf(key, "the deadline is %s after the grant, while the lease is renewed; nothing is certain after the maximum hold, which was %s", engine.Short(e.Log.At(d)-h.Granted), limit)
		}
	}
	if !e.Within(h.Granted+limit+e.Slack()-e.Log.Now(), ended) {
		e.OverdueFatalf(key, "the lease had not ended %s after the grant; its maximum hold was %s and its TTL %s", engine.Short(e.Log.Now()-h.Granted), limit, h.EffectiveTTL())
	}
	if held := e.Log.Now() - h.since; held < limit-limit/50 {
		e.Unexpected(key, h.Cause(), "the lease ended %s after the key had become free for it, with cause %s; its maximum hold was %s and its TTL %s", engine.Short(held), engine.Outcome(h.Cause()), limit, h.EffectiveTTL())
	}
	e.Is(key, h.Cause(), "context.Cause of a lease that reached its maximum hold", lock.ErrMaxHold, lock.ErrLost)
	not(e, key, h.Cause(), "context.Cause of a lease that reached its maximum hold", lock.ErrReleased, lock.ErrClosed, lock.ErrExpired, lock.ErrTakenOver, lock.ErrSessionLost)
	deadlineIsOver(e, h.Hold)
	if h.Lease.Token() != h.Token {
		e.Failf(key, "the token of a lease that reached its maximum hold is %d, and was %d before; expected the same, since who is told late still shows it", h.Lease.Token(), h.Token)
	}
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "Renew after the maximum hold returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
	}
	next := b.Wins(key, e.Slack(), e.TTL/50, "the maximum hold of its holder was reached, and the key must be given back then")
	_ = next.Release(e.Ctx)
	if err := h.Release(e.Ctx); err == nil || !errors.Is(err, lock.ErrLost) {
		e.Unexpected(key, err, "Release after the maximum hold returned %s; expected an error that matches ErrLost", engine.Outcome(err))
	}
	if err := h.Release(e.Ctx); err == nil || !errors.Is(err, lock.ErrNotHeld) {
		e.Unexpected(key, err, "a second Release after the maximum hold returned %s; expected ErrNotHeld", engine.Outcome(err))
	}
}

// longMaxHoldIsTold looks at deadlines, which a maximum that nobody waits for cuts at once
// where the TTL is longer.
func longMaxHoldIsTold(e *engine.Env, a *engine.Client, w way) {
	for _, limit := range []time.Duration{time.Minute, 10 * time.Minute, 2 * time.Hour} {
		ttl := e.Fit(3 * limit)
		if ttl <= limit || !e.Claimed.Deadline || w.waits() {
			continue
		}
		key := e.Key("%s-told-%s", w.name, limit)
		h, err := w.get(a, key, ttl, lock.WithMaxHold(limit))
		if errors.Is(err, lock.ErrUnsupported) {
			return // the other cases say so
		}
		if err != nil {
			e.UnexpectedFatal(key, err, "%s with a maximum hold returned %s; expected a lease", w.name, engine.Outcome(err))
		}
		if d, known := h.Lease.Deadline(); known && !h.Lost() && e.Log.At(d) > h.Granted+limit+time.Millisecond {
			e.Failf(key, "the deadline is %s after the grant; nothing is certain after the maximum hold, which was %s", engine.Short(e.Log.At(d)-h.Granted), limit)
		}
		h.MustRelease()
	}
}

// neverReachMaxHold sets the largest maximum that there is.
func neverReachMaxHold(e *engine.Env, a *engine.Client, w way) {
	key := e.Key("%s-never", w.name)
	h, err := w.get(a, key, e.Long, lock.WithMaxHold(math.MaxInt64))
	if errors.Is(err, lock.ErrUnsupported) || errors.Is(err, lock.ErrInvalid) || w.untold(err) {
		return
	}
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with the largest maximum hold returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	e.Settle()
	h.MustLive("its maximum hold is the largest that there is")
	if left := time.Until(h.Until()); left < e.Long/3 {
		e.Failf(key, "a lease with a TTL of %s and the largest maximum hold is certain for another %s only", e.Long, engine.Short(left))
	}
	h.MustRelease()
}

// reachInnerMaxHold has an owner who holds the key enter it with a maximum, which is that of
// the new hold alone.
func reachInnerMaxHold(e *engine.Env, a, b *engine.Client, w way) {
	if w.waits() {
		return // whoever enters does not wait
	}
	const part = 4 // of a TTL
	key, owner := e.Key("%s-inner", w.name), lock.WithOwner(e.Owner("A"))
	outer := a.MustTry(key, owner)
	inner, err := w.get(a, key, e.Long, owner, lock.WithMaxHold(e.TTL/part))
	if errors.Is(err, lock.ErrUnsupported) {
		e.Skipf("WithMaxHold is refused as unsupported")
	}
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with a maximum hold, by the owner of the key, returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	if !e.Within(e.TTL/part+e.Slack(), inner.Lease.Context().Done()) {
		e.OverdueFatalf(key, "a hold that its owner had entered had not ended after %s; its maximum was %s", e.TTL/part+e.Slack(), e.TTL/part)
	}
	const what = "an inner hold that reached its maximum"
	e.Is(key, inner.Cause(), "context.Cause of "+what, lock.ErrMaxHold, lock.ErrLost)
	not(e, key, inner.Cause(), "context.Cause of "+what, lock.ErrReleased, lock.ErrClosed, lock.ErrExpired, lock.ErrTakenOver, lock.ErrSessionLost)
	deadlineIsOver(e, inner.Hold)
	keepsToken(e, inner.Hold)
	if e.Claimed.ManualRenewal {
		e.Is(key, inner.Renew(), "Renew of "+what, lock.ErrNotHeld)
	}
	e.Is(key, inner.Release(e.Ctx), "Release of "+what, lock.ErrLost)
	e.Is(key, inner.Release(e.Ctx), "a second Release of "+what, lock.ErrNotHeld)
	e.Settle()
	outer.MustLive("only another hold of its owner has reached its maximum")
	b.MustRefuse(key, "its owner still holds it, without a maximum")
	outer.MustRelease()
	b.Soon(key, "the last hold of its owner was released").MustRelease()
}
