package rules

import (
	"errors"
	"fmt"
	"math"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// otherTokens are tokens that nobody has who holds the key with the token: neighbours, such
// as are "any" where a number has a sign, and such as are the same in 32 bits.
func otherTokens(token uint64) []uint64 {
	return []uint64{0, token - 1, token + 1, token + 1<<32, tooLarge, math.MaxUint64}
}

func forceReleaseByToken(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	f := optional[backend.ForceReleaser](b, "ForceReleaser")
	if !engine.ClaimTokens.Made(e.Settings) {
		e.Skipf("needs tokens to name a record by, and none are claimed")
	}
	key := e.Key("a")
	force := func(token uint64) error {
		ev := e.Log.Begin(b.Who, "ForceRelease", key)
		err := f.ForceRelease(e.Ctx, key, token)
		e.Log.End(ev, fmt.Sprintf("token %d: %s", token, engine.Outcome(err)))
		return err
	}
	e.Is(key, force(1), "ForceRelease of a free key", backend.ErrNotHeld)
	h := a.MustTry(e.Request(key, "", e.Long))
	beside := make([]*engine.Grant, 0, 3)
	for _, name := range []string{key + "/b", key + "b", e.Key("A")} {
		beside = append(beside, a.MustTry(e.Request(name, "", e.Long)))
	}
	for _, other := range otherTokens(h.Token) {
		e.Is(key, force(other), "ForceRelease with another token", backend.ErrNotHeld)
		b.MustRefuse(key, "it was released by force with another token only")
	}
	free := e.Key("free")
	e.Is(free, f.ForceRelease(e.Ctx, free, h.Token), "ForceRelease of a free key with the token of another key's holder", backend.ErrNotHeld)
	b.MustRefuse(key, "another key was released by force with its token only")
	if err := h.EndedBy(e, func() error { return force(h.Token) }); err != nil {
		e.UnexpectedFatal(key, err, "ForceRelease with the token of the holder returned %s; expected no error", engine.Outcome(err))
	}
	if in, ok := backend.As[backend.Inspector](b.Backend); ok {
		for range 2 {
			_, err := in.Inspect(e.Ctx, key)
			e.Is(key, err, "Inspect of a key whose hold was removed by force", backend.ErrNotHeld)
		}
	}
	for _, other := range beside {
		e.MustGiveBack(other, other.Key, ", although another key was removed by force")
	}
	next := b.MustTry(e.Request(key, "", e.Long))
	if next.Token <= h.Token {
		e.Failf(key, "the token after a hold was removed by force is %d; expected more than %d", next.Token, h.Token)
	}
	if e.Claimed.ManualRenewal {
		if _, err := a.Renew(h.Hold); err == nil || !errors.Is(err, backend.ErrNotHeld) {
			e.Unexpected(key, err, "Renew of a hold that was removed by force returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
	}
	e.Is(key, a.Release(e.Ctx, h.Hold), "Release of a hold that was removed by force", backend.ErrNotHeld)
	e.Is(key, force(h.Token), "ForceRelease with the token of the earlier holder", backend.ErrNotHeld)
	a.MustRefuse(key, "its holder was not released")
	if err := next.Release(e.Ctx); err != nil {
		e.Unexpected(key, err, "Release by the next holder returned %s; expected no error", engine.Outcome(err))
	}
	forceEndsAll(e, a, b, f)
	if !e.Claimed.EndsWithSession { // whose session keeps it
		key = e.Key("expired")
		h := a.MustTry(e.Request(key, "", e.TTL))
		e.Expire(h)
		e.Is(key, force(h.Token), "ForceRelease of a hold that has expired", backend.ErrNotHeld)
	}
}

// forceEndsAll removes records that are more than one hold, several of one key, and one that was
// revoked.
func forceEndsAll(e *engine.Env, a, b *engine.BackendClient, f backend.ForceReleaser) {
	end := func(key, what, next string, holds ...*engine.Grant) {
		for _, h := range holds {
			h.Releasing(e.Log.Now())
		}
		if err := f.ForceRelease(e.Ctx, key, holds[0].Token); err != nil {
			e.Unexpected(key, err, "ForceRelease of %s returned %s; expected no error", what, engine.Outcome(err))
			return
		}
		if next, err := b.Try(e.Request(key, next, e.Long)); err != nil {
			e.Unexpected(key, err, "%s was removed by force, and a try returned %s; expected a grant", what, engine.Outcome(err))
		} else {
			if next.Answer.Holds != 1 {
				e.Failf(key, "the grant after %s was removed by force says %d holds; expected 1, since nothing is left of what was removed", what, next.Answer.Holds)
			}
			if next.Token <= holds[0].Token {
				e.Failf(key, "the token after %s was removed by force is %d; expected more than %d", what, next.Token, holds[0].Token)
			}
			e.MustGiveBack(next, key, "")
			forcedIsOver(e, a, what, holds)
		}
	}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owner := e.Owner("A")
		for name, next := range map[string]string{"nobody": "", "the owner": owner, "another owner": e.Owner("B")} {
			key := e.Key("owner, and then %s", name)
			end(key, "a key that its owner holds twice", next, a.MustTry(e.Request(key, owner, e.Long)), a.MustTry(e.Request(key, owner, e.Long)))
		}
	}
	key, last := e.Key("again and again"), uint64(0)
	for range 3 {
		h := a.MustTry(e.Request(key, "", e.Long))
		if h.Token <= last {
			e.Failf(key, "the token after holds of one key were removed by force again and again is %d, and that of the last one was %d; expected more", h.Token, last)
		}
		last = h.Token
		if err := h.EndedBy(e, func() error { return f.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
			e.UnexpectedFatal(key, err, "ForceRelease with the token of the holder returned %s; expected no error", engine.Outcome(err))
		}
		_ = a.Backend.Release(e.Ctx, h.Hold) // who has lost a hold drops what it keeps of it
	}
	if inner := innerOnly(e, a, e.Key("inner")); inner != nil {
		end(inner.Key, "a key whose outermost hold has run out, and that its owner holds by another one,", "", inner)
	}
	if _, ok := backend.As[backend.Queuer](b.Backend); ok {
		forceLeavesPlaces(e, a, b, f)
	}
	if r, ok := backend.As[backend.Revoker](b.Backend); ok && e.Claimed.Expiry != backend.ClockConnection {
		key := e.Key("revoked")
		h := a.MustTry(e.Request(key, "", e.Long))
		if err := r.Revoke(e.Ctx, key, h.Token); err == nil {
			end(key, "a hold that was revoked", "", h)
		}
	}
}

// forcedIsOver renews each of the holds of a record that was removed by force.
func forcedIsOver(e *engine.Env, a *engine.BackendClient, what string, holds []*engine.Grant) {
	if !e.Claimed.ManualRenewal {
		return
	}
	for i, h := range holds {
		_, err := a.Renew(h.Hold)
		e.Is(h.Key, err, fmt.Sprintf("Renew of hold %d of %s, which was removed by force,", i+1, what), backend.ErrNotHeld)
	}
}

// forceLeavesPlaces removes a hold that others wait behind, and one that has run out.
func forceLeavesPlaces(e *engine.Env, a, b *engine.BackendClient, f backend.ForceReleaser) {
	for _, runsOut := range []bool{false, true} {
		if runsOut && e.Claimed.EndsWithSession {
			continue // its session keeps it
		}
		key, ttl := e.Key("waited for, runs out %t", runsOut), e.Long
		if runsOut {
			ttl = e.TTL
		}
		h := a.MustTry(e.Request(key, "", ttl))
		first := enqueue(e, b, key, e.Long).waiting(e)
		var second *place
		if e.Claimed.Fair { // else it may come first
			second = enqueue(e, a, key, e.Long).waiting(e)
		}
		if runsOut {
			e.Expire(h)
			first.mustGet(e, "the hold before it has run out")
			e.Is(key, f.ForceRelease(e.Ctx, key, h.Token), "ForceRelease of a hold that has run out", backend.ErrNotHeld)
		} else {
			if err := h.EndedBy(e, func() error { return f.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
				e.UnexpectedFatal(key, err, "ForceRelease of a hold that others wait behind returned %s; expected no error", engine.Outcome(err))
			}
			first.mustGet(e, "the hold before it was removed by force")
		}
		if second == nil {
			b.MustRefuse(key, "it was granted to a place in the queue")
			first.withdraw(e)
			continue
		}
		second.mustWait(e, "an earlier place holds the key")
		first.withdraw(e)
		second.mustGet(e, "the place before it was withdrawn, and only the hold before that was removed by force")
		second.withdraw(e)
	}
}
