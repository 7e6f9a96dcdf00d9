package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func lostWhenCutOff(e *engine.Env) {
	rounds := e.Rounds(3*e.TTL, 1, 10)
	e.EachFaultSite(func(via engine.FaultSite) {
		e.Together(
			func() { cutOff(e, via, "hanging", faultlock.HangBefore(), rounds) },
			func() { cutOff(e, via, "refused", faultlock.FailBefore(), rounds) },
			func() { cutOffKinds(e, via) },
		)
	})
}

func cutOff(e *engine.Env, via engine.FaultSite, name string, f faultlock.Fault, rounds int) {
	a, c := e.FaultyAt(via, nil)
	defer c.Heal()
	b := e.Locker()
	for round := range rounds {
		key := e.Key("%s-%s-%d", via.Name, name, round)
		h := a.MustTryFor(key, e.TTL)
		e.Pause(e.Randomly(e.TTL))
		h.MustLive("it is renewed automatically")
		c.All(f, slices.Concat(engine.OpsToKeep, engine.OpsToEnd)...)
		endTry := func() {}
		if name == "hanging" {
			endTry = triesInVain(e, a, c, key+"-beside")
		}
		e.Log.Note("suite", key, "cut the requests of "+a.Who)
		e.Pause(time.Until(h.Until()) - e.TTL/16)
		next := b.Wins(key, e.TakeoverLimit(e.TTL), 2*time.Millisecond, "its holder cannot reach the server")
		if !h.Lost() {
			e.Latef(key, "another client was granted the key, and the context of the holder, who was cut off, had not ended")
		} else {
			isLoss(e, key, h.Cause(), "context.Cause of a lease whose holder was cut off")
			not(e, key, h.Cause(), "context.Cause of a lease whose holder was cut off", lock.ErrTakenOver, lock.ErrMaxHold, lock.ErrReleased, lock.ErrClosed)
		}
		endTry()
		c.Heal()
		_ = next.Release(e.Ctx)
	}
}

// triesInVain has a TryAcquire of another key hang, which delays nothing, until the function that
// it returns is called.
func triesInVain(e *engine.Env, c *engine.Client, server *faultlock.Faults, key string) (end func()) {
	server.Add(faultlock.Rule{Key: key, Fault: faultlock.HangBefore()})
	ctx, cancel := context.WithCancel(e.Ctx)
	wait := e.Start(func() {
		if h, err := c.TryFor(ctx, key, e.Long); err == nil {
			_ = h.Release(e.Ctx)
		}
	})
	return func() { cancel(); wait() }
}

// cutOffKinds has renewed leases of each kind run out, since no renewal reaches the server.
func cutOffKinds(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	defer c.Heal()
	var holds []*engine.Hold
	of := optionKinds(e, e.Locker())
	for _, k := range of {
		h, ok := k.take(a, e.Key("%s-kind-%s", via.Name, k.name), e.TTL)
		if !ok {
			return
		}
		h.Lapses()
		holds = append(holds, h)
	}
	c.All(faultlock.FailBefore(), slices.Concat(engine.OpsToKeep, engine.OpsToEnd)...)
	e.Each(len(holds), func(i int) {
		h, what := holds[i], "a lease with "+of[i].name+", which is renewed, and whose holder was cut off,"
		deadline, control := h.Until(), time.Now().Add(2*e.TTL+e.Slack())
		for !h.Lost() {
			if until := h.Until(); !h.Lost() && until.After(deadline) { // by a renewal that was under way
				deadline = until
			}
			if time.Now().After(control) {
				e.OverdueFatalf(h.Key, "the context of %s had not ended %s after its deadline", what, engine.Short(time.Since(deadline)))
			}
			e.Pause(e.TTL / 50)
		}
		if ended := time.Now(); e.Claimed.Deadline {
			late := engine.Lateness{By: engine.ThisProcess}
			late.Add(e, ended.Sub(deadline))
			late.Judge(e, h.Key, 100*time.Millisecond+e.TTL/25, "the context of %s ended after its deadline,", what)
		}
		isLoss(e, h.Key, h.Cause(), "context.Cause of "+what)
		not(e, h.Key, h.Cause(), "context.Cause of "+what, lock.ErrTakenOver, lock.ErrMaxHold, lock.ErrReleased, lock.ErrClosed)
		e.Is(h.Key, h.Release(e.Ctx), "Release of "+what, lock.ErrLost)
	})
}

