package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
)

// GuardedWrite is a value in the lock's own store for each key, which is written
// through what the lock offers for guarded writes.
type GuardedWrite struct {
	// Write sets the value while the lease is held, and otherwise changes nothing
	// and returns an error that matches lock.ErrNotHeld. It may end the lease.
	Write func(ctx context.Context, lease lock.Lease, value string) error
	// Read returns the value of the key, without any lock; empty when there is none.
	Read func(ctx context.Context, key string) (string, error)
}

var claimGuardedWrite = claim{"GuardedWrite", func(s *settings) bool { return s.g.GuardedWrite }}

var guardRules = subject("guarded writes",
	&rule{Rule: Rule{Name: "GuardedWriteWhileHeld", Statement: "A guarded write takes effect while its lease is held; after its release, loss or removal it changes nothing and returns ErrNotHeld."},
		claims: []claim{claimGuardedWrite}, run: guardedWhileHeld},
	&rule{Rule: Rule{Name: "GuardedWriteNeverLate", Statement: "However a holder hurries while its lease runs out, none of its guarded writes comes after the next holder's first.", LimitTTLs: 60},
		claims: []claim{claimGuardedWrite}, run: guardedNeverLate},
)

func (e *env) mayGuard() {
	if e.Guarded == nil || e.Guarded.Write == nil || e.Guarded.Read == nil {
		e.skipf("needs Config.Guarded")
	}
	if !e.g.WithoutRenewal {
		e.skipf("needs leases that are not renewed, which the guarantees don't claim")
	}
}

func (e *env) guardedWrite(h *hold, value string) error {
	ev := e.hist.begin(h.c.who, "guarded write of "+value, h.key)
	err := e.Guarded.Write(e.ctx, h.lease, value)
	e.hist.end(ev, outcome(err))
	if errors.Is(context.Cause(h.lease.Context()), lock.ErrReleased) {
		h.releasing(ev.from) // the write has ended the lease, as it may
	}
	return err
}

func (e *env) requireValue(key, want, why string) {
	got, err := e.Guarded.Read(e.ctx, key)
	switch {
	case err != nil:
		e.unexpectedFatal(key, err, "reading the value returned %s", outcome(err))
	case got != want:
		e.fatalf(key, "the value is %q; expected %q: %s", got, want, why)
	}
}

func guardedWhileHeld(e *env) {
	e.mayGuard()
	a, b := e.locker(), e.locker()
	e.together(
		func() { // released
			key := e.key("released")
			h := a.mustTry(key)
			if err := e.guardedWrite(h, "held"); err != nil {
				e.unexpectedFatal(key, err, "a guarded write under a lease that is held returned %s; expected no error", outcome(err))
			}
			e.requireValue(key, "held", "a guarded write was confirmed")
			_ = h.release(e.ctx)
			e.is(key, e.guardedWrite(h, "released"), "a guarded write after Release", lock.ErrNotHeld)
			e.requireValue(key, "held", "the lease had been released")
		},
		func() { // taken over
			key := e.key("expired")
			old := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
			next := b.wins(key, e.takeover(e.ttl), e.ttl/25, "the lease was not renewed")
			e.is(key, e.guardedWrite(old, "old"), "a guarded write of a holder whose lease had run out", lock.ErrNotHeld)
			e.requireValue(key, "", "its lease had run out")
			if err := e.guardedWrite(next, "new"); err != nil {
				e.unexpectedFatal(key, err, "a guarded write of the next holder returned %s; expected no error", outcome(err))
			}
			e.is(key, e.guardedWrite(old, "old"), "a guarded write of a holder whose lease had run out", lock.ErrNotHeld)
			e.requireValue(key, "new", "the lease of the writer of any other value had run out")
			_ = next.release(e.ctx)
		},
		func() { // removed by force, which the holder may not know yet
			if e.Remove == nil {
				e.notef("not tried without Config.Remove: a guarded write after the removal of the record")
				return
			}
			key := e.key("removed")
			h := a.mustTry(key)
			e.remove(key)
			e.is(key, e.guardedWrite(h, "removed"), "a guarded write of a holder whose record was removed", lock.ErrNotHeld)
			e.requireValue(key, "", "the record of its lease had been removed")
			_ = h.release(e.ctx)
		},
	)
}

func guardedNeverLate(e *env) {
	e.mayGuard()
	a, b := e.locker(), e.locker()
	const keys = 3
	rounds := e.rounds(e.ttl*2, 1, 20)
	e.each(keys, func(n int) {
		e.pause(e.randomly(e.ttl))
		for round := range rounds {
			key := e.key("%d-%d", n, round)
			old := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
			stop := make(chan struct{})
			join := e.start(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					err := e.guardedWrite(old, fmt.Sprintf("old %d", i))
					switch {
					case err == nil, errors.Is(err, lock.ErrNotHeld):
					case e.ctx.Err() != nil:
						return
					}
					e.pause(e.ttl / 200)
				}
			})
			next := b.wins(key, e.takeover(e.ttl), e.ttl/200, "the lease was not renewed")
			if err := e.guardedWrite(next, "new"); err != nil {
				e.unexpected(key, err, "a guarded write of the next holder returned %s; expected no error", outcome(err))
				close(stop)
				join()
				return
			}
			for until := time.Now().Add(e.ttl / 4); time.Now().Before(until); e.pause(e.ttl / 100) {
				e.requireValue(key, "new", "the next holder had written it, and the lease of the earlier one had run out")
			}
			close(stop)
			join()
			e.requireValue(key, "new", "the next holder had written it, and the lease of the earlier one had run out")
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d takeovers", keys*rounds)
}
