package rules

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func reentrantFault(e *engine.Env) {
	runs := e.Rounds(e.Work(300*time.Millisecond), 3, 30)
	e.EachFaultSite(func(via engine.FaultSite) {
		a, c := e.FaultyAt(via, &faultlock.Options{Random: &faultlock.Random{
			Seed: uint64(e.Random(1<<62)) + 1, Active: 1, Chance: 0.1,
			Ops:    []faultlock.Op{faultlock.OpTry, faultlock.OpRelease},
			Faults: []faultlock.Fault{faultlock.FailAfter(), faultlock.Drop(), faultlock.Duplicate()},
		}})
		b := e.Locker()
		for run := range runs {
			last := func() {}
			if run%2 == 0 { // chance alone may spare every release that frees the key
				last = func() { c.Next(1, faultlock.Drop(), faultlock.OpRelease) }
			}
			reenter(e, a, b, e.Key("%s-%d", via.Name, run), lock.WithOwner(e.Owner("A")), last)
			if e.Failed() {
				return
			}
		}
		e.Notef("%s: %d runs, %d requests disturbed", via.Name, runs, len(c.Injected()))
	})
}

// reenter has an owner enter and leave in any order, beside another client that must
// be refused meanwhile. It calls last before the last release.
func reenter(e *engine.Env, a, b *engine.Client, key string, owner lock.Option, last func()) {
	var holds []*engine.Hold
	doubt := false // the outcome of an earlier call is not known
	leave := func() {
		i := int(e.Random(int64(len(holds))))
		if err := holds[i].Release(e.Ctx); err != nil {
			doubt = true
			e.Is(key, err, "Release of a lease that was held, with answers being lost,", lock.ErrOutcomeUnknown)
		}
		holds = append(holds[:i], holds[i+1:]...)
	}
	for range 16 {
		if len(holds) > 0 && e.Random(5) < 2 {
			leave()
		} else if h, err := a.Try(key, owner); err == nil {
			if tokens := tokensOf(append(holds, h)); engine.ClaimTokens.Made(e.Settings) && len(tokens) > 1 {
				e.Failf(key, "the holds of one owner have the tokens %d; expected one token for all", tokens)
			}
			holds = append(holds, h)
		} else if doubt && len(holds) == 0 && errors.Is(err, lock.ErrHeld) && !engine.ClaimServerHolds.Made(e.Settings) {
			e.Pause(time.Millisecond) // what an earlier try may have left is being removed
		} else if doubt = true; !errors.Is(err, lock.ErrOutcomeUnknown) {
			e.UnexpectedFatal(key, err, "TryAcquire by the only owner that asks for the key, with answers being lost, returned %s; expected a lease or ErrOutcomeUnknown", engine.Outcome(err))
		}
		if len(holds) > 0 {
			b.MustRefuse(key, "its owner has leases that were not released")
		}
	}
	for len(holds) > 0 {
		if len(holds) == 1 {
			last()
		}
		leave()
	}
	b.Wins(key, e.WaitBound(), 10*time.Millisecond, "every lease of its owner was released, and every other caller was told an error; the TTL is "+e.Long.String()).MustRelease()
}

func progressUnderFaults(e *engine.Env) {
	const contenders, lockers = 6, 3
	each := e.Rounds(e.Work(200*time.Millisecond), 10, 30)
	e.EachFaultSite(func(via engine.FaultSite) {
		key := e.Key("%s", via.Name)
		clients := make([]*engine.Client, lockers)
		faults := make([]*faultlock.Faults, lockers)
		for i := range clients {
			clients[i], faults[i] = e.FaultyAt(via, &faultlock.Options{Random: &faultlock.Random{
				Seed: uint64(e.Random(1<<62)) + 1, Active: 1, Chance: 0.03,
				Faults: []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter()},
			}})
			faults[i].Next(1, faultlock.FailAfter(), faultlock.OpTry) // chance alone may spare every grant
		}
		begun := time.Now()
		patience := contenders * e.WaitBound()
		var mu sync.Mutex
		last, gap := begun, time.Duration(0)
		granted := func() {
			mu.Lock()
			defer mu.Unlock()
			gap = max(gap, time.Since(last))
			last = time.Now()
		}
		e.Each(contenders, func(i int) {
			for n := range each {
				ctx, cancel := context.WithTimeout(e.Ctx, patience)
				h, err := clients[i%lockers].Acquire(ctx, key)
				late := ctx.Err() != nil
				cancel()
				switch {
				case err == nil:
					granted()
				case late:
					e.OverdueFatalf(key, "contender %d of %d got the key %d times, and then not within %s: %s", i+1, contenders, n, patience, engine.Outcome(err))
				default:
					e.UnexpectedFatal(key, err, "contender %d of %d got the key %d times, then Acquire returned %s; expected it to go on", i+1, contenders, n, engine.Outcome(err))
				}
				e.Pause(e.Randomly(time.Millisecond))
				if err := h.Release(e.Ctx); err != nil {
					e.Is(key, err, "Release, with answers being lost,", lock.ErrOutcomeUnknown)
				}
			}
		})
		if most := e.WaitBound() + e.Slack(); gap > most {
			e.Overduef(key, "for %s nobody was granted the key, although all contenders wanted it; expected a grant within %s, since nothing that was lost may keep the key", gap.Round(time.Millisecond), most)
		}
		injected := 0
		for _, f := range faults {
			injected += len(f.Injected())
		}
		e.Notef("%s: %d grants in %s, %d requests disturbed", via.Name, contenders*each, time.Since(begun).Round(time.Millisecond), injected)
	})
}

// noHerd counts what waiters ask the server, while the key goes from one to the next.
func noHerd(e *engine.Env) {
	const crowd, lockers = 100, 4
	key := e.Key("a")
	clients := make([]*engine.Client, lockers)
	faults := make([]*faultlock.Faults, lockers)
	for i := range clients {
		clients[i], faults[i] = e.FaultyWhole()
	}
	sent := func() (n int) {
		for _, op := range append(slices.Concat(engine.OpsToGet, engine.OpsToEnd), faultlock.OpWatch) {
			for _, f := range faults {
				n += f.Calls(op, key)
			}
		}
		return n
	}
	h := clients[0].MustTry(key)
	var ready sync.WaitGroup
	ready.Add(crowd)
	var served atomic.Int64
	wait := e.Start(func() {
		e.Each(crowd, func(i int) {
			ready.Done()
			got := clients[i%lockers].MustWait(e.Ctx, key)
			e.Pause(time.Millisecond)
			got.MustRelease()
			served.Add(1)
		})
	})
	ready.Wait()
	e.Pause(100 * time.Millisecond)
	before, begun := sent(), time.Now()
	h.MustRelease()
	wait()
	n, took := sent()-before, time.Since(begun)
	// A release and a grant for each turn, and for every client one question and one
	// watch. Clients that poll ask again as time goes on.
	most := crowd*(2+2*lockers) + lockers*int(took/(15*time.Millisecond))
	if n > most {
		e.Failf(key, "%d waiters of %d clients made %d requests while the key went from one to the next, %.1f for each turn; expected at most %d: who waits behind others of the same client need not ask", crowd, lockers, n, float64(n)/crowd, most)
	}
	e.Notef("%.1f requests for each of %d turns", float64(n)/crowd, served.Load())
}
