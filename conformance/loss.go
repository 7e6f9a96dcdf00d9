package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

var lossRules = []*rule{
	{
		Name:      "LostByDeadline",
		Statement: "A lease that is not renewed ends its context by its deadline, with a cause that matches ErrLost.",
		claims:    []claim{claimLossSignal, claimWithoutRenewal},
		run:       lostByDeadline,
	},
	{
		Name:      "LostBeforeTakeover",
		Statement: "When another client is granted the key after a lease ran out, that lease already says that it is lost.",
		claims:    []claim{claimLossSignal, claimWithoutRenewal},
		LimitTTLs: 80,
		run:       lostBeforeTakeover,
	},
	{
		Name:      "LostOnRemoval",
		Statement: "A holder whose record is removed by force is told so within one renewal period, also when somebody else has the key by then.",
		claims:    []claim{claimLossSignal},
		run:       lostOnRemoval,
	},
	{
		Name:      "ReleaseIsNoLoss",
		Statement: "Release ends the lease's context before it returns, with the cause ErrReleased, which is no loss and never becomes one.",
		run:       releaseIsNoLoss,
	},
	{
		Name:      "LossEndsUse",
		Statement: "A lost lease stays lost: renewing and releasing it fail, and the same Locker can acquire the key anew.",
		claims:    []claim{claimLossSignal, claimWithoutRenewal},
		run:       lossEndsUse,
	},
	{
		Name:      "HoldOutlivesAcquireCtx",
		Statement: "The end of the context that was given to Acquire ends neither the hold nor its renewal.",
		run:       holdOutlivesAcquireCtx,
	},
	{
		Name:      "CauseIsStable",
		Statement: "The context of a lease carries no values, is alive while held, and keeps its first cause.",
		run:       causeIsStable,
	},
	{
		Name:      "NextSessionHolds",
		Statement: "When the session of a Locker has ended, its holds are lost, and what it acquires from then on is not.",
		claims:    []claim{claimLossSignal},
		run:       nextSessionHolds,
	},
	{
		Name:      "LeaseIsLocal",
		Statement: "To read a lease sends nothing and waits for nothing, also when the server hangs: key, token, deadline, context.",
		Seam:      true,
		run:       leaseIsLocal,
	},
}

func lostByDeadline(e *env) {
	a := e.locker()
	late := lateness{by: thisProcess}
	defer func() {
		late.judge(e, "", 100*time.Millisecond, "leases were not renewed, and their contexts ended")
	}()
	e.each(4, func(i int) {
		key := e.key("%d", i)
		h := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
		h.lapses()
		deadline := h.until()
		if !e.within(time.Until(deadline)+e.slack(), h.lease.Context().Done()) {
			e.overdueFatalf(key, "the context of a lease that is not renewed had not ended %s after its deadline", e.slack())
		}
		late.add(time.Since(deadline))
		if now := time.Now(); now.Before(deadline.Add(-e.ttl / 3)) {
			e.failf(key, "the lease ended %s before its deadline, with cause %s; nobody had removed or released it", deadline.Sub(now), outcome(h.cause()))
		}
		e.is(key, h.cause(), "context.Cause of a lease that ran out", lock.ErrLost, lock.ErrNotHeld)
		if errors.Is(h.cause(), lock.ErrReleased) || errors.Is(h.cause(), lock.ErrClosed) {
			e.failf(key, "context.Cause of a lease that ran out is %s; expected a loss only", outcome(h.cause()))
		}
	})
}

