package rules

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func maxHoldEnds(e *engine.Env) {
	for _, bad := range []time.Duration{0, -time.Second} {
		refuseOption(e, "a maximum hold of "+bad.String(), lock.WithMaxHold(bad), lock.ErrInvalid)
	}
	a, b := e.Locker(), e.Locker()
	for i, limit := range []time.Duration{1, 500 * time.Microsecond} {
		key := e.Key("moment-%d", i)
		h, err := a.Try(key, lock.WithMaxHold(limit))
		switch {
		case errors.Is(err, lock.ErrUnsupported):
		case err != nil:
			e.UnexpectedFatal(key, err, "TryAcquire of a free key with a maximum hold of %s returned %s; expected a lease", limit, engine.Outcome(err))
		case !e.Within(e.Slack(), h.Lease.Context().Done()):
			e.OverdueFatalf(key, "a lease with a maximum hold of %s had not ended %s later", limit, e.Slack())
		}
	}
	var ended endedLeases
	eachWay(e, everyWay, func(w way) {
		reachMaxHold := func(e *engine.Env, a, b *engine.Client, w way, ttl, limit time.Duration, more ...lock.Option) {
			reachMaxHold(e, a, b, &ended, w, ttl, limit, more...)
		}
		cases := []func(){
			func() { waitsForReached(e, a, w) },
			func() { neverReachMaxHold(e, a, w) },
			func() { longMaxHoldIsTold(e, a, w) },
			func() { reachMaxHold(e, a, b, w, e.Long, e.TTL*3/2) },
			func() { reachMaxHold(e, a, b, w, e.TTL, e.TTL*5/2) }, // renewed several times
			func() { reachMaxHold(e, a, b, w, engine.DefaultTTL, e.TTL*7/4) },
		}
		if e.Virtual() {
			cases = append(cases, func() { reachMaxHold(e, a, b, w, e.TTL, e.TTL) }, func() { maxHoldOfEach(e, a, w) })
		}
		if e.Virtual() && w.name == ways[0].name {
			cases = append(cases, func() { reachMaxHold(e, a, b, w, e.Long, 10*time.Minute) })
		}
		if w.name == ways[0].name {
			cases = append(cases, func() { reachKindMaxHold(e, a, b) }, func() { reachThirdMaxHold(e, a) }, func() { reachBesideRenew(e) }, func() { reachUnreleased(e, b) })
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
				func() { reachInnerMaxHold(e, a, b, w) },
				func() { reachOuterMaxHold(e, a, b, w) })
		}
		e.Together(cases...)
	})
	ended.outliveClose(e, a, "a lease that reached its maximum hold")
}

func reachMaxHold(e *engine.Env, a, b *engine.Client, ended *endedLeases, w way, ttl, limit time.Duration, more ...lock.Option) {
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
	gone, cancel := context.WithCancel(e.Ctx)
	cancel()
	over := h.Lease.Context().Done()
	for !h.Lost() && e.Log.Now() < h.since+limit-e.TTL/4 {
		b.MustRefuse(key, "the maximum hold has not been reached")
		e.Within(max(e.TTL/5, min(limit/100, e.Long/50)), over)
		e.Log.Patient()
		if e.Claimed.ManualRenewal && ttl > e.TTL { // which is no new hold
			if err := h.Renew(); errors.Is(err, lock.ErrNotHeld) && !e.Within(e.TTL/8, over) {
				e.LateFatalf(key, "Renew returned %s, and %s later the lease went on, with a maximum hold of %s; expected such an error only of a hold that has ended", engine.Outcome(err), e.TTL/8, limit)
			}
			_ = h.Lease.Renew(gone)
		}
		if d, known := h.Lease.Deadline(); known && !h.Lost() && e.Log.At(d) > h.Granted+limit+time.Millisecond {
			e.Fatalf(key, "the deadline is %s after the grant, while the lease is renewed; nothing is certain after the maximum hold, which was %s", engine.Short(e.Log.At(d)-h.Granted), limit)
		}
	}
	if !e.Within(h.Granted+limit+e.Slack()-e.Log.Now(), over) {
		e.OverdueFatalf(key, "the lease had not ended %s after the grant; its maximum hold was %s and its TTL %s", engine.Short(e.Log.Now()-h.Granted), limit, h.EffectiveTTL())
	}
	if held := e.Log.Now() - h.since; held < limit-limit/50 {
		e.Unexpected(key, h.Cause(), "the lease ended %s after the key had become free for it, with cause %s; its maximum hold was %s and its TTL %s", engine.Short(held), engine.Outcome(h.Cause()), limit, h.EffectiveTTL())
	}
	e.Is(key, h.Cause(), "context.Cause of a lease that reached its maximum hold", lock.ErrMaxHold, lock.ErrLost)
	not(e, key, h.Cause(), "context.Cause of a lease that reached its maximum hold", lock.ErrReleased, lock.ErrClosed, lock.ErrExpired, lock.ErrTakenOver, lock.ErrSessionLost)
	deadlineIsOver(e, h.Hold)
	keepsToken(e, h.Hold)
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "Renew after the maximum hold returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
	}
	after := []*engine.Client{a, b}
	if ttl <= e.TTL { // the same Locker first, or another one
		slices.Reverse(after)
	}
	last := h.Token
	for _, c := range after {
		next := c.Wins(key, e.Slack(), e.TTL/50, "the maximum hold of its holder was reached, and the key must be given back then")
		if engine.ClaimTokens.Made(e.Settings) && next.Token <= last {
			e.Failf(key, "%s was granted the key with token %d after %d, with which a maximum hold was reached; expected a larger one", c.Who, next.Token, last)
		}
		last = next.Token
		_ = next.Release(e.Ctx)
	}
	if ttl > e.TTL {
		wakesAfterLoss(e, a, b, key, "reached its maximum")
	}
	if err := h.Release(e.Ctx); err == nil || !errors.Is(err, lock.ErrLost) {
		e.Unexpected(key, err, "Release after the maximum hold returned %s; expected an error that matches ErrLost", engine.Outcome(err))
	}
	if err := h.Release(e.Ctx); err == nil || !errors.Is(err, lock.ErrNotHeld) {
		e.Unexpected(key, err, "a second Release after the maximum hold returned %s; expected ErrNotHeld", engine.Outcome(err))
	}
	e.Is(key, h.Cause(), "context.Cause of a lease that reached its maximum hold, after its Release,", lock.ErrMaxHold, lock.ErrLost)
	not(e, key, h.Cause(), "context.Cause of a lease that reached its maximum hold, after its Release,", lock.ErrReleased)
	ended.add(h.Hold)
}

