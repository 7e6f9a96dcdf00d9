package rules

import (
	"context"
	"slices"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// reachKindMaxHold has leases of each two kinds reach a maximum, half of them after a renewal with a
// context that had ended.
func reachKindMaxHold(e *engine.Env, a, b *engine.Client) {
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	all := slices.DeleteFunc(pairs(e), func(k kind) bool {
		set, err := lock.ResolveOptions(k.opts...)
		return err != nil || set.MaxHold > 0 // one of them has another one
	})
	e.Each(len(all), func(i int) {
		k, limit := all[i], e.TTL*5/4
		if k.unrenewed { // which ends without a maximum too
			limit = min(limit, e.Long/2)
		}
		key := e.Key("maximum-with-%s", k.name)
		h, ok := k.take(a, key, e.Long, lock.WithMaxHold(limit))
		if !ok {
			return
		}
		what := "a lease with a maximum hold, " + k.name
		e.Pause(limit / 4)
		if i%2 == 0 && e.Claimed.ManualRenewal {
			_ = h.Lease.Renew(ended)
			what += ", and a renewal whose context had ended"
		}
		endsByMaximum(e, h, what, limit)
		_ = h.Release(e.Ctx)
		b.Soon(key, "its holder has reached its maximum hold").MustRelease()
	})
}

// reachThirdMaxHold has each of an owner's holds of a key reach a maximum.
func reachThirdMaxHold(e *engine.Env, a *engine.Client) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	key, limit := e.Key("maximum of each of an owner's"), e.TTL
	k := kind{name: "an owner and a maximum hold", opts: append(owner, lock.WithMaxHold(limit))}
	holds := make([]*engine.Hold, 4)
	for i := range holds {
		h, ok := k.take(a, key, e.Long)
		if !ok {
			return
		}
		holds[i] = h
	}
	for i, h := range holds {
		endsByMaximum(e, h, []string{"the first", "the second", "the third", "the fourth"}[i]+" hold of an owner, each of which has a maximum", limit)
	}
	for _, h := range holds {
		_ = h.Release(e.Ctx)
	}
}

// endsByMaximum waits for the end of a lease by its maximum.
func endsByMaximum(e *engine.Env, h *engine.Hold, what string, limit time.Duration) {
	if !e.Within(h.Granted+limit+e.Slack()-e.Log.Now(), h.Lease.Context().Done()) {
		e.OverdueFatalf(h.Key, "%s, had not ended %s after its grant; the maximum was %s", what, engine.Short(e.Log.Now()-h.Granted), limit)
	}
	if held := e.Log.Now() - h.Invoked; held < limit-limit/50 {
		e.Unexpected(h.Key, h.Cause(), "%s, ended %s after it was asked for, with cause %s; the maximum was %s", what, engine.Short(held), engine.Outcome(h.Cause()), limit)
	}
	e.Is(h.Key, h.Cause(), "context.Cause of "+what+", which has passed,", lock.ErrMaxHold, lock.ErrLost)
	deadlineIsOver(e, h)
}
