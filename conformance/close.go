package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var closeRules = []*rule{
	{
		Name:      "CloseEndsHolds",
		Statement: "Close ends every lease of the Locker with the cause ErrClosed and frees its keys, those of other Lockers excepted.",
		run:       closeEndsHolds,
	},
	{
		Name:      "CloseEndsWaits",
		Statement: "Close ends every wait of the Locker with ErrClosed, and what comes later is refused with ErrClosed.",
		run:       closeEndsWaits,
	},
	{
		Name:      "CloseTwice",
		Statement: "A second Close does nothing; simultaneous ones are safe, also beside calls under way.",
		run:       closeTwice,
	},
	{
		Name:      "NoLeak",
		Statement: "After Close no goroutine is left of what the Locker did, and no held key where the backend can list them.",
		run:       noLeak,
	},
	{
		Name:      "PoolClean",
		Statement: "The client that the lock was given is as it was before the run: no setting, transaction or watch is left on its connections.",
		run:       poolClean,
	},
}

func closeEndsHolds(e *env) {
	a, b := e.locker(), e.locker()
	var holds []*hold
	for i := range 6 {
		ttl := e.long
		if i%2 == 0 {
			ttl = e.ttl
		}
		holds = append(holds, a.mustTryFor(e.key("%d", i), ttl))
	}
	other := b.mustTry(e.key("other"))
	done := make(chan struct{})
	wait := e.start(func() {
		if err := a.close(); err != nil {
			e.latef("", "Close returned %s; expected no error, since the server can be reached", outcome(err))
		}
		close(done)
	})
	// Five seconds are promised.
	if !e.within(5*time.Second+e.slack(), done) {
		e.overdueFatalf("", "Close had not returned after %s", 5*time.Second+e.slack())
	}
	wait()
	for _, h := range holds {
		if !h.lost() {
			e.failf(h.key, "the context of a lease was alive after the Close of its Locker")
		} else if cause := h.cause(); !errors.Is(cause, lock.ErrClosed) && !errors.Is(cause, lock.ErrExpired) || errors.Is(cause, lock.ErrReleased) {
			e.failf(h.key, "context.Cause of a lease whose Locker was closed is %s; expected ErrClosed", outcome(cause))
		}
		next := b.wins(h.key, e.slack(), 20*time.Millisecond, "the Locker of its holder was closed, and its TTL was up to "+e.long.String())
		_ = next.release(e.ctx)
		if err := h.release(e.ctx); err == nil {
			e.failf(h.key, "Release after Close returned no error; expected ErrClosed or ErrNotHeld")
		} else if !errors.Is(err, lock.ErrClosed) && !errors.Is(err, lock.ErrNotHeld) {
			e.unexpected(h.key, err, "Release after Close returned %s; expected ErrClosed or ErrNotHeld", outcome(err))
		}
	}
	other.mustLive("only another Locker was closed")
	other.mustRelease()
}

func closeEndsWaits(e *env) {
	a, b := e.locker(), e.locker()
	key := e.key("a")
	h := b.mustTry(key)
	var waiters []*acquiring
	for range 5 {
		waiters = append(waiters, a.acquiring(key))
	}
	e.settle()
	h.mustLive("nobody has released it")
	_ = a.close()
	for _, w := range waiters {
		if !e.within(e.slack(), w.done) {
			e.overdueFatalf(key, "a waiter had not returned %s after the Close of its Locker", e.slack())
		}
		if w.err == nil {
			e.fatalf(key, "a waiter was granted a key that was held")
		}
		e.is(key, w.err, "Acquire, while its Locker was closed,", lock.ErrClosed)
	}
	_, err := a.try(key)
	e.is(key, err, "TryAcquire on a closed Locker", lock.ErrClosed)
	_, err = a.acquire(e.ctx, e.key("free"))
	e.is(e.key("free"), err, "Acquire of a free key on a closed Locker", lock.ErrClosed)
	h.mustLive("only another Locker was closed")
	h.mustRelease()
	b.soon(key, "it was released, and those who waited for it were closed").mustRelease()
}

