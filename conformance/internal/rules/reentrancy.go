package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var reentrancyRules = []*engine.Rule{
	{
		Name:      "ReentrantCount",
		Statement: "An owner holds a key until the last of its leases has ended.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantCount,
	},
	{
		Name:      "ReentrantExplicit",
		Statement: "Only the same explicit owner enters again, in the same process too.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantExplicit,
	},
	{
		Name:      "ReentrantSameToken",
		Statement: "An owner's holds share one token; the next outermost hold has a larger one.",
		Claims:    []engine.Claim{engine.ClaimReentrancy, engine.ClaimTokens},
		Run:       reentrantSameToken,
	},
	{
		Name:      "ReentrantExtends",
		Statement: "Entering again with a shorter TTL never shortens the holds that exist.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		LimitTTLs: 30,
		Run:       reentrantExtends,
	},
	{
		Name:      "ReentrantOtherLocker",
		Statement: "The same owner enters from another Locker where the server counts holds, else is refused.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantOtherLocker,
	},
	{
		Name:      "ReentrantAfterLoss",
		Statement: "After its holds have run out an owner acquires anew, with a larger token.",
		Claims:    []engine.Claim{engine.ClaimReentrancy, engine.ClaimWithoutRenewal},
		LimitTTLs: 30,
		Run:       reentrantAfterLoss,
	},
	{
		Name:      "ReentrantOverWaiters",
		Statement: "Entering again never waits behind those who wait for the key.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantOverWaiters,
	},
	{
		Name:      "ReentrantOwnLeases",
		Statement: "Ending one lease of an owner ends no other.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantOwnLeases,
	},
	{
		Name:      "ReentrantLimit",
		Statement: fmt.Sprintf("An owner has at most %d holds on a key; the next is refused with ErrTooManyHolds.", backend.MaxHolds),
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantLimit,
	},
	{
		Name:      "ReentrantModel",
		Statement: "Whatever owners acquire and release, the one with unreleased leases holds the key.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantModel,
	},
}

func reentrantCount(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	owner := lock.WithOwner(e.Owner("A"))
	for n := 1; n <= 5; n++ {
		key := e.Key("%d", n)
		holds := make([]*engine.Hold, n)
		for i := range holds {
			if i%2 == 0 {
				holds[i] = a.MustTry(key, owner)
			} else {
				holds[i] = a.MustAcquire(key, owner)
			}
		}
		for left := n; left > 0; left-- {
			b.MustRefuse(key, fmt.Sprintf("%d of %d leases of its owner are left", left, n))
			i := int(e.Random(int64(left)))
			holds[i].MustRelease()
			e.Is(key, holds[i].Release(e.Ctx), "the second release of one lease among several", lock.ErrNotHeld)
			holds = append(holds[:i], holds[i+1:]...)
		}
		h, err := b.Try(key)
		if err != nil {
			e.UnexpectedFatal(key, err, "all %d leases of the owner were released, but a try returned %s; expected a lease", n, engine.Outcome(err))
		}
		h.MustRelease()
	}
	// The same after a wait.
	key := e.Key("waited")
	outer := ways[2].mustGet(a, key, e.Long, owner)
	holds := []*engine.Hold{outer.Hold, a.MustTry(key, owner), a.MustAcquire(key, owner)}
	for i, h := range holds {
		b.MustRefuse(key, fmt.Sprintf("%d of %d leases of its owner are left, the first of which was waited for", len(holds)-i, len(holds)))
		h.MustRelease()
	}
	b.MustTry(key).MustRelease()
	holdsOfTwoKeys(e, a, b, owner)
}

// holdsOfTwoKeys has an owner hold two keys, the first by more leases. Each is free when the last of
// its own has ended.
func holdsOfTwoKeys(e *engine.Env, a, b *engine.Client, owner lock.Option) {
	keys := [2]string{e.Key("the first of two keys"), e.Key("the second of two keys")}
	var holds [2][]*engine.Hold
	for n := range 5 {
		holds[n%2] = append(holds[n%2], a.MustTry(keys[n%2], owner))
	}
	for i, all := range holds {
		for left := len(all); left > 0; left-- {
			b.MustRefuse(keys[i], fmt.Sprintf("%d of %d leases of its owner are left, who has held two keys", left, len(all)))
			all[left-1].MustRelease()
		}
		b.Soon(keys[i], "all leases of its owner have ended, who has held another key at the time").MustRelease()
	}
}

