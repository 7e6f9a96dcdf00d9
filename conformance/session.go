package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

// nextSessionHolds ends the session of a Locker that holds a key, and has it acquire
// another one before it was told.
func nextSessionHolds(e *env) {
	if e.EndSession == nil {
		e.skipf("needs Config.EndSession")
	}
	other := e.locker()
	ways := []func(a *client, key string) *hold{
		func(a *client, key string) *hold { return e.trySession(a, key) },
		func(a *client, key string) *hold { return a.mustAcquire(key) },
		func(a *client, key string) *hold {
			stands := other.mustTry(key)
			var h *hold
			e.together(
				func() { h = a.mustAcquire(key) },
				func() { e.settle(); stands.mustRelease() })
			return h
		},
	}
	e.each(len(ways), func(i int) {
		a := e.locker()
		first, next := e.key("%d-first", i), e.key("%d-next", i)
		ended := a.mustTry(first)
		e.endSession(first)
		h := ways[i](a, next)
		bound := e.long/3 + e.slack()
		if !e.within(bound, ended.lease.Context().Done()) {
			e.overdueFatalf(first, "the holder had not been told %s after its session had ended", bound)
		}
		e.is(first, ended.cause(), "context.Cause of a lease whose session has ended", lock.ErrLost)
		e.settle()
		h.mustLive("it was acquired after the session of an earlier lease had ended")
		if err := h.release(context.WithoutCancel(e.ctx)); err != nil {
			e.latef(next, "Release of a lease that was acquired after the session of an earlier one had ended returned %s; expected no error", outcome(err))
		}
	})
}

// trySession tries a free key, which may be refused while another session begins.
func (e *env) trySession(a *client, key string) *hold {
	for end := time.Now().Add(e.waitBound()); ; e.pause(20 * time.Millisecond) {
		h, err := a.try(key)
		switch {
		case err == nil:
			return h
		case !errors.Is(err, lock.ErrUnavailable) || time.Now().After(end):
			e.unexpectedFatal(key, err, "TryAcquire on a free key returned %s; expected a lease", outcome(err))
		}
	}
}

// endSession ends the session of the last in the queue of the key, or of its holder.
func (e *env) endSession(key string) {
	ev := e.hist.begin("suite", "EndSession", key)
	err := e.EndSession(e.ctx, key)
	e.hist.end(ev, outcome(err))
	if err != nil {
		e.unexpectedFatal(key, err, "Config.EndSession returned %s; expected no error", outcome(err))
	}
}
