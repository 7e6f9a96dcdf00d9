package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func silenceIsNotHeld(e *engine.Env, via engine.FaultSite) {
	asks := append([]kind{plain}, optionKinds(e, e.Locker())...)
	for what, silent := range map[string][]faultlock.Op{
		"to everything":         nil,
		"once a place is taken": {faultlock.OpTry, faultlock.OpWait},
	} {
		a, c := e.FaultyAt(via, nil)
		c.All(faultlock.HangBefore(), silent...)
		told := func(who, key string, get engine.Getter, k kind) {
			// Before the call itself has waited for long enough.
			ctx, cancel := context.WithTimeout(e.Ctx, min(150*time.Millisecond, e.Long/3))
			defer cancel()
			_, err := a.Get(who, get, ctx, key, append(e.Opts(e.Long), k.opts...))
			who += " with " + k.name + " of a key that nobody holds, with the server silent " + what + ","
			if err == nil {
				e.Failf(key, "%s was granted it", who)
				return
			}
			e.Is(key, err, who, context.DeadlineExceeded)
			if !errors.Is(err, lock.ErrOutcomeUnknown) && !errors.Is(err, lock.ErrUnavailable) {
				// Who was called when its time was up knows nothing of the server.
				standstill := engine.Excuse{From: 50 * time.Millisecond, By: engine.ThisProcess}
				e.Fail(standstill, key, "%s returned %s; expected an error that matches ErrOutcomeUnknown or ErrUnavailable", who, engine.Outcome(err))
			}
			if errors.Is(err, lock.ErrHeld) {
				e.Failf(key, "%s returned %s; it must not match ErrHeld: nobody has said so", who, engine.Outcome(err))
			}
		}
		eachKind(e, asks, func(k kind) {
			told("TryAcquire", e.Key("%s-%s-try-%s", via.Name, what, k.name), a.Locker.TryAcquire, k)
			key := e.Key("%s-%s-acquire-%s", via.Name, what, k.name)
			// Those behind the first of a Locker know no more than the first.
			e.Each(3, func(int) { told("Acquire", key, a.Locker.Acquire, k) })
		})
		c.Heal()
	}
}