// confusable are owners that some store would take for one, the holder's first: what it cuts,
// trims, folds, counts, decodes, hashes, or reads as a pattern.
var confusable = [][2]string{
	{"a:b,c|d e'f\"g/h;i=j", "a:b,c|d e'f\"g/h;i=k"}, {"a:1", "a:2"}, {"a,1", "a,2"}, {"a|1", "a|2"}, {"a 1", "a 2"}, {"a'1", "a'2"}, {"a/1", "a/2"},
	{"ax", "a%"}, {"ax", "a*"}, {"ax", "a_"}, {"ax", "a."}, {"a\\b", "ab"}, {" a", "a"}, {"07", "7"}, {"1e1", "10"},
	{"a\u200b", "a"}, {"a\u00ad", "a"}, {"\uff41", "a"}, {"\u00df", "ss"}, {"\U0001f512", "\U0001f511"}, {"x\U0001f512a", "x\U0001f512b"}, {"null", "NULL"},
	{"plumless", "buckeroo"}, {"Aa", "BB"}, {"a//b", "a/b"}, {"a%25", "a%"}, // the first two have one CRC-32, and one hash in Java
}

func reentrantExplicit(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("a")
	first, second := lock.WithOwner(e.Owner("A")), lock.WithOwner(e.Owner("B"))
	h := a.MustTry(key, first)
	for _, c := range []*engine.Client{a, b} {
		c.MustRefuse(key, "another owner holds it", second)
		c.MustRefuse(key, "an owner holds it, and this call names none")
	}
	h.MustRelease()
	// A hold without an owner is entered by nobody.
	h = a.MustTry(key)
	for _, c := range []*engine.Client{a, b} {
		c.MustRefuse(key, "it is held without an owner", first)
	}
	h.MustRelease()
	// Owners are compared byte by byte.
	name := e.Owner("C")
	h = a.MustTry(key, lock.WithOwner(name+"a"))
	for _, other := range []string{name + "A", name + "a ", name, name + "ab"} {
		a.MustRefuse(key, "its owner differs, if only in case or length", lock.WithOwner(other))
	}
	h.MustRelease()
	h = a.MustTry(key, lock.WithOwner(name+"\u00e4"))
	for _, other := range []string{"\u00f6", "\u00c4", "a\u0308", "a", "?"} {
		a.MustRefuse(key, "its owner differs, if only in an accent", lock.WithOwner(name+other))
	}
	h.MustRelease()
	for _, pair := range confusable {
		h := a.MustTry(key, lock.WithOwner(pair[0]))
		a.MustRefuse(key, fmt.Sprintf("its owner is %q, and the caller's %q", pair[0], pair[1]), lock.WithOwner(pair[1]))
		h.MustRelease()
	}
	joinedNames(e, a, b)
	if e.Claimed.HolderDetails {
		h := a.MustTry(key, lock.WithLabel(name))
		a.MustRefuse(key, "it is held without an owner; the caller's is its label only", lock.WithOwner(name))
		h.MustRelease()
	}
}

// joinedNames has two owners hold two keys, where key and owner make the same text when one is
// written after the other.
func joinedNames(e *engine.Env, a, b *engine.Client) {
	for _, between := range []string{"", ":", "/"} {
		owner := e.Owner("D")
		first := a.MustTry(e.Key("joined%sx", between), lock.WithOwner(owner))
		second := a.MustTry(e.Key("joined"), lock.WithOwner("x"+between+owner))
		const why = "an owner holds it; key and owner, written one after the other, are those of another hold"
		b.MustRefuse(second.Key, why)
		second.MustRelease()
		b.MustRefuse(first.Key, why)
		first.MustRelease()
	}
}

