package conformance

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

// pauseIsNoticed stops processes for longer than their leases, while they look
// at a lease without a pause.
func pauseIsNoticed(e *env, ps *processes) {
	rounds := e.rounds(e.ttl*5/2, 2, 10)
	b, c := e.locker(), e.locker()
	all := ps.start(3)
	all[0].sameStore(b)
	var judged, blocked atomic.Int64
	e.each(len(all), func(i int) {
		p := all[i]
		for round, tries := 0, 0; round < rounds && tries < 2*rounds; tries++ {
			key := e.key("%d-%d", i, tries)
			unrenewed := e.g.WithoutRenewal && tries%2 == 1
			old := p.mustTry(key, e.ttl, unrenewed)
			saw := old.looking(e.ttl, true)
			// Stopped at once, before the first renewal, so that it is in no critical
			// section that it shares with others.
			p.stop(key)
			next, err := e.meanwhile(b, key)
			p.goOn(key)
			s := saw()
			if err != nil {
				blocked.Add(1)
				_ = old.release(e.ctx)
				continue
			}
			if s.alive >= next.granted {
				e.proofAt(-1, key, "%s was granted the key at %s. After that the process of the earlier holder was continued, looked at the context of its lease at %s, and found it alive (it saw the loss %s). Between two looks it might have written what it must not; expected the first look to compare the clock with the deadline",
					next.who, seconds(next.granted), seconds(s.alive), sightOf(s))
			}
			if s.ended < 0 {
				if s.alive < next.granted { // it had stopped looking before it was stopped
					_, _ = next.release(e.ctx), old.release(e.ctx)
					continue
				}
			} else {
				e.is(key, s.cause, "context.Cause of a lease that ran out while its process stood still", lock.ErrLost, lock.ErrNotHeld)
			}
			if e.g.ManualRenewal {
				e.is(key, old.renew(), "Renew of a lease that ran out while its process stood still", lock.ErrNotHeld)
			}
			e.is(key, old.release(e.ctx), "Release of a lease that ran out while its process stood still", lock.ErrNotHeld)
			c.mustRefuse(key, next.who+" was granted the key while the process of the earlier holder stood still; what that holder does now must not end the new lease")
			next.mustLive("the earlier holder's process went on after it had been granted, and must not harm it")
			next.mustRelease()
			if e.tokens() {
				e.checkTokens(key, true)
			}
			round++
			judged.Add(1)
			if e.failed() {
				return
			}
		}
	})
	switch {
	case judged.Load() > 0:
	case blocked.Load() == 0:
		e.tooSlowf("", "this process was late to stop the others, each time")
	default:
		e.overduef("", "each time that the process of a holder stood still, the lock could not be asked for the key by others; expected that they get it within the TTL and the takeover lag")
	}
	e.notef("%d pauses", judged.Load())
}

func sightOf(s sight) string {
	if s.ended < 0 {
		return "not at all while it looked"
	}
	return "at " + seconds(s.ended)
}

// meanwhile gets the key whose holder stands still. The error says that the lock
// cannot be asked, since the process stands still in the middle of an operation.
func (e *env) meanwhile(c *client, key string) (*hold, error) {
	var out error
	g := e.poll(key, e.takeover(e.ttl), e.ttl/50, "the process of its holder stands still", func() (grip, error) {
		h, err := c.try(key)
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			out = err
			return nil, nil //nolint:nilnil // the end of the polling; the error is told beside it
		case err != nil:
			return nil, err
		}
		return h, nil
	})
	h, _ := g.(*hold)
	return h, out
}

// shortPauseIsNoLoss stops a process with several leases for a quarter of their
// TTL, again and again.
func shortPauseIsNoLoss(e *env, ps *processes) {
	const keys = 3
	rounds := e.rounds(e.ttl, 4, 20)
	p, b := ps.start(1)[0], e.locker()
	holds := make([]*farHold, keys)
	for n := range holds {
		holds[n] = p.mustTry(e.key("%d", n), e.ttl, false)
		e.pause(e.ttl / 10)
	}
	judged := 0
	for range rounds {
		e.pause(e.ttl/4 + e.randomly(e.ttl/3))
		for _, h := range holds {
			h.mustLive("it is renewed automatically")
		}
		p.stop("")
		e.pause(e.ttl/8 + e.randomly(e.ttl/8))
		p.goOn("")
		now := time.Now()
		for _, h := range holds {
			if now.After(h.until().Add(-e.ttl / 4)) {
				continue // this process was late to continue the other, or no renewal had come through
			}
			judged++
			h.mustLive("its process stood still for a moment only, and went on while the lease had at least a quarter of its TTL left")
			b.mustRefuse(h.key, "the process of its holder stood still for a moment only")
		}
	}
	for _, h := range holds {
		h.mustRelease()
	}
	if judged == 0 {
		e.tooSlowf("", "this process was late to continue the other, each time")
	}
	e.notef("%d pauses, %d leases judged after them", rounds, judged)
}
