package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

func waitOutlastsTTL(e *env) {
	a, b, c := e.locker(), e.locker(), e.locker()
	key := e.key("a")
	h := a.mustTryFor(key, e.ttl)
	waits := []*acquiring{b.acquiring(key), c.acquiring(key)}
	// Some locks give up by themselves after a while, or ask less and less often.
	for end := time.Now().Add(max(e.ttl*5/2, min(e.Budget/2, 10*time.Second))); time.Now().Before(end); {
		e.pause(e.ttl / 4)
		for _, w := range waits {
			select {
			case <-w.done:
				if w.err != nil {
					e.unexpectedFatal(key, w.err, "Acquire gave up (%s), although neither its context nor the hold had ended", outcome(w.err))
				}
				e.judgeRefusal(key, "Acquire", "its holder renews it", w.h.record, nil)
				panic(abort{})
			default:
			}
		}
		h.mustLive("it is renewed automatically")
	}
	h.mustRelease()
	released := time.Now()
	var late lateness
	e.each(len(waits), func(i int) {
		got := waits[i].mustGet(e, key, e.waitBound(), "its holder has released it")
		late.add(time.Since(released))
		_ = got.release(e.ctx)
	})
	late.judge(e, key, e.wakeBound(), "callers that had waited for long were granted the key after its release")
}

func poolClean(e *env) {
	if e.Pool == nil {
		e.skipf("needs Config.Pool")
	}
	a, b := e.locker(), e.locker()
	use := func(l, other *client) {
		key := e.key("a")
		h := l.mustTryFor(key, e.ttl)
		_, _ = other.try(key)
		ctx, cancel := context.WithTimeout(e.ctx, e.ttl/20)
		if _, err := other.acquire(ctx, key); err == nil || !errors.Is(err, lock.ErrHeld) {
			e.is(key, err, "Acquire of a held key whose context ended", lock.ErrHeld)
		}
		cancel()
		h.mustRelease()
	}
	for range 5 {
		use(a, b)
		use(b, a)
		// At once: the server may close what was left with a short time limit, and the
		// pool replace it.
		e.poolAsBefore("after the lock had been used")
	}
	_ = a.close()
	_ = b.close()
	e.poolAsBefore("after the lock had been closed")
}

func (e *env) poolAsBefore(when string) {
	now, err := e.Pool(e.ctx)
	switch {
	case err != nil:
		e.unexpectedFatal("", err, "Config.Pool returned %s %s; expected no error, as before", outcome(err), when)
	case now != e.pool:
		e.fatalf("", "the client's connections were %s before the run, and %s they are %s", e.pool, when, now)
	}
}
