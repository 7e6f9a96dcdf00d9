package rules

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func deadlineEnds(e *engine.Env) {
	defer e.Start(func() { deadlineEndsBesideRenew(e) })()
	a := e.Locker()
	release := func(h *engine.Hold) { h.MustRelease() }
	ends := []func(h *engine.Hold){release}
	if e.Claimed.LossSignal && e.Remove != nil {
		ends = append(ends, func(h *engine.Hold) {
			e.RemoveByForce(h.Key)
			if bound := e.TTL/3 + e.Slack(); !e.Within(bound, h.Lease.Context().Done()) {
				e.OverdueFatalf(h.Key, "the holder had not been told %s after its record was removed by force", bound)
			}
		})
	}
	ends = append(ends, func(h *engine.Hold) { _ = h.Client.Close() })
	all := kinds(e)
	e.Each(len(ends)*len(all), func(i int) {
		end, k, c := i/len(all), all[i%len(all)], a
		if end == len(ends)-1 {
			c = e.Locker()
		}
		if h, ok := k.take(c, e.Key("%d-%s", end, k.name), e.TTL); ok {
			ends[end](h)
			deadlineIsOver(e, h)
			if end == 0 && !k.unrenewed && e.Virtual() {
				next := a.MustTry(h.Key)
				if d, known := h.Lease.Deadline(); known && d.After(time.Now()) {
					e.Failf(h.Key, "the deadline of a lease that was released is %s from now, while another lease of its Locker has the key; expected one that is not in the future", engine.Short(time.Until(d)))
				}
				next.MustRelease()
			}
			_ = h.Release(e.Ctx)
		}
	})
	eachWay(e, ways, func(w way) {
		options := map[string][]lock.Option{"": nil, "unrenewed": unrenewed(e)}
		if engine.ClaimReentrancy.Made(e.Settings) {
			options["an owner"] = []lock.Option{lock.WithOwner(e.Owner("A"))}
		}
		for name, more := range options {
			h := w.mustGet(a, e.Key("%s-%s", w.name, name), e.Long, more...)
			if name == "an owner" {
				inner := a.MustTry(h.Key, more...)
				release(inner)
				deadlineIsOver(e, inner)
			}
			release(h.Hold)
			deadlineIsOver(e, h.Hold)
		}
	})
}

// deadlineEndsBesideRenew ends leases while a Renew of them hangs, which fails afterwards.
func deadlineEndsBesideRenew(e *engine.Env) {
	if e.OpenBackend == nil || !e.Claimed.ManualRenewal {
		return
	}
	ends := map[string]func(h *engine.Hold){
		"Release": func(h *engine.Hold) { _ = h.Release(e.Ctx) },
		"Close":   func(h *engine.Hold) { _ = h.Client.Close() },
	}
	var cases []func()
	for name, end := range ends {
		cases = append(cases, func() {
			a, server := e.Faulty()
			defer server.Heal()
			h := a.MustTry(e.Key("%s beside a Renew", name))
			fails := hangingRenew(e, h, server)
			defer fails()
			end(h)
			deadlineIsOver(e, h)
			fails()
			if d, known := h.Lease.Deadline(); known && d.After(time.Now()) {
				e.Failf(h.Key, "the deadline is %s from now, after a %s and the failure of a Renew that had hung meanwhile; expected one that is not in the future", engine.Short(time.Until(d)), name)
			}
		})
	}
	e.Together(cases...)
}

// hangingRenew calls Renew, of which the server hears nothing. It hangs until fails is called, which
// waits for its end.
func hangingRenew(e *engine.Env, h *engine.Hold, server *faultlock.Faults) (fails func()) {
	server.All(faultlock.HangBefore(), engine.OpsToKeep...)
	ctx, cancel := context.WithCancel(e.Ctx)
	wait := e.Start(func() { _ = h.Lease.Renew(ctx) })
	e.Settle()
	return sync.OnceFunc(func() {
		cancel()
		wait()
	})
}

// deadlineIsOver looks at the deadline of a hold that has ended.
func deadlineIsOver(e *engine.Env, h *engine.Hold) {
	if d, known := h.Lease.Deadline(); known && d.After(time.Now()) {
		e.Failf(h.Key, "the hold has ended with cause %s, and its deadline is %s from now; expected one that is not in the future, since nothing is certain any more", engine.Outcome(h.Cause()), engine.Short(time.Until(d)))
	}
}
