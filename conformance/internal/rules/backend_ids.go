package rules

import (
	"fmt"
	"slices"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func tryIdempotent(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	owners := []string{""}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owners = append(owners, e.Owner("A"))
	}
	for i, owner := range owners {
		key := e.Key("%d", i)
		req := e.Request(key, owner, e.Long)
		first := a.MustTry(req)
		for range 3 {
			again, err := a.Try(req)
			if err != nil {
				e.UnexpectedFatal(key, err, "the same request, sent again, returned %s; expected the same grant", engine.Outcome(err))
			}
			if again.Answer.Token != first.Answer.Token || again.Answer.Holds != first.Answer.Holds {
				e.Failf(key, "the same request, sent again, was granted token %d and %d holds; expected token %d and %d holds",
					again.Answer.Token, again.Answer.Holds, first.Answer.Token, first.Answer.Holds)
			}
		}
		if first.Answer.Holds != 1 {
			e.Failf(key, "the first grant says %d holds; expected 1", first.Answer.Holds)
		}
		b.MustRefuse(key, "it was granted and not released")
		if err := first.Release(e.Ctx); err != nil {
			e.Unexpected(key, err, "Release returned %s; expected no error", engine.Outcome(err))
		}
		b.MustTry(e.Request(key, "", e.Long))
	}
	e.Together(func() { eachGrantKind(e, func(k grantKind) { repeatOfKind(e, k, a, b) }) },
		func() { eachGrantKind(e, func(k grantKind) { lateRepeat(e, k, a, b) }) },
		func() { repeatOfExpired(e, a) }, func() { repeatOfInner(e, a, b) })
}

// repeatOfInner repeats the request of an owner's inner hold when the outermost one was released.
func repeatOfInner(e *engine.Env, a, b *engine.BackendClient) {
	if !engine.ClaimServerHolds.Made(e.Settings) {
		return
	}
	key, owner := e.Key("repeated without the outermost"), e.Owner("A")
	outer, req := a.MustTry(e.Request(key, owner, e.Long)), e.Request(key, owner, e.Long)
	inner := b.MustTry(req)
	e.MustGiveBack(outer, key, "")
	again, err := b.Try(req)
	switch {
	case err != nil:
		e.UnexpectedFatal(key, err, "the request of an owner's inner hold, sent again after the release of the outermost one, returned %s; expected the same grant", engine.Outcome(err))
	case again.Answer.Token != inner.Answer.Token || again.Answer.Holds != 1:
		e.Failf(key, "the request of an owner's inner hold, sent again after the release of the outermost one, was granted token %d and %d holds; expected token %d and 1 hold",
			again.Answer.Token, again.Answer.Holds, inner.Answer.Token)
	}
	e.MustGiveBack(inner, key, ", since one release ends what was granted to several requests with one id")
	freed(e, key, nil, a)
}

// repeatOfKind repeats the request of a hold in all the forms that a repeat may have, and of
// those that there are no more.
func repeatOfKind(e *engine.Env, k grantKind, a, b *engine.BackendClient) {
	key := e.Key("repeated-%s", k.name)
	id, others := neighbours()
	req := e.Request(key, k.owner, e.Long)
	req.ID = id
	h, beside := k.take(a, b, req)
	holds := 1
	if beside != nil {
		holds = 2
	}
	same := func(what string, req backend.Request) {
		got, err := a.Try(req)
		switch {
		case err != nil:
			e.UnexpectedFatal(key, err, "the same request, sent again %s, returned %s; expected the same grant", what, engine.Outcome(err))
		case got.Answer.Token != h.Answer.Token || got.Answer.Holds != holds:
			e.Failf(key, "the same request, sent again %s, was granted token %d and %d holds; expected token %d and %d holds",
				what, got.Answer.Token, got.Answer.Holds, h.Answer.Token, holds)
		}
	}
	e.Each(4, func(int) { same("several times at once", req) })
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err != nil {
			e.Unexpected(key, err, "Renew of a hold returned %s; expected no error", engine.Outcome(err))
		}
		same("after a renewal", req)
	}
	if k.owner == "" {
		for what, other := range others {
			near := req
			near.ID = other
			b.MustRefuseRequest(near, "its holder's id differs, if only "+what)
		}
	}
	e.MustGiveBack(h, key, ", since one release ends what was granted to several requests with one id")
	freed(e, key, beside, b)
	// Nor does an answer that was given before count any more.
	next := b.MustTry(e.Request(key, "", e.Long))
	a.MustRefuseRequest(req, "another client has got it since its release")
	e.MustGiveBack(next, key, "")
	repeatAtOnce(e, k, a, b)
	// What was refused is granted when the key is free.
	before := b.MustTry(e.Request(key, "", e.Long))
	req = e.Request(key, k.owner, e.Long)
	a.MustRefuseRequest(req, "another client holds it")
	e.MustGiveBack(before, key, "")
	e.MustGiveBack(a.MustTry(req), key, "")
}

