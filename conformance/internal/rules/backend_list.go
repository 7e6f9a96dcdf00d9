package rules

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func listShowsHeldKeys(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	l := optional[backend.Lister](b, "Lister")
	listsAfterAndBeside(e, a, l)
	list := func(prefix string, most int) map[string]backend.Record {
		found := map[string]backend.Record{}
		ev := e.Log.Begin(b.Who, "List", prefix)
		calls := 0
		err := l.List(e.Ctx, prefix, func(rec backend.Record) bool {
			calls++
			if _, twice := found[rec.Key]; twice {
				e.Failf(rec.Key, "List shows the key twice")
			}
			found[rec.Key] = rec
			return len(found) < most
		})
		e.Log.End(ev, fmt.Sprintf("%s, %d keys", engine.Outcome(err), len(found)))
		if err != nil {
			e.UnexpectedFatal(prefix, err, "List returned %s; expected no error", engine.Outcome(err))
		}
		if calls > most {
			e.Failf(prefix, "List called visit %d times although it returned false the %dth time", calls, most)
		}
		return found
	}
	const all = 1000
	// Brackets, stars and the like have a meaning in some servers' patterns.
	prefix := e.Key("[a-z]*?%%_\\")
	told := backend.Holder{Label: "a label", Host: longHost, PID: 4194303, PairID: "0123456789abcdef"}
	ttl := unwhole(e, e.Long)
	var held []*engine.Grant
	for _, name := range []string{prefix, prefix + "/", prefix + "/b", prefix + " c", prefix + "\u00e9", filled(prefix+"-", backend.MaxKey)} {
		req := e.Request(name, "", ttl)
		req.Holder = told
		held = append(held, a.MustTry(req))
	}
	keep := func() {
		for _, h := range held {
			if e.Claimed.ManualRenewal {
				_ = h.Renew() // where it came too late, the listing tells nothing
			}
		}
	}
	a.MustTry(e.Request(e.Key("abcd"), "", e.Long)) // a pattern would match it
	if engine.ClaimServerHolds.Made(e.Settings) {
		key, owner := e.Key("twice"), e.Owner("A")
		longest := a.MustTry(e.Request(key, owner, e.Long))
		a.MustTry(e.Request(key, owner, e.Fit(e.Long/2)))
		rec, ok := list(key, all)[key]
		left := time.Until(longest.Until())
		switch {
		case !ok && left <= 0:
			e.TooSlowf(key, "the hold had run out before the list was complete")
		case rec.Holds != 2:
			e.Failf(key, "List shows %d holds of a key that its owner holds twice", rec.Holds)
		case rec.Remaining < left-max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag)-e.Long/20-rounding(rec.Remaining):
			e.Failf(key, "List shows %s remaining after the owner entered for a shorter time; expected the %s of its longest hold, at least", rec.Remaining, left)
		}
	}
	gone := a.MustTry(e.Request(prefix+"gone", "", e.Long))
	_ = gone.Release(e.Ctx)
	if !e.Claimed.EndsWithSession && e.Long >= 2*e.TTL { // else its session keeps it, or the others end with it
		expired := a.MustTry(e.Request(prefix+"expired", "", e.TTL))
		e.Expire(expired)
	}
	// A listing that took longer than the shortest of these holds tells nothing.
	missing := func(key, format string, args ...any) {
		for _, h := range held {
			if !time.Now().Before(h.Until()) {
				e.TooSlowf(key, "the hold on %q had run out before the list was complete", h.Key)
			}
		}
		e.Failf(key, format, args...)
	}
	keep()
	granted := time.Now()
	e.Pause(e.TTL / 10)
	most := mostLeft(e, ttl, time.Since(granted))
	found := list(prefix, all)
	for _, h := range held {
		rec, ok := found[h.Key]
		switch {
		case !ok:
			missing(h.Key, "List does not show a key that is held")
		case rec.Remaining <= 0 || rec.Remaining > most+rounding(rec.Remaining):
			e.Failf(h.Key, "List shows %s remaining of a TTL of %s; expected more than nothing and at most %s by now", rec.Remaining, ttl, most)
		case rec.Remaining < time.Until(h.Until())-max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag)-ttl/20-rounding(rec.Remaining):
			e.Failf(h.Key, "List shows %s remaining, although the hold is valid for another %s without a renewal", rec.Remaining, time.Until(h.Until()))
		case rec.Waiters != 0 && rec.Waiters != -1:
			e.Failf(h.Key, "List shows %d waiters; expected none, or -1 for unknown", rec.Waiters)
		case rec.Token != h.Token || rec.Holds != 1 || !tellsOf(e, rec.Holder, told):
			e.Failf(h.Key, "List shows token %d, %d holds, holder %s; expected token %d, 1 hold, holder %s", rec.Token, rec.Holds, inFull(rec.Holder), h.Token, inFull(told))
		}
		delete(found, h.Key)
	}
	for key := range found {
		e.Failf(key, "List of the prefix %q shows the key, which was released, has run out, or has another prefix", prefix)
	}
	keep()
	if n := len(list(prefix+"/", all)); n != 2 {
		missing(prefix, "List shows %d keys with the prefix %q; expected 2", n, prefix+"/")
	}
	keep()
	shown := false // there may be many keys of others
	err := l.List(e.Ctx, "", func(rec backend.Record) bool { shown = shown || rec.Key == held[0].Key; return !shown })
	switch {
	case err != nil:
		e.Unexpected(held[0].Key, err, "List without a prefix returned %s; expected no error", engine.Outcome(err))
	case !shown:
		missing(held[0].Key, "List without a prefix does not show a key that is held")
	}
	keep()
	if n := countListed(e, a, prefix); n != len(held) {
		missing(prefix, "List by the client that holds the keys shows %d of them; expected %d", n, len(held))
	}
	listsOfMany(e, a, b, prefix, len(held), missing)
	keep()
	e.Together(func() { listShowsMany(e, a, list, missing) }, func() { listShowsTheLast(e, a, b) }, func() { listsBesideARelease(e, a, b) }, func() { listsBesideRenewals(e, a, b) }, func() { asksWhileListing(e, a, b) })
	keep()
	if n := len(list(prefix, 2)); n != 2 {
		missing(prefix, "List showed %d keys before it was told to stop at 2", n)
	}
	e.Together(func() { listShowsChanged(e, a, b) }, func() { listsWholePrefixes(e, a, list) }, func() {
		showsLong(e, a, max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag)+time.Millisecond, "List", func(key string) (backend.Record, error) {
			rec, ok := list(key, all)[key]
			if !ok {
				return rec, backend.ErrNotHeld
			}
			return rec, nil
		})
	})
}