func reentrantSameToken(e *engine.Env) {
	a := e.Locker()
	key := e.Key("a")
	owner := lock.WithOwner(e.Owner("A"))
	var last uint64
	outermost := []struct {
		by   string
		take func(key string, more ...lock.Option) *engine.Hold
	}{{"TryAcquire", a.MustTry}, {"Acquire", a.MustAcquire}}
	for i := range 6 {
		first := outermost[i/2%2] // behind one of either
		holds := []*engine.Hold{first.take(key, owner), a.MustTry(key, owner), a.MustAcquire(key, owner)}
		holds[0].MustRelease()
		holds = append(holds, a.MustTry(key, owner))
		if tokens := tokensOf(holds); len(tokens) != 1 {
			e.Failf(key, "the holds of one owner have the tokens %d; expected one token for all", tokens)
		}
		if t := holds[0].Token; t <= last {
			e.Failf(key, "the token of a new outermost hold, by %s, is %d; expected more than the last, %d", first.by, t, last)
		} else {
			last = t
		}
		for _, h := range holds[1:] {
			h.MustRelease()
		}
	}
}

func reentrantExtends(e *engine.Env) {
	longer := e.Fit(4 * e.TTL)
	if longer < 3*e.TTL {
		e.Skipf("needs two TTLs, and only %s can be had", e.TTL)
	}
	lockers := 1
	if engine.ClaimServerHolds.Made(e.Settings) {
		lockers = 2
	}
	e.Each(lockers, func(i int) {
		a := e.Locker()
		entersAgain(e, e.Key("%d", i), longer, a, []*engine.Client{a, e.Locker()}[i], e.Locker())
	})
}

// entersAgain has the owner of a hold with the longer TTL enter again, by the same Locker or
// another.
func entersAgain(e *engine.Env, key string, longer time.Duration, a, enters, b *engine.Client) {
	owner := lock.WithOwner(e.Owner("A"))
	outer := a.MustTryFor(key, longer, append(unrenewed(e), owner)...)
	before := outer.Until()
	inner := enters.MustTryFor(key, e.TTL, append(unrenewed(e), owner)...)
	inner.Lapses()
	if after := outer.Until(); after.Before(before.Add(-10 * time.Millisecond)) {
		e.Latef(key, "the deadline of the outer hold moved back from %s to %s when its owner entered again with a TTL of %s",
			engine.Seconds(e.Log.At(before)), engine.Seconds(e.Log.At(after)), e.TTL)
	}
	for e.Log.Now() < inner.Gone(e) {
		b.MustRefuse(key, fmt.Sprintf("its owner holds it with a TTL of %s, and entering again with %s must not shorten that", longer, e.TTL))
		e.Pause(e.TTL / 10)
	}
	if err := outer.Release(e.Ctx); err != nil {
		e.UnexpectedLate(key, err, "Release of the outer hold returned %s; expected no error", engine.Outcome(err))
	}
	_ = inner.Release(e.Ctx)
	b.Soon(key, "both holds of its owner were released").MustRelease()
}

func reentrantOtherLocker(e *engine.Env) {
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	key := e.Key("a")
	owner := lock.WithOwner(e.Owner("A"))
	h := a.MustTry(key, owner)
	if !engine.ClaimServerHolds.Made(e.Settings) {
		b.MustRefuse(key, "holds are counted by each client, so that another client is excluded even with the same owner", owner)
		h.MustRelease()
		b.MustTry(key, owner).MustRelease()
		return
	}
	defer e.Start(func() { leavesElsewhere(e, c) })()
	again, err := b.Try(key, owner)
	if err != nil {
		e.UnexpectedFatal(key, err, "another client with the same owner got %s; expected a lease, since holds are counted on the server", engine.Outcome(err))
	}
	h.MustRelease()
	c.MustRefuse(key, "another client of its owner still holds it")
	again.MustLive("only the other client's lease was released")
	again.MustRelease()
	c.MustTry(key).MustRelease()
	// Closing one client ends its own holds only.
	h, again = a.MustTry(key, owner), b.MustTry(key, owner)
	_ = a.Close()
	c.MustRefuse(key, "only the other client of its owner was closed")
	again.MustRelease()
	c.MustTry(key).MustRelease()
	_ = h
}

