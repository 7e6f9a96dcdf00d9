package conformance

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

// The rules of this file are about what happens between the steps of one
// operation: its client stops half-way, or time runs out half-way. They find locks
// that are made of several commands.
var stepRules = slices.Concat(
	subject("release",
		&rule{Rule: Rule{Name: "ReleaseAtExpiry", Statement: "A release that is under way while its lease runs out does not end the hold of whoever takes the key over.", LimitTTLs: 80},
			run: releaseAtExpiry},
		&rule{Rule: Rule{Name: "ReleaseBesideRenewal", Statement: "A renewal that is under way at the same time neither prevents nor outlives a release: the key is free when both have returned."},
			claims: []claim{claimManualRenewal}, run: releaseBesideRenewal}),
	atSeam(subject("expiry",
		&rule{Rule: Rule{Name: "CrashBetweenSteps", Statement: "A client that stops at any point of a request leaves nothing that outlives the TTL, though nobody cleans up."},
			run: crashBetweenSteps})...),
)

// Each goes to the end of its subject, before the list is checked.
func init() {
	for _, r := range slices.Concat(stepRules, requestRules, lastingRules) {
		i := len(allRules)
		for i > 0 && allRules[i-1].Subject != r.Subject {
			i--
		}
		allRules = slices.Insert(allRules, i, r)
	}
}

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
				}
			}, func() {
				defer released.Store(true)
				e.pause(e.randomly(time.Millisecond))
				if err := g.release(e.ctx); err != nil {
					e.unexpected(key, err, "Release beside renewals returned %s; expected no error", outcome(err))
				}
			})
			next, err := b.take(key, e.long)
			if err != nil {
				e.unexpectedFatal(key, err, "a try returned %s after a release beside renewals; expected a grant", outcome(err))
			}
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d releases", rounds*len(e.kinds()))
}

func crashBetweenSteps(e *env) {
	const requesters = 4
	rounds := e.rounds(e.ttl/20, 40, 500)
	e.each(requesters, func(i int) {
		a, b := e.backend(), e.backend()
		for round := range rounds {
			key := e.key("%d-%d", i, round)
			ctx, cancel := context.WithCancel(e.ctx)
			timer := time.AfterFunc(e.randomly(time.Duration(1+round%8)*200*time.Microsecond), cancel)
			_, _ = a.tryCtx(ctx, e.request(key, "", e.ttl))
			timer.Stop()
			cancel()
		}
		for round := range rounds {
			key := e.key("%d-%d", i, round)
			next := e.takeOver(b, key, e.long, e.takeover(e.ttl), e.ttl/20, "its client stopped during the request, which asked for a TTL of "+e.ttl.String())
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d requests", requesters*rounds)
}
