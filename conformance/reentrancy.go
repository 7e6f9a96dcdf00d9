package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var reentrancyRules = []*rule{
	{
		Name:      "ReentrantCount",
		Statement: "An owner that acquired a key n times holds it until the last of its n leases has ended, in whatever order they are released.",
		claims:    []claim{claimReentrancy},
		run:       reentrantCount,
	},
	{
		Name:      "ReentrantExplicit",
		Statement: "Only the same explicit owner enters again: other owners, callers without an owner, and the same process do not.",
		claims:    []claim{claimReentrancy},
		run:       reentrantExplicit,
	},
	{
		Name:      "ReentrantSameToken",
		Statement: "All holds of an owner at a time have the same token, and the next outermost hold has a larger one.",
		claims:    []claim{claimReentrancy, claimTokens},
		run:       reentrantSameToken,
	},
	{
		Name:      "ReentrantExtends",
		Statement: "Entering again with a shorter TTL never shortens the holds that exist.",
		claims:    []claim{claimReentrancy},
		LimitTTLs: 30,
		run:       reentrantExtends,
	},
	{
		Name:      "ReentrantOtherLocker",
		Statement: "Another Locker with the same owner enters again where holds are counted on the server, and is refused where each client counts its own.",
		claims:    []claim{claimReentrancy},
		run:       reentrantOtherLocker,
	},
	{
		Name:      "ReentrantAfterLoss",
		Statement: "After the holds of an owner have run out, it acquires anew: with a larger token, one release frees it, and not while somebody else holds the key.",
		claims:    []claim{claimReentrancy, claimWithoutRenewal},
		LimitTTLs: 30,
		run:       reentrantAfterLoss,
	},
	{
		Name:      "ReentrantOverWaiters",
		Statement: "Entering again never waits behind those who wait for the key.",
		claims:    []claim{claimReentrancy},
		run:       reentrantOverWaiters,
	},
	{
		Name:      "ReentrantOwnLeases",
		Statement: "Each lease of an owner has a context and a release of its own: ending one ends no other.",
		claims:    []claim{claimReentrancy},
		run:       reentrantOwnLeases,
	},
	{
		Name:      "ReentrantLimit",
		Statement: fmt.Sprintf("An owner has at most %d holds on a key at a time; the next is refused with ErrTooManyHolds and changes nothing.", backend.MaxHolds),
		claims:    []claim{claimReentrancy},
		run:       reentrantLimit,
	},
	{
		Name:      "ReentrantModel",
		Statement: "Through any order of acquisitions and releases by several owners, the key is held exactly by the owner that has unreleased leases.",
		claims:    []claim{claimReentrancy},
		run:       reentrantModel,
	},
}

func reentrantCount(e *env) {
	a, b := e.locker(), e.locker()
	owner := lock.WithOwner(e.owner("A"))
	for n := 1; n <= 5; n++ {
		key := e.key("%d", n)
		holds := make([]*hold, n)
		for i := range holds {
			if i%2 == 0 {
				holds[i] = a.mustTry(key, owner)
			} else {
				holds[i] = a.mustAcquire(key, owner)
			}
		}
		for left := n; left > 0; left-- {
			b.mustRefuse(key, fmt.Sprintf("%d of %d leases of its owner are left", left, n))
			i := int(e.random(int64(left)))
			holds[i].mustRelease()
			e.is(key, holds[i].release(e.ctx), "the second release of one lease among several", lock.ErrNotHeld)
			holds = append(holds[:i], holds[i+1:]...)
		}
		h, err := b.try(key)
		if err != nil {
			e.unexpectedFatal(key, err, "all %d leases of the owner were released, but a try returned %s; expected a lease", n, outcome(err))
		}
		h.mustRelease()
	}
}

func reentrantExplicit(e *env) {
	a, b := e.locker(), e.locker()
	key := e.key("a")
	first, second := lock.WithOwner(e.owner("A")), lock.WithOwner(e.owner("B"))
	h := a.mustTry(key, first)
	for _, c := range []*client{a, b} {
		c.mustRefuse(key, "another owner holds it", second)
		c.mustRefuse(key, "an owner holds it, and this call names none")
	}
	h.mustRelease()
	// A hold without an owner is entered by nobody.
	h = a.mustTry(key)
	for _, c := range []*client{a, b} {
		c.mustRefuse(key, "it is held without an owner", first)
	}
	h.mustRelease()
	// Owners are compared byte by byte.
	name := e.owner("C")
	h = a.mustTry(key, lock.WithOwner(name+"a"))
	for _, other := range []string{name + "A", name + "a ", name, name + "ab"} {
		a.mustRefuse(key, "its owner differs, if only in case or length", lock.WithOwner(other))
	}
	h.mustRelease()
}

