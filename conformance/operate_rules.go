package conformance

import (
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

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
	// A listing that took longer than the shortest of these holds tells nothing.
	missing := func(key, format string, args ...any) {
		for _, h := range held {
			if !time.Now().Before(h.until()) {
				e.tooSlowf(key, "the hold on %q had run out before the list was complete", h.key)
			}
		}
		e.failf(key, format, args...)
	}
	found := list(prefix, all)
	for _, h := range held {
		rec, ok := found[h.key]
		switch {
		case !ok:
			missing(h.key, "List does not show a key that is held")
		case rec.Token != h.token || rec.Holds != 1 || rec.Holder.Label != "a label":
			e.failf(h.key, "List shows token %d, %d holds, holder %s; expected token %d, 1 hold, a label", rec.Token, rec.Holds, rec.Holder, h.token)
		}
		delete(found, h.key)
	}
	for key := range found {
		e.failf(key, "List of the prefix %q shows the key, which was released or has another prefix", prefix)
	}
	if n := len(list(prefix+"/", all)); n != 2 {
		missing(prefix, "List shows %d keys with the prefix %q; expected 2", n, prefix+"/")
	}
	if n := len(list(prefix, 2)); n != 2 {
		missing(prefix, "List showed %d keys before it was told to stop at 2", n)
	}
}

func forgetLeavesOthers(e *env) {
	a, b := e.backend(), e.backend()
	f := optional[backend.Forgetter](b, "Forgetter")
	forget := func(prefix string) error {
		ev := e.hist.begin(b.who, "Forget", prefix)
		err := f.Forget(e.ctx, prefix)
		e.hist.end(ev, outcome(err))
		return err
	}
	prefix := e.key("forgotten") + "/"
	free, held, other := prefix+"free", prefix+"held", e.key("other")
	used := func(key string) *seamHold {
		h := a.mustTry(e.request(key, "", e.long))
		e.mustGiveBack(h, key, "")
		return h
	}
	used(free)
	before := used(other)
	h := a.mustTry(e.request(held, "", e.long))
	e.is(prefix, forget(""), "Forget without a prefix, which would be that of all keys,", backend.ErrInvalid)
	if err := forget(prefix); err != nil {
		e.unexpectedFatal(prefix, err, "Forget returned %s; expected no error", outcome(err))
	}
	b.mustRefuse(held, "it is held, and only what is kept of unused keys was forgotten")
	if e.g.ManualRenewal {
		if err := h.renew(); err != nil {
			e.unexpected(held, err, "Renew of a held key returned %s after unused keys were forgotten; expected no error", outcome(err))
		}
	}
	e.mustGiveBack(h, held, ", although only what is kept of unused keys was forgotten")
	tokens := claimTokens.made(e.settings)
	for key, earlier := range map[string]uint64{held: h.token, other: before.token} {
		if again := used(key); tokens && again.token <= earlier {
			e.failf(key, "the token %d was given after %d, although the key was held, or has another prefix, when keys were forgotten", again.token, earlier)
		}
	}
	used(free)
}
