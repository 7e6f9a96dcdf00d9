package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

func silenceIsNotHeld(e *env, via seamKind) {
	for what, silent := range map[string][]faultlock.Op{
		"to everything":         nil,
		"once a place is taken": {faultlock.OpTry, faultlock.OpWait},
	} {
		a, c := e.faultyAt(via, nil)
		c.All(faultlock.HangBefore(), silent...)
		told := func(who, key string, get getter) {
			ctx, cancel := context.WithTimeout(e.ctx, 150*time.Millisecond)
			defer cancel()
			_, err := a.get(who, get, ctx, key, e.opts(e.long))
			who += " of a key that nobody holds, with the server silent " + what + ","
			if err == nil {
				e.failf(key, "%s was granted it", who)
				return
			}
			e.is(key, err, who, context.DeadlineExceeded)
			if !errors.Is(err, lock.ErrOutcomeUnknown) && !errors.Is(err, lock.ErrUnavailable) {
				e.failf(key, "%s returned %s; expected an error that matches ErrOutcomeUnknown or ErrUnavailable", who, outcome(err))
			}
			if errors.Is(err, lock.ErrHeld) {
				e.failf(key, "%s returned %s; it must not match ErrHeld: nobody has said so", who, outcome(err))
			}
		}
		told("TryAcquire", e.key("%s-%s-try", via.name, what), a.l.TryAcquire)
		key := e.key("%s-%s-acquire", via.name, what)
		// Those behind the first of a Locker know no more than the first.
		e.each(3, func(int) { told("Acquire", key, a.l.Acquire) })
		c.Heal()
	}
}
