package rules

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func forgetLeavesOthers(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	f := optional[backend.Forgetter](b, "Forgetter")
	forget := func(prefix string) error {
		ev := e.Log.Begin(b.Who, "Forget", prefix)
		err := f.Forget(e.Ctx, prefix)
		e.Log.End(ev, engine.Outcome(err))
		return err
	}
	// Brackets, stars and the like have a meaning in some servers' patterns.
	prefix := e.Key("%s", "forg_t%n*?[a]\u00e9/ ")
	free, held := prefix+"free", prefix+"held"
	others := map[string]uint64{}
	for _, name := range []string{"other", "forg_t%n*?[a]\u00e9/", "FORG_T%N*?[A]\u00c9/ free", "forgXtYn*?[a]\u00e9/ free", "forg_t%nXYa\u00e9/ free",
		"forg_t%n*?[a]e/ free", "forg_t%n*?[a]e\u0301/ free", "forg_t%n*?[a]\u00e9/free", "forg_t%n*?[a]\u00e9/!"} {
		others[e.Key("%s", name)] = 0
	}
	used := func(key string) *engine.Grant {
		h := a.MustTry(e.Request(key, "", e.Long))
		e.MustGiveBack(h, key, "")
		return h
	}
	used(free)
	for key := range others {
		others[key] = used(key).Token
	}
	h, whole := a.MustTry(e.Request(held, "", e.Long)), a.MustTry(e.Request(prefix, "", e.Long))
	e.Is(prefix, forget(""), "Forget without a prefix, which would be that of all keys,", backend.ErrInvalid)
	if err := forget(prefix); err != nil {
		e.UnexpectedFatal(prefix, err, "Forget returned %s; expected no error", engine.Outcome(err))
	}
	b.MustRefuse(held, "it is held, and only what is kept of unused keys was forgotten")
	b.MustRefuse(prefix, "it is held, and only what is kept of unused keys that begin with it was forgotten")
	e.MustGiveBack(whole, prefix, ", although only what is kept of unused keys was forgotten")
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err != nil {
			e.Unexpected(held, err, "Renew of a held key returned %s after unused keys were forgotten; expected no error", engine.Outcome(err))
		}
	}
	e.MustGiveBack(h, held, ", although only what is kept of unused keys was forgotten")
	tokens := engine.ClaimTokens.Made(e.Settings)
	others[held] = h.Token
	for key, earlier := range others {
		if again := used(key); tokens && again.Token <= earlier {
			e.Failf(key, "the token %d was given after %d, although the key was held, or has another prefix, when keys were forgotten", again.Token, earlier)
		}
	}
	used(free)
	forgetLeavesHolds(e, a, b, forget)
	forgetLeavesWaiters(e, a, b, forget)
	forgetRemoves(e)
}

// forgetLeavesHolds forgets keys that are held in other ways: by an owner twice, and by one
// whose hold was revoked.
func forgetLeavesHolds(e *engine.Env, a, b *engine.BackendClient, forget func(prefix string) error) {
	prefix := e.Key("forgotten beside holds") + "/"
	forgotten := func(key string) {
		if err := forget(prefix); err != nil {
			e.UnexpectedFatal(key, err, "Forget returned %s; expected no error", engine.Outcome(err))
		}
	}
	if engine.ClaimServerHolds.Made(e.Settings) {
		key, owner := prefix+"twice", e.Owner("A")
		outer, inner := a.MustTry(e.Request(key, owner, e.Long)), a.MustTry(e.Request(key, owner, e.Long))
		forgotten(key)
		e.MustGiveBack(inner, key, ", although only what is kept of unused keys was forgotten")
		forgotten(key)
		b.MustRefuse(key, "a hold of its owner is left, and only what is kept of unused keys was forgotten")
		e.MustGiveBack(outer, key, ", although only what is kept of unused keys was forgotten")
		key = prefix + "outermost released"
		outer, inner = a.MustTry(e.Request(key, owner, e.Long)), a.MustTry(e.Request(key, owner, e.Long))
		e.MustGiveBack(outer, key, "")
		forgotten(key)
		b.MustRefuse(key, "its outermost hold was released and its owner has another one, and only what is kept of unused keys was forgotten")
		e.MustGiveBack(inner, key, ", although only what is kept of unused keys was forgotten")
	}
	still := func(h *engine.Grant, what string) {
		if h == nil {
			return
		}
		if err := forget(h.Key); err != nil { // no other case waits with its key
			e.UnexpectedFatal(h.Key, err, "Forget returned %s; expected no error", engine.Outcome(err))
		}
		b.MustRefuse(h.Key, what+", and only what is kept of unused keys was forgotten")
		e.MustGiveBack(h, h.Key, ", although only what is kept of unused keys was forgotten")
	}
	e.Together(
		func() {
			still(innerOnly(e, a, prefix+"inner"), "its outermost hold has run out and its owner has another one")
		},
		func() { forgetLeavesRenewed(e, a, still, prefix+"renewed") },
		func() {
			ho, ok := backend.As[backend.HandOverer](a.Backend)
			if !ok {
				return
			}
			key := prefix + "handed over"
			g, err := a.HandOver(ho, a.MustTry(e.Request(key, "", e.Long)), e.Request(key, "", e.Long))
			if err != nil {
				e.UnexpectedFatal(key, err, "HandOver of a hold returned %s; expected a grant", engine.Outcome(err))
			}
			still(g, "it was handed over")
		},
	)
	r, ok := backend.As[backend.Revoker](b.Backend)
	if !ok || !engine.ClaimTokens.Made(e.Settings) || e.Claimed.Expiry == backend.ClockConnection {
		return
	}
	key := prefix + "revoked"
	h := a.MustTry(e.Request(key, "", e.Long))
	if err := r.Revoke(e.Ctx, key, h.Token); err == nil {
		forgotten(key)
		b.MustRefuse(key, "a revoked hold keeps others out, and only what is kept of unused keys was forgotten")
	}
	h.Lapses()
}

