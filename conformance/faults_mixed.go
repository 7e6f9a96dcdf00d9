package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

func reentrantFault(e *env) {
	runs := e.rounds(300*time.Millisecond, 3, 30)
	e.eachSeam(func(via seamKind) {
		a, c := e.faultyAt(via, &faultlock.Options{Random: &faultlock.Random{
			Seed: uint64(e.random(1<<62)) + 1, Active: 1, Chance: 0.1,
			Ops:    []faultlock.Op{faultlock.OpTry, faultlock.OpRelease},
			Faults: []faultlock.Fault{faultlock.FailAfter(), faultlock.Drop(), faultlock.Duplicate()},
		}})
		b := e.locker()
		for run := range runs {
			e.reenter(a, b, e.key("%s-%d", via.name, run), lock.WithOwner(e.owner("A")))
			if e.failed() {
				return
			}
		}
		e.notef("%s: %d runs, %d requests disturbed", via.name, runs, len(c.Injected()))
	})
}

// reenter has an owner enter and leave in any order, beside another client that must
// be refused meanwhile.
func (e *env) reenter(a, b *client, key string, owner lock.Option) {
	var holds []*hold
	doubt := false // the outcome of an earlier call is not known
	leave := func() {
		i := int(e.random(int64(len(holds))))
		if err := holds[i].release(e.ctx); err != nil {
			doubt = true
			e.is(key, err, "Release of a lease that was held, with answers being lost,", lock.ErrOutcomeUnknown)
		}
		holds = append(holds[:i], holds[i+1:]...)
	}
	for range 16 {
		if len(holds) > 0 && e.random(5) < 2 {
			leave()
		} else if h, err := a.try(key, owner); err == nil {
			if tokens := tokensOf(append(holds, h)); claimTokens.made(e.settings) && len(tokens) > 1 {
				e.failf(key, "the holds of one owner have the tokens %d; expected one token for all", tokens)
			}
			holds = append(holds, h)
		} else if doubt && len(holds) == 0 && errors.Is(err, lock.ErrHeld) && !claimServerHolds.made(e.settings) {
			e.pause(time.Millisecond) // what an earlier try may have left is being removed
		} else if doubt = true; !errors.Is(err, lock.ErrOutcomeUnknown) {
			e.unexpectedFatal(key, err, "TryAcquire by the only owner that asks for the key, with answers being lost, returned %s; expected a lease or ErrOutcomeUnknown", outcome(err))
		}
		if len(holds) > 0 {
			b.mustRefuse(key, "its owner has leases that were not released")
		}
	}
	for len(holds) > 0 {
		leave()
	}
	b.wins(key, e.waitBound(), 10*time.Millisecond, "every lease of its owner was released, and every other caller was told an error; the TTL is "+e.long.String()).mustRelease()
}

func progressUnderFaults(e *env) {
	const contenders, lockers = 6, 3
	each := e.rounds(200*time.Millisecond, 10, 30)
	e.eachSeam(func(via seamKind) {
		key := e.key("%s", via.name)
		clients := make([]*client, lockers)
		faults := make([]*faultlock.Faults, lockers)
		for i := range clients {
			clients[i], faults[i] = e.faultyAt(via, &faultlock.Options{Random: &faultlock.Random{
				Seed: uint64(e.random(1<<62)) + 1, Active: 1, Chance: 0.03,
				Faults: []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter()},
			}})
		}
		begun := time.Now()
		patience := contenders * e.waitBound()
		var mu sync.Mutex
		last, gap := begun, time.Duration(0)
		granted := func() {
			mu.Lock()
			defer mu.Unlock()
			gap = max(gap, time.Since(last))
			last = time.Now()
		}
		e.each(contenders, func(i int) {
			for n := range each {
				ctx, cancel := context.WithTimeout(e.ctx, patience)
				h, err := clients[i%lockers].acquire(ctx, key)
				late := ctx.Err() != nil
				cancel()
				switch {
				case err == nil:
					granted()
				case late:
					e.overdueFatalf(key, "contender %d of %d got the key %d times, and then not within %s: %s", i+1, contenders, n, patience, outcome(err))
				default:
					e.unexpectedFatal(key, err, "contender %d of %d got the key %d times, then Acquire returned %s; expected it to go on", i+1, contenders, n, outcome(err))
				}
				e.pause(e.randomly(time.Millisecond))
				if err := h.release(e.ctx); err != nil {
					e.is(key, err, "Release, with answers being lost,", lock.ErrOutcomeUnknown)
				}
			}
		})
		if most := e.waitBound() + e.slack(); gap > most {
			e.overduef(key, "for %s nobody was granted the key, although all contenders wanted it; expected a grant within %s, since nothing that was lost may keep the key", gap.Round(time.Millisecond), most)
		}
		injected := 0
		for _, f := range faults {
			injected += len(f.Injected())
		}
		e.notef("%s: %d grants in %s, %d requests disturbed", via.name, contenders*each, time.Since(begun).Round(time.Millisecond), injected)
	})
}

// noHerd counts what waiters ask the server, while the key goes from one to the next.
func noHerd(e *env) {
	const crowd, lockers = 100, 4
	key := e.key("a")
	clients := make([]*client, lockers)
	faults := make([]*faultlock.Faults, lockers)
	for i := range clients {
		clients[i], faults[i] = e.disturbed()
	}
	sent := func() (n int) {
		for _, op := range append(slices.Concat(toGet, toEnd), faultlock.OpWatch) {
			for _, f := range faults {
				n += f.Calls(op, key)
			}
		}
		return n
	}
	h := clients[0].mustTry(key)
	var ready sync.WaitGroup
	ready.Add(crowd)
	var served atomic.Int64
	wait := e.start(func() {
		e.each(crowd, func(i int) {
			ready.Done()
			got := clients[i%lockers].mustWait(e.ctx, key)
			e.pause(time.Millisecond)
			got.mustRelease()
			served.Add(1)
		})
	})
	ready.Wait()
	e.pause(100 * time.Millisecond)
	before, begun := sent(), time.Now()
	h.mustRelease()
	wait()
	n, took := sent()-before, time.Since(begun)
	// A release and a grant for each turn, and for every client one question and one
	// watch. Clients that poll ask again as time goes on.
	most := crowd*(2+2*lockers) + lockers*int(took/(15*time.Millisecond))
	if n > most {
		e.failf(key, "%d waiters of %d clients made %d requests while the key went from one to the next, %.1f for each turn; expected at most %d: who waits behind others of the same client need not ask", crowd, lockers, n, float64(n)/crowd, most)
	}
	e.notef("%.1f requests for each of %d turns", float64(n)/crowd, served.Load())
}
