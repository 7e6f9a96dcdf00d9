package rules

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func releaseAtExpiry(e *engine.Env) {
	const keys = 4
	rounds := e.Rounds(e.TTL*3/2, 2, 50)
	e.EachLayer(func(layer engine.Layer) {
		a, b, c := layer.Open(), layer.Open(), layer.Open()
		e.Each(keys, func(n int) {
			e.Pause(e.Randomly(e.TTL))
			for round := range rounds {
				key := e.Key("%s-%d-%d", layer.Name, n, round)
				old := e.MustTake(a, key, e.TTL)
				// Close enough for a slow request to meet the expiry on the server.
				e.Pause(time.Until(old.Until()) - e.Randomly(e.TTL/40))
				wait := e.Start(func() {
					if err := old.Release(e.Ctx); err != nil && !errors.Is(err, lock.ErrNotHeld) {
						e.Unexpected(key, err, "Release at the end of the lease returned %s; expected no error or ErrNotHeld", engine.Outcome(err))
					}
				})
				next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), 2*time.Millisecond, "its holder released it, or its lease ran out")
				wait()
				c.Refuses(key, "an earlier holder's release, under way when its lease ran out, must not end the hold of the next")
				e.Pause(e.TTL / 20) // what a Locker does in the background
				if err := next.Release(e.Ctx); err != nil {
					e.Unexpected(key, err, "the holder's release returned %s, after an earlier holder had released at the end of its lease; expected no error", engine.Outcome(err))
				}
			}
		})
	})
	e.Notef("%d releases", keys*rounds*len(e.Layers()))
}

func releaseBesideRenewal(e *engine.Env) {
	defer e.Start(func() { releaseBesideHanging(e) })()
	rounds := e.Rounds(e.Work(100*time.Millisecond), 10, 100)
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		for range rounds {
			g := e.MustTake(a, key, e.Long)
			var releasing, released atomic.Bool
			e.Together(func() {
				for !released.Load() {
					err := g.Renew()
					if errors.Is(err, lock.ErrNotHeld) {
						return
					}
					// The release may have reached some nodes, and the renewal others: neither
					// has a majority where nodes are down.
					if errors.Is(err, lock.ErrUnavailable) && releasing.Load() {
						return
					}
					if err != nil {
						e.UnexpectedFatal(key, err, "Renew beside a release returned %s; expected no error, ErrNotHeld, or once the release is under way ErrUnavailable", engine.Outcome(err))
					}
					e.Pause(20 * time.Microsecond) // virtual time goes on in pauses only
				}
			}, func() {
				defer released.Store(true)
				e.Pause(e.Randomly(time.Millisecond))
				releasing.Store(true)
				if err := g.Release(e.Ctx); err != nil {
					e.Unexpected(key, err, "Release beside renewals returned %s; expected no error", engine.Outcome(err))
				}
			})
			if h, ok := g.(*engine.Hold); ok && (!errors.Is(h.Cause(), lock.ErrReleased) || errors.Is(h.Cause(), lock.ErrLost)) {
				e.Unexpected(key, h.Cause(), "context.Cause after a release beside renewals is %s; expected ErrReleased and no loss: a renewal that finds the hold released has lost nothing", engine.Outcome(h.Cause()))
			}
			next, err := b.Take(key, e.Long)
			if err != nil {
				e.UnexpectedFatal(key, err, "a try returned %s after a release beside renewals; expected a grant", engine.Outcome(err))
			}
			_ = next.Release(e.Ctx)
		}
	})
	e.Notef("%d releases", rounds*len(e.Layers()))
}

// releaseBesideHanging releases a lease while a Renew of it hangs, whose end nobody waits for.
func releaseBesideHanging(e *engine.Env) {
	if e.OpenBackend == nil {
		return
	}
	var held atomic.Pointer[engine.Hold]
	var alive atomic.Bool // when the server was told
	a, server := e.FaultyAt(engine.Primitives, &faultlock.Options{Observe: func(i faultlock.Injection) {
		if h := held.Load(); h != nil && slices.Contains(engine.OpsToEnd, i.Op) && !h.Lost() {
			alive.Store(true)
		}
	}})
	defer server.Heal()
	h := a.MustTry(e.Key("beside a Renew that hangs"))
	held.Store(h)
	server.All(faultlock.DelayBefore(0), engine.OpsToEnd...)
	fails := hangingRenew(e, h, server)
	defer fails()
	if err := h.Release(e.Ctx); !h.Lost() || alive.Load() {
		e.Failf(h.Key, "beside a Renew that hangs, the context of a lease was alive when its Release told the server, which returned %s; expected it to end before", engine.Outcome(err))
	}
}
