package conformance

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

func lostWhenCutOff(e *env) {
	rounds := e.rounds(3*e.ttl, 1, 10)
	e.eachSeam(func(via seamKind) {
		e.together(
			func() { e.cutOff(via, "hanging", faultlock.HangBefore(), rounds) },
			func() { e.cutOff(via, "refused", faultlock.FailBefore(), rounds) },
		)
	})
}

func (e *env) cutOff(via seamKind, name string, f faultlock.Fault, rounds int) {
	a, c := e.faultyAt(via, nil)
	defer c.Heal()
	b := e.locker()
	for round := range rounds {
		key := e.key("%s-%s-%d", via.name, name, round)
		h := a.mustTryFor(key, e.ttl)
		e.pause(e.randomly(e.ttl))
		h.mustLive("it is renewed automatically")
		c.All(f, slices.Concat(toKeep, toEnd)...)
		e.hist.note("suite", key, "cut the requests of "+a.who)
		e.pause(time.Until(h.until()) - e.ttl/16)
		next := b.wins(key, e.takeover(e.ttl), 2*time.Millisecond, "its holder cannot reach the server")
		if !h.lost() {
			e.latef(key, "another client was granted the key, and the context of the holder, who was cut off, had not ended")
		} else {
			e.is(key, h.cause(), "context.Cause of a lease whose holder was cut off", lock.ErrLost)
		}
		c.Heal()
		_ = next.release(e.ctx)
	}
}

func renewTransient(e *env) {
	e.eachSeam(func(via seamKind) {
		e.together(
			func() { e.disturbRenewals(via, "refused", faultlock.FailBefore()) },
			func() { e.disturbRenewals(via, "lost", faultlock.FailAfter()) },
		)
	})
}

// disturbRenewals takes several leases at a time, whose renewals may share requests.
func (e *env) disturbRenewals(via seamKind, name string, f faultlock.Fault) {
	a, c := e.faultyAt(via, nil)
	b := e.locker()
	holds := make([]*hold, 3)
	for i := range holds {
		holds[i] = a.mustTryFor(e.key("%s-%s-%d", via.name, name, i), e.ttl)
	}
	mustLive := func(why string) {
		for _, h := range holds {
			h.mustLive(why)
		}
	}
	for range 3 {
		// The deadline is two thirds of the TTL away or more, or less where the lock can
		// prove its holds for a part of the TTL only.
		trouble := e.ttl * 2 / 5
		for _, h := range holds {
			trouble = min(trouble, time.Until(h.until())*3/5)
		}
		c.All(f, toKeep...)
		e.pause(trouble)
		c.Heal()
		mustLive("its renewals failed for less than the time to its deadline")
		e.pause(e.ttl / 2)
		mustLive("its renewals succeed again")
		for _, h := range holds {
			b.mustRefuse(h.key, "its holder has renewed it again")
		}
	}
	if len(c.Injected()) == 0 {
		e.latef(holds[0].key, "no renewal was sent while renewals were disturbed")
	}
	for _, h := range holds {
		if err := h.release(e.ctx); err != nil {
			e.latef(h.key, "Release returned %s; expected no error", outcome(err))
		}
	}
}

func renewUnknown(e *env) {
	e.eachSeam(func(via seamKind) {
		a, c := e.faultyAt(via, nil)
		b := e.locker()
		for i, f := range []faultlock.Fault{faultlock.FailAfter(), faultlock.Drop(), faultlock.FailAfter()} {
			key := e.key("%s-%d", via.name, i)
			h := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
			granted := h.until()
			e.pause(e.ttl / 5)
			c.Next(1, f, toKeep...)
			err := h.renew()
			if err == nil || errors.Is(err, lock.ErrNotHeld) {
				e.unexpected(key, err, "Renew whose answer was lost returned %s; expected ErrOutcomeUnknown", outcome(err))
			} else {
				e.is(key, err, "Renew whose answer was lost", lock.ErrOutcomeUnknown)
			}
			h.mustLive("the answer to one renewal was lost")
			// The deadline is read as a time of day, which is exact to a little.
			moved := func() time.Duration { return h.until().Sub(granted) }
			if m := moved(); m > e.ttl/10 || m < -e.ttl/10 {
				e.failf(key, "a renewal whose answer was lost moved the deadline by %s; expected it to stay, since nobody confirmed another", m)
			}
			b.mustRefuse(key, "it is held, whatever became of a renewal")
			if err := h.renew(); err != nil {
				e.latef(key, "the next Renew returned %s; expected no error", outcome(err))
			} else if m := moved(); m < e.ttl/10 {
				e.latef(key, "a renewal that was confirmed %s after the grant moved the deadline by %s only", e.ttl/5, m)
			}
			if err := h.release(e.ctx); err != nil {
				e.latef(key, "Release returned %s; expected no error", outcome(err))
			}
		}
	})
}

func permanentStops(e *env) {
	refusal := faultlock.FailBefore().WithError(fmt.Errorf("%w: a made-up schema is missing", lock.ErrPermanent))
	e.eachSeam(func(via seamKind) {
		a, c := e.faultyAt(via, nil)
		b := e.locker()
		c.All(refusal, toGet...)
		for op, get := range map[string]getter{"TryAcquire": a.l.TryAcquire, "Acquire": a.l.Acquire} {
			key := e.key("%s-%s", via.name, op)
			done := make(chan struct{})
			wait := e.start(func() {
				defer close(done)
				if h, err := a.get(op, get, e.ctx, key, e.opts(e.long)); err == nil {
					_ = h.release(e.ctx)
					e.failf(key, "%s was granted, although the server refuses every request", op)
				} else {
					e.only(key, op+", with the server refusing for good,", err, lock.ErrPermanent)
					e.is(key, err, op+", with the server refusing for good,", faultlock.ErrInjected)
				}
			})
			if !e.within(e.slack(), done) {
				e.overdueFatalf(key, "%s had not returned after %s, although the server refuses for good; expected it to end at once, with ErrPermanent", op, e.slack())
			}
			wait()
		}
		c.Heal()
		// One that waits is told as soon as it asks again.
		key := e.key("%s-waiting", via.name)
		h := b.mustTry(key)
		w := a.acquiring(key)
		e.settle()
		c.All(refusal, append([]faultlock.Op{faultlock.OpWait}, toGet...)...)
		h.mustRelease()
		if !e.within(e.waitBound(), w.done) {
			e.overdueFatalf(key, "a waiter had not returned %s after the key was released, although the server refuses for good", e.waitBound())
		}
		if w.err == nil { // its place in a queue had been granted
			w.h.mustRelease()
		} else {
			e.is(key, w.err, "Acquire, with the server refusing for good,", lock.ErrPermanent)
		}
		c.Heal()
		b.soon(key, "nobody was granted it").mustRelease()
	})
}