// listsAfterAndBeside lists a few keys after a list that its visitor has ended early, and beside
// another one that is still under way, by the same client.
func listsAfterAndBeside(e *engine.Env, a *engine.BackendClient, l backend.Lister) {
	prefix := e.Key("a few") + "/"
	held := make([]*engine.Grant, 3)
	for i := range held {
		held[i] = a.MustTry(e.Request(fmt.Sprint(prefix, i), "", e.Long))
	}
	list := func(visit func(n int) bool) (n int) {
		err := l.List(e.Ctx, prefix, func(backend.Record) bool { n++; return visit(n) })
		if err != nil {
			e.UnexpectedFatal(prefix, err, "List returned %s; expected no error", engine.Outcome(err))
		}
		return n
	}
	showsAll := func(when string) {
		if n := list(func(int) bool { return true }); n != len(held) {
			e.Fail(engine.TimelyFor(e.Long), prefix, "a List %s shows %d keys of the %d that are held", when, n, len(held))
		}
	}
	list(func(int) bool { return false })
	showsAll("after one that was ended early")
	wait := func() {}
	list(func(n int) bool {
		if n == 1 {
			shown := make(chan struct{})
			wait = e.Start(func() { defer close(shown); showsAll("beside another List") })
			e.Within(e.TTL/10, shown) // or they come one after the other
		}
		return true
	})
	wait()
	for _, h := range held {
		_ = h.Release(e.Ctx)
	}
}

