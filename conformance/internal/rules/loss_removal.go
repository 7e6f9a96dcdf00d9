package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func lostOnRemoval(e *engine.Env) {
	e.NeedsRemove()
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	other := a.MustTryFor(e.Key("other"), e.TTL)
	all := append(kinds(e), renewedPairs(e)...)
	late := make([]engine.Lateness, len(all))
	var ended endedLeases
	waits := e.Start(func() { waitsForRemoved(e, a) }, func() { removedAgain(e, a) }, func() { removedAfterCall(e, a) }, func() { removedBesideReleased(e, a) })
	e.Each(2*len(all), func(i int) {
		k, late, replaced := all[i%len(all)], &late[i%len(all)], i < len(all)
		key := e.Key("%d", i)
		h, ok := k.take(a, key, e.TTL)
		if !ok {
			return
		}
		var inner *engine.Hold
		if k.owned {
			if inner, ok = k.take(a, key, e.TTL); !ok {
				return
			}
		}
		e.Pause(e.Randomly(e.TTL))
		h.MustLive("it is renewed automatically")
		until := h.Until()
		e.RemoveByForce(key)
		removed := time.Now()
		var next *engine.Hold
		if replaced {
			next = b.Soon(key, "the record of its holder was removed by force")
		}
		bound := e.TTL/3 + e.Slack()
		if !e.Within(bound, h.Lease.Context().Done()) {
			e.OverdueFatalf(key, "the holder, of a lease with %s, had not been told %s after its record was removed by force; its TTL is %s, and it renews every third of that", k.name, bound, e.TTL)
		}
		late.Add(e, time.Since(removed))
		if inner != nil {
			if !e.Within(bound, inner.Lease.Context().Done()) {
				e.OverdueFatalf(key, "the second hold of an owner had not been told %s after the record was removed by force", bound)
			}
			isLoss(e, key, inner.Cause(), "context.Cause of an owner's second hold whose record was removed")
			_ = inner.Release(e.Ctx)
			keepsToken(e, inner)
		}
		if time.Now().Before(until) {
			not(e, key, h.Cause(), "context.Cause of a lease whose record was removed long before its deadline", lock.ErrExpired)
		}
		isLoss(e, key, h.Cause(), "context.Cause of a lease whose record was removed")
		not(e, key, h.Cause(), "context.Cause of a lease whose record was removed", lock.ErrMaxHold, lock.ErrReleased, lock.ErrClosed)
		if e.Claimed.ManualRenewal {
			e.Is(key, h.Renew(), "Renew of a lease whose record was removed", lock.ErrNotHeld)
		}
		if err := h.Release(e.Ctx); err == nil {
			e.Failf(key, "Release of a lease whose record was removed returned no error; expected ErrLost")
		} else {
			e.Is(key, err, "Release of a lease whose record was removed", lock.ErrLost, lock.ErrNotHeld)
		}
		isLoss(e, key, h.Cause(), "context.Cause of a lease whose record was removed, after its Release,")
		not(e, key, h.Cause(), "context.Cause of a lease whose record was removed, after its Release,", lock.ErrReleased)
		keepsToken(e, h)
		ended.add(h)
		if replaced {
			c.MustRefuse(key, "it was granted after the record of an earlier holder had been removed, and what that holder does must not end the new hold")
			next.MustLive("only the record of an earlier holder was removed")
			next.MustRelease()
		}
		b.MustTry(key).MustRelease()
		if i != len(all) || !e.Virtual() { // one of them is enough
			a.MustTry(key).MustRelease()
			wakesAfterLoss(e, a, b, key, "was removed by force")
			return
		}
		staysHeld(e, a.MustTryFor(key, e.TTL), b, "only the record of its holder's earlier lease was removed")
	})
	for i := range late {
		late[i].Judge(e, "", e.TTL*7/12, "records of leases with %s were removed by force, which a renewal each third of the TTL of %s tells, and their contexts ended", all[i].name, e.TTL)
	}
	removedBeforeRenew(e, a)
	triedAfterRemoval(e, a, b)
	e.Pause(e.TTL) // renewed once more, at least
	other.MustLive("only records of other keys were removed")
	other.MustRelease()
	waits()
	ended.outliveClose(e, a, "a lease whose record was removed")
}

// waitsForRemoved waits for a key whose record is removed, and whose holder, in the same Locker,
// does not release it.
func waitsForRemoved(e *engine.Env, a *engine.Client) {
	key := e.Key("not released")
	h := a.MustTryFor(key, e.TTL)
	w := a.Acquiring(key)
	e.Settle()
	h.MustLive("it is renewed automatically")
	e.RemoveByForce(key)
	w.MustGet(e, key, e.TTL/3+e.WaitBound(), "the record of another caller of its Locker was removed, who does not release it").MustRelease()
	_ = h.Release(e.Ctx)
}

