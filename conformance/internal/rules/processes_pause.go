package rules

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// pauseIsNoticed stops processes for longer than their leases, while they look
// at a lease without a pause.
func pauseIsNoticed(e *engine.Env, ps *engine.Processes) {
	rounds := e.Rounds(e.TTL*5/2, 2, 10)
	b, c := e.Locker(), e.Locker()
	all := ps.Start(3)
	sameStore(all[0], b)
	var judged, blocked atomic.Int64
	e.Each(len(all), func(i int) {
		p := all[i]
		for round, tries := 0, 0; round < rounds && tries < 2*rounds; tries++ {
			key := e.Key("%d-%d", i, tries)
			unrenewed := e.Claimed.WithoutRenewal && tries%2 == 1
			old := p.MustTry(key, e.TTL, unrenewed)
			saw := old.Looking(e.TTL, true)
			// Stopped at once, before the first renewal, so that it is in no critical
			// section that it shares with others.
			p.Stop(key)
			next, err := meanwhile(e, b, key)
			p.Continue(key)
			s := saw()
			if err != nil {
				blocked.Add(1)
				_ = old.Release(e.Ctx)
				continue
			}
			if s.Alive >= next.Granted {
				e.ProofAt(-1, key, "%s was granted the key at %s. After that the process of the earlier holder was continued, looked at the context of its lease at %s, and found it alive (it saw the loss %s). Between two looks it might have written what it must not; expected the first look to compare the clock with the deadline",
					next.Who, engine.Seconds(next.Granted), engine.Seconds(s.Alive), sightOf(s))
			}
			if s.Ended < 0 {
				if s.Alive < next.Granted { // it had stopped looking before it was stopped
					_, _ = next.Release(e.Ctx), old.Release(e.Ctx)
					continue
				}
			} else {
				isLoss(e, key, s.Cause, "context.Cause of a lease that ran out while its process stood still")
			}
			if e.Claimed.ManualRenewal {
				e.Is(key, old.Renew(), "Renew of a lease that ran out while its process stood still", lock.ErrNotHeld)
			}
			e.Is(key, old.Release(e.Ctx), "Release of a lease that ran out while its process stood still", lock.ErrNotHeld)
			c.MustRefuse(key, next.Who+" was granted the key while the process of the earlier holder stood still; what that holder does now must not end the new lease")
			next.MustLive("the earlier holder's process went on after it had been granted, and must not harm it")
			next.MustRelease()
			if tokens(e) {
				e.CheckTokens(key, true)
			}
			round++
			judged.Add(1)
			if e.Failed() {
				return
			}
		}
	})
	switch {
	case judged.Load() > 0:
	case blocked.Load() == 0:
		e.TooSlowf("", "this process was late to stop the others, each time")
	default:
		e.Overduef("", "each time that the process of a holder stood still, the lock could not be asked for the key by others; expected that they get it within the TTL and the takeover lag")
	}
	e.Notef("%d pauses", judged.Load())
}

func sightOf(s engine.Sight) string {
	if s.Ended < 0 {
		return "not at all while it looked"
	}
	return "at " + engine.Seconds(s.Ended)
}

// meanwhile gets the key whose holder stands still. The error says that the lock
// cannot be asked, since the process stands still in the middle of an operation.
func meanwhile(e *engine.Env, c *engine.Client, key string) (*engine.Hold, error) {
	var out error
	g := e.Poll(key, e.TakeoverLimit(e.TTL), e.TTL/50, "the process of its holder stands still", func() (engine.Grip, error) {
		h, err := c.Try(key)
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			out = err
			return nil, nil //nolint:nilnil // the end of the polling; the error is told beside it
		case err != nil:
			return nil, err
		}
		return h, nil
	})
	h, _ := g.(*engine.Hold)
	return h, out
}

// releaseAfterPause stops a process for longer than its lease, which it then releases without
// another look. It asks for no claim: of a lock that renews all its leases this is the late
// release that can be had.
func releaseAfterPause(e *engine.Env, ps *engine.Processes) {
	rounds := e.Rounds(e.TTL*5/2, 2, 6)
	p, b, c := ps.Start(1)[0], e.Locker(), e.Locker()
	sameStore(p, b)
	judged := 0
	for round := range rounds {
		key := e.Key("%d", round)
		old := p.MustTry(key, e.TTL, false)
		p.Stop(key)
		next := grantedMeanwhile(e, b, key)
		p.Continue(key)
		err := old.Release(e.Ctx)
		if next == nil {
			continue
		}
		c.MustRefuse(key, fmt.Sprintf("%s was granted the key while the process of the earlier holder stood still, whose Release then returned %s and must not end the new lease", next.Who, engine.Outcome(err)))
		next.MustRelease()
		judged++
	}
	if judged == 0 {
		e.Skipf("a holder keeps the key for as long as its process stands still")
	}
	e.Notef("%d pauses", judged)
}

// grantedMeanwhile is a lease of a key whose holder stands still, or nil where that keeps it.
func grantedMeanwhile(e *engine.Env, c *engine.Client, key string) *engine.Hold {
	for end := time.Now().Add(e.TakeoverLimit(e.TTL)); time.Now().Before(end); e.Pause(e.TTL / 50) {
		if h, err := c.Try(key); err == nil {
			return h
		}
	}
	return nil
}

// shortPauseIsNoLoss stops a process with several leases for a quarter of their
// TTL, again and again.
func shortPauseIsNoLoss(e *engine.Env, ps *engine.Processes) {
	const keys = 3
	rounds := e.Rounds(e.TTL, 4, 20)
	p, b := ps.Start(1)[0], e.Locker()
	holds := make([]*engine.FarHold, keys)
	for n := range holds {
		holds[n] = p.MustTry(e.Key("%d", n), e.TTL, false)
		e.Pause(e.TTL / 10)
	}
	judged := 0
	for range rounds {
		e.Pause(e.TTL/4 + e.Randomly(e.TTL/3))
		for _, h := range holds {
			h.MustLive("it is renewed automatically")
		}
		p.Stop("")
		e.Pause(e.TTL/8 + e.Randomly(e.TTL/8))
		p.Continue("")
		now := time.Now()
		for _, h := range holds {
			if now.After(h.Until().Add(-e.TTL / 4)) {
				continue // this process was late to continue the other, or no renewal had come through
			}
			judged++
			h.MustLive("its process stood still for a moment only, and went on while the lease had at least a quarter of its TTL left")
			b.MustRefuse(h.Key, "the process of its holder stood still for a moment only")
		}
	}
	for _, h := range holds {
		h.MustRelease()
	}
	if judged == 0 {
		e.TooSlowf("", "this process was late to continue the other, each time")
	}
	e.Notef("%d pauses, %d leases judged after them", rounds, judged)
}
