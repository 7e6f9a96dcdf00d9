package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

func optional[T any](s *seam, name string) T {
	t, ok := backend.As[T](s.b)
	if !ok {
		s.e.skipf("the backend does not implement backend.%s", name)
	}
	return t
}

func watchBeforeReturn(e *env) {
	a, b := e.backend(), e.backend()
	w := optional[backend.Watcher](b, "Watcher")
	n := e.rounds(100*time.Millisecond, 10, 200)
	missed := 0
	for round := range n {
		key := e.key("%d", round)
		h := a.mustTry(e.request(key, "", e.long))
		ctx, cancel := context.WithCancel(e.ctx)
		ev := e.hist.begin(b.who, "Watch", key)
		hints, err := w.Watch(ctx, key)
		e.hist.end(ev, outcome(err))
		if err != nil || hints == nil {
			cancel()
			e.unexpectedFatal(key, err, "Watch returned %s (channel: %t); expected a channel", outcome(err), hints != nil)
		}
		_ = h.release(e.ctx)
		// Signals may be spurious: the key must be free after one of them.
		control := time.NewTimer(e.slack())
		signalled := false
		for !signalled {
			select {
			case _, ok := <-hints:
				got, err := b.try(e.request(key, "", e.long))
				if err == nil {
					_ = got.release(e.ctx)
					signalled = true
				} else if !ok {
					e.unexpectedFatal(key, err, "the watch broke, and the key was refused (%s) although it had been released", outcome(err))
				}
			case <-control.C:
				signalled = true
				missed++
				e.hist.note("suite", key, "no signal came")
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
		e.latef("", "%d releases after Watch had returned were not signalled within %s", missed, e.slack())
	}
	e.notef("%d watches, %d signals missed", n, missed)
}

func watchEndsWithContext(e *env) {
	a, b := e.backend(), e.backend()
	w := optional[backend.Watcher](b, "Watcher")
	key := e.key("a")
	h := a.mustTry(e.request(key, "", e.long))
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	kept, err := w.Watch(ctx, key)
	if err != nil {
		e.unexpectedFatal(key, err, "Watch returned %s; expected a channel", outcome(err))
	}
	label := fmt.Sprintf("%s%d", e.keys, time.Now().UnixNano())
	const watches = 50
	e.labelled(label, func() {
		for range watches {
			ctx, cancel := context.WithCancel(e.ctx)
			if _, err := w.Watch(ctx, key); err != nil {
				e.unexpected(key, err, "Watch returned %s; expected a channel", outcome(err))
			}
			cancel()
		}
	})
	if n, stacks := e.settles(label, watches/2, e.slack()); n > watches/2 {
		e.failf(key, "%d goroutines of %d watches are left after the contexts of those had ended; for example\n%s", n, watches, stacks)
	}
	_ = h.release(e.ctx)
	control := time.NewTimer(e.slack())
	defer control.Stop()
	select {
	case <-kept:
	case <-control.C:
		e.latef(key, "the release was not signalled to the remaining watch within %s, after others had ended", e.slack())
	}
}

func batchRenewMixed(e *env) {
	a, b := e.backend(), e.backend()
	batch := optional[backend.BatchRenewer](a, "BatchRenewer")
	expired := a.mustTry(e.request(e.key("expired"), "", e.ttl))
	e.expire(expired)
	var holds []backend.Hold
	var good []*seamHold
	for i := range 3 {
		good = append(good, a.mustTry(e.request(e.key("good-%d", i), "", e.long)))
	}
	taken := b.mustTry(e.request(e.key("taken"), "", e.long))
	holds = append(holds, good[0].h, stranger(taken.h), good[1].h, expired.h, backend.HoldOf(e.request(e.key("never"), "", e.long)), good[2].h)
	wantGood := []bool{true, false, true, false, false, true}
	before := a.clock.Now()
	ev := e.hist.begin(a.who, "RenewBatch", "")
	answers := batch.RenewBatch(e.ctx, holds)
	e.hist.end(ev, fmt.Sprintf("%d answers", len(answers)))
	if len(answers) != len(holds) {
		e.fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), len(holds))
	}
	for i, x := range answers {
		switch {
		case wantGood[i] && x.Err != nil:
			e.unexpected(holds[i].Key, x.Err, "hold %d of the batch, which is held, got %s; expected a validity", i+1, outcome(x.Err))
		case wantGood[i] && x.Validity.For > 0 && x.Validity.Sent < before:
			e.failf(holds[i].Key, "the validity of hold %d is dated before the batch was sent", i+1)
		case !wantGood[i] && !errors.Is(x.Err, backend.ErrNotHeld):
			e.unexpected(holds[i].Key, x.Err, "hold %d of the batch, which holds nothing, got %s; expected ErrNotHeld", i+1, outcome(x.Err))
		}
	}
	b.mustRefuse(e.key("taken"), "another client holds it")
	for _, key := range []string{e.key("expired"), e.key("never")} {
		b.mustTry(e.request(key, "", e.long))
	}
	if n := len(batch.RenewBatch(e.ctx, nil)); n != 0 {
		e.failf("", "RenewBatch of nothing returned %d answers", n)
	}
}

