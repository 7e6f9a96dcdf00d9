package rules

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func poolClean(e *engine.Env) {
	if e.Pool == nil {
		e.Skipf("needs Config.Pool")
	}
	a, b := e.Locker(), e.Locker()
	use := func(l, other *engine.Client) {
		key := e.Key("a")
		h := l.MustTryFor(key, e.TTL)
		_, _ = other.Try(key)
		ctx, cancel := context.WithTimeout(e.Ctx, e.TTL/20)
		if _, err := other.Acquire(ctx, key); err == nil || !errors.Is(err, lock.ErrHeld) {
			e.Is(key, err, "Acquire of a held key whose context ended", lock.ErrHeld)
		}
		cancel()
		h.MustRelease()
	}
	for range 5 {
		use(a, b)
		use(b, a)
		// At once: the server may close what was left with a short time limit, and the
		// pool replace it.
		poolAsBefore(e, "after the lock had been used")
	}
	_ = a.Close()
	_ = b.Close()
	poolAsBefore(e, "after the lock had been closed")
}

func poolAsBefore(e *engine.Env, when string) {
	now, err := e.Pool(e.Ctx)
	switch {
	case err != nil:
		e.UnexpectedFatal("", err, "Config.Pool returned %s %s; expected no error, as before", engine.Outcome(err), when)
	case now != e.PoolBefore:
		e.Fatalf("", "the client's connections were %s before the run, and %s they are %s", e.PoolBefore, when, now)
	}
}
