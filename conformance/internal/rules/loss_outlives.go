package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func holdOutlivesAcquireCtx(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	asks := optionKinds(e, a)
	e.Together(
		func() { outlives(e, a, b, e.Key("cancel"), true, context.WithCancel) },
		func() { outlives(e, a, b, e.Key("try"), false, context.WithCancel) },
		func() {
			key := e.Key("waited")
			stands := b.MustTry(key)
			defer e.Start(func() { e.Settle(); stands.MustRelease() })()
			outlives(e, a, b, key, true, context.WithCancel)
		},
		func() {
			outlives(e, a, b, e.Key("timeout"), true, func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, e.TTL)
			})
		},
		func() {
			outlives(e, a, b, e.Key("try with a timeout"), false, func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, e.TTL)
			})
		},
		func() {
			eachKind(e, kindsAndUnrenewed(e), func(k kind) {
				if k.waited || k.handed {
					return // as above
				}
				switch h, ok := k.takeBy(way{ways[0].name, byTryOfOne}, a, e.Key("with-%s", k.name), e.TTL); {
				case ok && k.unrenewed:
					e.Pause(e.TTL / 4)
					h.MustLive("only the context that was given to the acquiring call has ended")
					h.MustRelease()
				case ok:
					staysHeld(e, h, b, "only the context that was given to the acquiring call has ended; it has "+k.name)
				}
			})
		},
		func() { eachKind(e, asks, func(k kind) { outlivesWait(e, a, b, b, k) }) },
		func() { outlivesWait(e, a, a, b, kind{name: "a wait behind its own Locker"}) },
		func() { outlivesTimedCalls(e, a, asks) },
		func() { outlivesRenewal(e, a, b) },
		func() { outlivesTimedRenewal(e, a) },
		func() { outlivesWaiter(e, a, b) },
		func() { outlivesEarlierCalls(e, b) },
		func() { outlivesLease(e, a, a, b) },
		func() {
			if e.Virtual() {
				outlivesLease(e, e.Locker(), a, b)
			}
		},
	)
}

// outlivesEarlierCalls ends the contexts of the first calls of a Locker, of which a later lease of
// it knows nothing.
func outlivesEarlierCalls(e *engine.Env, b *engine.Client) {
	if !e.Virtual() {
		return
	}
	c := e.Locker()
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	for i := range 3 {
		h, err := c.TryFor(ctx, e.Key("call %d", i), e.Long)
		if err != nil {
			e.UnexpectedFatal(e.Key("call %d", i), err, "TryAcquire of a free key returned %s; expected a lease", engine.Outcome(err))
		}
		h.MustRelease()
	}
	h := c.MustTryFor(e.Key("later"), e.TTL)
	cancel()
	staysHeld(e, h, b, "only the contexts of earlier calls of its Locker have ended")
}

// outlivesLease acquires leases with the context of another one, as who takes one key in the course
// of the work for another does, and ends that one.
func outlivesLease(e *engine.Env, outer, a, b *engine.Client) {
	e.Each(2, func(i int) {
		how, opts, limit := "has been released", []lock.Option(nil), 2*e.TTL
		if i == 1 {
			how, opts = "has reached its maximum hold", []lock.Option{lock.WithMaxHold(limit)}
		}
		key := e.Key("%s, a lease of %s %s", a.Who, outer.Who, how)
		over, err := outer.Try(key, opts...)
		if errors.Is(err, lock.ErrUnsupported) && opts != nil {
			return // which is for other rules
		}
		if err != nil {
			e.UnexpectedFatal(key, err, "TryAcquire of a free key returned %s; expected a lease", engine.Outcome(err))
		}
		under := over.Lease.Context()
		stands := b.MustTry(key + ", waited")
		w := a.AcquiringOn(under, stands.Key, e.TTL)
		e.Settle()
		stands.MustRelease()
		if e.Within(e.WaitBound(), w.Done) && w.Err != nil {
			notAcquiredUnder(e, over, "Acquire, after a wait,", stands.Key, w.Err)
		}
		holds := []*engine.Hold{w.MustGet(e, stands.Key, e.WaitBound(), "its holder has released it")}
		for _, op := range []string{"TryAcquire", "Acquire"} {
			get := a.TryFor
			if op == "Acquire" {
				get = a.AcquireFor
			}
			h, err := get(under, key+", "+op, e.TTL)
			if err != nil {
				notAcquiredUnder(e, over, op, key+", "+op, err)
			}
			holds = append(holds, h)
		}
		if opts == nil {
			over.MustRelease()
		} else if !e.Within(limit+e.Slack(), under.Done()) {
			e.OverdueFatalf(key, "a lease with a maximum hold of %s had not ended %s later", limit, limit+e.Slack())
		}
		e.Each(len(holds), func(i int) {
			staysHeld(e, holds[i], b, "only the lease with whose context it was acquired "+how)
		})
		_ = over.Release(e.Ctx)
	})
}

