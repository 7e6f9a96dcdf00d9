package rules

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
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
			e.UnexpectedLate(next, err, "Release of a lease that was acquired after the session of an earlier one had ended returned %s; expected no error", engine.Outcome(err))
		}
	})
	if e.OpenBackend != nil {
		noticesOfLoss(e)
	}
}

// noticesOfLoss looks at what a backend tells by itself of the end of a session. It may have to
// be asked for something before it learns of it.
func noticesOfLoss(e *engine.Env) {
	a := e.Backend()
	notifier, ok := backend.As[backend.LossNotifier](a.Backend)
	if !ok {
		return
	}
	var mu sync.Mutex
	told := map[backend.ID][]error{}
	notifier.NotifyLoss(func(id backend.ID, cause error) {
		mu.Lock()
		defer mu.Unlock()
		told[id] = append(told[id], cause)
	})
	renewed := func(name string) backend.Request {
		req := e.Request(e.Key("notices, %s", name), "", e.Long)
		req.Renewed = true // as a Locker asks, so that they may share a session
		return req
	}
	released := a.MustTry(renewed("released"))
	e.MustGiveBack(released, released.Key, "")
	lost, beside := a.MustTry(renewed("lost")), a.MustTry(renewed("beside"))
	lost.Lapses()
	beside.Lapses()
	endSession(e, lost.Key)
	ask := func() {
		if e.Claimed.ManualRenewal {
			_, _ = a.Renew(lost.Hold)
		}
		if h, err := a.Try(renewed("next")); err == nil {
			_ = h.Release(e.Ctx)
		}
	}
	ask()
	for end := time.Now().Add(e.Long/3 + e.Slack()); time.Now().Before(end); e.Pause(e.TTL / 10) {
		mu.Lock()
		n := len(told[lost.Hold.ID])
		mu.Unlock()
		if n > 0 {
			break
		}
		ask()
	}
	ask()
	e.Settle()
	endedTogether(e, lost, beside, func(id backend.ID) bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told[id]) > 0
	})
	lives := false
	if e.Claimed.ManualRenewal {
		_, err := a.Renew(beside.Hold)
		lives = err == nil
	}
	mu.Lock()
	defer mu.Unlock()
	for id, causes := range told {
		key := lost.Key
		switch {
		case id == beside.Hold.ID && !lives:
			key = beside.Key
		case id == beside.Hold.ID:
			e.Failf(beside.Key, "a backend told of the loss of a hold that was renewed afterwards")
		case id != lost.Hold.ID:
			e.Latef(key, "a backend told of the loss of a hold that there was not when the session ended")
		}
		if len(causes) > 1 {
			e.Failf(key, "a backend told %d times of the loss of one hold; expected once", len(causes))
		}
		for _, cause := range causes {
			const what = "what a backend told as the cause of a loss"
			e.Is(key, cause, what, lock.ErrLost)
			not(e, key, cause, what, lock.ErrMaxHold)
		}
	}
	if len(told[lost.Hold.ID]) == 0 {
		e.Notef("the backend told of no loss by itself")
	}
	_ = a.Release(e.Ctx, lost.Hold)
	_ = a.Release(e.Ctx, beside.Hold)
}

// endedTogether looks at a hold of the client whose session has ended. Where it has ended too, as
// another client sees, who tells of the one tells of the other.
func endedTogether(e *engine.Env, lost, beside *engine.Grant, told func(id backend.ID) bool) {
	if !told(lost.Hold.ID) || told(beside.Hold.ID) {
		return
	}
	h, err := e.Backend().Try(e.Request(beside.Key, "", e.Long))
	if err != nil {
		return // it had a session of its own
	}
	_ = h.Release(e.Ctx)
	if !time.Now().Before(beside.Until()) {
		e.TooSlowf(beside.Key, "the hold had run out before its end was looked for")
	}
	for last := time.Now().Add(e.Slack()); time.Now().Before(last); e.Pause(e.TTL / 10) {
		if told(beside.Hold.ID) {
			return
		}
	}
	e.Overduef(beside.Key, "a backend told of the loss of one hold, and not of another that had ended with the same session, for %s; expected it to tell of each", e.Slack())
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