// repeatAtOnce sends one request for a free key several times at once. One that overtakes the
// first may be refused: the key is being granted, and to nobody else.
func repeatAtOnce(e *engine.Env, k grantKind, a, b *engine.BackendClient) {
	key := e.Key("at-once-%s", k.name)
	req := e.Request(key, k.owner, e.Long)
	all := make([]*engine.Grant, 6)
	e.Each(len(all), func(i int) {
		h, err := a.Try(req)
		if err != nil {
			e.JudgeRefusal(key, "Try", "the same request was faster", nil, err)
			return
		}
		all[i] = h
	})
	all = slices.DeleteFunc(all, func(h *engine.Grant) bool { return h == nil })
	if len(all) == 0 {
		e.Fatalf(key, "a request for a free key, sent several times at once, was refused each time; expected a grant")
	}
	for _, h := range all {
		if h.Answer.Token != all[0].Answer.Token || h.Answer.Holds != 1 {
			e.Failf(key, "one request, sent several times at once, was granted token %d and %d holds, and token %d; expected one token and 1 hold",
				h.Answer.Token, h.Answer.Holds, all[0].Answer.Token)
		}
	}
	e.MustGiveBack(all[0], key, ", since one release ends what was granted to several requests with one id")
	freed(e, key, nil, b)
}

// innerKeepsTTL has an owner enter its hold for longer, and renews the inner hold when the
// outer one has run out.
func innerKeepsTTL(e *engine.Env, a, b *engine.BackendClient, key string, renew func(h *engine.Grant) error) {
	longer := e.Fit(2 * e.TTL)
	if !engine.ClaimServerHolds.Made(e.Settings) || !e.Claimed.ManualRenewal || longer < 2*e.TTL || e.Claimed.EndsWithSession {
		return
	}
	owner := e.Owner("A")
	outer, inner := a.MustTry(e.Request(key, owner, e.TTL)), a.MustTry(e.Request(key, owner, longer))
	outer.Lapses()
	e.Pause(e.TTL * 3 / 2)
	if err := renew(inner); err != nil {
		e.UnexpectedLateFatal(key, err, "a renewal of an inner hold, %s after its grant with a TTL of %s, returned %s; expected no error", e.TTL*3/2, longer, engine.Outcome(err))
	}
	e.Pause(e.TTL * 5 / 4) // longer than a renewal by the TTL of the outer hold would last
	b.MustRefuse(key, "its owner's inner hold was renewed by its own TTL, which is longer than that of the outer one")
	if err := inner.Release(e.Ctx); err != nil {
		e.UnexpectedLate(key, err, "Release of an inner hold that was renewed in time returned %s; expected no error", engine.Outcome(err))
	}
}

