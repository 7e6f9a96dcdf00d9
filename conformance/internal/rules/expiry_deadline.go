package rules

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// deadlineFromSend compares with the start of the call. The request is sent a little
// later than that, so a deadline is too late only if it counts from the second half of
// the call. The rule is broken when more than half of them are. Where answers can be
// delayed, one is enough.
func deadlineFromSend(e *engine.Env) {
	if e.OpenBackend != nil {
		deadlineOfLateAnswers(e)
	}
	c := e.Locker()
	// In a queue the request that grants is not the first one.
	var sent atomic.Int64
	queues := c
	if e.Claimed.Waiting == backend.WaitQueue && e.OpenBackend != nil {
		var f *faultlock.Faults
		queues, f = e.FaultyAt(engine.Whole, &faultlock.Options{Observe: func(faultlock.Injection) { sent.Store(int64(e.Log.Now())) }})
		f.All(faultlock.DelayBefore(1), faultlock.OpWait)
	}
	for _, k := range kinds(e) {
		switch {
		case k.name == plain.name:
			deadlinesOfCalls(e, c, &sent, k, 21, "TryAcquire", "Renew")
			if queues != c || e.Claimed.Waiting != backend.WaitQueue {
				deadlinesOfCalls(e, queues, &sent, k, 21, "Acquire")
			}
		case !k.waited && !k.handed && !k.second && e.OpenBackend == nil: // else late answers tell, or the call may have asked long before
			deadlinesOfCalls(e, c, &sent, k, 11, "TryAcquire")
		}
	}
}

// deadlinesOfCalls: sent is when the request began that a call made last, since the case
// began, where that is known and not the start of the call.
func deadlinesOfCalls(e *engine.Env, c *engine.Client, sent *atomic.Int64, k kind, calls int, ops ...string) {
	for _, op := range ops {
		if op == "Renew" && !(e.Claimed.ManualRenewal && e.Claimed.WithoutRenewal) {
			continue
		}
		const grain = 50 * time.Microsecond // a call that took less tells nothing
		late, example := 0, ""
		for i := range calls {
			key := e.Key("%s-%s-%d", k.name, op, i)
			w := ways[0]
			if op == "Acquire" {
				w = ways[1]
			}
			before := time.Now()
			h, ok := k.takeBy(w, c, key, e.TTL, unrenewed(e)...)
			after := time.Now()
			if !ok {
				return
			}
			if op == "Renew" {
				e.Pause(e.TTL / 50)
				before = time.Now()
				if err := h.Renew(); err != nil {
					e.UnexpectedLate(key, err, "Renew of a fresh lease returned %s; expected no error", engine.Outcome(err))
				}
				after = time.Now()
			}
			d, ok := h.Lease.Deadline()
			if !ok {
				e.Fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
			}
			if last := e.Log.Base.Add(time.Duration(sent.Load())); last.After(before) {
				before = last
			}
			took := after.Sub(before)
			if over := d.Sub(before.Add(h.EffectiveTTL())); over > max(took/2, grain) {
				late++
				example = fmt.Sprintf("by %s, of a call that took %s", over.Round(time.Microsecond), took.Round(time.Microsecond))
			}
			_ = h.Release(e.Ctx)
		}
		if late > calls/2 {
			e.Latef("", "in %d of %d calls of %s, for leases with %s, the deadline is later than the start of the call plus the TTL of %s, the last time %s; expected it to count from before the request", late, calls, op, k.name, e.TTL, example)
		}
	}
}

func deadlineOfLateAnswers(e *engine.Env) {
	e.Together(
		func() {
			eachWay(e, ways[:2], func(w way) { deadlineOfLateAnswer(e, plain, w) })
		},
		func() {
			eachKind(e, kinds(e)[1:], func(k kind) { deadlineOfLateAnswer(e, k, k.way()) })
		},
		func() { eachKind(e, kinds(e), func(k kind) { deadlineOfLateRenewal(e, k) }) })
}