// maxHoldOfEach has leases of one key follow each other, that are released before their maximum,
// and then that reach it. It is that of each lease alone.
func maxHoldOfEach(e *engine.Env, a *engine.Client, w way) {
	key, limit := e.Key("%s-each", w.name), e.TTL
	var released []*engine.Hold
	for i := range 3 {
		h, err := w.get(a, key, e.Long, lock.WithMaxHold(limit))
		if err != nil {
			return // the other cases say so
		}
		h.Lapses()
		e.Within(limit*5/8, h.Lease.Context().Done())
		if lost := h.Lost(); lost && e.Log.Now() < h.since+limit*7/8 {
			e.Failf(key, "a lease had ended, with cause %s, %s after its grant; its maximum hold was %s, and %d leases of the same key, which were released, had had one before",
				engine.Outcome(h.Cause()), engine.Short(e.Log.Now()-h.since), limit, i)
		}
		if h.Release(e.Ctx) == nil {
			released = append(released, h.Hold)
		}
	}
	e.Pause(limit)
	for _, h := range released {
		const what = "context.Cause of a released lease, whose maximum hold has passed since,"
		e.Is(key, h.Cause(), what, lock.ErrReleased)
		not(e, key, h.Cause(), what, lock.ErrLost)
	}
	for i := range 3 {
		h, err := w.get(a, key, e.Long, lock.WithMaxHold(limit))
		if err != nil {
			return
		}
		if !e.Within(limit+e.Slack(), h.Lease.Context().Done()) {
			e.OverdueFatalf(key, "a lease had not ended %s after its grant; its maximum hold was %s, as those of %d leases of the same key before, which had ended so", limit+e.Slack(), limit, i)
		}
		e.Is(key, h.Cause(), "context.Cause of a lease that reached its maximum hold, as others of the key before,", lock.ErrMaxHold)
		leavesNext(e, h.Hold, a.Soon(key, "its holder has reached its maximum hold"), "that reached its maximum hold", i%2 == 0)
	}
}