func lostBeforeTakeover(e *env) {
	const keys = 4
	rounds := e.rounds(e.ttl*3/2, 2, 50)
	a, b := e.locker(), e.locker()
	e.each(keys, func(n int) {
		e.pause(e.randomly(e.ttl))
		for round := range rounds {
			key := e.key("%d-%d", n, round)
			h := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
			h.lapses()
			e.pause(time.Until(h.until()) - e.ttl/16)
			next := e.takeOver(b, key, e.long, e.takeover(e.ttl), 2*time.Millisecond, "the holder's lease was not renewed")
			if !h.lost() {
				e.latef(key, "another client was granted the key, and the earlier holder's context had not ended")
			}
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d takeovers", keys*rounds)
}

func lostOnRemoval(e *env) {
	a, b, c := e.locker(), e.locker(), e.locker()
	e.each(4, func(i int) {
		key, replaced := e.key("%d", i), i%2 == 1
		h := a.mustTryFor(key, e.ttl)
		e.pause(e.randomly(e.ttl))
		h.mustLive("it is renewed automatically")
		e.remove(key)
		var next *hold
		if replaced {
			next = b.soon(key, "the record of its holder was removed by force")
		}
		bound := e.ttl/3 + e.slack()
		if !e.within(bound, h.lease.Context().Done()) {
			e.overdueFatalf(key, "the holder had not been told %s after its record was removed by force; its TTL is %s, and it renews every third of that", bound, e.ttl)
		}
		e.is(key, h.cause(), "context.Cause of a lease whose record was removed", lock.ErrLost, lock.ErrNotHeld)
		if err := h.release(e.ctx); err == nil {
			e.failf(key, "Release of a lease whose record was removed returned no error; expected ErrLost")
		} else {
			e.is(key, err, "Release of a lease whose record was removed", lock.ErrNotHeld)
		}
		if replaced {
			c.mustRefuse(key, "it was granted after the record of an earlier holder had been removed, and what that holder does must not end the new hold")
			next.mustLive("only the record of an earlier holder was removed")
			next.mustRelease()
		}
		b.mustTry(key).mustRelease()
	})
}

func releaseIsNoLoss(e *env) {
	a := e.locker()
	const least, most = 20, 400
	end := time.Now().Add(e.Budget / 10)
	short := e.ttl
	e.each(4, func(i int) {
		key := e.key("%d", i)
		for round := 0; round < most && (round < least || time.Now().Before(end)); round++ {
			h := a.mustTryFor(key, short)
			if round%10 == 9 && round < 20*least {
				e.pause(e.randomly(e.ttl / 20))
			}
			if err := h.release(e.ctx); err != nil {
				e.latef(key, "Release of a lease that was held returned %s; expected no error", outcome(err))
				return
			}
			if h.lease.Context().Err() == nil {
				e.failf(key, "the context of a lease was alive after its Release had returned")
				return
			}
			if cause := h.cause(); !errors.Is(cause, lock.ErrReleased) || errors.Is(cause, lock.ErrLost) {
				e.failf(key, "context.Cause after Release is %s; expected ErrReleased and no loss", outcome(cause))
				return
			}
		}
	})
}

func lossEndsUse(e *env) {
	a := e.locker()
	key := e.key("a")
	h := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
	e.awaitLapse(h)
	again := a.wins(key, e.takeover(e.ttl), e.ttl/20, "the lease of the same Locker had run out")
	if e.g.ManualRenewal {
		e.is(key, h.renew(), "Renew of a lost lease", lock.ErrNotHeld)
	}
	e.is(key, h.release(e.ctx), "Release of a lost lease", lock.ErrNotHeld)
	if h.lease.Context().Err() == nil {
		e.failf(key, "the context of a lost lease came back to life")
	}
	if d, ok := h.lease.Deadline(); ok && d.After(time.Now()) {
		e.failf(key, "the deadline of a lost lease is in the future")
	}
	again.mustLive("only an earlier lease of the same Locker was lost")
	again.mustRelease()
}

func holdOutlivesAcquireCtx(e *env) {
	a, b := e.locker(), e.locker()
	e.together(
		func() { e.outlives(a, b, e.key("cancel"), true, context.WithCancel) },
		func() { e.outlives(a, b, e.key("try"), false, context.WithCancel) },
		func() {
			e.outlives(a, b, e.key("timeout"), true, func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, e.ttl)
			})
		},
	)
}

func (e *env) outlives(a, b *client, key string, wait bool, with func(context.Context) (context.Context, context.CancelFunc)) {
	ctx, cancel := with(e.ctx)
	defer cancel()
	get := a.tryFor
	if wait {
		get = a.acquireFor
	}
	h, err := get(ctx, key, e.ttl)
	if err != nil {
		if ctx.Err() != nil {
			e.lateFatalf(key, "a free key was not granted before the context of the call ended after %s: %s", e.ttl, outcome(err))
		}
		e.unexpectedFatal(key, err, "a call for a free key returned %s; expected a lease", outcome(err))
	}
	if _, timed := ctx.Deadline(); !timed {
		cancel()
	}
	end := time.Now().Add(3 * e.ttl)
	for time.Now().Before(end) {
		h.mustLive("only the context that was given to the acquiring call has ended")
		b.mustRefuse(key, "only the context of the holder's acquiring call has ended")
		e.pause(e.ttl / 4)
	}
	if err := h.release(e.ctx); err != nil {
		e.latef(key, "Release returned %s; expected no error, since only the context of the acquiring call had ended", outcome(err))
	}
}

type contextKey struct{}

func causeIsStable(e *env) {
	a := e.locker()
	key := e.key("a")
	h, err := a.acquire(context.WithValue(e.ctx, contextKey{}, "value"), key)
	if err != nil {
		e.unexpectedFatal(key, err, "Acquire of a free key returned %s; expected a lease", outcome(err))
	}
	ctx := h.lease.Context()
	if ctx.Value(contextKey{}) != nil {
		e.failf(key, "the lease's context carries a value of the context given to Acquire")
	}
	if ctx.Err() != nil || context.Cause(ctx) != nil {
		e.latef(key, "the context of a lease that is held has ended: %s", outcome(context.Cause(ctx)))
	}
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	h.mustRelease()
	if !e.within(e.slack(), child.Done()) {
		e.overduef(key, "a context derived from the lease's had not ended %s after Release", e.slack())
	} else if cause := context.Cause(child); !errors.Is(cause, lock.ErrReleased) {
		e.failf(key, "the cause of a context derived from the lease's is %s; expected ErrReleased", outcome(cause))
	}
	first := h.cause()
	_ = h.release(e.ctx)
	_ = a.close()
	if now := h.cause(); now != first {
		e.failf(key, "the cause of the lease changed from %s to %s", outcome(first), outcome(now))
	}
}
