package rules

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// clocksApart is how far the clock of a server may be from that of this machine. It is
// less than the difference of two time zones.
const clocksApart = 10 * time.Minute

// longHost is a name that a store might shorten, or change.
const longHost = "Db-1.Some-Rather-Long-Name-Of-A-Zone.And-Another-One-Beside-It.Example.COM"

// tellsOf reports whether what is shown of a holder is what its request told. Where no details
// are claimed, what is not known is zero.
func tellsOf(e *engine.Env, shown, told backend.Holder) bool {
	if !e.Claimed.HolderDetails {
		shown.Label, shown.Host = cmp.Or(shown.Label, told.Label), cmp.Or(shown.Host, told.Host)
		shown.PID, shown.PairID = cmp.Or(shown.PID, told.PID), cmp.Or(shown.PairID, told.PairID)
	}
	shown.Since = told.Since // which the server tells
	return shown == told
}

// inFull is the holder with its pair, which the text for people leaves out.
func inFull(h backend.Holder) string {
	if h.PairID == "" {
		return h.String()
	}
	return fmt.Sprintf("%s, pair %q", h, h.PairID)
}

// holderStays looks at leases that a Locker renews, which may do so for all of them at once.
func holderStays(e *engine.Env, in backend.Inspector) {
	c := e.Locker()
	const leases = 3
	holds, first := make([]*engine.Hold, leases), make([]backend.Holder, leases)
	look := func(i int) backend.Holder {
		rec, err := in.Inspect(e.Ctx, holds[i].Key)
		if err != nil {
			e.Undisturbed(0, err)
			e.UnexpectedFatal(holds[i].Key, err, "Inspect of a held key returned %s; expected its record", engine.Outcome(err))
		}
		return rec.Holder
	}
	var label []lock.Option
	if e.Claimed.HolderDetails {
		label = []lock.Option{lock.WithLabel("renewed")}
	}
	for i := range holds {
		holds[i] = c.MustTryFor(e.Key("since-%d", i), e.TTL, label...)
		first[i] = look(i)
	}
	for end := time.Now().Add(e.TTL * 3 / 2); time.Now().Before(end); e.Pause(e.TTL / 4) {
		for i, h := range holds {
			now := look(i)
			if !now.Since.Equal(first[i].Since) {
				h.MustLive("it is renewed automatically")
				e.Failf(h.Key, "Inspect shows that the key is held since %s, and showed %s before its Locker renewed it; expected the time of the grant",
					now.Since.Format(time.RFC3339Nano), first[i].Since.Format(time.RFC3339Nano))
				return
			}
			if now.Since = first[i].Since; now != first[i] {
				h.MustLive("it is renewed automatically")
				e.Failf(h.Key, "Inspect shows the holder %s, and showed %s before its Locker renewed it; expected the same", inFull(now), inFull(first[i]))
				return
			}
		}
	}
	for _, h := range holds {
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(h.Key, err, "Release returned %s; expected no error", engine.Outcome(err))
		}
	}
}