// notAcquiredUnder ends the case for a call with the context of the lease that returned an error for a
// free key.
func notAcquiredUnder(e *engine.Env, over *engine.Hold, op, key string, err error) {
	if over.Lost() && errors.Is(over.Cause(), lock.ErrMaxHold) {
		e.TooSlowf(key, "the maximum hold of a lease was reached before another key was acquired with its context: %v", err)
	}
	e.UnexpectedLateFatal(key, err, "%s with the context of a lease returned %s for a free key; expected a lease", op, engine.Outcome(err))
}

func outlives(e *engine.Env, a, b *engine.Client, key string, wait bool, with func(context.Context) (context.Context, context.CancelFunc)) {
	ctx, cancel := with(e.Ctx)
	defer cancel()
	get := a.TryFor
	if wait {
		get = a.AcquireFor
	}
	h, err := get(ctx, key, e.TTL)
	if err != nil {
		if ctx.Err() != nil {
			e.LateFatalf(key, "a free key was not granted before the context of the call ended after %s: %s", e.TTL, engine.Outcome(err))
		}
		e.UnexpectedFatal(key, err, "a call for a free key returned %s; expected a lease", engine.Outcome(err))
	}
	if _, timed := ctx.Deadline(); !timed {
		cancel()
	}
	end := time.Now().Add(3 * e.TTL)
	for time.Now().Before(end) {
		h.MustLive("only the context that was given to the acquiring call has ended")
		b.MustRefuse(key, "only the context of the holder's acquiring call has ended")
		e.Pause(e.TTL / 4)
	}
	if err := h.Release(e.Ctx); err != nil {
		e.UnexpectedLate(key, err, "Release returned %s; expected no error, since only the context of the acquiring call had ended", engine.Outcome(err))
	}
}