func renewTransient(e *engine.Env, via engine.FaultSite) {
	e.Together(
		func() { disturbRenewals(e, via, "refused", faultlock.FailBefore()) },
		func() { disturbRenewals(e, via, "lost", faultlock.FailAfter()) },
		func() { eachKind(e, kinds(e), func(k kind) { oneRenewalHangs(e, via, k) }) },
		func() {
			a, c := e.FaultyAt(via, nil)
			failedRenewMovesNothing(e, a, e.Key("%s-by hand", via.Name), "that was not sent", func(h *engine.Hold) error {
				c.All(faultlock.FailBefore(), engine.OpsToKeep...)
				defer c.Heal()
				return h.Lease.Renew(e.Ctx)
			})
		},
	)
}

// oneRenewalHangs has every few renewals of a lease no answer, which must leave time for the next.
func oneRenewalHangs(e *engine.Env, via engine.FaultSite, k kind) {
	if !e.Virtual() { // where nothing else costs time of it
		return
	}
	a, c := e.FaultyAt(via, nil)
	key, begun := e.Key("%s-no answer-%s", via.Name, k.name), time.Now()
	h, ok := k.take(a, key, e.TTL)
	if !ok {
		return
	}
	if time.Since(begun) < e.TTL/50 && time.Until(h.Until()) > e.TTL*9/10 { // else there is no time for two
		for range 4 {
			c.Next(1, faultlock.HangBefore(), engine.OpsToKeep...)
			e.Pause(2 * e.TTL)
			h.MustLive("one of its renewals had no answer, and those after it have")
		}
	}
	c.Heal()
	_ = h.Release(e.Ctx)
}

// disturbRenewals takes several leases at a time, whose renewals may share requests.
func disturbRenewals(e *engine.Env, via engine.FaultSite, name string, f faultlock.Fault) {
	a, c := e.FaultyAt(via, nil)
	b := e.Locker()
	holds := make([]*engine.Hold, 3)
	for i := range holds {
		holds[i] = a.MustTryFor(e.Key("%s-%s-%d", via.Name, name, i), e.TTL)
	}
	mustLive := func(why string) {
		for _, h := range holds {
			h.MustLive(why)
		}
	}
	rounds := 3
	if e.Virtual() {
		rounds = 12 // one failed renewal more is no reason, however many there were
	}
	for range rounds {
		// For less than a third of the TTL, so that it meets one renewal of who sends one each
		// third and no more. The deadline is two thirds of it away or more, or less where the
		// lock can prove its holds for a part of the TTL only.
		trouble := e.TTL * 3 / 10
		for _, h := range holds {
			trouble = min(trouble, time.Until(h.Until())*3/5)
		}
		begun := time.Now()
		c.All(f, engine.OpsToKeep...)
		if e.Claimed.ManualRenewal {
			// That of the holder may fail, too.
			if err := holds[0].Renew(); err != nil && !holds[0].Lost() {
				not(e, holds[0].Key, err, "Renew of a lease that is held, with renewals "+name+",", lock.ErrNotHeld, lock.ErrLost)
			}
		}
		e.Pause(trouble - time.Since(begun))
		c.Heal()
		mustLive("its renewals failed for less than a third of its TTL")
		e.Pause(e.TTL / 2)
		mustLive("its renewals succeed again")
		for _, h := range holds {
			b.MustRefuse(h.Key, "its holder has renewed it again")
		}
	}
	if len(c.Injected()) == 0 {
		e.Latef(holds[0].Key, "no renewal was sent while renewals were disturbed")
	}
	for _, h := range holds {
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(h.Key, err, "Release returned %s; expected no error", engine.Outcome(err))
		}
	}
}

