package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// landed waits until n late requests have reached the server.
func landed(e *engine.Env, c *faultlock.Faults, key string, n int, limit time.Duration) {
	control := time.Now().Add(limit)
	for {
		arrived := 0
		for _, x := range c.Injected() {
			if x.Landed && x.Key == key {
				arrived++
			}
		}
		if arrived >= n || time.Now().After(control) {
			return
		}
		e.Pause(2 * time.Millisecond)
	}
}

func lateGrant(e *engine.Env, via engine.FaultSite) {
	delays := []time.Duration{20 * time.Millisecond, e.TTL / 2}
	e.Each(2*len(delays), func(i int) {
		a, c := e.FaultyAt(via, nil)
		b := e.Locker()
		delay, waits := delays[i/2], i%2 == 1
		key := e.Key("%s-%d", via.Name, i)
		c.Next(1, faultlock.ApplyLate(delay), engine.OpsToGet...)
		var h *engine.Hold
		var err error
		if waits {
			ctx, cancel := context.WithTimeout(e.Ctx, 10*time.Millisecond)
			h, err = a.AcquireFor(ctx, key, e.TTL)
			cancel()
		} else {
			h, err = a.TryFor(e.Ctx, key, e.TTL)
		}
		switch {
		case err == nil && waits: // it asked again
			_ = h.Release(e.Ctx)
		case err == nil:
			e.Fatalf(key, "TryAcquire was granted a key, although its only request is still on its way")
		case waits:
			e.Is(key, err, "Acquire whose context ran out, with its request still on its way,", context.DeadlineExceeded)
		default:
			e.Is(key, err, "TryAcquire whose request is still on its way", lock.ErrOutcomeUnknown)
		}
		landed(e, c, key, 1, delay+e.Slack())
		next := b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its caller was told an error, and the TTL that was asked for is "+e.TTL.String())
		_ = next.Release(e.Ctx)
	})
}

func releaseDelayed(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	b := e.Locker()
	owners := []string{""}
	if engine.ClaimReentrancy.Made(e.Settings) {
		owners = append(owners, e.Owner("A"))
	}
	for i := range 6 {
		key := e.Key("%s-%d", via.Name, i)
		var more []lock.Option
		if owner := owners[i%len(owners)]; owner != "" {
			more = append(more, lock.WithOwner(owner))
		}
		late := 1 + i/2%2
		first := a.MustTry(key, more...)
		c.Next(late, faultlock.ApplyLate(e.TTL/10), faultlock.OpRelease)
		if err := first.Release(e.Ctx); err != nil {
			e.Is(key, err, "Release whose request is still on its way", lock.ErrOutcomeUnknown)
		}
		// The same request, repeated by the lock package, may have come through.
		second := e.Poll(key, e.WaitBound(), 2*time.Millisecond, "it was released", func() (engine.Grip, error) {
			h, err := a.Try(key, more...)
			if err != nil {
				return nil, err
			}
			return h, nil
		}).(*engine.Hold)
		landed(e, c, key, late, e.Slack())
		c.Heal()
		b.MustRefuse(key, "its holder has not released it; only an earlier release of the same client came late")
		second.MustLive("only an earlier release of the same client came late")
		second.MustRelease()
		b.Soon(key, "both of its holds were released").MustRelease()
	}
}

func handOverUnknown(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	b := e.Locker()
	for i, f := range []faultlock.Fault{
		faultlock.FailAfter(), faultlock.Drop(), faultlock.ApplyLate(30 * time.Millisecond), faultlock.Duplicate(),
		faultlock.DelayAfter(30 * time.Millisecond), faultlock.FailBefore(),
	} {
		key := e.Key("%s-%d", via.Name, i)
		h := a.MustTry(key)
		w, behind := a.Acquiring(key), b.Acquiring(key)
		e.Settle()
		c.Next(1, f, faultlock.OpHandOver, faultlock.OpRelease)
		if err := h.Release(e.Ctx); err != nil {
			e.Is(key, err, "Release whose request met trouble", lock.ErrOutcomeUnknown)
		}
		e.Each(2, func(n int) {
			x := []*engine.Acquiring{w, behind}[n]
			got := x.MustGet(e, key, e.WaitBound()+e.Slack(), "the key was released, though the request met trouble: "+f.String())
			landed(e, c, key, len(c.Injected()), 50*time.Millisecond)
			got.MustLive("what is late is the release of an earlier hold")
			got.MustRelease()
		})
		c.Heal()
		b.Soon(key, "all of its holds were released").MustRelease()
	}
}

func cancelMidRequest(e *engine.Env) {
	n := e.Rounds(e.Work(30*time.Millisecond), 20, 150)
	e.EachFaultSite(func(via engine.FaultSite) {
		a, c := e.FaultyAt(via, &faultlock.Options{Random: &faultlock.Random{
			Seed: uint64(e.Random(1<<62)) + 1, Active: 1, Chance: 0.5, MaxDelay: 3 * time.Millisecond,
			Ops:    append([]faultlock.Op{faultlock.OpWait, faultlock.OpWatch, faultlock.OpHandOver}, engine.OpsToGet...),
			Faults: []faultlock.Fault{faultlock.DelayBefore(0), faultlock.DelayAfter(0)},
		}})
		b := e.Locker()
		e.Each(2, func(i int) {
			key := e.Key("%s-%d", via.Name, i)
			for range n {
				cancelOne(e, a, key, i == 0)
				if e.Failed() {
					return
				}
			}
			// The TTL of every attempt was long, so that only clean-up frees the key.
			b.Acquiring(key).MustGet(e, key, e.WaitBound(), "every acquisition was cancelled or released").MustRelease()
		})
		e.Notef("%s: %d cancellations, %d requests delayed", via.Name, 2*n, len(c.Injected()))
	})
}

// cancelOne makes one acquisition and cancels it after a moment.
func cancelOne(e *engine.Env, a *engine.Client, key string, try bool) {
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	cancelled := make(chan time.Time, 1)
	timer := time.AfterFunc(e.Randomly(5*time.Millisecond), func() { cancelled <- time.Now(); cancel() })
	var h *engine.Hold
	var err error
	if try {
		h, err = a.TryFor(ctx, key, e.Long)
	} else {
		h, err = a.Acquire(ctx, key)
	}
	returned := time.Now()
	if !timer.Stop() {
		if late := returned.Sub(<-cancelled); late > e.Slack() {
			e.Overduef(key, "the call returned %s after its context was cancelled", late.Round(time.Millisecond))
		}
	}
	switch {
	case err == nil:
		h.MustRelease()
	case errors.Is(err, context.Canceled):
	case try && errors.Is(err, lock.ErrHeld): // what an earlier, cancelled try has left is being removed
	default:
		e.Unexpected(key, err, "a call that was cancelled returned %s; expected a lease or the context's error", engine.Outcome(err))
	}
}