// outlivesRenewal ends the context of a renewal after that has returned.
func outlivesRenewal(e *engine.Env, a, b *engine.Client) {
	if !e.Claimed.ManualRenewal {
		return
	}
	key := e.Key("renewal")
	h := a.MustTryFor(key, e.TTL)
	ctx, cancel := context.WithCancel(e.Ctx)
	err := h.Lease.Renew(ctx)
	cancel()
	if err != nil {
		e.UnexpectedLateFatal(key, err, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
	}
	staysHeld(e, h, b, "only the context that was given to a Renew has ended, after it had returned")
}

// outlivesWait ends the context of an Acquire that had to wait, for a lease of the kind.
func outlivesWait(e *engine.Env, a, before, b *engine.Client, k kind) {
	key := e.Key("waited-with-%s", k.name)
	stands := before.MustTry(key)
	w := a.AcquiringFor(key, e.TTL, k.opts...)
	<-w.Begun
	e.Settle()
	if err := stands.Release(e.Ctx); err != nil {
		w.Cancel()
		e.UnexpectedLateFatal(key, err, "Release of a lease that is held returned %s; expected no error", engine.Outcome(err))
	}
	h := w.MustGet(e, key, e.WaitBound(), "its holder has released it")
	w.Cancel()
	if k.unrenewed {
		e.Pause(e.TTL / 4)
		h.MustLive("only the context that was given to the acquiring call has ended")
		h.MustRelease()
		return
	}
	staysHeld(e, h, b, "only the context that was given to the acquiring call, which had to wait, has ended; it has "+k.name)
}

// outlivesTimedCalls has calls whose contexts have a deadline be followed by that deadline. Their
// leases are not renewed, which would make up for it.
func outlivesTimedCalls(e *engine.Env, a *engine.Client, asks []kind) {
	if !e.Claimed.WithoutRenewal {
		return
	}
	all := append([]kind{plain}, asks...)
	e.Each(2*len(all), func(i int) {
		k, op, get := all[i/2], "TryAcquire", a.TryFor
		if i%2 == 1 {
			op, get = "Acquire", a.AcquireFor
		}
		key := e.Key("timed %s-with-%s", op, k.name)
		ctx, cancel := context.WithTimeout(e.Ctx, e.TTL/4)
		defer cancel()
		h, err := get(ctx, key, e.TTL, append(unrenewed(e), k.opts...)...)
		if errors.Is(err, lock.ErrUnsupported) && len(k.opts) > 0 {
			return
		}
		if err != nil {
			if ctx.Err() != nil {
				e.TooSlowf(key, "%s took longer than a quarter of the TTL of %s: %v", op, e.TTL, err)
			}
			e.UnexpectedFatal(key, err, "%s of a free key returned %s; expected a lease", op, engine.Outcome(err))
		}
		limit, _ := ctx.Deadline()
		h.Lapses()
		if d, known := h.Lease.Deadline(); known && !h.Lost() && !d.After(limit) && h.Granted < e.Log.At(limit)-e.TTL/8 {
			e.Fatalf(key, "the deadline of a lease with %s is %s after its grant by %s, as that of the context of the call; expected one of its TTL of %s", k.name, engine.Short(e.Log.At(d)-h.Granted), op, e.TTL)
		}
		e.Pause(time.Until(limit) + e.TTL/20)
		h.MustLive("only the context of the " + op + " that acquired it has ended, after that had returned")
		_ = h.Release(e.Ctx)
	})
}

// outlivesTimedRenewal has a renewal whose context has a deadline be followed by that deadline.
func outlivesTimedRenewal(e *engine.Env, a *engine.Client) {
	if !e.Claimed.ManualRenewal || !e.Claimed.WithoutRenewal {
		return
	}
	key := e.Key("timed renewal")
	h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
	ctx, cancel := context.WithTimeout(e.Ctx, e.TTL/3)
	defer cancel()
	if err := h.Lease.Renew(ctx); err != nil {
		if ctx.Err() != nil {
			e.TooSlowf(key, "Renew took longer than a third of the TTL of %s: %v", e.TTL, err)
		}
		e.UnexpectedLateFatal(key, err, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
	}
	limit, _ := ctx.Deadline()
	if d, known := h.Lease.Deadline(); known && !h.Lost() && !d.After(limit) {
		e.Failf(key, "the deadline is %s after a Renew, as that of the context of the call; expected a TTL of %s", engine.Short(time.Until(d)), e.TTL)
	}
	e.Pause(time.Until(limit) + e.TTL/20)
	h.MustLive("only the context of a Renew has ended, after that had returned")
	h.MustRelease()
}

// outlivesWaiter ends the wait of another caller for the key, through the Locker that holds it.
func outlivesWaiter(e *engine.Env, a, b *engine.Client) {
	key := e.Key("a waiter of its Locker")
	h := a.MustTryFor(key, e.TTL)
	ctx, cancel := context.WithTimeout(e.Ctx, e.TTL/8)
	defer cancel()
	if _, err := a.AcquireFor(ctx, key, e.TTL); err == nil {
		e.Fatalf(key, "Acquire was granted a key that the same Locker holds, without an owner")
	}
	staysHeld(e, h, b, "only a waiter of the same Locker has given up")
}

// staysHeld looks for two TTLs whether a lease is held, which renews itself.
func staysHeld(e *engine.Env, h *engine.Hold, b *engine.Client, why string) {
	for end := time.Now().Add(2 * e.TTL); time.Now().Before(end); e.Pause(e.TTL / 4) {
		h.MustLive(why)
		b.MustRefuse(h.Key, why)
	}
	if err := h.Release(e.Ctx); err != nil {
		e.UnexpectedLate(h.Key, err, "Release returned %s; expected no error, since %s", engine.Outcome(err), why)
	}
}
