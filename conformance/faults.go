package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

var faultRules = []*rule{
	{
		Name:      "LostWhenCutOff",
		Statement: "A holder that no longer reaches the server, whether its renewals hang or fail, is told before anybody else is granted the key.",
		claims:    []claim{claimLossSignal},
		Seam:      true,
		LimitTTLs: 40,
		run:       lostWhenCutOff,
	},
	{
		Name:      "RenewTransient",
		Statement: "Renewals that fail for a while and recover before the deadline are no loss.",
		Seam:      true,
		LimitTTLs: 30,
		run:       renewTransient,
	},
	{
		Name:      "RenewUnknown",
		Statement: "A renewal whose answer was lost is no loss and moves no deadline; the next one that is answered does.",
		claims:    []claim{claimManualRenewal, claimWithoutRenewal, claimDeadline},
		Seam:      true,
		run:       renewUnknown,
	},
	{
		Name:      "OwnGrantRecognised",
		Statement: "An acquisition whose reply was lost finds its own grant when it asks again, or gives it back; it is never refused because of itself.",
		Seam:      true,
		run:       atFaultSites(ownGrantRecognised),
	},
	{
		Name:      "GrantWithinValidity",
		Statement: "A grant whose answer comes too late to be of use is given back and not returned.",
		Seam:      true,
		LimitTTLs: 30,
		run:       atFaultSites(grantWithinValidity),
	},
	{
		Name:      "LateGrant",
		Statement: "A request that reaches the server after its caller was told an error keeps the key for one TTL at most, though the client lives on.",
		Seam:      true,
		LimitTTLs: 30,
		run:       lateGrant,
	},
	{
		Name:      "ReleaseUnknown",
		Statement: "A release whose reply was lost is reported as of unknown outcome, is repeated, and never harms the next holder.",
		Seam:      true,
		run:       atFaultSites(releaseUnknown),
	},
	{
		Name:      "ReleaseDelayed",
		Statement: "A release that reaches the server after the same client has acquired the key again does not end the new hold.",
		Seam:      true,
		run:       releaseDelayed,
	},
	{
		Name:      "HandOverUnknown",
		Statement: "When the answer to a release is lost or late, a waiter of the same client is granted the key all the same, and it is free after that.",
		Seam:      true,
		run:       handOverUnknown,
	},
	{
		Name:      "CancelMidRequest",
		Statement: "An acquisition that is cancelled while its request is under way returns soon, and leaves nothing in the way of others.",
		Seam:      true,
		run:       cancelMidRequest,
	},
	{
		Name:      "UnavailableIsTold",
		Statement: "While the server cannot be reached, a try fails at once with ErrUnavailable and the server's words. Acquire goes on, and gets the key when the server is back.",
		Seam:      true,
		run:       atFaultSites(unavailableIsTold),
	},
	{
		Name:      "SilenceIsNotHeld",
		Statement: "A server that has not answered has refused nobody: who gives up then is told of an unknown outcome or an unavailable server, not of another holder.",
		Seam:      true,
		run:       atFaultSites(silenceIsNotHeld),
	},
	{
		Name:      "PermanentStops",
		Statement: "A refusal that waiting does not cure ends an acquisition at once, with ErrPermanent and what the server said.",
		Seam:      true,
		run:       permanentStops,
	},
	{
		Name:      "CallsAreBounded",
		Statement: "When the server hangs, every call returns soon after its context, and Release and Close return by themselves.",
		Seam:      true,
		run:       atFaultSites(callsAreBounded),
	},
	{
		Name:      "ReentrantFault",
		Statement: "However many requests and answers are lost, an owner holds the key until the last of its leases has ended, and no longer.",
		claims:    []claim{claimReentrancy},
		Seam:      true,
		run:       reentrantFault,
	},
	{
		Name:      "ProgressUnderFaults",
		Statement: "While requests and answers are lost now and then, every client gets the key again and again.",
		Seam:      true,
		run:       progressUnderFaults,
	},
	{
		Name:      "HungKeyHoldsUpNoOther",
		Statement: "Requests for some keys that hang hold up no try, wait, renewal or release of another key of the same client.",
		Seam:      true,
		LimitTTLs: 30,
		run:       hungKeyHoldsUpNoOther,
	},
	{
		Name:      "LinearizableUnderFaults",
		Statement: "Such an order exists also while requests and answers are lost and delayed: an outcome that callers were not told is one of those that are possible.",
		Seam:      true,
		LimitTTLs: 40,
		run:       atFaultSites(linearizableUnderFaults),
	},
}

