package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var releaseRules = []*rule{
	{
		Name:      "ReleaseFrees",
		Statement: "When Release has returned, the next try of any client is granted.",
		run:       releaseFrees,
	},
	{
		Name:      "ReleaseOwnOnly",
		Statement: "Releasing a lease that has run out does not end the hold of whoever has the key now, and returns ErrNotHeld.",
		run:       releaseOwnOnly,
	},
	{
		Name:      "ReleaseOldLeaseSameClient",
		Statement: "A delayed release of an earlier lease does not end a later lease of the same client.",
		run:       releaseOldLease,
	},
	{
		Name:      "ReleaseTwice",
		Statement: "A second release returns ErrNotHeld and frees nobody else; simultaneous releases are safe.",
		run:       releaseTwice,
	},
	{
		Name:      "ReleaseDetached",
		Statement: "Release works when its context has already ended: the key is free when it returns.",
		run:       releaseDetached,
	},
	{
		Name:      "ReleaseReportsLoss",
		Statement: "Releasing a lease that ran out returns an error that matches ErrLost, also when nobody else took the key.",
		claims:    []claim{claimWithoutRenewal},
		LimitTTLs: 30,
		run:       releaseReportsLoss,
	},
	{
		Name:      "ReleaseStopsRenewal",
		Statement: "Nothing renews a key on behalf of a lease that was released: the next holder's lease runs out in its own time.",
		run:       releaseStopsRenewal,
	},
	{
		Name:      "ReleaseAtExpiry",
		Statement: "A release that is under way while its lease runs out does not end the hold of whoever takes the key over.",
		LimitTTLs: 80,
		run:       releaseAtExpiry,
	},
	{
		Name:      "ReleaseBesideRenewal",
		Statement: "A renewal that is under way neither prevents nor outlives a release, and is no loss: the key is free when both have returned.",
		claims:    []claim{claimManualRenewal},
		run:       releaseBesideRenewal,
	},
	{
		Name:      "ReleaseEndsRequests",
		Statement: "When a lease has ended, by its release or its maximum hold, nothing renews it any more: not one request more is sent for it.",
		Seam:      true,
		run:       releaseEndsRequests,
	},
}

func releaseFrees(e *env) {
	key := e.key("a")
	clients := e.lockers(2)
	n, end := 0, time.Now().Add(e.window())
	for i := 0; i < 10 || i < 500 && time.Now().Before(end); i++ {
		n++
		c := clients[i%2]
		var h *hold
		var err error
		if i%3 == 2 {
			h, err = c.acquire(e.ctx, key)
		} else {
			h, err = c.try(key)
		}
		if err != nil {
			e.unexpectedFatal(key, err, "the key was released, but the next call for it returned %s; expected a lease", outcome(err))
		}
		h.mustRelease()
	}
	e.notef("%d hand-overs", n)
}

// lapse takes the key for p, lets the lease run out, and has the key taken over
// by next.
func (e *env) lapse(p, next party, key string) (old, taken grip) {
	old = e.mustTake(p, key, e.ttl)
	taken = e.takeOver(next, key, e.long, e.takeover(e.ttl), e.ttl/20, "the lease of the earlier holder was not renewed")
	return old, taken
}

func releaseOwnOnly(e *env) {
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a, b, c := k.open(), k.open(), k.open()
		old, taken := e.lapse(a, b, key)
		for range 2 {
			err := old.release(e.ctx)
			if err == nil {
				e.failf(key, "Release of a lease that had run out returned no error, although somebody else holds the key; expected ErrNotHeld")
			} else {
				e.is(key, err, "Release of a lease that had run out", lock.ErrNotHeld)
			}
			c.refuses(key, "the release of a lease that had run out must not free the key for the next holder")
		}
		if e.g.ManualRenewal {
			if err := taken.renew(); err != nil {
				e.unexpected(key, err, "the holder's renewal returned %s after somebody else had released an old lease; expected no error", outcome(err))
			}
			c.refuses(key, "its holder has just renewed it")
		}
		e.mustGiveBack(taken, key, ", since only an old lease of somebody else had been released")
	})
}

func releaseOldLease(e *env) {
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a, c := k.open(), k.open()
		old, taken := e.lapse(a, a, key)
		if err := old.release(e.ctx); err == nil {
			e.failf(key, "Release of an earlier lease of the same client returned no error, although it had run out; expected ErrNotHeld")
		} else {
			e.is(key, err, "Release of an earlier lease of the same client", lock.ErrNotHeld)
		}
		c.refuses(key, "only an earlier lease of its holder was released")
		e.mustGiveBack(taken, key, ", since only an earlier lease of the same client had been released")
		// The same again with a lease that was released, not lost.
		first := e.mustTake(a, key, e.long)
		e.mustGiveBack(first, key, "")
		second := e.mustTake(a, key, e.long)
		if err := first.release(e.ctx); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.unexpected(key, err, "the second release of an earlier lease returned %s; expected ErrNotHeld", outcome(err))
		}
		c.refuses(key, "only an earlier lease of its holder was released, for the second time")
		e.mustGiveBack(second, key, ", since only an earlier lease of the same client had been released")
	})
}

