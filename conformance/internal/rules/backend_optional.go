package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func optional[T any](s *engine.BackendClient, name string) T {
	t, ok := backend.As[T](s.Backend)
	if !ok {
		s.Env.Skipf("the backend does not implement backend.%s", name)
	}
	return t
}

func watchBeforeReturn(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	w := optional[backend.Watcher](b, "Watcher")
	ho, hands := backend.As[backend.HandOverer](a.Backend)
	n := e.Rounds(e.Work(100*time.Millisecond), 12, 200)
	missed := 0
	renew := func(h *engine.Grant, round int) {
		if round%4 >= 2 && e.Claimed.ManualRenewal {
			if err := h.Renew(); err != nil {
				e.UnexpectedFatal(h.Key, err, "Renew of a hold returned %s; expected no error", engine.Outcome(err))
			}
		}
	}
	for round := range n {
		key, owner := e.Key("%d", round), ""
		switch round % 3 {
		case 1: // what has a meaning in some servers' patterns
			key = e.Key("[a-z]*?%%_\\ %d", round)
		case 2:
			key = filled(key+"-", backend.MaxKey)
		}
		if round%2 == 1 && engine.ClaimServerHolds.Made(e.Settings) {
			owner = e.Owner("A")
		}
		h := a.MustTry(e.Request(key, owner, e.Long))
		renew(h, round)
		if hands && round%3 == 0 {
			next, err := a.HandOver(ho, h, e.Request(key, owner, e.Long))
			if err != nil {
				e.UnexpectedFatal(key, err, "HandOver of a hold returned %s; expected a grant", engine.Outcome(err))
			}
			h = next
		}
		ctx, cancel := context.WithCancel(e.Ctx)
		ev := e.Log.Begin(b.Who, "Watch", key)
		hints, err := w.Watch(ctx, key)
		e.Log.End(ev, engine.Outcome(err))
		if err != nil || hints == nil {
			cancel()
			e.UnexpectedFatal(key, err, "Watch returned %s (channel: %t); expected a channel", engine.Outcome(err), hints != nil)
		}
		renew(h, round)
		_ = h.Release(e.Ctx)
		// Signals may be spurious: the key must be free after one of them.
		control := time.NewTimer(e.Slack())
		signalled := false
		for !signalled {
			select {
			case _, ok := <-hints:
				got, err := b.Try(e.Request(key, "", e.Long))
				if err == nil {
					_ = got.Release(e.Ctx)
					signalled = true
				} else if !ok {
					e.UnexpectedFatal(key, err, "the watch broke, and the key was refused (%s) although it had been released", engine.Outcome(err))
				}
			case <-control.C:
				signalled = true
				missed++
				e.Log.Note("suite", key, "no signal came")
			}
		}
		control.Stop()
		cancel()
		if missed > 2 {
			break
		}
	}
	// Signals are hints, and one may be lost; losing them again and again is not that.
	if missed > 2 {
		e.Latef("", "%d releases after Watch had returned were not signalled within %s", missed, e.Slack())
	}
	e.Notef("%d watches, %d signals missed", n, missed)
}

func watchEndsWithContext(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	w := optional[backend.Watcher](b, "Watcher")
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	kept, err := w.Watch(ctx, key)
	if err != nil {
		e.UnexpectedFatal(key, err, "Watch returned %s; expected a channel", engine.Outcome(err))
	}
	label := fmt.Sprintf("%s%d", e.Stem, time.Now().UnixNano())
	const watches = 50
	e.Labelled(label, func() {
		for range watches {
			ctx, cancel := context.WithCancel(e.Ctx)
			if _, err := w.Watch(ctx, key); err != nil {
				e.Unexpected(key, err, "Watch returned %s; expected a channel", engine.Outcome(err))
			}
			cancel()
		}
	})
	if n, stacks := e.Settles(label, watches/2, e.Slack()); n > watches/2 {
		e.Failf(key, "%d goroutines of %d watches are left after the contexts of those had ended; for example\n%s", n, watches, stacks)
	}
	_ = h.Release(e.Ctx)
	control := time.NewTimer(e.Slack())
	defer control.Stop()
	select {
	case <-kept:
	case <-control.C:
		e.Latef(key, "the release was not signalled to the remaining watch within %s, after others had ended", e.Slack())
	}
}