// deadlineOfLateRenewal looks at the deadline that an automatic renewal has moved whose answer
// was late.
func deadlineOfLateRenewal(e *engine.Env, k kind) {
	if !e.Virtual() {
		return
	}
	var asked atomic.Int64 // when the last request was, since the case began
	a, f := e.FaultyAt(engine.Primitives, &faultlock.Options{Observe: func(faultlock.Injection) { asked.Store(int64(e.Log.Now())) }})
	key := e.Key("late-renewal-%s", k.name)
	f.All(faultlock.DelayAfter(e.TTL/5), engine.OpsToKeep...)
	defer f.Heal()
	h, ok := k.take(a, key, e.TTL)
	if !ok {
		return
	}
	first := h.Until()
	for range 100 {
		e.Pause(e.TTL / 50)
		d, known := h.Lease.Deadline()
		if !known || h.Lost() || d.Equal(first) {
			continue // other rules ask whether it is renewed
		}
		if latest := time.Duration(asked.Load()) + h.EffectiveTTL(); e.Log.At(d) > latest {
			e.Failf(key, "the answer to an automatic renewal came %s after the request, and the deadline of the lease, with %s, is %s; expected at most %s, the time of the request plus the TTL of %s, since the server counts from when it got that",
				e.TTL/5, k.name, engine.Seconds(e.Log.At(d)), engine.Seconds(latest), h.EffectiveTTL())
			break
		}
	}
	_ = h.Release(e.Ctx)
}

func deadlineOfLateAnswer(e *engine.Env, k kind, w way) {
	var asked atomic.Int64 // when the last request was, since the case began
	a, f := e.FaultyAt(engine.Primitives, &faultlock.Options{Observe: func(faultlock.Injection) { asked.Store(int64(e.Log.Now())) }})
	key, delay := e.Key("late-answers-%s-%s", w.name, k.name), e.TTL/8 // some rely on half of the time only, and a grant is of no use below a third
	f.All(faultlock.DelayAfter(delay), faultlock.OpTry, faultlock.OpRenew)
	h, ok := k.takeBy(w, a, key, e.TTL, unrenewed(e)...)
	if !ok {
		return
	}
	judge := func(op string) {
		d, ok := h.Lease.Deadline()
		if !ok {
			e.Fatalf(key, "Lease.Deadline is unknown, although the guarantees claim it")
		}
		if latest := time.Duration(asked.Load()) + h.EffectiveTTL(); e.Log.At(d) > latest {
			e.Failf(key, "the answer to a %s came %s after the request, and the deadline of the lease, with %s, is %s; expected at most %s, the time of the request plus the TTL of %s, since the server counts from when it got that",
				op, delay, k.name, engine.Seconds(e.Log.At(d)), engine.Seconds(latest), h.EffectiveTTL())
		}
	}
	if engine.Requests(f, key, engine.OpsToGet...) == 1 { // else it counts from a later one
		judge(w.name)
	}
	if e.Claimed.ManualRenewal && e.Claimed.WithoutRenewal {
		if err := h.Renew(); err != nil {
			e.UnexpectedLate(key, err, "Renew, with the answer delayed by %s, returned %s; expected no error: the TTL is %s", delay, engine.Outcome(err), e.TTL)
		}
		judge("Renew")
	}
	f.Heal()
	_ = h.Release(e.Ctx)
}

// unrenewed is lock.WithoutRenewal where it works.
func unrenewed(e *engine.Env) []lock.Option {
	if e.Claimed.WithoutRenewal {
		return []lock.Option{lock.WithoutRenewal()}
	}
	return nil
}

func grantIsUsable(e *engine.Env) {
	c := e.Locker()
	judge := func(h *engine.Hold, by string) {
		d, ok := h.Lease.Deadline()
		switch left := d.Sub(e.Log.Base.Add(h.Granted)); {
		case !ok:
			e.Fatalf(h.Key, "Lease.Deadline is unknown, although the guarantees claim it")
		case left < e.TTL/3-5*time.Millisecond:
			h.Lapses() // it was as good as over when it came
			excuse := engine.Excuse{From: max(e.Timely().From, (e.TTL/3-left)/3), By: engine.ThisProcess}
			e.Fail(excuse, h.Key, "a lease with a TTL of %s was returned by %s with %s left; expected at least a third", e.TTL, by, left)
		}
	}
	for i := range 20 {
		h := c.MustTryFor(e.Key("%d", i), e.TTL, unrenewed(e)...)
		judge(h, "TryAcquire")
		h.MustRelease()
	}
	eachWay(e, waysToWait, func(w way) {
		if h, told := w.take(c, e.Key("%s", w.name), e.TTL, unrenewed(e)...); told {
			judge(h.Hold, w.name)
			_ = h.Release(e.Ctx)
		}
	})
}