// forgetLeavesRenewed forgets a key whose hold was renewed past its first TTL.
func forgetLeavesRenewed(e *engine.Env, a *engine.BackendClient, still func(h *engine.Grant, what string), key string) {
	if !e.Claimed.ManualRenewal || e.Claimed.EndsWithSession {
		return
	}
	h := a.MustTry(e.Request(key, "", e.TTL))
	for end := time.Now().Add(e.TTL * 5 / 4); time.Now().Before(end); {
		e.Pause(e.TTL / 4)
		if err := h.Renew(); err != nil {
			e.UnexpectedLateFatal(key, err, "Renew of a hold, every quarter of its TTL, returned %s; expected no error", engine.Outcome(err))
		}
	}
	still(h, "its hold was renewed in time")
}

// forgetLeavesWaiters forgets a key that others wait for, while it is held and in the moment
// of its release.
func forgetLeavesWaiters(e *engine.Env, a, b *engine.BackendClient, forget func(prefix string) error) {
	holder, waiter := e.Locker(), e.Locker()
	_, queues := backend.As[backend.Queuer](b.Backend)
	e.Each(e.Rounds(e.Work(100*time.Millisecond), 4, 8), func(round int) {
		prefix := e.Key("waited for, %d", round) + "/"
		const why = "it was released, and what is kept of unused keys was forgotten"
		forgotten := func() {
			if err := forget(prefix); err != nil {
				e.UnexpectedFatal(prefix, err, "Forget returned %s; expected no error", engine.Outcome(err))
			}
		}
		beside := func(release func()) {
			if round%2 == 0 {
				forgotten()
				release()
				return
			}
			e.Together(forgotten, release)
		}
		key := prefix + "by a Locker"
		h := holder.MustTry(key)
		w := waiter.Acquiring(key)
		<-w.Begun
		e.Settle()
		beside(h.MustRelease)
		w.MustGet(e, key, e.WaitBound(), why).MustRelease()
		if !queues {
			return
		}
		key = prefix + "in the queue"
		held := a.MustTry(e.Request(key, "", e.Long))
		p := enqueue(e, b, key, e.Long).waiting(e)
		e.Settle()
		beside(func() { e.MustGiveBack(held, key, "") })
		p.mustGet(e, why)
		p.withdraw(e)
	})
}

// forgetRemoves looks into a store of which all keys are forgotten. Where it keeps nothing
// of a key that is free, there is nothing to forget.
func forgetRemoves(e *engine.Env) {
	if e.Untouched == nil {
		e.Notef("without Config.Untouched it was not asked whether anything is removed from the store")
		return
	}
	store := untouched(e)
	opened := store.open("backend on a store of its own").Backend
	f, ok := backend.As[backend.Forgetter](opened)
	if !ok {
		e.Fatalf("", "a backend of a store that nobody has used does not implement backend.Forgetter")
	}
	prefix := e.Key("forgotten") + "/"
	before := store.contents()
	for i := range 5 {
		req := e.Request(fmt.Sprint(prefix, i), "", e.Long)
		_, err := opened.Try(e.Ctx, req)
		if err == nil {
			err = opened.Release(e.Ctx, backend.HoldOf(req))
		}
		if errors.Is(err, backend.ErrUnavailable) { // a new store may have to wait before it grants
			e.Notef("what is kept was not looked at: a store of its own grants nothing yet (%v)", err)
			return
		}
		if err != nil {
			e.UnexpectedFatal(req.Key, err, "a try and a release in a store of its own returned %s; expected no error", engine.Outcome(err))
		}
	}
	used := store.contents()
	if err := f.Forget(e.Ctx, prefix); err != nil {
		e.UnexpectedFatal(prefix, err, "Forget returned %s; expected no error", engine.Outcome(err))
	}
	if after := store.contents(); used != before && after == used {
		e.Failf(prefix, "the store contained %s before the keys were used, and %s before and after they were forgotten; expected what is kept of them to be removed", shortText(before), shortText(used))
	}
}