// leavesElsewhere has an owner enter a key through another Locker, and leave it there. The lease of
// the first one is renewed on.
func leavesElsewhere(e *engine.Env, c *engine.Client) {
	if e.Declared("RenewKeeps", "renewal") {
		return
	}
	key, owner := e.Key("left elsewhere"), lock.WithOwner(e.Owner("A"))
	h := e.Locker().MustTryFor(key, e.TTL, owner)
	inner, err := e.Locker().TryFor(e.Ctx, key, e.TTL, owner)
	if err != nil {
		return // the other case says so
	}
	inner.MustRelease()
	staysHeld(e, h, c, "it is renewed automatically; its owner has entered and left the key through another Locker")
}

func reentrantAfterLoss(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	owner := lock.WithOwner(e.Owner("A"))
	e.Together(func() {
		key := e.Key("nobody")
		outer := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
		inner := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
		awaitLapse(e, outer)
		awaitLapse(e, inner)
		e.Expire(outer, inner)
		again := a.MustTry(key, owner)
		if engine.ClaimTokens.Made(e.Settings) && again.Token <= outer.Token {
			e.Failf(key, "the token after the loss is %d; expected more than that of the lost hold, %d", again.Token, outer.Token)
		}
		e.Is(key, inner.Release(e.Ctx), "Release of a lost hold", lock.ErrNotHeld)
		e.Is(key, outer.Release(e.Ctx), "Release of a lost hold", lock.ErrNotHeld)
		b.MustRefuse(key, "its owner has acquired it anew, and releasing lost holds must not end that")
		again.MustRelease()
		b.MustTry(key).MustRelease()
	}, func() {
		key := e.Key("somebody")
		outer := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
		awaitLapse(e, outer)
		taken := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "the owner's lease had run out").(*engine.Hold)
		a.MustRefuse(key, "somebody else has taken it since", owner)
		e.Is(key, outer.Release(e.Ctx), "Release of a lost hold", lock.ErrNotHeld)
		taken.MustRelease()
		a.MustTry(key, owner).MustRelease()
	}, func() { acquiresAnew(e) })
}

// acquiresAnew has nobody give the hold back that has run out.
func acquiresAnew(e *engine.Env) {
	if e.OpenBackend == nil || !engine.ClaimServerHolds.Made(e.Settings) || !engine.ClaimTokens.Made(e.Settings) || e.Claimed.EndsWithSession {
		return
	}
	p, key, owner := e.Backend(), e.Key("nobody, nor its client"), e.Owner("A")
	lost := p.MustTry(e.Request(key, owner, e.TTL))
	e.Expire(lost)
	again := p.MustTry(e.Request(key, owner, e.Long))
	if again.Token <= lost.Token {
		e.Failf(key, "the token of an owner whose hold has run out, and who acquires anew, is %d; expected more than that of the lost hold, %d", again.Token, lost.Token)
	}
	e.MustGiveBack(again, key, "")
}

func reentrantOverWaiters(e *engine.Env) {
	e.Together(func() { entersOverWaiters(e) }, func() { entersTogether(e) })
}

// entersTogether has two callers of one owner wait. Whoever is granted the key keeps the other
// from nothing.
func entersTogether(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key, owner := e.Key("waiters of an owner"), lock.WithOwner(e.Owner("A"))
	h := a.MustTry(key)
	waits := []*engine.Acquiring{b.Acquiring(key, owner), b.Acquiring(key, owner)}
	e.Settle()
	h.MustRelease()
	held := make([]*engine.Hold, len(waits))
	e.Each(len(waits), func(i int) {
		held[i] = waits[i].MustGet(e, key, e.WaitBound(), "its holder has released it, and whoever has it now is of the same owner")
	})
	for _, h := range held {
		h.MustRelease()
	}
}

