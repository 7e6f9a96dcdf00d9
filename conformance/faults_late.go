package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// landed waits until n late requests have reached the server.
func (e *env) landed(c *faultlock.Faults, key string, n int, limit time.Duration) {
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
		e.pause(2 * time.Millisecond)
	}
}

func lateGrant(e *env) {
	e.eachSeam(func(via seamKind) {
		delays := []time.Duration{20 * time.Millisecond, e.ttl / 2}
		e.each(2*len(delays), func(i int) {
			a, c := e.faultyAt(via, nil)
			b := e.locker()
			delay, waits := delays[i/2], i%2 == 1
			key := e.key("%s-%d", via.name, i)
			c.Next(1, faultlock.ApplyLate(delay), toGet...)
			var h *hold
			var err error
			if waits {
				ctx, cancel := context.WithTimeout(e.ctx, 10*time.Millisecond)
				h, err = a.acquireFor(ctx, key, e.ttl)
				cancel()
			} else {
				h, err = a.tryFor(e.ctx, key, e.ttl)
			}
			switch {
			case err == nil && waits: // it asked again
				_ = h.release(e.ctx)
			case err == nil:
				e.fatalf(key, "TryAcquire was granted a key, although its only request is still on its way")
			case waits:
				e.is(key, err, "Acquire whose context ran out, with its request still on its way,", context.DeadlineExceeded)
			default:
				e.is(key, err, "TryAcquire whose request is still on its way", lock.ErrOutcomeUnknown)
			}
			e.landed(c, key, 1, delay+e.slack())
			next := b.wins(key, e.takeover(e.ttl), e.ttl/50, "its caller was told an error, and the TTL that was asked for is "+e.ttl.String())
			_ = next.release(e.ctx)
		})
	})
}

func releaseDelayed(e *env) {
	e.eachSeam(func(via seamKind) {
		a, c := e.faultyAt(via, nil)
		b := e.locker()
		owners := []string{""}
		if claimReentrancy.made(e.settings) {
			owners = append(owners, e.owner("A"))
		}
		for i := range 6 {
			key := e.key("%s-%d", via.name, i)
			var more []lock.Option
			if owner := owners[i%len(owners)]; owner != "" {
				more = append(more, lock.WithOwner(owner))
			}
			late := 1 + i/2%2
			first := a.mustTry(key, more...)
			c.Next(late, faultlock.ApplyLate(e.ttl/10), faultlock.OpRelease)
			if err := first.release(e.ctx); err != nil {
				e.is(key, err, "Release whose request is still on its way", lock.ErrOutcomeUnknown)
			}
			// The same request, repeated by the lock package, may have come through.
			second := e.poll(key, e.waitBound(), 2*time.Millisecond, "it was released", func() (grip, error) {
				h, err := a.try(key, more...)
				if err != nil {
					return nil, err
				}
				return h, nil
			}).(*hold)
			e.landed(c, key, late, e.slack())
			c.Heal()
			b.mustRefuse(key, "its holder has not released it; only an earlier release of the same client came late")
			second.mustLive("only an earlier release of the same client came late")
			second.mustRelease()
			b.soon(key, "both of its holds were released").mustRelease()
		}
	})
}

func handOverUnknown(e *env) {
	e.eachSeam(func(via seamKind) {
		a, c := e.faultyAt(via, nil)
		b := e.locker()
		for i, f := range []faultlock.Fault{
			faultlock.FailAfter(), faultlock.Drop(), faultlock.ApplyLate(30 * time.Millisecond), faultlock.Duplicate(),
			faultlock.DelayAfter(30 * time.Millisecond), faultlock.FailBefore(),
		} {
			key := e.key("%s-%d", via.name, i)
			h := a.mustTry(key)
			w, behind := a.acquiring(key), b.acquiring(key)
			e.settle()
			c.Next(1, f, faultlock.OpHandOver, faultlock.OpRelease)
			if err := h.release(e.ctx); err != nil {
				e.is(key, err, "Release whose request met trouble", lock.ErrOutcomeUnknown)
			}
			e.each(2, func(n int) {
				x := []*acquiring{w, behind}[n]
				got := x.mustGet(e, key, e.waitBound()+e.slack(), "the key was released, though the request met trouble: "+f.String())
				e.landed(c, key, len(c.Injected()), 50*time.Millisecond)
				got.mustLive("what is late is the release of an earlier hold")
				got.mustRelease()
			})
			c.Heal()
			b.soon(key, "all of its holds were released").mustRelease()
		}
	})
}

func cancelMidRequest(e *env) {
	n := e.rounds(30*time.Millisecond, 20, 150)
	e.eachSeam(func(via seamKind) {
		a, c := e.faultyAt(via, &faultlock.Options{Random: &faultlock.Random{
			Seed: uint64(e.random(1<<62)) + 1, Active: 1, Chance: 0.5, MaxDelay: 3 * time.Millisecond,
			Ops:    append([]faultlock.Op{faultlock.OpWait, faultlock.OpWatch, faultlock.OpHandOver}, toGet...),
			Faults: []faultlock.Fault{faultlock.DelayBefore(0), faultlock.DelayAfter(0)},
		}})
		b := e.locker()
		e.each(2, func(i int) {
			key := e.key("%s-%d", via.name, i)
			for range n {
				e.cancelOne(a, key, i == 0)
				if e.failed() {
					return
				}
			}
			// The TTL of every attempt was long, so that only clean-up frees the key.
			b.acquiring(key).mustGet(e, key, e.waitBound(), "every acquisition was cancelled or released").mustRelease()
		})
		e.notef("%s: %d cancellations, %d requests delayed", via.name, 2*n, len(c.Injected()))
	})
}

// cancelOne makes one acquisition and cancels it after a moment.
func (e *env) cancelOne(a *client, key string, try bool) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	cancelled := make(chan time.Time, 1)
	timer := time.AfterFunc(e.randomly(5*time.Millisecond), func() { cancelled <- time.Now(); cancel() })
	var h *hold
	var err error
	if try {
		h, err = a.tryFor(ctx, key, e.long)
	} else {
		h, err = a.acquire(ctx, key)
	}
	returned := time.Now()
	if !timer.Stop() {
		if late := returned.Sub(<-cancelled); late > e.slack() {
			e.overduef(key, "the call returned %s after its context was cancelled", late.Round(time.Millisecond))
		}
	}
	switch {
	case err == nil:
		h.mustRelease()
	case errors.Is(err, context.Canceled):
	case try && errors.Is(err, lock.ErrHeld): // what an earlier, cancelled try has left is being removed
	default:
		e.unexpected(key, err, "a call that was cancelled returned %s; expected a lease or the context's error", outcome(err))
	}
}