func renewUnknown(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	b := e.Locker()
	for i, f := range []faultlock.Fault{faultlock.FailAfter(), faultlock.Drop(), faultlock.FailAfter()} {
		key := e.Key("%s-%d", via.Name, i)
		h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
		granted := h.Until()
		e.Pause(e.TTL / 5)
		c.Next(1, f, engine.OpsToKeep...)
		err := h.Renew()
		if err == nil || errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "Renew whose answer was lost returned %s; expected ErrOutcomeUnknown", engine.Outcome(err))
		} else {
			e.Is(key, err, "Renew whose answer was lost", lock.ErrOutcomeUnknown)
		}
		if _, known := h.Lease.Deadline(); e.Claimed.Deadline && !known && !h.Lost() {
			e.Failf(key, "the deadline of a lease is unknown after a Renew whose answer was lost; expected that of the grant, until when the hold goes on")
		}
		h.MustLive("the answer to one renewal was lost")
		c.All(f, engine.OpsToKeep...)
		e.Each(3, func(int) {
			if err := h.Renew(); err == nil {
				e.Failf(key, "one of several renewals at a time returned no error, although the server answered none of them")
			}
		})
		c.Heal()
		// The deadline is read as a time of day, which is exact to a little.
		moved := func() time.Duration { return h.Until().Sub(granted) }
		if m := moved(); m > e.TTL/10 || m < -e.TTL/10 {
			e.Failf(key, "a renewal whose answer was lost moved the deadline by %s; expected it to stay, since nobody confirmed another", m)
		}
		b.MustRefuse(key, "it is held, whatever became of a renewal")
		if err := h.Renew(); err != nil {
			e.UnexpectedLate(key, err, "the next Renew returned %s; expected no error", engine.Outcome(err))
		} else if m := moved(); m < e.TTL/10 {
			e.Latef(key, "a renewal that was confirmed %s after the grant moved the deadline by %s only", e.TTL/5, m)
		}
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(key, err, "Release returned %s; expected no error", engine.Outcome(err))
		}
	}
}

func permanentStops(e *engine.Env) {
	refusal := faultlock.FailBefore().WithError(fmt.Errorf("%w: a made-up schema is missing", lock.ErrPermanent))
	e.EachFaultSite(func(via engine.FaultSite) {
		a, c := e.FaultyAt(via, nil)
		b := e.Locker()
		asks := append([]kind{plain}, optionKinds(e, b)...)
		c.All(refusal, engine.OpsToGet...)
		eachKind(e, asks, func(k kind) {
			for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
				key, what := e.Key("%s-%s-with-%s", via.Name, op, k.name), op+" with "+k.name
				done := make(chan struct{})
				wait := e.Start(func() {
					defer close(done)
					if h, err := a.Get(op, get, e.Ctx, key, e.Opts(e.Long, k.opts...)); err == nil {
						_ = h.Release(e.Ctx)
						e.Failf(key, "%s was granted, although the server refuses every request", what)
					} else {
						only(e, key, what+", with the server refusing for good,", err, lock.ErrPermanent)
						e.Is(key, err, what+", with the server refusing for good,", faultlock.ErrInjected)
					}
				})
				if !e.Within(e.Slack(), done) {
					e.OverdueFatalf(key, "%s had not returned after %s, although the server refuses for good; expected it to end at once, with ErrPermanent", what, e.Slack())
				}
				wait()
			}
		})
		c.Heal()
		for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
			key := e.Key("%s-%s-with-%s", via.Name, op, plain.name)
			h, err := a.Get(op, get, e.Ctx, key, e.Opts(e.Long))
			if err != nil {
				e.UnexpectedFatal(key, err, "%s of a free key returned %s; expected a lease, because the server refuses no more", op, engine.Outcome(err))
			}
			h.MustRelease()
		}
		// One that waits is told as soon as it asks again.
		key := e.Key("%s-waiting", via.Name)
		h := b.MustTry(key)
		w := a.Acquiring(key)
		e.Settle()
		c.All(refusal, append([]faultlock.Op{faultlock.OpWait}, engine.OpsToGet...)...)
		h.MustRelease()
		if !e.Within(e.WaitBound(), w.Done) {
			e.OverdueFatalf(key, "a waiter had not returned %s after the key was released, although the server refuses for good", e.WaitBound())
		}
		if w.Err == nil { // its place in a queue had been granted
			w.Hold.MustRelease()
		} else {
			e.Is(key, w.Err, "Acquire, with the server refusing for good,", lock.ErrPermanent)
		}
		c.Heal()
		b.Soon(key, "nobody was granted it").MustRelease()
	})
}
