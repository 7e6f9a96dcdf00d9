package rules

import (
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"
)

// crashFreesProcess kills a process that holds two keys: one that others keep
// asking for, and one that another waits for.
func crashFreesProcess(e *engine.Env, ps *engine.Processes) {
	rounds := e.Rounds(3*e.TTL, 1, 10)
	b := e.Locker()
	for round := range rounds {
		p := ps.Start(1)[0]
		if round == 0 {
			sameStore(p, b)
		}
		polled, waited := e.Key("polled-%d", round), e.Key("waited-%d", round)
		holds := []*engine.FarHold{p.MustTry(polled, e.TTL, false), p.MustTry(waited, e.TTL, false)}
		e.Pause(e.TTL + e.TTL/4 + e.Randomly(e.TTL/3)) // only renewals keep it now
		for _, h := range holds {
			h.MustLive("it is renewed automatically")
			b.MustRefuse(h.Key, "its holder, in another process, renews it")
		}
		w := b.Acquiring(waited)
		e.Settle()
		p.Kill()
		const why = "the process of its holder was killed"
		e.Together(
			func() { _ = b.Wins(polled, e.TakeoverLimit(e.TTL), e.TTL/50, why).Release(e.Ctx) },
			func() {
				_ = w.MustGet(e, waited, e.TakeoverLimit(e.TTL), why+", and its TTL was "+e.TTL.String()).Release(e.Ctx)
			},
		)
		w.Wait()
		for _, key := range []string{polled, waited} {
			if tokens(e) {
				e.CheckTokens(key, true)
			}
		}
	}
	e.Notef("%d processes killed while they held leases", rounds)
}

// crashAtAnyMoment kills a process that acquires and releases three keys without
// a pause, with some time inside, and with more.
func crashAtAnyMoment(e *engine.Env, ps *engine.Processes) {
	rounds := e.Rounds(e.TTL*3/2, 3, 30)
	b := e.Locker()
	work := []time.Duration{0, e.TTL / 100, e.TTL / 10}
	keys := make([]string, len(work))
	for k := range keys {
		keys[k] = e.Key("%d", k)
	}
	next := ps.Start(1)[0]
	for round := range rounds {
		p := next
		begun := make([]func() (engine.Answer, bool), len(keys))
		for k, key := range keys {
			begun[k] = p.Cycling(engine.Command{Key: key, TTL: e.TTL, Limit: time.Hour, Work: work[k]})
		}
		// The next one starts meanwhile, so that this one runs for a while.
		e.Together(
			func() {
				if round+1 < rounds {
					next = ps.Start(1)[0]
				}
			},
			func() { e.Pause(50*time.Millisecond + e.Randomly(100*time.Millisecond)) },
		)
		e.Pause(e.Randomly(10 * time.Millisecond))
		p.Kill()
		for k, wait := range begun {
			if a, killed := wait(); killed {
				judgeCycle(e, keys[k], p, a)
			}
		}
		if e.Failed() {
			return
		}
		e.Each(len(keys), func(k int) {
			_ = b.Wins(keys[k], e.TakeoverLimit(e.TTL), e.TTL/50, "its holder, or one that asked for it, was killed").Release(e.Ctx)
		})
	}
	grants := 0
	for _, key := range keys {
		if tokens(e) {
			e.CheckTokens(key, false)
		}
		grants += e.GrantsOf(key)
	}
	if grants <= rounds*len(keys) {
		e.Notef("inconclusive: each process was killed before it was granted anything")
	}
	e.Notef("%d processes killed, %d grants", rounds, grants)
}