func inspectShows(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	grain := max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag) + time.Millisecond
	in := optional[backend.Inspector](b, "Inspector")
	key := e.Key("a")
	inspect := func() (backend.Record, error) {
		ev := e.Log.Begin(b.Who, "Inspect", key)
		rec, err := in.Inspect(e.Ctx, key)
		text := engine.Outcome(err)
		if err == nil {
			text = fmt.Sprintf("token %d, %d holds, %s remaining", rec.Token, rec.Holds, rec.Remaining)
		}
		e.Log.End(ev, text)
		return rec, err
	}
	_, err := inspect()
	e.Is(key, err, "Inspect of a free key", backend.ErrNotHeld)
	ttl := unwhole(e, e.Long)
	req := e.Request(key, "", ttl)
	req.Holder = backend.Holder{Label: "a label", Host: longHost, PID: 4194303, PairID: "0123456789abcdef"}
	h := a.MustTry(req)
	granted := time.Now()
	var since time.Time // as it was shown first
	for range 3 {
		most := mostLeft(e, ttl, time.Since(granted))
		rec, err := inspect()
		left := time.Until(h.Until())
		switch {
		case err != nil:
			e.UnexpectedFatal(key, err, "Inspect of a held key returned %s; expected its record", engine.Outcome(err))
		case rec.Key != key || rec.Token != h.Token || rec.Holds != 1:
			e.Failf(key, "Inspect shows key %q, token %d, %d holds; expected key %q, token %d, 1 hold", rec.Key, rec.Token, rec.Holds, key, h.Token)
		case !tellsOf(e, rec.Holder, req.Holder):
			e.Failf(key, "Inspect shows the holder %s; expected %s", inFull(rec.Holder), inFull(req.Holder))
		case rec.Remaining <= 0 || rec.Remaining > most+rounding(rec.Remaining):
			e.Failf(key, "Inspect shows %s remaining of a TTL of %s; expected more than nothing and at most %s by now", rec.Remaining, ttl, most)
		case rec.Remaining < left-grain-rounding(rec.Remaining):
			e.Failf(key, "Inspect shows %s remaining, although the hold is valid for another %s without a renewal", rec.Remaining, left)
		case (e.Claimed.HolderDetails || !rec.Holder.Since.IsZero()) && rec.Holder.Since.Sub(granted).Abs() > clocksApart:
			e.Failf(key, "Inspect shows that the key is held since %s; expected the time of the grant, which was %s on this machine's clock, give or take %s",
				rec.Holder.Since.Format(time.RFC3339), granted.UTC().Format(time.RFC3339), clocksApart)
		case !since.IsZero() && !rec.Holder.Since.Equal(since):
			e.Failf(key, "Inspect shows that the key is held since %s, and showed %s before, of the same hold",
				rec.Holder.Since.Format(time.RFC3339Nano), since.Format(time.RFC3339Nano))
		case rec.Waiters != 0 && rec.Waiters != -1:
			e.Failf(key, "Inspect shows %d waiters; expected none, or -1 for unknown", rec.Waiters)
		}
		since = rec.Holder.Since
		e.Pause(e.TTL / 20)
	}
	if err := h.Release(e.Ctx); err != nil {
		e.Unexpected(key, err, "Release after Inspect returned %s; expected no error", engine.Outcome(err))
	}
	_, err = inspect()
	e.Is(key, err, "Inspect of a released key", backend.ErrNotHeld)
	_, err = optional[backend.Inspector](a, "Inspector").Inspect(e.Ctx, key)
	e.Is(key, err, "Inspect by the client that has released the key", backend.ErrNotHeld)
	a.MustTry(e.Request(key, "", e.Long))
	e.Together(
		func() { inspectKeepsNothing(e, a, in) },
		func() { inspectEndsNothing(e, a, b, in) },
		func() { operatesOnWholeKeys(e, a, b) },
		func() { holderStays(e, in) },
	)
	if engine.ClaimServerHolds.Made(e.Settings) {
		key, owner := e.Key("owner"), e.Owner("A")
		for n := 1; n <= 3; n++ {
			a.MustTry(e.Request(key, owner, e.Long))
			if rec, err := in.Inspect(e.Ctx, key); err != nil || rec.Holds != n {
				e.Unexpected(key, err, "Inspect of a key that its owner holds %d times shows %d holds: %s", n, rec.Holds, engine.Outcome(err))
			}
		}
	}
	e.Together(
		func() { inspectShowsLongest(e, a, in, grain) },
		func() { inspectShowsLeft(e, a, in) },
		func() { inspectShowsInner(e, a, in, grain) },
		func() { inspectShowsRenewed(e, a, in, grain) },
		func() {
			showsLong(e, a, grain, "Inspect", func(key string) (backend.Record, error) { return in.Inspect(e.Ctx, key) })
		},
	)
}

// leftShown looks for how long a hold is said to last at least.
func leftShown(e *engine.Env, h *engine.Grant, shown, grain time.Duration, what string) {
	if left := time.Until(h.Until()); shown < left-grain-rounding(shown) {
		e.Failf(h.Key, "%s shows %s remaining, although a hold is valid for another %s without a renewal", what, shown, left)
	}
}

// showsLong looks for hours, where a hold may last so long.
func showsLong(e *engine.Env, a *engine.BackendClient, grain time.Duration, what string, look func(key string) (backend.Record, error)) {
	ttl := e.Fit(3 * time.Hour)
	if ttl <= e.Long {
		return
	}
	key := e.Key("lasts for hours")
	h := a.MustTry(e.Request(key, "", ttl))
	rec, err := look(key)
	if err != nil {
		e.UnexpectedFatal(key, err, "%s of a hold with a TTL of %s returned %s; expected its record", what, ttl, engine.Outcome(err))
	}
	leftShown(e, h, rec.Remaining, grain, what+" of a hold with a TTL of "+ttl.String())
	e.MustGiveBack(h, key, "")
}