// listsBesideARelease has the first visitor of a list release a key that is not shown yet: the
// others stay held, and come.
func listsBesideARelease(e *engine.Env, a, b *engine.BackendClient) {
	prefix := e.Key("one of several is released") + "/"
	held := map[string]*engine.Grant{}
	for i := range 6 {
		key := fmt.Sprintf("%s%d", prefix, i)
		held[key] = a.MustTry(e.Request(key, "", e.Long))
	}
	shown, released := map[string]bool{}, ""
	err := optional[backend.Lister](b, "Lister").List(e.Ctx, prefix, func(rec backend.Record) bool {
		shown[rec.Key] = true
		for key, h := range held {
			if released == "" && key != rec.Key {
				released = key
				e.MustGiveBack(h, key, ", at which a list looked")
			}
		}
		return true
	})
	if err != nil {
		e.UnexpectedFatal(prefix, err, "List returned %s, while a key was released; expected no error", engine.Outcome(err))
	}
	for key, h := range held {
		if key == released {
			continue
		}
		if !shown[key] {
			e.Fail(engine.TimelyFor(e.Long), key, "List does not show a key that stayed held, while another was released after its first visit")
		}
		_ = h.Release(e.Ctx)
	}
}

// listsBesideRenewals has the first visitor of a list renew all keys, the one that is shown and those
// that are not yet. None is shown twice.
func listsBesideRenewals(e *engine.Env, a, b *engine.BackendClient) {
	if !e.Claimed.ManualRenewal {
		return
	}
	prefix := e.Key("renewed meanwhile") + "/"
	held := make([]*engine.Grant, 4)
	for i := range held {
		held[i] = a.MustTry(e.Request(fmt.Sprint(prefix, i), "", e.Long))
	}
	shown := map[string]bool{}
	err := optional[backend.Lister](b, "Lister").List(e.Ctx, prefix, func(rec backend.Record) bool {
		if shown[rec.Key] {
			e.Failf(rec.Key, "List shows the key twice, whose hold was renewed meanwhile; expected it once")
			return false
		}
		if len(shown) == 0 {
			for _, h := range held {
				_ = h.Renew() // whatever comes of it
			}
		}
		shown[rec.Key] = true
		return true
	})
	if err != nil {
		e.Unexpected(prefix, err, "List returned %s, while keys were renewed; expected no error", engine.Outcome(err))
	}
	for _, h := range held {
		_ = h.Release(e.Ctx)
	}
}

// asksWhileListing has a visitor of a list make requests by the client that lists: it may want to
// look at what it finds, or to do something about it.
func asksWhileListing(e *engine.Env, a, b *engine.BackendClient) {
	prefix := e.Key("asked from within a list") + "/"
	other := a.MustTry(e.Request(prefix+"other", "", e.Long))
	own := b.MustTry(e.Request(prefix+"own", "", e.Long))
	asked, free := false, prefix+"free"
	unexpected := func(key, what string, err error) {
		e.Unexpected(key, err, "%s by the client that lists keys, from within a list, returned %s; expected no error", what, engine.Outcome(err))
	}
	err := optional[backend.Lister](b, "Lister").List(e.Ctx, prefix, func(rec backend.Record) bool {
		if asked || rec.Key == free {
			return true
		}
		asked = true
		if in, ok := backend.As[backend.Inspector](b.Backend); ok && !e.Declines("Inspector") {
			if _, err := in.Inspect(e.Ctx, other.Hold.Key); err != nil {
				unexpected(other.Hold.Key, "Inspect of a held key", err)
			}
		}
		if h, err := b.Try(e.Request(free, "", e.Long)); err != nil {
			unexpected(free, "Try of a free key", err)
		} else {
			_ = h.Release(e.Ctx)
		}
		if err := own.Release(e.Ctx); err != nil {
			unexpected(own.Hold.Key, "Release of a hold of its own", err)
		}
		return true
	})
	if err != nil {
		e.Unexpected(prefix, err, "List returned %s, while its visitor made requests by the same client; expected no error", engine.Outcome(err))
	}
	e.MustGiveBack(other, other.Hold.Key, "")
}

// countListed is how many keys a client lists.
func countListed(e *engine.Env, s *engine.BackendClient, prefix string) (n int) {
	err := optional[backend.Lister](s, "Lister").List(e.Ctx, prefix, func(backend.Record) bool { n++; return true })
	if err != nil {
		e.UnexpectedFatal(prefix, err, "List returned %s; expected no error", engine.Outcome(err))
	}
	return n
}