func releaseTwice(e *env) {
	key := e.key("a")
	a, b, c := e.locker(), e.locker(), e.locker()
	h := a.mustTry(key)
	h.mustRelease()
	e.is(key, h.release(e.ctx), "the second Release", lock.ErrNotHeld)
	other := b.mustTry(key)
	e.is(key, h.release(e.ctx), "the third Release, while somebody else holds the key,", lock.ErrNotHeld)
	c.mustRefuse(key, "a repeated release of an earlier lease must not free it")
	other.mustLive("a repeated release of an earlier lease must not end it")
	other.mustRelease()

	for round := range 20 {
		key := e.key("race-%d", round)
		h := a.mustTry(key)
		var released atomic.Int64
		e.each(6, func(int) {
			switch err := h.release(e.ctx); {
			case err == nil:
				released.Add(1)
			case !errors.Is(err, lock.ErrNotHeld):
				e.unexpected(key, err, "one of several simultaneous releases returned %s; expected no error or ErrNotHeld", outcome(err))
			}
		})
		if released.Load() == 0 {
			e.failf(key, "none of several simultaneous releases succeeded; expected one to")
		}
		c.mustTry(key).mustRelease()
	}
}

func releaseDetached(e *env) {
	a, b := e.locker(), e.locker()
	ended, cancel := context.WithCancel(e.ctx)
	cancel()
	past, cancelPast := context.WithDeadline(e.ctx, time.Now().Add(-time.Second))
	defer cancelPast()
	for name, ctx := range map[string]context.Context{"a cancelled context": ended, "a context whose deadline has passed": past} {
		key := e.key("%s", name)
		h := a.mustTry(key)
		if err := h.release(ctx); err != nil {
			e.unexpected(key, err, "Release with %s returned %s; expected no error", name, outcome(err))
		}
		again, err := b.try(key)
		if err != nil {
			e.unexpected(key, err, "the key was released with %s, but a try then returned %s; expected a lease", name, outcome(err))
			continue
		}
		again.mustRelease()
	}
	// The usual shape: acquire with the context of the work, which ends first.
	key := e.key("work")
	work, stop := context.WithCancel(e.ctx)
	h, err := a.acquire(work, key)
	if err != nil {
		e.unexpectedFatal(key, err, "Acquire of a free key returned %s; expected a lease", outcome(err))
	}
	stop()
	if err := h.release(work); err != nil {
		e.unexpected(key, err, "Release with the context of the Acquire, which has ended, returned %s; expected no error", outcome(err))
	}
	b.mustTry(key).mustRelease()
}

func releaseReportsLoss(e *env) {
	a, b := e.locker(), e.locker()
	key := e.key("a")
	h := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
	e.awaitLapse(h)
	err := h.release(e.ctx)
	if err == nil {
		e.failf(key, "Release of a lease that had run out returned no error; expected ErrLost, since exclusion was not kept for the whole time")
		return
	}
	targets := []error{lock.ErrNotHeld}
	if e.g.LossSignal {
		targets = append(targets, lock.ErrLost)
	}
	e.is(key, err, "Release of a lease that had run out", targets...)
	next := b.wins(key, e.takeover(e.ttl), e.ttl/20, "the lease had run out")
	_ = next.release(e.ctx)
}

// awaitLapse waits until a lease that is not renewed has ended by its own
// account, or where it does not tell, until its time is over on a control timer.
func (e *env) awaitLapse(h *hold) {
	h.lapses()
	if e.g.LossSignal {
		if !e.within(e.takeover(h.effectiveTTL()), h.lease.Context().Done()) {
			e.overdueFatalf(h.key, "the context of a lease that is not renewed had not ended after %s; its TTL is %s", e.takeover(h.effectiveTTL()), h.effectiveTTL())
		}
		return
	}
	e.pause(h.effectiveTTL() + e.g.TakeoverLag + e.ttl/2)
}

func releaseStopsRenewal(e *env) {
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a := e.locker()
		h := a.mustTryFor(key, e.ttl)
		first := h.until()
		e.pause(e.ttl / 2)
		for e.g.Deadline && !h.until().After(first) && time.Until(first) > e.ttl/4 {
			e.pause(e.ttl / 20) // until a renewal has happened, if the lock renews by itself
		}
		h.mustRelease()
		b, c := k.open(), k.open()
		e.mustTake(b, key, e.ttl)
		next := e.takeOver(c, key, e.long, e.takeover(e.ttl), e.ttl/10, "its holder does not renew it, and the leases of others were released")
		_ = next.release(e.ctx)
	})
}