func entersOverWaiters(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("a")
	owner, other := lock.WithOwner(e.Owner("A")), lock.WithOwner(e.Owner("B"))
	h := a.MustTry(key, owner)
	var got []chan struct{}
	var waits []func()
	for _, w := range []struct {
		c    *engine.Client
		more []lock.Option
	}{{a, nil}, {b, nil}, {a, []lock.Option{other}}} {
		done := make(chan struct{})
		got = append(got, done)
		waits = append(waits, e.Start(func() {
			h := w.c.MustWait(e.Ctx, key, w.more...)
			close(done)
			h.MustRelease()
		}))
	}
	e.Pause(50 * time.Millisecond) // the waiters take their places, or not: the rule holds in any case
	for _, op := range []string{"TryAcquire", "Acquire"} {
		entered := make(chan struct{})
		var again *engine.Hold
		wait := e.Start(func() {
			if op == "Acquire" {
				again = a.MustAcquire(key, owner)
			} else {
				again = a.MustTry(key, owner)
			}
			close(entered)
		})
		if !e.Within(e.Slack(), entered) {
			e.OverdueFatalf(key, "%s by the owner of the key had not returned after %s, with others waiting; expected it to enter again at once", op, e.Slack())
		}
		wait()
		again.MustRelease()
	}
	for _, done := range got {
		select {
		case <-done:
			e.Failf(key, "a waiter was granted the key before its owner had released it")
		default:
		}
	}
	h.MustRelease()
	for _, wait := range waits {
		wait()
	}
}

func reentrantOwnLeases(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("a")
	owner := lock.WithOwner(e.Owner("A"))
	ctx, cancel := context.WithCancel(e.Ctx)
	outer, err := a.Acquire(ctx, key, owner)
	if err != nil {
		e.UnexpectedFatal(key, err, "Acquire of a free key returned %s; expected a lease", engine.Outcome(err))
	}
	inner := a.MustTry(key, owner)
	cancel()
	outer.MustRelease() // the outer one first
	if !errors.Is(outer.Cause(), lock.ErrReleased) {
		e.Failf(key, "context.Cause of the released lease is %s; expected ErrReleased", engine.Outcome(outer.Cause()))
	}
	inner.MustLive("only another lease of its owner was released")
	if e.Claimed.ManualRenewal {
		if err := inner.Renew(); err != nil {
			e.Unexpected(key, err, "Renew of the remaining lease returned %s; expected no error", engine.Outcome(err))
		}
		e.Is(key, outer.Renew(), "Renew of the released lease", lock.ErrNotHeld)
	}
	b.MustRefuse(key, "one lease of its owner is left")
	inner.MustRelease()
	b.MustTry(key).MustRelease()
}

func reentrantLimit(e *engine.Env) {
	e.Together(func() { reachesLimit(e) }, func() { endedHoldsAreFree(e) }, func() { expiredHoldsAreFree(e) })
}

func reachesLimit(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("a")
	owner := lock.WithOwner(e.Owner("A"))
	var holds []*engine.Hold
	for i := range backend.MaxHolds {
		h, err := a.Try(key, owner)
		if err != nil {
			e.UnexpectedFatal(key, err, "hold %d of %d was refused: %s", i+1, backend.MaxHolds, engine.Outcome(err))
		}
		if len(holds) > 0 && h.Lease.Token() != holds[0].Lease.Token() {
			e.Failf(key, "hold %d of an owner has the token %d; expected that of the first, %d", i+1, h.Lease.Token(), holds[0].Lease.Token())
		}
		holds = append(holds, h)
	}
	for _, w := range ways[:2] {
		h, err := w.get(a, key, e.Long, owner)
		if err != nil {
			what := fmt.Sprintf("%s for hold %d of one owner", w.name, backend.MaxHolds+1)
			e.Is(key, err, what, lock.ErrTooManyHolds)
			not(e, key, err, what, lock.ErrHeld, lock.ErrNotHeld, lock.ErrUnavailable)
			continue
		}
		_ = h.Release(e.Ctx)
		for _, earlier := range holds {
			earlier.MustLive("it is renewed automatically, and counts")
		}
		e.Failf(key, "hold %d was granted by %s; expected a refusal", backend.MaxHolds+1, w.name)
	}
	if h, err := a.Try(e.Key("another"), owner); err != nil {
		e.Unexpected(key, err, "the owner with %d holds on this key tried another one, and that returned %s; expected a lease, since holds are counted by key", backend.MaxHolds, engine.Outcome(err))
	} else {
		h.MustRelease()
	}
	holds[0].MustRelease()
	again, err := a.Try(key, owner)
	if err != nil {
		e.UnexpectedFatal(key, err, "an owner with %d holds released one, and its next try returned %s; expected a lease", backend.MaxHolds, engine.Outcome(err))
	}
	holds[0] = again
	b.MustRefuse(key, "its owner holds it")
	e.EachFew(len(holds), func(i int) { holds[i].MustRelease() })
	b.MustTry(key).MustRelease()
}