func reentrantSameToken(e *env) {
	a := e.locker()
	key := e.key("a")
	owner := lock.WithOwner(e.owner("A"))
	var last uint64
	for range 5 {
		holds := []*hold{a.mustTry(key, owner), a.mustTry(key, owner), a.mustAcquire(key, owner)}
		holds[0].mustRelease()
		holds = append(holds, a.mustTry(key, owner))
		if tokens := tokensOf(holds); len(tokens) != 1 {
			e.failf(key, "the holds of one owner have the tokens %d; expected one token for all", tokens)
		}
		if t := holds[0].token; t <= last {
			e.failf(key, "the token of a new outermost hold is %d; expected more than the last, %d", t, last)
		} else {
			last = t
		}
		for _, h := range holds[1:] {
			h.mustRelease()
		}
	}
}

func reentrantExtends(e *env) {
	longer := e.fit(4 * e.ttl)
	if longer < 3*e.ttl {
		e.skipf("needs two TTLs, and only %s can be had", e.ttl)
	}
	a, b := e.locker(), e.locker()
	key := e.key("a")
	owner := lock.WithOwner(e.owner("A"))
	outer := a.mustTryFor(key, longer, append(e.unrenewed(), owner)...)
	before := outer.until()
	inner := a.mustTryFor(key, e.ttl, append(e.unrenewed(), owner)...)
	inner.lapses()
	if after := outer.until(); after.Before(before.Add(-10 * time.Millisecond)) {
		e.latef(key, "the deadline of the outer hold moved back from %s to %s when its owner entered again with a TTL of %s",
			seconds(e.hist.at(before)), seconds(e.hist.at(after)), e.ttl)
	}
	for e.hist.now() < inner.gone(e) {
		b.mustRefuse(key, fmt.Sprintf("its owner holds it with a TTL of %s, and entering again with %s must not shorten that", longer, e.ttl))
		e.pause(e.ttl / 10)
	}
	if err := outer.release(e.ctx); err != nil {
		e.latef(key, "Release of the outer hold returned %s; expected no error", outcome(err))
	}
	_ = inner.release(e.ctx)
	b.soon(key, "both holds of its owner were released").mustRelease()
}

func reentrantOtherLocker(e *env) {
	a, b, c := e.locker(), e.locker(), e.locker()
	key := e.key("a")
	owner := lock.WithOwner(e.owner("A"))
	h := a.mustTry(key, owner)
	if !claimServerHolds.made(e.settings) {
		b.mustRefuse(key, "holds are counted by each client, so that another client is excluded even with the same owner", owner)
		h.mustRelease()
		b.mustTry(key, owner).mustRelease()
		return
	}
	again, err := b.try(key, owner)
	if err != nil {
		e.unexpectedFatal(key, err, "another client with the same owner got %s; expected a lease, since holds are counted on the server", outcome(err))
	}
	h.mustRelease()
	c.mustRefuse(key, "another client of its owner still holds it")
	again.mustLive("only the other client's lease was released")
	again.mustRelease()
	c.mustTry(key).mustRelease()
	// Closing one client ends its own holds only.
	h, again = a.mustTry(key, owner), b.mustTry(key, owner)
	_ = a.close()
	c.mustRefuse(key, "only the other client of its owner was closed")
	again.mustRelease()
	c.mustTry(key).mustRelease()
	_ = h
}

func reentrantAfterLoss(e *env) {
	a, b := e.locker(), e.locker()
	owner := lock.WithOwner(e.owner("A"))
	e.together(func() {
		key := e.key("nobody")
		outer := a.mustTryFor(key, e.ttl, owner, lock.WithoutRenewal())
		inner := a.mustTryFor(key, e.ttl, owner, lock.WithoutRenewal())
		e.awaitLapse(outer)
		e.awaitLapse(inner)
		e.expire(outer, inner)
		again := a.mustTry(key, owner)
		if claimTokens.made(e.settings) && again.token <= outer.token {
			e.failf(key, "the token after the loss is %d; expected more than that of the lost hold, %d", again.token, outer.token)
		}
		e.is(key, inner.release(e.ctx), "Release of a lost hold", lock.ErrNotHeld)
		e.is(key, outer.release(e.ctx), "Release of a lost hold", lock.ErrNotHeld)
		b.mustRefuse(key, "its owner has acquired it anew, and releasing lost holds must not end that")
		again.mustRelease()
		b.mustTry(key).mustRelease()
	}, func() {
		key := e.key("somebody")
		outer := a.mustTryFor(key, e.ttl, owner, lock.WithoutRenewal())
		e.awaitLapse(outer)
		taken := e.takeOver(b, key, e.long, e.takeover(e.ttl), e.ttl/20, "the owner's lease had run out").(*hold)
		a.mustRefuse(key, "somebody else has taken it since", owner)
		e.is(key, outer.release(e.ctx), "Release of a lost hold", lock.ErrNotHeld)
		taken.mustRelease()
		a.mustTry(key, owner).mustRelease()
	})
}