// lateRepeat repeats a request late. A repeat that says that the hold lasts for longer has
// made it last.
func lateRepeat(e *engine.Env, k grantKind, a, b *engine.BackendClient) {
	key := e.Key("late-%s", k.name)
	req := e.Request(key, k.owner, e.TTL)
	first, beside := k.take(a, b, req)
	first.Lapses()
	e.Pause(e.TTL / 2)
	late, err := a.Try(req)
	if err != nil {
		e.LateFatalf(key, "the same request, sent again after half of its TTL, returned %s; expected the same grant", engine.Outcome(err))
	}
	if beside != nil {
		e.MustGiveBack(beside, key, "")
	}
	deadline := late.Until()
	next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "its holder did not renew it, and has sent its request twice")
	if now := time.Now(); now.Before(deadline) {
		e.Failf(key, "another client was granted the key %s before the deadline that the repeat of a request was told; expected nobody to get it before", engine.Short(deadline.Sub(now)))
	}
	_ = next.Release(e.Ctx)
}

// repeatOfExpired repeats the request of a hold that has run out. It is granted anew, if at all.
func repeatOfExpired(e *engine.Env, a *engine.BackendClient) {
	if !e.Virtual() || e.Claimed.EndsWithSession || !engine.ClaimTokens.Made(e.Settings) { // a session keeps the hold
		return
	}
	key := e.Key("ran out, and once more")
	req := e.Request(key, "", e.TTL)
	h := a.MustTry(req)
	e.Expire(h)
	g, err := a.Backend.Try(e.Ctx, req)
	if err != nil {
		return // who is not granted it can't mistake it for the hold
	}
	if g.Token <= h.Token {
		e.Latef(key, "the request of a hold with the token %d came once more when that had run out, and was granted the token %d; expected a larger one, since it is another hold", h.Token, g.Token)
	}
	_ = a.Backend.Release(e.Ctx, backend.HoldOf(req))
}

// again repeats what goes wrong at times only, for as long as the case has, and no
// longer than its holds last.
func again(e *engine.Env, f func()) {
	for end, n := time.Now().Add(min(e.Window(), e.Long/4)), 0; n < 3 || n < 500 && time.Now().Before(end); n++ {
		if f(); e.Failed() {
			return
		}
	}
}

func releaseByID(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	e.Together(func() { eachGrantKind(e, func(k grantKind) { releaseOfKind(e, k, a, b); releaseRenewed(e, k, a, b) }) },
		func() {
			if !e.Claimed.EndsWithSession { // whose session keeps it
				eachGrantKind(e, func(k grantKind) {
					afterExpiry(e, k, a, b, "Release", func(h *engine.Grant) error { return h.Release(e.Ctx) })
				})
			}
		},
		func() { releaseManyLater(e, a, b) })
}

// releaseManyLater releases a hold that ran out hundreds of grants ago, whose number a small
// counter gives again.
func releaseManyLater(e *engine.Env, a, b *engine.BackendClient) {
	if !e.Virtual() || e.Claimed.EndsWithSession {
		return
	}
	key := e.Key("grants later")
	first := a.MustTry(e.Request(key, "", e.TTL))
	e.Expire(first)
	for n := range 300 {
		h := b.MustTry(e.Request(key, "", e.Long))
		what := fmt.Sprintf("Release of a hold that ran out, %d grants later,", n+1)
		e.Is(key, a.Release(e.Ctx, first.Hold), what, backend.ErrNotHeld)
		e.MustGiveBack(h, key, ", of which a hold that had run out was released before")
	}
}