// listsOfMany has lists be made at the same time, by visitors who take their time while a key
// is released and taken again, and by one whose context ends.
func listsOfMany(e *engine.Env, a, b *engine.BackendClient, prefix string, held int, missing func(key, format string, args ...any)) {
	l := optional[backend.Lister](b, "Lister")
	moving := prefix + "/moving"
	h := a.MustTry(e.Request(moving, "", e.Long))
	visited, listed := make(chan struct{}), make(chan struct{})
	e.Together(
		func() {
			select {
			case <-visited:
			case <-e.Ctx.Done():
			}
			for {
				select {
				case <-listed:
					return
				default:
				}
				e.MustGiveBack(h, moving, ", at which others looked")
				h = a.MustTry(e.Request(moving, "", e.Long))
				e.Pause(e.TTL / 100)
			}
		},
		func() {
			defer close(listed)
			shown := map[string]bool{}
			err := l.List(e.Ctx, prefix, func(rec backend.Record) bool {
				if shown[rec.Key] {
					e.Failf(rec.Key, "List shows the key twice, which was released and taken meanwhile")
				}
				switch {
				case len(shown) == 0:
					close(visited)
					e.Pause(e.TTL / 10)
				case rec.Key == moving:
					e.Pause(e.TTL / 20)
				}
				shown[rec.Key] = true
				return true
			})
			if len(shown) == 0 {
				close(visited)
			}
			delete(shown, moving)
			switch {
			case err != nil:
				e.Unexpected(prefix, err, "List returned %s; expected no error", engine.Outcome(err))
			case len(shown) != held:
				missing(prefix, "List showed %d of %d keys to one who took %s for the first of them", len(shown), held, e.TTL/10)
			}
		},
		func() {
			select {
			case <-visited:
			case <-e.Ctx.Done():
			}
			ctx, cancel := context.WithCancel(e.Ctx)
			defer cancel()
			shown := 0
			err := l.List(ctx, prefix+"/", func(backend.Record) bool { cancel(); shown++; return true })
			if err == nil && shown < 2 { // the moving one may be missing
				missing(prefix, "List returned no error when its context ended, and showed %d of 2 keys; expected an error, or all", shown)
			}
		},
	)
	_ = h.Release(e.Ctx)
}

// listShowsTheLast lists a hold up to the last moment of it, and then asks whether it is there.
func listShowsTheLast(e *engine.Env, a, b *engine.BackendClient) {
	l := optional[backend.Lister](b, "Lister")
	key := e.Key("listed to the last")
	h := a.MustTry(e.Request(key, "", e.TTL))
	h.Lapses()
	e.Pause(time.Until(h.Until()) - 20*time.Millisecond)
	for took := time.Duration(0); time.Until(h.Until()) > 5*time.Millisecond+2*took; e.Pause(3 * time.Millisecond) {
		begun, shown := time.Now(), false
		err := l.List(e.Ctx, key, func(rec backend.Record) bool { shown = true; return true })
		if took = max(took, time.Since(begun)); err == nil && !shown && time.Now().Before(h.Until()) {
			e.Failf(key, "List does not show a hold in its last moment")
			return
		}
	}
	if _, err := b.Try(e.Request(key, "", e.TTL)); err == nil && time.Now().Before(h.Until()) {
		e.Failf(key, "another client was granted the key before the end of a hold that was only listed; expected a refusal")
	}
}

// listShowsChanged lists keys to which something has happened since they were granted: a
// renewal, the end of the outermost hold, a revocation.
func listShowsChanged(e *engine.Env, a, b *engine.BackendClient) {
	l, grain := optional[backend.Lister](b, "Lister"), max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag)
	shown := func(h *engine.Grant, what string) {
		var found *backend.Record
		err := l.List(e.Ctx, h.Key, func(rec backend.Record) bool {
			if rec.Key == h.Key {
				found = &rec
			}
			return true
		})
		switch {
		case err != nil:
			e.Unexpected(h.Key, err, "List returned %s; expected no error", engine.Outcome(err))
			return
		case found == nil:
			e.Failf(h.Key, "List does not show %s", what)
			return
		case found.Holds != 1 && !found.Revoked:
			e.Failf(h.Key, "List shows %d holds of %s; expected 1", found.Holds, what)
		}
		leftShown(e, h, found.Remaining, grain+h.Hold.TTL/20, "List of "+what)
	}
	e.Together(
		func() {
			if h := renewedLate(e, a, e.Key("renewed late")); h != nil {
				shown(h, "a key whose hold was renewed")
				e.MustGiveBack(h, h.Key, "")
			}
		},
		func() {
			if h := innerOnly(e, a, e.Key("inner")); h != nil {
				shown(h, "a key whose outermost hold has run out, and that its owner holds by another one")
				e.MustGiveBack(h, h.Key, "")
			}
		},
		func() {
			r, ok := backend.As[backend.Revoker](b.Backend)
			if !ok || !engine.ClaimTokens.Made(e.Settings) || e.Claimed.Expiry == backend.ClockConnection {
				return
			}
			h := a.MustTry(e.Request(e.Key("revoked"), "", e.Long))
			if r.Revoke(e.Ctx, h.Key, h.Token) == nil {
				shown(h, "a key whose hold was revoked, and keeps others out")
			}
			h.Releasing(e.Log.Now())
			_ = a.Backend.Release(e.Ctx, h.Hold)
		},
	)
}