func ownGrantRecognised(e *env, via seamKind) {
	b := e.locker()
	freed := func(key, why string) {
		next := b.wins(key, e.waitBound(), 20*time.Millisecond, why)
		_ = next.release(e.ctx)
	}
	a, c := e.faultyAt(via, nil)
	for i := range 5 {
		key := e.key("%s-acquire-%d", via.name, i)
		c.Next(1+i%3, faultlock.FailAfter(), faultlock.OpTry, faultlock.OpEnqueue, faultlock.OpWait)
		ctx, cancel := context.WithTimeout(e.ctx, e.waitBound())
		h, err := a.acquire(ctx, key)
		cancel()
		c.Heal()
		switch {
		case err == nil:
			h.mustRelease()
			freed(key, "it was acquired once and released once, whatever happened to the replies")
		case errors.Is(err, lock.ErrOutcomeUnknown):
			freed(key, "the caller was told an error, so that nothing may be left for the TTL of "+e.long.String())
		default:
			e.unexpected(key, err, "Acquire of a free key, with replies lost, returned %s; expected a lease, or ErrOutcomeUnknown", outcome(err))
		}
	}
	for i := range 5 {
		key := e.key("%s-try-%d", via.name, i)
		c.Next(1, faultlock.FailAfter(), faultlock.OpTry)
		h, err := a.try(key)
		c.Heal()
		switch {
		case err == nil:
			h.mustRelease()
		case errors.Is(err, lock.ErrHeld):
			e.unexpected(key, err, "TryAcquire of a free key, with the reply lost, was refused because of itself: %s", outcome(err))
		default:
			e.is(key, err, "TryAcquire whose reply was lost", lock.ErrOutcomeUnknown)
		}
		freed(key, "the caller was told an error, so that nothing may be left for the TTL of "+e.long.String())
	}
}

func grantWithinValidity(e *env, via seamKind) {
	a, c := e.faultyAt(via, nil)
	b := e.locker()
	for i, delay := range []time.Duration{e.ttl * 4 / 5, e.ttl * 3 / 2} {
		key := e.key("%s-%d", via.name, i)
		c.Next(1, faultlock.DelayAfter(delay).IgnoringContext(), faultlock.OpTry)
		h, err := a.tryFor(e.ctx, key, e.ttl, e.unrenewed()...)
		if err == nil {
			if time.Now().After(h.until()) || h.lost() {
				e.failf(key, "TryAcquire returned a lease that was over already: its answer took %s and its TTL is %s", delay, e.ttl)
			} else {
				e.failf(key, "TryAcquire returned a lease after %s, with %s of its TTL of %s left; expected an error below a third", delay, time.Until(h.until()), e.ttl)
			}
			_ = h.release(e.ctx)
		} else if errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrInvalid) {
			e.unexpected(key, err, "TryAcquire of a free key, with the answer delayed, returned %s; expected an error that says that the server was slow", outcome(err))
		}
		e.givenBack(c, key, delay)
		next := b.wins(key, e.takeover(e.ttl), 20*time.Millisecond, "the late grant must be given back")
		_ = next.release(e.ctx)
	}
}

// givenBack requires that a release is sent for a grant that came too late. To wait
// for the end of its TTL is not enough: only the server knows when that began.
func (e *env) givenBack(c *faultlock.Faults, key string, delay time.Duration) {
	for control := time.Now().Add(e.slack()); requests(c, key, toEnd...) == 0; e.pause(2 * time.Millisecond) {
		if time.Now().After(control) {
			e.overduef(key, "no release had been sent %s after TryAcquire returned; expected one, because the server granted the key, with an answer that took %s", e.slack(), delay)
			return
		}
	}
}

