package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// The rules of this file are about what operators do to locks from outside.
var operateRules = atSeam(subject("backend",
	&rule{Rule: Rule{Name: "RevokeByToken", Statement: "A revoked hold is refused its renewals, keeps others out meanwhile, and ends; a revocation with another token changes nothing."},
		run: revokeByToken},
	&rule{Rule: Rule{Name: "ListShowsHeldKeys", Statement: "List shows each held key with the prefix once, with its token and holder, no other key, and stops when it is told to."},
		run: listShowsHeldKeys},
)...)

func revokeByToken(e *env) {
	a, b := e.backend(), e.backend()
	r := optional[backend.Revoker](b, "Revoker")
	if !claimTokens.made(e.settings) {
		e.skipf("needs tokens to name a record by, and none are claimed")
	}
	revoke := func(key string, token uint64) error {
		ev := e.hist.begin(b.who, "Revoke", key)
		err := r.Revoke(e.ctx, key, token)
		e.hist.end(ev, fmt.Sprintf("token %d: %s", token, outcome(err)))
		return err
	}
	e.together(
		func() { // a holder that is alive
			key := e.key("alive")
			e.is(key, revoke(key, 1), "Revoke of a free key", backend.ErrNotHeld)
			h := a.mustTry(e.request(key, "", e.ttl))
			for _, other := range []uint64{h.token - 1, h.token + 1} {
				e.is(key, revoke(key, other), "Revoke with another token", backend.ErrNotHeld)
			}
			if e.g.ManualRenewal {
				if err := h.renew(); err != nil {
					e.latef(key, "Renew after revocations with other tokens returned %s; expected no error", outcome(err))
				}
			}
			if err := revoke(key, h.token); err != nil {
				e.unexpectedFatal(key, err, "Revoke with the token of the holder returned %s; expected no error", outcome(err))
			}
			b.mustRefuse(key, "it was revoked, and has not expired")
			h.releasing(e.hist.now()) // the holder is told
			if e.g.ManualRenewal {
				if _, err := a.renew(h.h); !errors.Is(err, backend.ErrNotHeld) {
					e.unexpected(key, err, "Renew of a revoked hold returned %s; expected ErrNotHeld", outcome(err))
				}
			}
			if err := a.release(e.ctx, h.h); err != nil && !errors.Is(err, backend.ErrNotHeld) {
				e.unexpected(key, err, "Release of a revoked hold returned %s; expected no error or ErrNotHeld", outcome(err))
			}
			next := e.takeOver(b, key, e.long, e.takeover(e.ttl), e.ttl/25, "its hold was revoked")
			if next.fence() <= h.token {
				e.failf(key, "the token after a revoked hold is %d; expected more than %d", next.fence(), h.token)
			}
			e.is(key, revoke(key, h.token), "Revoke with the token of the earlier holder", backend.ErrNotHeld)
			e.mustGiveBack(next, key, "the earlier holder's token was revoked")
		},
		func() { // a holder that is gone
			if e.g.EndsWithSession {
				return // its session keeps the hold, in this process
			}
			key := e.key("gone")
			h := a.mustTry(e.request(key, "", e.ttl))
			if err := revoke(key, h.token); err != nil {
				e.unexpectedFatal(key, err, "Revoke returned %s; expected no error", outcome(err))
			}
			deadline := h.until()
			next := e.takeOver(b, key, e.long, e.takeover(e.ttl), 2*time.Millisecond, "its hold was revoked and not renewed")
			if now := time.Now(); now.Before(deadline) {
				e.failf(key, "another client was granted the key %s before the deadline of a holder that did not know of the revocation", deadline.Sub(now))
			}
			_ = next.release(e.ctx)
		},
		func() { // an explicit owner does not come back in
			if !claimServerHolds.made(e.settings) {
				return
			}
			key, owner := e.key("owner"), e.owner("o")
			h := a.mustTry(e.request(key, owner, e.ttl))
			if err := revoke(key, h.token); err != nil {
				e.unexpectedFatal(key, err, "Revoke returned %s; expected no error", outcome(err))
			}
			if again, err := a.try(e.request(key, owner, e.ttl)); err == nil && again.token == h.token {
				e.failf(key, "the owner entered its revoked hold again")
			}
			h.releasing(e.hist.now())
		},
	)
}

func listShowsHeldKeys(e *env) {
	a, b := e.backend(), e.backend()
	l := optional[backend.Lister](b, "Lister")
	list := func(prefix string, most int) map[string]backend.Record {
		found := map[string]backend.Record{}
		ev := e.hist.begin(b.who, "List", prefix)
		calls := 0
		err := l.List(e.ctx, prefix, func(rec backend.Record) bool {
			calls++
			if _, twice := found[rec.Key]; twice {
				e.failf(rec.Key, "List shows the key twice")
			}
			found[rec.Key] = rec
			return len(found) < most
		})
		e.hist.end(ev, fmt.Sprintf("%s, %d keys", outcome(err), len(found)))
		if err != nil {
			e.unexpectedFatal(prefix, err, "List returned %s; expected no error", outcome(err))
		}
		if calls > most {
			e.failf(prefix, "List called visit %d times although it returned false the %dth time", calls, most)
		}
		return found
	}
	const all = 1000
	// Brackets, stars and the like have a meaning in some servers' patterns.
	prefix := e.key("[a-z]*?%%_\\")
	var held []*seamHold
	for _, name := range []string{prefix, prefix + "/", prefix + "/b", prefix + " c", prefix + "\u00e9"} {
		req := e.request(name, "", e.long)
		req.Holder = backend.Holder{Label: "a label"}
		held = append(held, a.mustTry(req))
	}
	a.mustTry(e.request(e.key("abcd"), "", e.long)) // a pattern would match it
	gone := a.mustTry(e.request(prefix+"gone", "", e.long))
	_ = gone.release(e.ctx)
	found := list(prefix, all)
	for _, h := range held {
		rec, ok := found[h.key]
		switch {
		case !ok:
			e.failf(h.key, "List does not show a key that is held")
		case rec.Token != h.token || rec.Holds != 1 || rec.Holder.Label != "a label":
			e.failf(h.key, "List shows token %d, %d holds, holder %s; expected token %d, 1 hold, a label", rec.Token, rec.Holds, rec.Holder, h.token)
		}
		delete(found, h.key)
	}
	for key := range found {
		e.failf(key, "List of the prefix %q shows the key, which was released or has another prefix", prefix)
	}
	if n := len(list(prefix+"/", all)); n != 2 {
		e.failf(prefix, "List shows %d keys with the prefix %q; expected 2", n, prefix+"/")
	}
	if n := len(list(prefix, 2)); n != 2 {
		e.failf(prefix, "List showed %d keys before it was told to stop at 2", n)
	}
}