func handOver(e *env) {
	a, b := e.backend(), e.backend()
	ho := optional[backend.HandOverer](a, "HandOverer")
	key := e.key("a")
	from := a.mustTry(e.request(key, "", e.long))
	to := e.request(key, "", e.long)
	ev := e.hist.begin(a.who, "HandOver", key)
	var g backend.Grant
	err := from.endedBy(e, func() (err error) {
		g, err = ho.HandOver(e.ctx, from.h, to)
		return err
	})
	e.hist.end(ev, outcome(err))
	switch {
	case errors.Is(err, backend.ErrHeld):
		e.fatalf(key, "HandOver of the only hold of a key returned %s; expected a grant, because nobody else waits for it", outcome(err))
	case err != nil:
		e.unexpectedFatal(key, err, "HandOver of a hold returned %s; expected a grant", outcome(err))
	}
	if claimTokens.made(e.settings) && g.Token <= from.token {
		e.failf(key, "the token after HandOver is %d; expected more than %d", g.Token, from.token)
	}
	b.mustRefuse(key, "it was handed over")
	e.is(key, a.release(e.ctx, from.h), "Release of a hold that was handed over", backend.ErrNotHeld)
	held := backend.HoldOf(to)
	held.Token = g.Token
	if err := a.release(e.ctx, held); err != nil {
		e.unexpected(key, err, "Release after HandOver returned %s; expected no error", outcome(err))
	}
	_, err = ho.HandOver(e.ctx, held, e.request(key, "", e.long))
	e.is(key, err, "HandOver of a hold that was released", backend.ErrNotHeld)
	b.mustTry(e.request(key, "", e.long))
}

// clocksApart is how far the clock of a server may be from that of this machine. It is
// less than the difference of two time zones.
const clocksApart = 10 * time.Minute

