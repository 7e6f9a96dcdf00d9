package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// nextSessionHolds ends the session of a Locker that holds a key, and has it acquire
// another one before it was told.
func nextSessionHolds(e *engine.Env) {
	if e.EndSession == nil {
		e.Skipf("needs Config.EndSession")
	}
	other := e.Locker()
	ways := []func(a *engine.Client, key string) *engine.Hold{
		func(a *engine.Client, key string) *engine.Hold { return trySession(e, a, key) },
		func(a *engine.Client, key string) *engine.Hold { return a.MustAcquire(key) },
		func(a *engine.Client, key string) *engine.Hold {
			stands := other.MustTry(key)
			var h *engine.Hold
			e.Together(
				func() { h = a.MustAcquire(key) },
				func() { e.Settle(); stands.MustRelease() })
			return h
		},
	}
	e.Each(len(ways), func(i int) {
		a := e.Locker()
		first, next := e.Key("%d-first", i), e.Key("%d-next", i)
		ended := a.MustTry(first)
		sharing := sharesSession(e, a, i)
		endSession(e, first)
		h := ways[i](a, next)
		bound := e.Long/3 + e.Slack()
		if !e.Within(bound, ended.Lease.Context().Done()) {
			e.OverdueFatalf(first, "the holder had not been told %s after its session had ended", bound)
		}
		isLoss(e, first, ended.Cause(), "context.Cause of a lease whose session has ended")
		sharing(other, bound)
		e.Settle()
		h.MustLive("it was acquired after the session of an earlier lease had ended")
		if err := h.Release(context.WithoutCancel(e.Ctx)); err != nil {
			e.Latef(next, "Release of a lease that was acquired after the session of an earlier one had ended returned %s; expected no error", engine.Outcome(err))
		}
	})
}

// sharesSession has the Locker hold another key on the session that is to end, if it is
// claimed that its holds share one. What it returns sees that hold end.
func sharesSession(e *engine.Env, a *engine.Client, i int) func(other *engine.Client, bound time.Duration) {
	if !e.Claimed.EndsWithSession {
		return func(*engine.Client, time.Duration) {}
	}
	key := e.Key("%d-shares", i)
	h := a.MustTry(key)
	return func(other *engine.Client, bound time.Duration) {
		h.Lapses()
		if !e.Within(bound, h.Lease.Context().Done()) {
			e.OverdueFatalf(key, "a lease had not ended %s after the session of its client, which all its holds share by its guarantees", bound)
		}
		isLoss(e, key, h.Cause(), "context.Cause of a lease whose session has ended")
		_ = h.Release(e.Ctx)
		_ = other.Soon(key, "the session that its holder had shares with other holds has ended").Release(e.Ctx)
	}
}

// trySession tries a free key, which may be refused while another session begins.
func trySession(e *engine.Env, a *engine.Client, key string) *engine.Hold {
	for end := time.Now().Add(e.WaitBound()); ; e.Pause(20 * time.Millisecond) {
		h, err := a.Try(key)
		switch {
		case err == nil:
			return h
		case !errors.Is(err, lock.ErrUnavailable) || time.Now().After(end):
			e.UnexpectedFatal(key, err, "TryAcquire on a free key returned %s; expected a lease", engine.Outcome(err))
		}
	}
}

// endSession ends the session of the last in the queue of the key, or of its holder.
func endSession(e *engine.Env, key string) {
	ev := e.Log.Begin("suite", "EndSession", key)
	err := e.EndSession(e.Ctx, key)
	e.Log.End(ev, engine.Outcome(err))
	if err != nil {
		e.UnexpectedFatal(key, err, "Config.EndSession returned %s; expected no error", engine.Outcome(err))
	}
}