func releaseOfKind(e *engine.Env, k grantKind, a, b *engine.BackendClient) {
	key := e.Key("%s", k.name)
	id, others := neighbours()
	req := e.Request(key, k.owner, e.Long)
	req.ID = id
	h, beside := k.take(a, b, req)
	for what, other := range others {
		near := h.Hold
		near.ID = other
		e.Is(key, b.Release(e.Ctx, near), "Release with an id that differs from the holder's only "+what, backend.ErrNotHeld)
	}
	again(e, func() {
		for _, s := range []*engine.BackendClient{a, b} {
			e.Is(key, s.Release(e.Ctx, engine.Stranger(h.Hold)), "Release with an unknown acquisition id", backend.ErrNotHeld)
			s.MustRefuse(key, "only an unknown id was released")
		}
	})
	elsewhere := h.Hold
	elsewhere.Key = e.Key("never-held")
	e.Is(elsewhere.Key, a.Release(e.Ctx, elsewhere), "Release of a key that was never held", backend.ErrNotHeld)
	if t := able[backend.ReleaseTeller](a, "ReleaseTeller"); t != nil {
		_, err := t.ReleaseTelling(e.Ctx, elsewhere)
		e.Is(elsewhere.Key, err, "ReleaseTelling of a key that was never held, with the id of another key's hold,", backend.ErrNotHeld)
	}
	// Clean-up after an unknown outcome knows no token.
	clean := h.Hold
	clean.Token = 0
	if err := h.EndedBy(e, func() error { return a.Release(e.Ctx, clean) }); err != nil {
		e.Unexpected(key, err, "Release of a hold whose token is not known returned %s; expected no error", engine.Outcome(err))
	}
	only(e, key, "the second Release", h.Release(e.Ctx), lock.ErrNotHeld)
	freed(e, key, beside, b)
	only(e, key, "Release of a hold after its key is free again", h.Release(e.Ctx), lock.ErrNotHeld)
	if k.owner == "" {
		return
	}
	next := a.MustTry(e.Request(key, k.owner, e.Long))
	only(e, key, "Release of an earlier hold of the owner", h.Release(e.Ctx), lock.ErrNotHeld)
	freed(e, key, next, b)
}

// releaseRenewed releases a hold that was renewed as the clean-up does that knows no token.
func releaseRenewed(e *engine.Env, k grantKind, a, b *engine.BackendClient) {
	if !e.Claimed.ManualRenewal {
		return
	}
	key := e.Key("renewed-%s", k.name)
	h, beside := k.take(a, b, e.Request(key, k.owner, e.Long))
	if err := h.Renew(); err != nil {
		e.UnexpectedLateFatal(key, err, "Renew of a hold returned %s; expected no error", engine.Outcome(err))
	}
	clean := h.Hold
	clean.Token = 0
	if err := h.EndedBy(e, func() error { return a.Release(e.Ctx, clean) }); err != nil {
		e.Unexpected(key, err, "Release of a hold that was renewed, and whose token is not told, returned %s; expected no error, since its id names it", engine.Outcome(err))
	}
	freed(e, key, beside, b)
}

// afterExpiry calls the operation for a hold that has run out.
func afterExpiry(e *engine.Env, k grantKind, a, b *engine.BackendClient, op string, call func(h *engine.Grant) error) {
	if e.Long < 3*e.TTL {
		return
	}
	key := e.Key("expired-%s", k.name)
	h, beside := k.take(a, b, e.Request(key, k.owner, e.TTL))
	e.Expire(h)
	e.Is(key, call(h), op+" of a hold that has run out", backend.ErrNotHeld)
	freed(e, key, beside, b)
	// The key has a record again, of the same owner.
	next := a.MustTry(e.Request(key, k.owner, e.Long))
	if k.owner == "" {
		e.Is(key, call(h), op+" of a hold that has run out, of a key that is held again,", backend.ErrNotHeld)
	} else {
		e.Is(key, call(h), op+" of a hold that has run out, of a key that its owner holds again,", backend.ErrNotHeld)
	}
	freed(e, key, next, b)
}

func renewByID(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	e.Together(func() { eachGrantKind(e, func(k grantKind) { renewOfKind(e, k, a, b) }) },
		func() { innerKeepsTTL(e, a, b, e.Key("inner and outer"), (*engine.Grant).Renew) },
		func() { renewLonger(e, a, b, e.Key("for longer")) },
		func() { renewShorter(e, a, b, e.Key("for less long")) },
		func() {
			if !e.Claimed.EndsWithSession {
				eachGrantKind(e, func(k grantKind) { afterExpiry(e, k, a, b, "Renew", (*engine.Grant).Renew) })
			}
		})
	free := e.Key("free")
	_, err := a.Renew(backend.HoldOf(e.Request(free, "", e.Long)))
	only(e, free, "Renew of a key that was never held", err, lock.ErrNotHeld)
	b.MustTry(e.Request(free, "", e.Long))
}