func inspectShows(e *env) {
	a, b := e.backend(), e.backend()
	grain := max(e.g.TTLGrain, e.g.TakeoverLag) + time.Millisecond
	in := optional[backend.Inspector](b, "Inspector")
	key := e.key("a")
	inspect := func() (backend.Record, error) {
		ev := e.hist.begin(b.who, "Inspect", key)
		rec, err := in.Inspect(e.ctx, key)
		text := outcome(err)
		if err == nil {
			text = fmt.Sprintf("token %d, %d holds, %s remaining", rec.Token, rec.Holds, rec.Remaining)
		}
		e.hist.end(ev, text)
		return rec, err
	}
	_, err := inspect()
	e.is(key, err, "Inspect of a free key", backend.ErrNotHeld)
	req := e.request(key, "", e.long)
	req.Holder = backend.Holder{Label: "a label", Host: "a host", PID: 4711}
	h := a.mustTry(req)
	granted := time.Now()
	var since time.Time // as it was shown first
	for range 3 {
		rec, err := inspect()
		left := time.Until(h.until())
		switch {
		case err != nil:
			e.unexpectedFatal(key, err, "Inspect of a held key returned %s; expected its record", outcome(err))
		case rec.Key != key || rec.Token != h.token || rec.Holds != 1:
			e.failf(key, "Inspect shows key %q, token %d, %d holds; expected key %q, token %d, 1 hold", rec.Key, rec.Token, rec.Holds, key, h.token)
		case rec.Holder.Label != req.Holder.Label || rec.Holder.Host != req.Holder.Host || rec.Holder.PID != req.Holder.PID:
			e.failf(key, "Inspect shows the holder %s; expected %s", rec.Holder, req.Holder)
		case rec.Remaining <= 0 || rec.Remaining > e.long+grain:
			e.failf(key, "Inspect shows %s remaining; expected more than nothing and at most the TTL of %s", rec.Remaining, e.long)
		case rec.Remaining < left-grain:
			e.failf(key, "Inspect shows %s remaining, although the hold is valid for another %s without a renewal", rec.Remaining, left)
		case rec.Holder.Since.IsZero() || rec.Holder.Since.Sub(granted).Abs() > clocksApart:
			e.failf(key, "Inspect shows that the key is held since %s; expected the time of the grant, which was %s on this machine's clock, give or take %s",
				rec.Holder.Since.Format(time.RFC3339), granted.UTC().Format(time.RFC3339), clocksApart)
		case !since.IsZero() && !rec.Holder.Since.Equal(since):
			e.failf(key, "Inspect shows that the key is held since %s, and showed %s before, of the same hold",
				rec.Holder.Since.Format(time.RFC3339Nano), since.Format(time.RFC3339Nano))
		case rec.Waiters > 0:
			e.failf(key, "Inspect shows %d waiters; expected none, or -1 for unknown", rec.Waiters)
		}
		since = rec.Holder.Since
		e.pause(e.ttl / 20)
	}
	if err := h.release(e.ctx); err != nil {
		e.unexpected(key, err, "Release after Inspect returned %s; expected no error", outcome(err))
	}
	_, err = inspect()
	e.is(key, err, "Inspect of a released key", backend.ErrNotHeld)
	a.mustTry(e.request(key, "", e.long))
}

func forceReleaseByToken(e *env) {
	a, b := e.backend(), e.backend()
	f := optional[backend.ForceReleaser](b, "ForceReleaser")
	if !claimTokens.made(e.settings) {
		e.skipf("needs tokens to name a record by, and none are claimed")
	}
	key := e.key("a")
	force := func(token uint64) error {
		ev := e.hist.begin(b.who, "ForceRelease", key)
		err := f.ForceRelease(e.ctx, key, token)
		e.hist.end(ev, fmt.Sprintf("token %d: %s", token, outcome(err)))
		return err
	}
	e.is(key, force(1), "ForceRelease of a free key", backend.ErrNotHeld)
	h := a.mustTry(e.request(key, "", e.long))
	for _, other := range []uint64{h.token - 1, h.token + 1} {
		e.is(key, force(other), "ForceRelease with another token", backend.ErrNotHeld)
		b.mustRefuse(key, "it was released by force with another token only")
	}
	if err := h.endedBy(e, func() error { return force(h.token) }); err != nil {
		e.unexpectedFatal(key, err, "ForceRelease with the token of the holder returned %s; expected no error", outcome(err))
	}
	next := b.mustTry(e.request(key, "", e.long))
	if e.g.ManualRenewal {
		if _, err := a.renew(h.h); err == nil || !errors.Is(err, backend.ErrNotHeld) {
			e.unexpected(key, err, "Renew of a hold that was removed by force returned %s; expected ErrNotHeld", outcome(err))
		}
	}
	e.is(key, a.release(e.ctx, h.h), "Release of a hold that was removed by force", backend.ErrNotHeld)
	e.is(key, force(h.token), "ForceRelease with the token of the earlier holder", backend.ErrNotHeld)
	a.mustRefuse(key, "its holder was not released")
	if err := next.release(e.ctx); err != nil {
		e.unexpected(key, err, "Release by the next holder returned %s; expected no error", outcome(err))
	}
}
