package rules

import (
	"errors"
	"math"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// cleanupByAge cleans up a store of its own, since that concerns every key of a store.
func cleanupByAge(e *engine.Env) {
	optional[backend.Cleaner](e.Backend(), "Cleaner")
	if e.Untouched == nil {
		e.Skipf("needs Config.Untouched: a clean-up by age concerns every key of a store")
	}
	store := untouched(e)
	a, b := store.open("holder on a store of its own"), store.open("operator on a store of its own")
	c, ok := backend.As[backend.Cleaner](b.Backend)
	if !ok {
		e.Fatalf("", "a backend of a store that nobody has used does not implement backend.Cleaner")
	}
	cleaned := func(olderThan time.Duration, dryRun bool) int {
		ev := e.Log.Begin(b.Who, "Cleanup", "")
		n, err := c.Cleanup(e.Ctx, olderThan, dryRun)
		e.Log.End(ev, engine.Outcome(err))
		if err != nil {
			e.UnexpectedFatal("", err, "Cleanup of what is older than %s (dry run: %t) returned %s; expected no error", olderThan, dryRun, engine.Outcome(err))
		}
		return n
	}

	earlier := map[string]uint64{}
	released, held := e.Key("%s", "relea_ed%"), e.Key("held")
	h, err := a.Try(e.Request(released, "", e.Long))
	if errors.Is(err, backend.ErrUnavailable) { // a new store may have to wait before it grants
		e.Skipf("a store of its own grants nothing yet (%v)", err)
	}
	if err != nil {
		e.UnexpectedFatal(released, err, "Try of a key that nobody has used returned %s; expected a grant", engine.Outcome(err))
	}
	earlier[released] = h.Token
	e.MustGiveBack(h, released, "")
	var kept []*engine.Grant
	keep := func(key, owner string) {
		h := a.MustTry(e.Request(key, owner, e.Long))
		earlier[key], kept = h.Token, append(kept, h)
	}
	keep(held, "")
	for _, name := range namesLikeReleased {
		keep(e.Key("%s", name), "")
	}
	if engine.ClaimServerHolds.Made(e.Settings) {
		twice, owner := e.Key("held twice"), e.Owner("A")
		keep(twice, owner)
		keep(twice, owner)
	}
	if inner := innerOnly(e, a, e.Key("inner")); inner != nil {
		earlier[inner.Key], kept = inner.Token, append(kept, inner)
	}
	keptOut := ""
	if r, ok := backend.As[backend.Revoker](b.Backend); ok && e.Claimed.Expiry != backend.ClockConnection && engine.ClaimTokens.Made(e.Settings) {
		h := a.MustTry(e.Request(e.Key("revoked"), "", e.Long))
		if r.Revoke(e.Ctx, h.Key, h.Token) == nil {
			keptOut = h.Key
		}
		h.Releasing(e.Log.Now())
	}
	var gone time.Duration
	if e.Claimed.Expiry != backend.ClockConnection {
		left := e.Key("run out")
		h := a.MustTry(e.Request(left, "", e.TTL))
		earlier[left] = h.Token
		h.Lapses()
		gone = h.Gone(e)
	}

	for _, olderThan := range []time.Duration{0, -time.Hour} {
		for _, dryRun := range []bool{true, false} {
			_, err := c.Cleanup(e.Ctx, olderThan, dryRun)
			e.Is("", err, "Cleanup of what is older than "+olderThan.String()+", which would be everything,", backend.ErrInvalid)
		}
	}
	for _, olderThan := range []time.Duration{100 * time.Hour, math.MaxInt64} { // which is easily too much
		for _, dryRun := range []bool{true, false} {
			if n := cleaned(olderThan, dryRun); n != 0 {
				e.Failf("", "Cleanup of what was not used for %s (dry run: %t) returned %d, although every key of the store was used since the case began", olderThan, dryRun, n)
			}
		}
	}
	e.Pause(gone - e.Log.Now())
	if e.Virtual() { // where it does not run out meanwhile
		h := renewedLate(e, a, e.Key("renewed late"))
		e.Pause(h.Hold.TTL * 3 / 4)
		earlier[h.Key], kept = h.Token, append(kept, h)
	}
	e.Settle() // whatever is free has not been used for more than a moment now
	const moment = time.Millisecond
	before := store.contents()
	counted := cleaned(moment, true)
	if after := store.contents(); after != before {
		e.Failf("", "the store contained %s before a clean-up that was a dry run, and %s afterwards; expected the same", shortText(before), shortText(after))
	}
	if counted == 0 {
		e.Failf("", "Cleanup of what was not used for %s, a dry run, returned 0, although keys were used before, and nobody holds them", moment)
	}
	if removed := cleaned(moment, false); removed != counted {
		e.Failf("", "Cleanup returned %d, and %d in a dry run before, although nobody used the store meanwhile", removed, counted)
	}
	if left := cleaned(moment, true); left != 0 {
		e.Failf("", "Cleanup, a dry run, returned %d right after what it counts had been removed", left)
	}
	for _, h := range kept {
		b.MustRefuse(h.Hold.Key, "it is held, and only what is kept of unused keys was cleaned up")
		if e.Claimed.ManualRenewal {
			if err := h.Renew(); err != nil {
				e.Unexpected(h.Hold.Key, err, "Renew of a held key returned %s after a clean-up of unused keys; expected no error", engine.Outcome(err))
			}
		}
	}
	if keptOut != "" {
		b.MustRefuse(keptOut, "it was revoked and has not expired, and only what is kept of unused keys was cleaned up")
	}
	for _, h := range kept {
		e.MustGiveBack(h, h.Hold.Key, ", although only what is kept of unused keys was cleaned up")
	}
	tokens := engine.ClaimTokens.Made(e.Settings)
	for key, token := range earlier {
		again := b.MustTry(e.Request(key, "", e.Long))
		e.MustGiveBack(again, key, "")
		if tokens && again.Token <= token {
			e.Failf(key, "the token %d was given after %d; what was kept of the key was cleaned up by age in between, and no token goes back then", again.Token, token)
		}
	}
	floorOutlivesCleanup(e, b, earlier, cleaned)
	if e.Virtual() {
		agesAreWhole(e)
	}
}

// namesLikeReleased are those of held keys which a store takes for the one that was released, if
// it compares only how they begin, or takes that name for a pattern.
var namesLikeReleased = []string{"relea_ed%/b", "relea_ed%b", "relea_ed", "relea_ed of all", "released%"}

// floorOutlivesCleanup raises the floor of the store, and cleans up what was used since then. Where
// tokens come from the clock, none is as large as the floor without it.
func floorOutlivesCleanup(e *engine.Env, s *engine.BackendClient, used map[string]uint64, cleaned func(olderThan time.Duration, dryRun bool) int) {
	raiser, ok := backend.As[backend.FloorRaiser](s.Backend)
	if !ok || !engine.ClaimTokens.Made(e.Settings) || e.Declines("FloorRaiser") {
		return
	}
	key, floor := e.Key("used above a floor"), useOnce(e, s, e.Key("used before the floor"))
	for _, token := range used {
		floor = max(floor, token)
	}
	floor += floorStep
	ev := e.Log.Begin(s.Who, "RaiseFloor", "")
	err := raiser.RaiseFloor(e.Ctx, floor)
	e.Log.End(ev, engine.Outcome(err))
	if err != nil {
		e.UnexpectedFatal("", err, "RaiseFloor(%d) returned %s; expected no error", floor, engine.Outcome(err))
	}
	useOnce(e, s, key)
	last := useOnce(e, s, key)
	e.Settle()
	const moment = time.Millisecond
	cleaned(moment, false)
	if left := cleaned(moment, true); left != 0 {
		e.Failf("", "Cleanup, a dry run, returned %d right after what it counts had been removed, in a store whose floor was raised: a floor is no key", left)
	}
	if token := useOnce(e, s, key); token <= last {
		e.Failf(key, "the token %d was given after %d, which was granted after RaiseFloor(%d); what was kept of the key was cleaned up by age in between, and no token goes back then", token, last, floor)
	}
	fresh := e.Key("new after the clean-up")
	if token := useOnce(e, s, fresh); token <= floor {
		e.Failf(fresh, "the token %d was given for a new key after RaiseFloor(%d) and a clean-up by age; expected a larger one", token, floor)
	}
}

// agesAreWhole compares ages with others that a count of whole seconds or minutes would take for
// the same, in a store of its own for each.
func agesAreWhole(e *engine.Env) {
	aged := func(pauses []time.Duration, counted map[time.Duration]int, how string) {
		store := untouched(e)
		b := store.open("the only client of a store of its own")
		c := optional[backend.Cleaner](b, "Cleaner")
		key := e.Key("of some age")
		for _, pause := range pauses {
			e.MustGiveBack(b.MustTry(e.Request(key, "", e.Long)), key, "")
			e.Pause(pause)
		}
		for olderThan, want := range counted {
			n, err := c.Cleanup(e.Ctx, olderThan, true)
			switch {
			case err != nil:
				e.UnexpectedFatal("", err, "Cleanup of what is older than %s, a dry run, returned %s; expected no error", olderThan, engine.Outcome(err))
			case n != want:
				e.Failf("", "Cleanup of what was not used for %s, a dry run, returned %d; expected %d, since the only key of the store was %s %s before", olderThan, n, want, how, pauses[len(pauses)-1])
			}
		}
	}
	for _, age := range []time.Duration{400 * time.Millisecond, 20 * time.Second} {
		aged([]time.Duration{age}, map[time.Duration]int{2 * age: 0, age / 2: 1}, "used")
	}
	const often = 10 * time.Second
	aged([]time.Duration{often, often, often / 5}, map[time.Duration]int{often / 2: 0, often / 10: 1}, "used again and again, the last time")
}