// waitsForReached waits for a key whose holder, in the same Locker, reaches its maximum and does
// not release it.
func waitsForReached(e *engine.Env, a *engine.Client, w way) {
	key, limit := e.Key("%s-not released", w.name), e.TTL/2
	h, err := w.get(a, key, e.Long, lock.WithMaxHold(limit))
	if errors.Is(err, lock.ErrUnsupported) || w.untold(err) {
		return // the other cases say so
	}
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with a maximum hold returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	next := a.Acquiring(key)
	next.MustGet(e, key, limit+e.WaitBound(), "another caller of its Locker has reached its maximum hold of "+limit.String()+", and does not release it").MustRelease()
	_ = h.Release(e.Ctx)
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

// reachBesideRenew has a lease reach its maximum, long before its deadline, while a Renew of it hangs.
func reachBesideRenew(e *engine.Env) {
	if e.OpenBackend == nil || !e.Claimed.ManualRenewal {
		return
	}
	a, server := e.Faulty()
	defer server.Heal()
	key, limit := e.Key("beside a Renew"), e.TTL/2
	h, err := a.Try(key, lock.WithMaxHold(limit))
	if err != nil {
		return // the other cases say so
	}
	fails := hangingRenew(e, h, server)
	defer fails()
	if !e.Within(limit+e.Slack(), h.Lease.Context().Done()) {
		e.OverdueFatalf(key, "a lease had not ended %s after its maximum hold of %s, beside a Renew that hangs; its TTL was %s", e.Slack(), limit, h.EffectiveTTL())
	}
	e.Is(key, h.Cause(), "context.Cause of a lease that reached its maximum hold, beside a Renew that hangs,", lock.ErrMaxHold)
}

// reachUnreleased has a lease that is renewed reach its maximum while no release gets through. The
// key is free a TTL later all the same.
func reachUnreleased(e *engine.Env, b *engine.Client) {
	if e.OpenBackend == nil {
		return
	}
	a, server := e.Faulty()
	defer server.Heal()
	key, limit := e.Key("no release gets through"), e.TTL*3/2
	h, err := a.TryFor(e.Ctx, key, e.TTL, lock.WithMaxHold(limit))
	if err != nil {
		return // the other cases say so
	}
	server.All(faultlock.FailBefore(), engine.OpsToEnd...)
	if !e.Within(limit+e.Slack(), h.Lease.Context().Done()) {
		e.OverdueFatalf(key, "a lease had not ended %s after its maximum hold of %s; no release gets through", e.Slack(), limit)
	}
	h.Lapses()
	b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "the maximum hold of its holder was reached, and whose release does not get through renews it no more").MustRelease()
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
	ttl := e.Long
	if e.Virtual() { // it has to be renewed
		ttl = e.TTL
	}
	outer := a.MustTryFor(key, ttl, owner)
	e.Pause(e.TTL / part) // it counts from the grant of the new hold
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
	if held := e.Log.Now() - inner.since; held < e.TTL/part-e.TTL/50 {
		e.Unexpected(key, inner.Cause(), "a hold that its owner had entered ended after %s, with cause %s; its maximum was %s", engine.Short(held), engine.Outcome(inner.Cause()), e.TTL/part)
	}
	const what = "an inner hold that reached its maximum"
	e.Is(key, inner.Cause(), "context.Cause of "+what, lock.ErrMaxHold, lock.ErrLost)
	not(e, key, inner.Cause(), "context.Cause of "+what, lock.ErrReleased, lock.ErrClosed, lock.ErrExpired, lock.ErrTakenOver, lock.ErrSessionLost)
	deadlineIsOver(e, inner.Hold)
	keepsToken(e, inner.Hold)
	if e.Claimed.ManualRenewal {
		e.Is(key, inner.Renew(), "Renew of "+what, lock.ErrNotHeld)
	}
	left := func() {
		e.Is(key, inner.Release(e.Ctx), "Release of "+what, lock.ErrLost)
		e.Is(key, inner.Release(e.Ctx), "a second Release of "+what, lock.ErrNotHeld)
	}
	first := w.name == ways[0].name // else it is never given back while the owner holds the key
	if first {
		left()
	}
	e.Settle()
	if e.Virtual() {
		e.Pause(e.TTL * 3 / 2)
	}
	outer.MustLive("only another hold of its owner has reached its maximum")
	b.MustRefuse(key, "its owner still holds it, without a maximum")
	outer.MustRelease()
	b.Soon(key, "the last hold of its owner was released, and another one had reached its maximum").MustRelease()
	if !first {
		left()
	}
}

// reachOuterMaxHold has the owner of a hold with a maximum enter the key without one. The maximum
// is that of the first hold alone.
func reachOuterMaxHold(e *engine.Env, a, b *engine.Client, w way) {
	if w.waits() {
		return
	}
	key, owner, limit := e.Key("%s-outer", w.name), lock.WithOwner(e.Owner("A")), e.TTL/2
	outer, err := w.get(a, key, e.Long, owner, lock.WithMaxHold(limit))
	if errors.Is(err, lock.ErrUnsupported) {
		return // the other cases say so
	}
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with a maximum hold returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	e.Pause(limit / 4)
	inner, err := w.get(a, key, e.Long, owner)
	if err != nil {
		if outer.Lost() {
			e.TooSlowf(key, "the maximum hold of %s was reached before the owner of the key had entered it again", limit)
		}
		e.UnexpectedFatal(key, err, "%s by the owner of the key returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	if !e.Within(limit+e.Slack(), outer.Lease.Context().Done()) {
		e.OverdueFatalf(key, "a hold whose owner had entered the key again had not ended after %s; its maximum was %s", limit+e.Slack(), limit)
	}
	e.Is(key, outer.Cause(), "context.Cause of a hold that reached its maximum, whose owner had entered the key again", lock.ErrMaxHold, lock.ErrLost)
	const why = "it has no maximum; only another hold of its owner has reached its own"
	for end := e.Log.Now() + limit*3/2; e.Log.Now() < end; e.Pause(limit / 4) {
		inner.MustLive(why)
		b.MustRefuse(key, "its owner still holds it: "+why)
	}
	e.Is(key, outer.Release(e.Ctx), "Release of a hold that reached its maximum, whose owner had entered the key again,", lock.ErrLost)
	inner.MustRelease()
	b.Soon(key, "the last hold of its owner was released").MustRelease()
}