// endedHoldsAreFree has all holds but one of an owner run out.
func endedHoldsAreFree(e *engine.Env) {
	if !e.Claimed.WithoutRenewal {
		return
	}
	a, key, owner := e.Locker(), e.Key("run out"), lock.WithOwner(e.Owner("A"))
	kept := a.MustTry(key, owner)
	short := make([]*engine.Hold, backend.MaxHolds-1)
	e.EachFew(len(short), func(i int) {
		h, err := a.TryFor(e.Ctx, key, e.TTL, owner, lock.WithoutRenewal())
		if err != nil {
			e.UnexpectedFatal(key, err, "an owner with less than %d holds tried its key once more, which returned %s; expected a lease", backend.MaxHolds, engine.Outcome(err))
		}
		short[i] = h
		h.Lapses()
	})
	e.Each(len(short), func(i int) {
		awaitLapse(e, short[i])
		e.Expire(short[i])
	})
	again, err := a.Try(key, owner)
	if err != nil {
		e.UnexpectedFatal(key, err, "a try by an owner of whose %d holds all but one have run out returned %s; expected a lease", backend.MaxHolds, engine.Outcome(err))
	}
	again.MustRelease()
	kept.MustRelease()
}

// expiredHoldsAreFree is endedHoldsAreFree where no client gives a hold back that has run out.
func expiredHoldsAreFree(e *engine.Env) {
	if e.OpenBackend == nil || !engine.ClaimServerHolds.Made(e.Settings) || e.Claimed.EndsWithSession || e.Long < 4*e.TTL {
		return
	}
	p, key, owner := e.Backend(), e.Key("expired"), e.Owner("A")
	kept := p.MustTry(e.Request(key, owner, e.Long))
	short := make([]*engine.Grant, backend.MaxHolds-1)
	e.EachFew(len(short), func(i int) {
		h, err := p.Try(e.Request(key, owner, e.TTL))
		if err != nil {
			e.UnexpectedFatal(key, err, "an owner with less than %d holds tried its key once more, which returned %s; expected a grant", backend.MaxHolds, engine.Outcome(err))
		}
		short[i] = h
		h.Lapses()
	})
	for _, h := range short {
		e.Expire(h)
	}
	again, err := p.Try(e.Request(key, owner, e.Long))
	if err != nil {
		e.UnexpectedFatal(key, err, "a request by an owner of whose %d holds all but one have expired returned %s; expected a grant", backend.MaxHolds, engine.Outcome(err))
	}
	e.MustGiveBack(again, key, "")
	e.MustGiveBack(kept, key, "")
}

func reentrantModel(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	clients := []*engine.Client{a, b}
	if !engine.ClaimServerHolds.Made(e.Settings) {
		clients = []*engine.Client{a, a}
	}
	owners := []string{e.Owner("A"), e.Owner("B"), ""}
	runs := e.Rounds(e.Work(200*time.Millisecond), 3, 60)
	for run := range runs {
		key := e.Key("%d", run)
		var holds []*engine.Hold
		holder := -1 // who holds the key in the model
		for range 40 {
			who := int(e.Random(int64(len(owners))))
			if len(holds) > 0 && e.Random(5) < 2 {
				i := int(e.Random(int64(len(holds))))
				holds[i].MustRelease()
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
			c := clients[e.Random(2)]
			if holder < 0 || holder == who && owners[who] != "" {
				holds = append(holds, c.MustTry(key, more...))
				holder = who
				continue
			}
			c.MustRefuse(key, "another owner has unreleased leases", more...)
		}
		if engine.ClaimTokens.Made(e.Settings) && len(tokensOf(holds)) > 1 {
			e.Failf(key, "the holds of one owner have the tokens %d; expected one", tokensOf(holds))
		}
		for _, h := range holds {
			h.MustRelease()
		}
		if e.Failed() {
			return
		}
		clients[run%2].MustTry(key).MustRelease() // all have been given back
	}
}