// inspectShowsInner looks at a key of which the outermost hold has run out.
func inspectShowsInner(e *engine.Env, a *engine.BackendClient, in backend.Inspector, grain time.Duration) {
	const when = "of a key whose outermost hold has run out, and that its owner holds by another one,"
	key := e.Key("inner")
	inner := innerOnly(e, a, key)
	if inner == nil {
		return
	}
	rec, err := in.Inspect(e.Ctx, key)
	if err != nil {
		e.UnexpectedFatal(key, err, "Inspect %s returned %s; expected its record", when, engine.Outcome(err))
	}
	if rec.Holds != 1 || rec.Token != inner.Token {
		e.Failf(key, "Inspect %s shows %d holds, token %d; expected 1 hold, token %d", when, rec.Holds, rec.Token, inner.Token)
	}
	leftShown(e, inner, rec.Remaining, grain, "Inspect "+when)
	e.MustGiveBack(inner, key, "")
}

// inspectShowsRenewed looks at a hold that was renewed, and is refused it.
func inspectShowsRenewed(e *engine.Env, a *engine.BackendClient, in backend.Inspector, grain time.Duration) {
	key := e.Key("renewed late")
	h := renewedLate(e, a, key)
	if h == nil {
		return
	}
	rec, err := in.Inspect(e.Ctx, key)
	if err != nil {
		e.UnexpectedFatal(key, err, "Inspect of a hold that was renewed returned %s; expected its record", engine.Outcome(err))
	}
	leftShown(e, h, rec.Remaining, grain, "Inspect of a hold that was renewed")
	_, err = a.Try(e.Request(key, "", e.TTL))
	if held := (*backend.HeldError)(nil); errors.As(err, &held) && held.Remaining > 0 {
		leftShown(e, h, held.Remaining, grain, "a refusal because of a hold that was renewed")
	}
	e.MustGiveBack(h, key, "")
}