func releaseUnknown(e *env, via seamKind) {
	a, c := e.faultyAt(via, nil)
	b, d := e.locker(), e.locker()
	for i := range 4 {
		key := e.key("%s-%d", via.name, i)
		h := a.mustTry(key)
		c.Next(1+i%2, faultlock.FailAfter(), faultlock.OpRelease)
		err := h.release(e.ctx)
		if err != nil {
			e.is(key, err, "Release whose reply was lost", lock.ErrOutcomeUnknown)
		}
		next, nextErr := b.try(key)
		if nextErr != nil {
			e.unexpectedFatal(key, nextErr, "a try returned %s, although the server had applied the release", outcome(nextErr))
		}
		again := h.release(e.ctx)
		if again != nil && !errors.Is(again, lock.ErrNotHeld) && !errors.Is(again, lock.ErrOutcomeUnknown) {
			e.failf(key, "the second Release, after one of unknown outcome, returned %s; expected no error, ErrNotHeld or ErrOutcomeUnknown", outcome(again))
		}
		e.pause(e.ttl / 4) // repeats in the background
		c.Heal()
		d.mustRefuse(key, "the next holder has it, and repeats of the earlier release must not free it")
		next.mustRelease()
	}
}

func unavailableIsTold(e *env, via seamKind) {
	a, c := e.faultyAt(via, nil)
	b := e.locker()
	key := e.key("%s", via.name)
	c.All(faultlock.FailBefore(), toGet...)
	begun := time.Now()
	_, err := a.try(key)
	e.only(key, "TryAcquire, with the server refusing connections,", err, lock.ErrUnavailable)
	e.is(key, err, "TryAcquire, with the server refusing connections,", faultlock.ErrInjected)
	if d := time.Since(begun); d > e.slack() {
		e.latef(key, "TryAcquire took %s to report a server that refuses connections", d.Round(time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(e.ctx, 200*time.Millisecond)
	_, err = a.acquire(ctx, key)
	cancel()
	if err == nil {
		e.fatalf(key, "Acquire was granted a key, though the server cannot be reached")
	}
	e.is(key, err, "Acquire whose context ran out, with the server refusing connections,", context.DeadlineExceeded, lock.ErrUnavailable, faultlock.ErrInjected)
	w := a.acquiring(key)
	e.settle()
	c.Heal()
	w.mustGet(e, key, e.waitBound(), "the server can be reached again").mustRelease()
	b.mustTry(key).mustRelease()
}

func callsAreBounded(e *env, via seamKind) {
	a, c := e.faultyAt(via, nil)
	defer c.Heal()
	key := e.key("%s", via.name)
	h := a.mustTry(key)
	c.All(faultlock.HangBefore())
	bounded := func(what string, limit time.Duration, f func()) {
		done := make(chan struct{})
		wait := e.start(func() { f(); close(done) })
		if !e.within(limit+e.slack(), done) {
			e.overdueFatalf(key, "%s had not returned after %s, with the server hanging", what, limit+e.slack())
		}
		wait()
	}
	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(e.ctx, 100*time.Millisecond)
	}
	for op, get := range map[string]getter{"TryAcquire": a.l.TryAcquire, "Acquire": a.l.Acquire} {
		bounded(op, 100*time.Millisecond, func() {
			ctx, cancel := short()
			defer cancel()
			if _, err := a.get(op, get, ctx, e.key("%s-%s", via.name, op), e.opts(e.long)); err != nil {
				e.is(e.key("%s-%s", via.name, op), err, op+" whose context ran out, with the server hanging,", context.DeadlineExceeded)
			} else {
				e.failf(key, "%s was granted a key, with the server hanging", op)
			}
		})
	}
	bounded("Release", 5*time.Second, func() {
		ctx, cancel := short()
		defer cancel()
		if err := h.release(ctx); err != nil {
			e.is(key, err, "Release, with the server hanging,", lock.ErrOutcomeUnknown)
		} else {
			e.failf(key, "Release returned no error, with the server hanging; expected ErrOutcomeUnknown")
		}
	})
	bounded("Close", 5*time.Second, func() { _ = a.close() })
}