func batchRenewMixed(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	batch := optional[backend.BatchRenewer](a, "BatchRenewer")
	expired := a.MustTry(e.Request(e.Key("expired"), "", e.TTL))
	e.Expire(expired)
	var holds []backend.Hold
	var good []*engine.Grant
	for i := range 3 {
		good = append(good, a.MustTry(e.Request(e.Key("good-%d", i), "", e.Long)))
	}
	taken := b.MustTry(e.Request(e.Key("taken"), "", e.Long))
	holds = append(holds, good[0].Hold, engine.Stranger(taken.Hold), good[1].Hold, expired.Hold, backend.HoldOf(e.Request(e.Key("never"), "", e.Long)), good[2].Hold, good[0].Hold)
	wantGood := []bool{true, false, true, false, false, true, true}
	before := a.Clock.Now()
	ev := e.Log.Begin(a.Who, "RenewBatch", "")
	answers := batch.RenewBatch(e.Ctx, holds)
	after := a.Clock.Now()
	e.Log.End(ev, fmt.Sprintf("%d answers", len(answers)))
	if len(answers) != len(holds) {
		e.Fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), len(holds))
	}
	for i, x := range answers {
		switch {
		case wantGood[i] && x.Err != nil:
			e.Unexpected(holds[i].Key, x.Err, "hold %d of the batch, which is held, got %s; expected a validity", i+1, engine.Outcome(x.Err))
		case wantGood[i] && x.Validity.For > 0:
			judgeValidity(e, holds[i].Key, fmt.Sprintf("hold %d of a batch", i+1), x.Validity, before, after, holds[i].TTL)
		case !wantGood[i] && !errors.Is(x.Err, backend.ErrNotHeld):
			e.Unexpected(holds[i].Key, x.Err, "hold %d of the batch, which holds nothing, got %s; expected ErrNotHeld", i+1, engine.Outcome(x.Err))
		}
	}
	b.MustRefuse(e.Key("taken"), "another client holds it")
	for _, key := range []string{e.Key("expired"), e.Key("never")} {
		b.MustTry(e.Request(key, "", e.Long))
	}
	if n := len(batch.RenewBatch(e.Ctx, nil)); n != 0 {
		e.Failf("", "RenewBatch of nothing returned %d answers", n)
	}
	e.Together(func() { batchRenewMany(e, a, b, batch) }, func() { batchExtends(e, a, b, batch) }, func() { batchKeepsTTLs(e, a, b, batch) })
}

// batchExtends keeps holds by batches past their first TTL, beside one that was released.
func batchExtends(e *engine.Env, a, b *engine.BackendClient, batch backend.BatchRenewer) {
	if e.Claimed.EndsWithSession {
		return // its session keeps what is not renewed
	}
	const kept = 4
	gone := a.MustTry(e.Request(e.Key("extended, gone"), "", e.TTL))
	_ = gone.Release(e.Ctx)
	grants := make([]*engine.Grant, kept)
	for i := range grants {
		owner := ""
		if i == kept-1 && engine.ClaimServerHolds.Made(e.Settings) {
			owner = e.Owner("A")
		}
		grants[i] = a.MustTry(e.Request(e.Key("extended %d", i), owner, e.TTL))
	}
	holds := []backend.Hold{grants[0].Hold, gone.Hold, grants[1].Hold, grants[2].Hold, grants[3].Hold}
	of := []*engine.Grant{grants[0], nil, grants[1], grants[2], grants[3]}
	for end := time.Now().Add(e.TTL*5/4 + min(e.Claimed.TakeoverLag, 4*e.TTL)); time.Now().Before(end); {
		e.Pause(e.TTL / 4)
		from := e.Log.Now()
		answers := batch.RenewBatch(e.Ctx, holds)
		if len(answers) != len(holds) {
			e.Fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), len(holds))
		}
		for i, h := range of {
			switch x := answers[i]; {
			case h == nil:
				e.Is(gone.Key, x.Err, "the answer of RenewBatch for a hold that was released", backend.ErrNotHeld)
			case x.Err != nil:
				e.LateFatalf(h.Key, "a batch that was repeated every quarter of its TTL answers %s for hold %d; expected a validity", engine.Outcome(x.Err), i+1)
			default:
				h.Renewed(from, x.Validity)
			}
		}
	}
	for _, h := range grants {
		b.MustRefuse(h.Key, "it is renewed in time, by batches")
		if err := h.Release(e.Ctx); err != nil {
			e.Latef(h.Key, "Release of a hold that batches renewed in time returned %s; expected no error", engine.Outcome(err))
		}
	}
}