// removedAfterCall has the contexts of the calls that acquired leases end before their records are
// removed.
func removedAfterCall(e *engine.Env, a *engine.Client) {
	calls := map[string]func(ctx context.Context, key string, ttl time.Duration, more ...lock.Option) (*engine.Hold, error){
		"TryAcquire": a.TryFor, "Acquire": a.AcquireFor,
	}
	late := make([]engine.Lateness, len(calls))
	e.Each(len(calls), func(i int) {
		name := ways[i].name
		key := e.Key("after its call-%s", name)
		ctx, cancel := context.WithCancel(e.Ctx)
		h, err := calls[name](ctx, key, e.TTL)
		cancel()
		if err != nil {
			return // other rules say so
		}
		e.Settle()
		h.MustLive("it is renewed automatically; only the context of the call that acquired it has ended")
		e.RemoveByForce(key)
		removed := time.Now()
		if bound := e.TTL/3 + e.Slack(); !e.Within(bound, h.Lease.Context().Done()) {
			e.OverdueFatalf(key, "the holder had not been told %s after its record was removed by force; the context of its %s had ended before", bound, name)
		}
		late[i].Add(e, time.Since(removed))
		late[i].Judge(e, key, e.TTL*7/12, "a record was removed by force after the context of the %s had ended, which a renewal each third of the TTL of %s tells, and the context of the lease ended", name, e.TTL)
		isLoss(e, key, h.Cause(), "context.Cause of a lease whose record was removed, after the context of its call had ended,")
		_ = h.Release(e.Ctx)
	})
}

// removedAgain has one Locker lose one key several times. Each time it is told as soon.
func removedAgain(e *engine.Env, a *engine.Client) {
	if !e.Virtual() {
		return
	}
	var late engine.Lateness
	key := e.Key("removed again")
	for i := range 3 {
		h := a.MustTryFor(key, e.TTL)
		e.RemoveByForce(key)
		removed := time.Now()
		if bound := e.TTL/3 + e.Slack(); !e.Within(bound, h.Lease.Context().Done()) {
			e.OverdueFatalf(key, "the holder had not been told %s after its record was removed by force; %d leases of the same key and Locker had been lost in this way before", bound, i)
		}
		late.Add(e, time.Since(removed))
		isLoss(e, key, h.Cause(), "context.Cause of a lease whose record was removed, as those of earlier ones")
		leavesNext(e, h, a.Soon(key, "its record was removed by force"), "whose record was removed", i%2 == 0)
	}
	late.Judge(e, key, e.TTL*7/12, "records of one key were removed by force again and again, which a renewal each third of the TTL of %s tells, and the contexts of their leases ended", e.TTL)
}

// removedBeforeRenew has a holder renew by hand when its record was removed a moment ago, which
// nobody has told it.
func removedBeforeRenew(e *engine.Env, a *engine.Client) {
	if !e.Claimed.ManualRenewal {
		return
	}
	key := e.Key("renewed at once")
	h := a.MustTry(key, unrenewed(e)...)
	until := h.Until()
	e.RemoveByForce(key)
	if err := h.Renew(); errors.Is(err, lock.ErrNotHeld) && e.Within(e.Slack(), h.Lease.Context().Done()) {
		isLoss(e, key, h.Cause(), "context.Cause of a lease whose record was removed, as a Renew has found")
		if time.Now().Before(until) {
			not(e, key, h.Cause(), "context.Cause of a lease whose record was removed, as a Renew has found long before its deadline,", lock.ErrExpired, lock.ErrMaxHold, lock.ErrReleased, lock.ErrClosed)
		}
		deadlineIsOver(e, h)
		e.Is(key, h.Renew(), "another Renew of a lease whose record was removed", lock.ErrNotHeld)
		e.Is(key, h.Release(e.Ctx), "Release of a lease whose record was removed, as a Renew has found,", lock.ErrLost, lock.ErrNotHeld)
		keepsToken(e, h)
	}
	_ = h.Release(e.Ctx)
}

// triedAfterRemoval has a Locker try a key whose record was removed a moment ago, which no renewal
// has told it yet. That the key is free, another client has seen.
func triedAfterRemoval(e *engine.Env, a, b *engine.Client) {
	if !e.Says { // an adapter may refuse what it believes to hold itself
		return
	}
	key := e.Key("tried at once")
	h := a.MustTryFor(key, e.Long)
	e.RemoveByForce(key)
	b.Soon(key, "the record of its holder was removed by force").MustRelease()
	again, err := a.Try(key)
	switch {
	case err == nil:
		again.MustRelease()
	case errors.Is(err, lock.ErrHeld):
		e.Unexpected(key, err, "TryAcquire by the Locker whose lease was removed by force returned %s, after another client had been granted the key and had released it; expected a lease, since a try asks the server, and not the Locker what it believes to hold", engine.Outcome(err))
	}
	_ = h.Release(e.Ctx)
}

// removedBesideReleased has the record of an owner removed who has released one of two leases before,
// the first or the second. That one was not lost.
func removedBesideReleased(e *engine.Env, a *engine.Client) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	e.Each(2, func(i int) {
		key := e.Key("beside a released one-%d", i)
		holds := []*engine.Hold{a.MustTryFor(key, e.TTL, owner...), a.MustTryFor(key, e.TTL, owner...)}
		released, left := holds[i], holds[1-i]
		released.MustRelease()
		first := released.Cause()
		e.RemoveByForce(key)
		_ = e.Within(e.TTL/3+e.Slack(), left.Lease.Context().Done()) // the other cases say when
		if now := released.Cause(); now != first {
			e.Failf(key, "the cause of a lease that was released changed from %s to %s, when the record of another lease of its owner was removed; expected it to stay", engine.Outcome(first), engine.Outcome(now))
		}
		_ = left.Release(e.Ctx)
	})
}