// operatesOnWholeKeys shows, and removes by force, holds of keys that are no plain words.
func operatesOnWholeKeys(e *engine.Env, a, b *engine.BackendClient) {
	in := optional[backend.Inspector](b, "Inspector")
	f, forces := backend.As[backend.ForceReleaser](b.Backend)
	forces = forces && engine.ClaimTokens.Made(e.Settings)
	e.EachFew(len(nastyKeys), func(i int) {
		key := e.Key("whole %s", nastyKeys[i])
		h := a.MustTry(e.Request(key, "", e.Long))
		rec, err := in.Inspect(e.Ctx, key)
		switch {
		case err != nil:
			e.UnexpectedFatal(key, err, "Inspect of the held key %s returned %s; expected its record", engine.QuoteKey(key), engine.Outcome(err))
		case rec.Key != key || rec.Token != h.Token:
			e.Failf(key, "Inspect of the key %s shows the key %s, token %d; expected token %d", engine.QuoteKey(key), engine.QuoteKey(rec.Key), rec.Token, h.Token)
		}
		if !forces || i%2 == 0 {
			e.MustGiveBack(h, key, "")
			return
		}
		if err := h.EndedBy(e, func() error { return f.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
			e.Unexpected(key, err, "ForceRelease of the key %s, with the token of its holder, returned %s; expected no error", engine.QuoteKey(key), engine.Outcome(err))
		}
		_ = a.Backend.Release(e.Ctx, h.Hold) // who has lost a hold drops what it keeps of it
	})
}

// inspectShowsLongest has an owner enter its hold for a shorter time, and waits for the end
// of that.
func inspectShowsLongest(e *engine.Env, a *engine.BackendClient, in backend.Inspector, grain time.Duration) {
	if !engine.ClaimServerHolds.Made(e.Settings) || e.Long < 3*e.TTL+2*e.Claimed.TakeoverLag || e.Claimed.EndsWithSession {
		return
	}
	key, owner := e.Key("longest"), e.Owner("A")
	long, short := a.MustTry(e.Request(key, owner, e.Long)), a.MustTry(e.Request(key, owner, e.TTL))
	shows := func(when string, holds int) {
		left := time.Until(long.Until())
		rec, err := in.Inspect(e.Ctx, key)
		switch {
		case err != nil:
			e.UnexpectedFatal(key, err, "Inspect of a held key returned %s; expected its record", engine.Outcome(err))
		case rec.Remaining < left-grain-rounding(rec.Remaining)-time.Since(long.Until().Add(-left)):
			e.Failf(key, "Inspect shows %s remaining %s; expected the %s of its owner's longest hold, at least", rec.Remaining, when, left)
		case rec.Holds != holds:
			e.Failf(key, "Inspect shows %d holds %s; expected %d", rec.Holds, when, holds)
		}
		_, err = a.Try(e.Request(key, "", e.TTL))
		var held *backend.HeldError
		if most := mostLeft(e, e.Long, 0); errors.As(err, &held) && held.Remaining > most+rounding(held.Remaining) {
			e.Failf(key, "a refusal shows %s remaining %s; expected at most %s", held.Remaining, when, most)
		}
		if held != nil && held.Remaining > 0 && held.Remaining < left-grain-rounding(held.Remaining)-time.Since(long.Until().Add(-left)) {
			e.Failf(key, "a refusal shows %s remaining %s; expected the %s of its owner's longest hold, at least", held.Remaining, when, left)
		}
	}
	shows("after the owner entered for a shorter time", 2)
	e.Expire(short)
	shows("after the shorter of two holds has run out", 1)
	e.MustGiveBack(long, key, "")
}

// inspectShowsLeft has an owner release the longer of two holds. The other one counts then.
func inspectShowsLeft(e *engine.Env, a *engine.BackendClient, in backend.Inspector) {
	if !engine.ClaimServerHolds.Made(e.Settings) || e.Long < 3*e.TTL+2*e.Claimed.TakeoverLag || e.Claimed.EndsWithSession {
		return
	}
	key, owner := e.Key("longest released"), e.Owner("A")
	long := a.MustTry(e.Request(key, owner, e.Long))
	short := a.MustTry(e.Request(key, owner, e.TTL))
	short.Lapses()
	e.MustGiveBack(long, key, "")
	rec, err := in.Inspect(e.Ctx, key)
	if most := mostLeft(e, e.TTL, 0); err == nil && rec.Remaining > most+rounding(rec.Remaining) {
		e.Failf(key, "Inspect shows %s remaining after the longer of its owner's two holds was released; expected at most %s, since the other has a TTL of %s", rec.Remaining, most, e.TTL)
	}
	_ = short.Release(e.Ctx)
}

// inspectKeepsNothing looks at a hold that is not renewed until it has run out, which
// looking must neither put off nor overlook.
func inspectKeepsNothing(e *engine.Env, a *engine.BackendClient, in backend.Inspector) {
	if e.Claimed.EndsWithSession {
		return // its session keeps the hold
	}
	key, ttl := e.Key("looked at"), unwhole(e, e.TTL)
	h := a.MustTry(e.Request(key, "", ttl))
	granted := time.Now()
	h.Lapses()
	// Its deadline may be earlier, as that of a cautious lock.
	last := granted.Add(ttl + e.Claimed.TakeoverLag + ttl/50 + max(e.Claimed.TTLGrain, 2*time.Millisecond) + e.TTL/4)
	for {
		begun := time.Now()
		rec, err := in.Inspect(e.Ctx, key)
		if errors.Is(err, backend.ErrNotHeld) {
			return
		}
		if errors.Is(err, backend.ErrUnavailable) && time.Now().After(h.Until()) && begun.Before(last) {
			e.Pause(e.TTL / 20) // servers that make a majority do not end a hold in one moment
			continue
		}
		if most := mostLeft(e, ttl, begun.Sub(granted)); err == nil && rec.Remaining > most+rounding(rec.Remaining) {
			e.Failf(key, "Inspect shows %s remaining of a TTL of %s; expected at most %s by now, since nobody has renewed the hold", rec.Remaining, ttl, most)
			return
		}
		if err != nil {
			e.UnexpectedFatal(key, err, "Inspect of a hold that is not renewed returned %s; expected its record or ErrNotHeld", engine.Outcome(err))
		}
		if begun.After(last) {
			e.LateFatalf(key, "Inspect shows a hold %s after the end of its TTL of %s, and nobody has renewed it", time.Since(granted.Add(ttl)).Round(time.Millisecond), ttl)
		}
		e.Pause(e.TTL / 20)
	}
}

// inspectEndsNothing looks at a hold up to the last moment of it, and then whether it is
// there.
func inspectEndsNothing(e *engine.Env, a, b *engine.BackendClient, in backend.Inspector) {
	key := e.Key("looked at to the last")
	h := a.MustTry(e.Request(key, "", e.TTL))
	h.Lapses()
	e.Pause(time.Until(h.Until()) - 20*time.Millisecond)
	for took := time.Duration(0); time.Until(h.Until()) > 5*time.Millisecond+2*took; e.Pause(3 * time.Millisecond) {
		begun := time.Now()
		_, err := in.Inspect(e.Ctx, key)
		if took = max(took, time.Since(begun)); errors.Is(err, backend.ErrNotHeld) && time.Now().Before(h.Until()) {
			e.Failf(key, "Inspect returned %s in the last moment of a hold; expected its record", engine.Outcome(err))
		}
	}
	if _, err := b.Try(e.Request(key, "", e.TTL)); err == nil && time.Now().Before(h.Until()) {
		e.Failf(key, "another client was granted the key before the end of a hold that was only looked at; expected a refusal")
	}
}