// renewLonger renews a hold by a TTL that is longer than the one of its grant.
func renewLonger(e *engine.Env, a, b *engine.BackendClient, key string) {
	longer := e.Fit(3 * e.TTL)
	if !e.Claimed.ManualRenewal || e.Claimed.EndsWithSession || longer < 3*e.TTL {
		return
	}
	h := a.MustTry(e.Request(key, "", e.TTL))
	h.Lapses()
	hold := h.Hold
	hold.TTL = longer
	until := time.Now().Add(backend.ValidFor(longer))
	v, err := a.Renew(hold)
	if err != nil {
		e.Latef(key, "Renew of a hold returned %s; expected no error", engine.Outcome(err))
		return
	}
	if v.For > 0 {
		e.Pause(e.TTL*3/2 + min(e.Claimed.TakeoverLag, e.TTL))
		g, err := b.Try(e.Request(key, "", e.Long))
		if now := time.Now(); err == nil && now.Before(until) {
			e.Failf(key, "another client was granted the key %s before the end of a renewal by %s; the hold was renewed by that, and its first TTL was %s", engine.Short(until.Sub(now)), longer, e.TTL)
		}
		if err == nil {
			_ = g.Release(e.Ctx)
		}
	}
	_ = h.Release(e.Ctx)
}

// renewShorter renews a hold by a TTL that is shorter than the one of its grant, whose end it may
// have nevertheless. What the renewal says of its end is true.
func renewShorter(e *engine.Env, a, b *engine.BackendClient, key string) {
	longer := e.Fit(2 * e.TTL)
	if !e.Claimed.ManualRenewal || e.Claimed.EndsWithSession || longer < 2*e.TTL {
		return
	}
	h := a.MustTry(e.Request(key, "", longer))
	h.Lapses()
	e.Pause(e.TTL / 2)
	hold := h.Hold
	hold.TTL = e.TTL
	v, err := a.Renew(hold)
	if err != nil {
		e.UnexpectedLateFatal(key, err, "Renew of a hold by a TTL that is shorter than that of its grant returned %s; expected no error", engine.Outcome(err))
	}
	e.Pause(time.Until(h.Until()) + e.TTL/4)
	g, err := b.Try(e.Request(key, "", e.Long))
	if left := v.Until().Sub(a.Clock.Now()); err == nil && left > 0 {
		e.Failf(key, "another client was granted the key %s before the end that a renewal by %s was told, of a hold that was granted with a TTL of %s; expected what the server keeps", engine.Short(left), e.TTL, longer)
	}
	if err == nil {
		_ = g.Release(e.Ctx)
	}
	_ = h.Release(e.Ctx)
}

func renewOfKind(e *engine.Env, k grantKind, a, b *engine.BackendClient) {
	key := e.Key("%s", k.name)
	id, others := neighbours()
	req := e.Request(key, k.owner, e.Long)
	req.ID = id
	h, beside := k.take(a, b, req)
	for what, other := range others {
		near := h.Hold
		near.ID = other
		_, err := b.Renew(near)
		e.Is(key, err, "Renew with an id that differs from the holder's only "+what, backend.ErrNotHeld)
	}
	again(e, func() {
		_, err := b.Renew(engine.Stranger(h.Hold))
		e.Is(key, err, "Renew with an unknown acquisition id", backend.ErrNotHeld)
	})
	elsewhere := h.Hold
	elsewhere.Key = e.Key("never-held by %s", k.name)
	_, err := a.Renew(elsewhere)
	e.Is(elsewhere.Key, err, "Renew of a key that was never held, with the id of another key's hold,", backend.ErrNotHeld)
	if err := h.Renew(); err != nil {
		e.Unexpected(key, err, "Renew of a hold returned %s; expected no error", engine.Outcome(err))
	}
	e.MustGiveBack(h, key, "")
	_, err = a.Renew(h.Hold)
	e.Is(key, err, "Renew after Release", backend.ErrNotHeld)
	freed(e, key, beside, b)
}
