package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

func releaseAtExpiry(e *env) {
	const keys = 4
	rounds := e.rounds(e.ttl*3/2, 2, 50)
	e.eachKind(func(k kind) {
		a, b, c := k.open(), k.open(), k.open()
		e.each(keys, func(n int) {
			e.pause(e.randomly(e.ttl))
			for round := range rounds {
				key := e.key("%s-%d-%d", k.name, n, round)
				old := e.mustTake(a, key, e.ttl)
				// Close enough for a slow request to meet the expiry on the server.
				e.pause(time.Until(old.until()) - e.randomly(e.ttl/40))
				wait := e.start(func() {
					if err := old.release(e.ctx); err != nil && !errors.Is(err, lock.ErrNotHeld) {
						e.unexpected(key, err, "Release at the end of the lease returned %s; expected no error or ErrNotHeld", outcome(err))
					}
				})
				next := e.takeOver(b, key, e.long, e.takeover(e.ttl), 2*time.Millisecond, "its holder released it, or its lease ran out")
				wait()
				c.refuses(key, "an earlier holder's release, under way when its lease ran out, must not end the hold of the next")
				e.pause(e.ttl / 20) // what a Locker does in the background
				if err := next.release(e.ctx); err != nil {
					e.unexpected(key, err, "the holder's release returned %s, after an earlier holder had released at the end of its lease; expected no error", outcome(err))
				}
			}
		})
	})
	e.notef("%d releases", keys*rounds*len(e.kinds()))
}

func releaseBesideRenewal(e *env) {
	rounds := e.rounds(100*time.Millisecond, 10, 100)
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a, b := k.open(), k.open()
		for range rounds {
			g := e.mustTake(a, key, e.long)
			var released atomic.Bool
			e.together(func() {
				for !released.Load() {
					err := g.renew()
					if errors.Is(err, lock.ErrNotHeld) {
						return
					}
					if err != nil {
						e.unexpectedFatal(key, err, "Renew beside a release returned %s; expected no error, or ErrNotHeld", outcome(err))
					}
					e.pause(20 * time.Microsecond) // virtual time goes on in pauses only
				}
			}, func() {
				defer released.Store(true)
				e.pause(e.randomly(time.Millisecond))
				if err := g.release(e.ctx); err != nil {
					e.unexpected(key, err, "Release beside renewals returned %s; expected no error", outcome(err))
				}
			})
			if h, ok := g.(*hold); ok && (!errors.Is(h.cause(), lock.ErrReleased) || errors.Is(h.cause(), lock.ErrLost)) {
				e.unexpected(key, h.cause(), "context.Cause after a release beside renewals is %s; expected ErrReleased and no loss: a renewal that finds the hold released has lost nothing", outcome(h.cause()))
			}
			next, err := b.take(key, e.long)
			if err != nil {
				e.unexpectedFatal(key, err, "a try returned %s after a release beside renewals; expected a grant", outcome(err))
			}
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d releases", rounds*len(e.kinds()))
}

// crashBetweenSteps gives requests up at random moments. The longer of these come to
// twice the time that a request takes here and now: so many are granted as are not.
func crashBetweenSteps(e *env) {
	const requesters = 4
	rounds := e.rounds(e.ttl/20, 40, 500)
	var granted, cut atomic.Int64
	e.each(requesters, func(i int) {
		a, b := e.backend(), e.backend()
		latest := time.Millisecond
		asked := 0
		// What is granted is nobody's, and stays for its TTL: where each hold has a
		// connection of its own, they may run out.
		for started := time.Now(); asked < rounds && time.Since(started) < 3*e.ttl; asked++ {
			ctx, cancel := context.WithCancel(e.ctx)
			timer := time.AfterFunc(e.randomly(latest), cancel)
			if _, err := a.tryCtx(ctx, e.request(e.key("%d-%d", i, asked), "", e.ttl)); err == nil {
				granted.Add(1)
				latest = max(latest*3/4, time.Microsecond)
			} else {
				cut.Add(1)
				latest = min(latest*4/3, e.ttl)
			}
			timer.Stop()
			cancel()
		}
		for round := range asked {
			key := e.key("%d-%d", i, round)
			next := e.takeOver(b, key, e.long, e.takeover(e.ttl), e.ttl/20, "its client gave the request up, which asked for a TTL of "+e.ttl.String())
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d requests: %d were granted and %d given up", granted.Load()+cut.Load(), granted.Load(), cut.Load())
	switch {
	case granted.Load() == 0:
		e.notef("inconclusive: every request was given up before its answer came")
	case cut.Load() == 0:
		e.notef("inconclusive: every request was answered before it could be given up")
	}
}