func closeTwice(e *env) {
	a := e.locker()
	a.mustTry(e.key("a"))
	_ = a.close()
	if err := a.close(); err != nil {
		e.unexpected("", err, "the second Close returned %s; expected no error", outcome(err))
	}
	b := e.locker()
	for round := range 3 {
		c := e.locker()
		e.each(8, func(i int) {
			key := e.key("%d-%d", round, i%3)
			if i >= 6 {
				e.pause(e.randomly(5 * time.Millisecond))
				_ = c.close()
				return
			}
			for range 50 {
				h, err := c.acquire(e.ctx, key)
				switch {
				case err == nil:
					if err := h.release(e.ctx); err != nil && !errors.Is(err, lock.ErrClosed) && !errors.Is(err, lock.ErrNotHeld) {
						e.unexpected(key, err, "Release beside Close returned %s; expected no error, ErrClosed or ErrNotHeld", outcome(err))
					}
				case errors.Is(err, lock.ErrClosed):
					return
				default:
					e.unexpected(key, err, "Acquire beside Close returned %s; expected a lease or ErrClosed", outcome(err))
					return
				}
			}
		})
		for i := range 3 {
			key := e.key("%d-%d", round, i)
			b.soon(key, "all its holders were closed").mustRelease()
		}
	}
}

// noLeak repeats a cycle of everything that a Locker does. What a cycle leaves
// behind adds up; what a client library keeps for its caller's pool does not.
func noLeak(e *env) {
	cycles := e.rounds(400*time.Millisecond, 8, 40)
	label := fmt.Sprintf("%s%d", e.keys, time.Now().UnixNano())
	e.noLeakCycle(0) // what the process starts once is started here
	e.labelled(label, func() {
		for i := range cycles {
			e.noLeakCycle(i + 1)
		}
	})
	if n, stacks := e.settles(label, cycles-1, e.slack()+e.ttl); n >= cycles {
		e.failf("", "%d goroutines are left after %d Lockers were closed, at least one of each; for example\n%s", n, cycles, stacks)
	}
	e.noKeyLeft()
}

// noKeyLeft lists what is held of the keys of the case.
func (e *env) noKeyLeft() {
	if e.OpenBackend == nil {
		return
	}
	l, ok := backend.As[backend.Lister](e.backend().b)
	if !ok {
		return
	}
	control := time.Now().Add(e.slack())
	for {
		var left []backend.Record
		err := l.List(e.ctx, e.keys, func(r backend.Record) bool { left = append(left, r); return true })
		switch {
		case err != nil:
			e.unexpectedFatal("", err, "List returned %s; expected no error", outcome(err))
		case len(left) == 0:
			return
		case time.Now().After(control):
			e.overdueFatalf("", "%d keys are still held %s after all Lockers were closed, for example %s for another %s", len(left), e.slack(), quoteKey(left[0].Key), left[0].Remaining)
		}
		e.pause(20 * time.Millisecond)
	}
}

func (e *env) noLeakCycle(cycle int) {
	c, other := e.locker(), e.locker()
	held := e.key("%d-held", cycle)
	h := other.mustTry(held)
	for i := range 5 {
		key := e.key("%d-%d", cycle, i)
		c.mustTry(key).mustRelease()
		c.mustAcquire(key, e.unrenewed()...).mustRelease()
		c.mustRefuse(held, "another client holds it")
		ctx, cancel := context.WithCancel(e.ctx)
		timer := time.AfterFunc(e.randomly(3*time.Millisecond), cancel)
		_, _ = c.acquire(ctx, held)
		timer.Stop()
		cancel()
		if got, err := c.acquire(ctx, key); err == nil {
			got.mustRelease()
		}
	}
	for i := range 3 { // left to Close
		c.mustTry(e.key("%d-left-%d", cycle, i), e.unrenewed()...)
	}
	w := c.acquiring(held)
	e.settle()
	_ = c.close()
	w.wait()
	h.mustRelease()
	_ = other.close()
}