func reentrantOverWaiters(e *env) {
	a, b := e.locker(), e.locker()
	key := e.key("a")
	owner, other := lock.WithOwner(e.owner("A")), lock.WithOwner(e.owner("B"))
	h := a.mustTry(key, owner)
	var got []chan struct{}
	var waits []func()
	for _, w := range []struct {
		c    *client
		more []lock.Option
	}{{a, nil}, {b, nil}, {a, []lock.Option{other}}} {
		done := make(chan struct{})
		got = append(got, done)
		waits = append(waits, e.start(func() {
			h := w.c.mustWait(e.ctx, key, w.more...)
			close(done)
			h.mustRelease()
		}))
	}
	e.pause(50 * time.Millisecond) // the waiters take their places, or not: the rule holds in any case
	for _, op := range []string{"TryAcquire", "Acquire"} {
		entered := make(chan struct{})
		var again *hold
		wait := e.start(func() {
			if op == "Acquire" {
				again = a.mustAcquire(key, owner)
			} else {
				again = a.mustTry(key, owner)
			}
			close(entered)
		})
		if !e.within(e.slack(), entered) {
			e.overdueFatalf(key, "%s by the owner of the key had not returned after %s, with others waiting; expected it to enter again at once", op, e.slack())
		}
		wait()
		again.mustRelease()
	}
	for _, done := range got {
		select {
		case <-done:
			e.failf(key, "a waiter was granted the key before its owner had released it")
		default:
		}
	}
	h.mustRelease()
	for _, wait := range waits {
		wait()
	}
}

func reentrantOwnLeases(e *env) {
	a, b := e.locker(), e.locker()
	key := e.key("a")
	owner := lock.WithOwner(e.owner("A"))
	ctx, cancel := context.WithCancel(e.ctx)
	outer, err := a.acquire(ctx, key, owner)
	if err != nil {
		e.unexpectedFatal(key, err, "Acquire of a free key returned %s; expected a lease", outcome(err))
	}
	inner := a.mustTry(key, owner)
	cancel()
	outer.mustRelease() // the outer one first
	if !errors.Is(outer.cause(), lock.ErrReleased) {
		e.failf(key, "context.Cause of the released lease is %s; expected ErrReleased", outcome(outer.cause()))
	}
	inner.mustLive("only another lease of its owner was released")
	if e.g.ManualRenewal {
		if err := inner.renew(); err != nil {
			e.unexpected(key, err, "Renew of the remaining lease returned %s; expected no error", outcome(err))
		}
		e.is(key, outer.renew(), "Renew of the released lease", lock.ErrNotHeld)
	}
	b.mustRefuse(key, "one lease of its owner is left")
	inner.mustRelease()
	b.mustTry(key).mustRelease()
}

func reentrantLimit(e *env) {
	a, b := e.locker(), e.locker()
	key := e.key("a")
	owner := lock.WithOwner(e.owner("A"))
	var holds []*hold
	for i := range backend.MaxHolds {
		h, err := a.try(key, owner)
		if err != nil {
			e.unexpectedFatal(key, err, "hold %d of %d was refused: %s", i+1, backend.MaxHolds, outcome(err))
		}
		holds = append(holds, h)
	}
	if h, err := a.try(key, owner); err == nil {
		_ = h.release(e.ctx)
		for _, earlier := range holds {
			earlier.mustLive("it is renewed automatically, and counts")
		}
		e.failf(key, "hold %d was granted; expected a refusal", backend.MaxHolds+1)
	} else {
		e.is(key, err, fmt.Sprintf("TryAcquire for hold %d of one owner", backend.MaxHolds+1), lock.ErrTooManyHolds)
	}
	holds[0].mustRelease()
	holds[0] = a.mustTry(key, owner)
	b.mustRefuse(key, "its owner holds it")
	e.each(len(holds), func(i int) { holds[i].mustRelease() })
	b.mustTry(key).mustRelease()
}

func reentrantModel(e *env) {
	a, b := e.locker(), e.locker()
	clients := []*client{a, b}
	if !claimServerHolds.made(e.settings) {
		clients = []*client{a, a}
	}
	owners := []string{e.owner("A"), e.owner("B"), ""}
	runs := e.rounds(200*time.Millisecond, 5, 60)
	for run := range runs {
		key := e.key("%d", run)
		var holds []*hold
		holder := -1 // who holds the key in the model
		for range 40 {
			who := int(e.random(int64(len(owners))))
			if len(holds) > 0 && e.random(5) < 2 {
				i := int(e.random(int64(len(holds))))
				holds[i].mustRelease()
				holds = append(holds[:i], holds[i+1:]...)
				if len(holds) == 0 {
					holder = -1
				}
				continue
			}
			var more []lock.Option
			if owners[who] != "" {
				more = append(more, lock.WithOwner(owners[who]))
			}
			c := clients[e.random(2)]
			if holder < 0 || holder == who && owners[who] != "" {
				holds = append(holds, c.mustTry(key, more...))
				holder = who
				continue
			}
			c.mustRefuse(key, "another owner has unreleased leases", more...)
		}
		if claimTokens.made(e.settings) && len(tokensOf(holds)) > 1 {
			e.failf(key, "the holds of one owner have the tokens %d; expected one", tokensOf(holds))
		}
		for _, h := range holds {
			h.mustRelease()
		}
		if e.failed() {
			return
		}
		clients[run%2].mustTry(key).mustRelease() // all have been given back
	}
}
