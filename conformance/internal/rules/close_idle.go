package rules

import (
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// idleLockerWorks leaves Lockers unused: one that is new, one that has nothing left to
// do, and one that renews what it holds.
func idleLockerWorks(e *engine.Env) {
	fresh, quiet, a, b := e.Locker(), e.Locker(), e.Locker(), e.Locker()
	used, kept, owned := e.Key("used"), e.Key("kept"), e.Key("owned")
	quiet.MustTryFor(used, e.TTL).MustRelease()
	h := a.MustTryFor(kept, e.TTL)
	var outer *engine.Hold
	var owner []lock.Option
	if engine.ClaimReentrancy.Made(e.Settings) {
		owner = append(owner, lock.WithOwner(e.Owner("A")))
		outer = a.MustTryFor(owned, e.TTL, owner...)
	}
	idlers := leftAlone(e)
	beIdle(e)
	for _, h := range idlers {
		h.MustRelease()
		b.MustTry(h.Key).MustRelease()
	}
	all := []*engine.Client{fresh, quiet, a}
	for _, c := range all {
		c.MustTry(used).MustRelease()
		c.MustAcquire(used).MustRelease()
	}
	h.MustLive("it is renewed automatically, though nobody uses its Locker")
	b.MustRefuse(kept, "its holder keeps it by automatic renewal")
	h.MustRelease()
	fresh.MustTry(kept).MustRelease()
	if outer != nil {
		inner := a.MustTryFor(owned, e.TTL, owner...)
		if engine.ClaimTokens.Made(e.Settings) && inner.Token != outer.Token {
			e.Failf(owned, "the token of a re-entry after %s is %d; expected that of the outermost hold, %d", idle(e), inner.Token, outer.Token)
		}
		outer.MustRelease()
		b.MustRefuse(owned, "one of two leases of its owner is left")
		inner.MustRelease()
		fresh.MustTry(owned).MustRelease()
	}
	var late engine.Lateness
	for _, c := range all { // they hear of a release as before
		key := e.Key("woken-%s", c.Who)
		stands := b.MustTry(key)
		w := c.Acquiring(key)
		e.Settle()
		stands.MustRelease()
		released := time.Now()
		w.MustGet(e, key, e.WaitBound(), "the key was released").MustRelease()
		late.Add(e, time.Since(released))
	}
	late.Judge(e, "", e.WakeBound(), "waiters of Lockers that had been idle were granted the key after its release")
}

// leftAlone are leases of Lockers of their own, with a TTL that outlasts the quiet: one that is
// renewed, and one that is not, for which nothing at all is sent.
func leftAlone(e *engine.Env) (holds []*engine.Hold) {
	ttl := 2 * idle(e)
	if e.Fit(ttl) < ttl {
		return nil
	}
	holds = append(holds, e.Locker().MustTryFor(e.Key("renewed alone"), ttl))
	if e.Claimed.WithoutRenewal {
		holds = append(holds, e.Locker().MustTryFor(e.Key("unrenewed alone"), ttl, lock.WithoutRenewal()))
	}
	return holds
}