// batchRenewMany renews more holds than fit in one request of many a client, of several
// TTLs, and two of one key where the server counts them. Each answer is its own hold's.
func batchRenewMany(e *engine.Env, a, b *engine.BackendClient, batch backend.BatchRenewer) {
	const many = 130
	holds, grants := make([]backend.Hold, many), make([]*engine.Grant, many)
	twice := e.Owner("A")
	e.Each(many, func(i int) {
		ttl, owner := e.Long, ""
		key := e.Key("many-%d", i)
		if i%2 == 1 {
			ttl = e.Fit(e.Long / 2)
		}
		if i%10 >= 8 && engine.ClaimServerHolds.Made(e.Settings) { // with the one before or after it
			owner, key = twice, e.Key("many-%d", i/10)+"-twice"
		}
		grants[i] = a.MustTry(e.Request(key, owner, ttl))
		holds[i] = grants[i].Hold
	})
	gone := many - 1
	if err := grants[gone].Release(e.Ctx); err != nil {
		e.Unexpected(holds[gone].Key, err, "Release returned %s; expected no error", engine.Outcome(err))
	}
	answers := batch.RenewBatch(e.Ctx, holds)
	if len(answers) != many {
		e.Fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), many)
	}
	for i, x := range answers {
		switch h := holds[i]; {
		case i == gone:
			e.Is(h.Key, x.Err, fmt.Sprintf("the answer of RenewBatch for the last of %d holds, which was released,", many), backend.ErrNotHeld)
		case x.Err != nil:
			e.Unexpected(h.Key, x.Err, "hold %d of %d in a batch, which is held, got %s; expected a validity", i+1, many, engine.Outcome(x.Err))
		case x.Validity.For > backend.ValidFor(h.TTL):
			e.Failf(h.Key, "hold %d of %d in a batch is valid for %s; expected at most %s, the TTL of %s less the drift allowance", i+1, many, x.Validity.For, backend.ValidFor(h.TTL), h.TTL)
		case x.Validity.For > 0 && x.Validity.For < h.TTL/2:
			e.Failf(h.Key, "hold %d of %d in a batch is valid for %s; expected most of its TTL of %s", i+1, many, x.Validity.For, h.TTL)
		}
	}
	e.Each(many, func(i int) {
		if i != gone {
			e.MustGiveBack(grants[i], holds[i].Key, "")
		}
	})
}

// clocksApart is how far the clock of a server may be from that of this machine. It is
// less than the difference of two time zones.
const clocksApart = 10 * time.Minute

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
	req.Holder = backend.Holder{Label: "a label", Host: "a host", PID: 4711, PairID: "0123456789abcdef"}
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
			e.Failf(key, "Inspect shows the holder %s; expected %s", rec.Holder, req.Holder)
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
	a.MustTry(e.Request(key, "", e.Long))
	e.Together(func() { inspectKeepsNothing(e, a, in) }, func() { inspectEndsNothing(e, a, b, in) })
	if engine.ClaimServerHolds.Made(e.Settings) {
		key, owner := e.Key("owner"), e.Owner("A")
		for n := 1; n <= 3; n++ {
			a.MustTry(e.Request(key, owner, e.Long))
			if rec, err := in.Inspect(e.Ctx, key); err != nil || rec.Holds != n {
				e.Unexpected(key, err, "Inspect of a key that its owner holds %d times shows %d holds: %s", n, rec.Holds, engine.Outcome(err))
			}
		}
		inspectShowsLongest(e, a, in, grain)
	}
}

// inspectShowsLongest has an owner enter its hold for a shorter time, and waits for the end
// of that.
func inspectShowsLongest(e *engine.Env, a *engine.BackendClient, in backend.Inspector, grain time.Duration) {
	if e.Long < 3*e.TTL+2*e.Claimed.TakeoverLag || e.Claimed.EndsWithSession {
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
		if errors.As(err, &held) && held.Remaining > 0 && held.Remaining < left-grain-rounding(held.Remaining)-time.Since(long.Until().Add(-left)) {
			e.Failf(key, "a refusal shows %s remaining %s; expected the %s of its owner's longest hold, at least", held.Remaining, when, left)
		}
	}
	shows("after the owner entered for a shorter time", 2)
	e.Expire(short)
	shows("after the shorter of two holds has run out", 1)
	e.MustGiveBack(long, key, "")
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

// otherTokens are tokens that nobody has who holds the key with the token: neighbours, and
// such as are "any" where a number has a sign.
func otherTokens(token uint64) []uint64 {
	return []uint64{0, token - 1, token + 1, tooLarge, math.MaxUint64}
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

// forceEndsAll removes records that are more than one hold, and one that was revoked.
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
			if next.Token <= holds[0].Token {
				e.Failf(key, "the token after %s was removed by force is %d; expected more than %d", what, next.Token, holds[0].Token)
			}
			e.MustGiveBack(next, key, "")
		}
	}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owner := e.Owner("A")
		for name, next := range map[string]string{"nobody": "", "the owner": owner, "another owner": e.Owner("B")} {
			key := e.Key("owner, and then %s", name)
			end(key, "a key that its owner holds twice", next, a.MustTry(e.Request(key, owner, e.Long)), a.MustTry(e.Request(key, owner, e.Long)))
		}
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
