package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// noLeak repeats a cycle of everything that a Locker does. What a cycle leaves
// behind adds up; what a client library keeps for its caller's pool does not.
func noLeak(e *engine.Env) {
	label := fmt.Sprintf("%s%d", e.Stem, time.Now().UnixNano())
	begun := time.Now()
	noLeakCycle(e, 0)() // what the process starts once is started here
	cycles := e.Rounds(max(e.Work(400*time.Millisecond), time.Since(begun)), 8, 40)
	losses := e.Start(func() { noLeakOfLosses(e, label+"-lost") }, func() { noLeakOfFailures(e) })
	series := func(name string) (n int, stacks string) {
		e.Labelled(label+name, func() {
			closing := make([]func(), 0, closingAtOnce) // a Close may take five seconds
			for i := range cycles {
				if len(closing) == cap(closing) {
					closing[0]()
					closing = append(closing[:0], closing[1:]...)
				}
				closing = append(closing, e.Start(noLeakCycle(e, i+1)))
			}
			for _, wait := range closing {
				wait()
			}
		})
		return e.Settles(label+name, cycles-1, e.Slack()+e.TTL)
	}
	n, _ := series("")
	losses()
	if n >= cycles { // or a pool of the caller's has grown by as many connections
		if n, stacks := series("-again"); n >= cycles {
			e.Failf("", "%d goroutines are left after %d Lockers were closed, at least one of each; for example\n%s", n, cycles, stacks)
		}
	}
	noKeyLeft(e)
}

// noLeakOfLosses has many leases of one Locker lost, in each way that can be had, and
// closes it.
func noLeakOfLosses(e *engine.Env, label string) {
	const (
		each   = 12
		rounds = 3 // the later ones find the connections that the first has left in a pool
		all    = each * rounds
	)
	ways := map[string]func(c *engine.Client, key string) *engine.Hold{
		"by their maximum hold": func(c *engine.Client, key string) *engine.Hold {
			h, err := c.Try(key, lock.WithMaxHold(e.TTL/10))
			if err != nil && !errors.Is(err, lock.ErrUnsupported) {
				e.UnexpectedFatal(key, err, "TryAcquire with a maximum hold returned %s; expected a lease", engine.Outcome(err))
			}
			return h
		},
	}
	if e.Claimed.WithoutRenewal && e.Claimed.LossSignal {
		ways["by their expiry"] = func(c *engine.Client, key string) *engine.Hold {
			return c.MustTryFor(key, e.TTL, lock.WithoutRenewal())
		}
	}
	if e.Remove != nil && e.Claimed.LossSignal {
		ways["by the removal of their records"] = func(c *engine.Client, key string) *engine.Hold {
			h := c.MustTryFor(key, e.TTL)
			e.RemoveByForce(key)
			return h
		}
	}
	for way, lose := range ways {
		of := label + "-" + way
		lost := 0
		e.Labelled(of, func() {
			c := e.Locker()
			for round := range rounds {
				var holds []*engine.Hold
				for i := range each {
					if h := lose(c, e.Key("lost %s-%d-%d", way, round, i)); h != nil {
						h.Lapses()
						holds = append(holds, h)
					}
				}
				for _, h := range holds {
					if !e.Within(e.TTL+e.Slack(), h.Lease.Context().Done()) {
						e.OverdueFatalf(h.Key, "the context of a lease that was lost had not ended %s later", e.TTL+e.Slack())
					}
					lost++
				}
				e.Pause(e.TTL / 4) // what was lost is given back
			}
			_ = c.Close()
		})
		if n, stacks := e.Settles(of, all/2, e.Slack()+e.TTL); lost == all && n > all/2 {
			e.Failf("", "%d goroutines are left of a Locker that was closed, of which %d leases had been lost %s; for example\n%s", n, lost, way, stacks)
		}
	}
}

// noLeakOfFailures closes Lockers that have not been able to end a hold: one that was released, and one
// of which they don't know. By then the server can be reached again.
func noLeakOfFailures(e *engine.Env) {
	if e.OpenBackend == nil || !e.Virtual() {
		return
	}
	b := e.Locker()
	fails := map[string]func(a *engine.Client, server *faultlock.Faults, key string) error{
		"a release of it": func(a *engine.Client, server *faultlock.Faults, key string) error {
			h := a.MustTry(key)
			server.All(faultlock.FailBefore(), engine.OpsToEnd...)
			return h.Release(e.Ctx)
		},
		"a try of it": func(a *engine.Client, server *faultlock.Faults, key string) error {
			server.All(faultlock.FailBefore(), engine.OpsToEnd...)
			server.Next(1, faultlock.FailAfter(), faultlock.OpTry)
			_, err := a.Try(key)
			return err
		},
	}
	for what, fails := range fails {
		a, server := e.Faulty()
		key := e.Key("after %s", what)
		err := fails(a, server, key)
		server.Heal()
		if !errors.Is(err, lock.ErrOutcomeUnknown) || a.Close() != nil {
			continue // it says so
		}
		b.Soon(key, "the outcome of "+what+" was unknown to its Locker, whose Close has reached the server, and returned no error").MustRelease()
	}
}

// noLeakCycle returns the end of the cycle, which closes its Lockers.
func noLeakCycle(e *engine.Env, cycle int) (end func()) {
	c, other := e.Locker(), e.Locker()
	held := e.Key("%d-held", cycle)
	h := other.MustTry(held)
	for i := range 5 {
		key := e.Key("%d-%d", cycle, i)
		c.MustTry(key).MustRelease()
		c.MustAcquire(key, unrenewed(e)...).MustRelease()
		c.MustRefuse(held, "another client holds it")
		ctx, cancel := context.WithCancel(e.Ctx)
		timer := time.AfterFunc(e.Randomly(3*time.Millisecond), cancel)
		if waitsEnd(e) {
			_, _ = c.Acquire(ctx, held)
		}
		timer.Stop()
		cancel()
		if got, err := c.Acquire(ctx, key); err == nil {
			got.MustRelease()
		}
	}
	for i := range 3 { // left to Close
		c.MustTry(e.Key("%d-left-%d", cycle, i), unrenewed(e)...)
	}
	w := c.Acquiring(held)
	e.Settle()
	return func() {
		_ = c.Close()
		w.Wait()
		h.MustRelease()
		_ = other.Close()
	}
}

// noKeyLeft lists what is held of the keys of the case.
func noKeyLeft(e *engine.Env) {
	if e.OpenBackend == nil {
		return
	}
	l, ok := backend.As[backend.Lister](e.Backend().Backend)
	if !ok {
		return
	}
	control := time.Now().Add(e.Slack())
	for {
		var left []backend.Record
		err := l.List(e.Ctx, e.Stem, func(r backend.Record) bool { left = append(left, r); return true })
		switch {
		case err != nil:
			e.UnexpectedFatal("", err, "List returned %s; expected no error", engine.Outcome(err))
		case len(left) == 0:
			return
		case time.Now().After(control):
			e.OverdueFatalf("", "%d keys are still held %s after all Lockers were closed, for example %s for another %s", len(left), e.Slack(), engine.QuoteKey(left[0].Key), left[0].Remaining)
		}
		e.Pause(20 * time.Millisecond)
	}
}