// alike are ends of prefixes that some store would take for each other: what it folds, trims,
// or reads as a pattern, and what a range ends with.
var alike = []string{"", " ", "!", "/", "0", "e", "E", "\u00e9", "e\u0301", "\u00e8", "ss", "\u00df", "e_", "e%", "e\\", "ex"}

// listsWholePrefixes lists each of some prefixes, beside keys that begin with the others.
func listsWholePrefixes(e *engine.Env, a *engine.BackendClient, list func(prefix string, most int) map[string]backend.Record) {
	if e.Claimed.Expiry == backend.ClockConnection {
		return // each would take a connection
	}
	stem := e.Key("alike")
	holds := make([]*engine.Grant, len(alike))
	e.EachFew(len(alike), func(i int) { holds[i] = a.MustTry(e.Request(stem+alike[i], "", e.Long)) })
	for _, end := range alike {
		if e.Claimed.ManualRenewal {
			e.EachFew(len(holds), func(i int) { _ = holds[i].Renew() }) // where it came too late, the list tells nothing
		}
		prefix := stem + end
		found := list(prefix, 10*len(alike))
		for _, h := range holds {
			switch _, shown := found[h.Key]; {
			case !time.Now().Before(h.Until()):
				e.TooSlowf(h.Key, "the hold had run out before the list was complete")
			case shown && !strings.HasPrefix(h.Key, prefix):
				e.Failf(h.Key, "List of the prefix %s shows the key %s, which has another prefix", engine.QuoteKey(prefix), engine.QuoteKey(h.Key))
			case !shown && strings.HasPrefix(h.Key, prefix):
				e.Failf(h.Key, "List of the prefix %s does not show the key %s, which is held", engine.QuoteKey(prefix), engine.QuoteKey(h.Key))
			}
		}
	}
	e.EachFew(len(holds), func(i int) { e.MustGiveBack(holds[i], holds[i].Key, ", at which others looked") })
}

// listShowsMany lists more keys than a page of many a store has, beside keys whose prefix
// differs only in what a pattern or a collation overlooks.
func listShowsMany(e *engine.Env, a *engine.BackendClient, list func(prefix string, most int) map[string]backend.Record, missing func(key, format string, args ...any)) {
	if e.Claimed.Expiry == backend.ClockConnection {
		return // each would take a connection
	}
	many := 130
	if e.Virtual() { // where so many take no time, as many as the largest page of a store that pages
		many = 1050
	}
	prefix := e.Key("many_k") + "/"
	for _, other := range []string{"manyXk/0", "MANY_K/0", "many_k"} {
		a.MustTry(e.Request(e.Key("%s", other), "", e.Long))
	}
	var trying sync.WaitGroup
	trying.Add(many)
	tried := make(chan struct{})
	go func() { trying.Wait(); close(tried) }()
	e.Each(many, func(i int) {
		var h *engine.Grant
		func() {
			defer trying.Done()
			h = a.MustTry(e.Request(fmt.Sprintf("%s%d", prefix, i), "", e.Long))
		}()
		for e.Claimed.ManualRenewal && !e.Within(e.Long/8, tried) {
			_ = h.Renew()
		}
	})
	list(prefix, 2) // which ends there, and not with a page
	found := list(prefix, 10*many)
	for i := range many {
		key := fmt.Sprintf("%s%d", prefix, i)
		if _, ok := found[key]; !ok {
			missing(key, "List does not show one of %d keys that are held", many)
			return
		}
		delete(found, key)
	}
	for key := range found {
		e.Failf(key, "List of the prefix %q shows the key, which has another prefix", prefix)
	}
}
