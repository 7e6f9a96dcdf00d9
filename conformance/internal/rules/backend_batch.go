package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// batchKeepsTTLs renews so many holds of two TTLs in one batch, and waits until those with the
// longer one would have run out without it, and the others have.
func batchKeepsTTLs(e *engine.Env, a, b *engine.BackendClient, batch backend.BatchRenewer, n int) {
	longer := e.Fit(2 * e.TTL)
	if longer < 2*e.TTL || e.Claimed.EndsWithSession { // whose session keeps what is not renewed
		return
	}
	var grants []*engine.Grant
	var holds []backend.Hold
	begun := time.Now()
	for i := range n {
		ttl := longer
		if i%2 == 1 {
			ttl = e.TTL
		}
		h := a.MustTry(e.Request(e.Key("of its own TTL, %d of %d", i+1, n), "", ttl))
		grants, holds = append(grants, h), append(holds, h.Hold)
	}
	first := grants[0].Until()
	if time.Since(begun) > e.TTL/4 { // the server is too far away for so many
		e.EachFew(n, func(i int) { _ = grants[i].Release(e.Ctx) })
		return
	}
	e.Pause(e.TTL / 2)
	from := e.Log.Now()
	answers := batch.RenewBatch(e.Ctx, holds)
	if len(answers) != len(holds) {
		e.Fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), len(holds))
	}
	for i, x := range answers {
		if x.Err != nil {
			e.UnexpectedLateFatal(holds[i].Key, x.Err, "a batch of %d after half of the shortest TTL answers %s for hold %d; expected a validity", n, engine.Outcome(x.Err), i+1)
		}
		if x.Validity.For == 0 {
			return // it says that it did not extend it
		}
		grants[i].Renewed(from, x.Validity)
	}
	gone := e.Log.Now() + e.TTL + e.Claimed.TakeoverLag + e.TTL/10 // those with the shorter one
	e.Pause(time.Until(first.Add(e.TTL / 4)))
	for i := 0; i < len(grants); i += 2 {
		b.MustRefuse(holds[i].Key, fmt.Sprintf("a batch of %d has renewed it by its own TTL, which is longer than that of others in it", n))
		e.MustGiveBack(grants[i], holds[i].Key, ", although a batch has renewed it in time")
	}
	e.Pause(gone - e.Log.Now())
	for i := 1; i < len(grants); i += 2 {
		grants[i].Lapses()
		_ = b.MustTry(e.Request(holds[i].Key, "", e.Long)).Release(e.Ctx)
	}
}

// batchRenewBesideGuardedWrite has a client stay in the middle of a guarded write whose
// key lies among those that another renews in one request.
func batchRenewBesideGuardedWrite(e *engine.Env) {
	needsGuardedOpen(e)
	a := e.Backend()
	batch := optional[backend.BatchRenewer](a, "BatchRenewer")
	const n = 24
	var mine []*engine.Grant
	var holds []backend.Hold
	for i := range n {
		h := a.MustTry(e.Request(e.Key("%02d", i), "", e.Long))
		mine, holds = append(mine, h), append(holds, h.Hold)
	}
	written := e.Locker().MustTryFor(e.Key("%02d-written", n/2), e.Long)
	err := guardedOpen(e, written, "new", func() {
		ctx, cancel := context.WithTimeout(e.Ctx, e.Slack())
		defer cancel()
		ev := e.Log.Begin(a.Who, "RenewBatch", "")
		answers := batch.RenewBatch(ctx, holds)
		e.Log.End(ev, "")
		if len(answers) != n {
			e.Fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), n)
		}
		extended, example := 0, ""
		for i, r := range answers {
			if r.Err == nil && r.Validity.For > 0 {
				extended++
			} else {
				example = holds[i].Key + ": " + engine.Outcome(r.Err)
			}
		}
		if extended < n {
			e.Latef("", "while a guarded write of another client was under way on another key, a batch renewed %d of %d holds within %s; for example %s", extended, n, e.Slack(), example)
		}
	})
	if err != nil {
		e.UnexpectedFatal(written.Key, err, "a guarded write under a lease that is held returned %s; expected no error", engine.Outcome(err))
	}
	for _, h := range mine {
		_ = h.Release(e.Ctx)
	}
	if !written.Lost() {
		written.MustRelease()
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
	e.Together(
		func() { batchRenewMany(e, a, b, batch) },
		func() { batchExtends(e, a, b, batch) },
		func() { largeBatchExtends(e, a, batch) },
		func() { batchKeepsTTLs(e, a, b, batch, 5) },
		func() {
			if e.Virtual() { // there are many requests
				batchKeepsTTLs(e, a, b, batch, 101)
			}
		},
		func() { batchOfAnOwner(e, a, batch) },
		func() { batchOfAnotherKey(e, a, batch) },
		func() {
			innerKeepsTTL(e, a, b, e.Key("inner, in a batch"), func(h *engine.Grant) error {
				from := e.Log.Now()
				x := batch.RenewBatch(e.Ctx, []backend.Hold{h.Hold})[0]
				if x.Err == nil && x.Validity.For > 0 {
					h.Renewed(from, x.Validity)
				}
				return x.Err
			})
		},
	)
}

// batchOfAnOwner renews a hold that has run out while another one of its owner goes on.
func batchOfAnOwner(e *engine.Env, a *engine.BackendClient, batch backend.BatchRenewer) {
	if !engine.ClaimServerHolds.Made(e.Settings) || e.Claimed.EndsWithSession || e.Long < 3*e.TTL+e.Claimed.TakeoverLag {
		return
	}
	key, owner := e.Key("of an owner"), e.Owner("A")
	lost, kept := a.MustTry(e.Request(key, owner, e.TTL)), a.MustTry(e.Request(key, owner, e.Long))
	e.Expire(lost)
	answers := batch.RenewBatch(e.Ctx, []backend.Hold{kept.Hold, lost.Hold})
	if len(answers) != 2 {
		e.Fatalf(key, "RenewBatch returned %d answers for 2 holds", len(answers))
	}
	if err := answers[0].Err; err != nil {
		e.Unexpected(key, err, "the answer of RenewBatch for a hold that is held is %s; expected a validity", engine.Outcome(err))
	}
	if err := answers[1].Err; !errors.Is(err, backend.ErrNotHeld) {
		e.Unexpected(key, err, "the answer of RenewBatch for a hold that has run out, beside another one of its owner, is %s; expected ErrNotHeld", engine.Outcome(err))
	}
	e.MustGiveBack(kept, key, "")
	again := a.MustTry(e.Request(key, owner, e.Long))
	for _, x := range batch.RenewBatch(e.Ctx, []backend.Hold{lost.Hold}) {
		e.Is(key, x.Err, "the answer of RenewBatch for a hold that has run out, of a key that its owner holds again,", backend.ErrNotHeld)
	}
	e.MustGiveBack(again, key, "")
}

// batchOfAnotherKey renews a hold beside one that has its id, and a key that was never held.
func batchOfAnotherKey(e *engine.Env, a *engine.BackendClient, batch backend.BatchRenewer) {
	h := a.MustTry(e.Request(e.Key("of the id"), "", e.Long))
	elsewhere := h.Hold
	elsewhere.Key = e.Key("never held by the id")
	answers := batch.RenewBatch(e.Ctx, []backend.Hold{elsewhere, h.Hold})
	if len(answers) != 2 {
		e.Fatalf(h.Key, "RenewBatch returned %d answers for 2 holds", len(answers))
	}
	e.Is(elsewhere.Key, answers[0].Err, "the answer of RenewBatch for a key that was never held, with the id of another key's hold,", backend.ErrNotHeld)
	e.MustGiveBack(h, h.Key, "")
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
	renew := func(when string) {
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
				e.UnexpectedLateFatal(h.Key, x.Err, "a batch that was repeated %s answers %s for hold %d; expected a validity", when, engine.Outcome(x.Err), i+1)
			default:
				h.Renewed(from, x.Validity)
			}
		}
	}
	for end := time.Now().Add(e.TTL*5/4 + min(e.Claimed.TakeoverLag, 4*e.TTL)); time.Now().Before(end); {
		e.Pause(e.TTL / 4)
		renew("every quarter of its TTL")
	}
	if last := e.TTL / 25; e.Virtual() { // the last moment counts too, where that is no race
		e.Pause(time.Until(grants[0].Until()) - last)
		renew("so late as " + last.String() + " before the deadline")
		e.Pause(e.TTL / 8)
		for _, h := range grants {
			b.MustRefuse(h.Key, "a batch renewed it "+last.String()+" before its deadline")
		}
	}
	for _, h := range grants {
		b.MustRefuse(h.Key, "it is renewed in time, by batches")
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(h.Key, err, "Release of a hold that batches renewed in time returned %s; expected no error", engine.Outcome(err))
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
	begun := time.Now()
	answers := batch.RenewBatch(e.Ctx, holds)
	lasts := time.Duration(len(batchSizes)) * (e.TTL/8 + time.Since(begun)) // of the sizes below
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
	if e.Virtual() && lasts < e.Fit(e.Long/2)/4 {
		batchesOfManySizes(e, batch, holds[:gone], answers)
	}
	e.Each(many, func(i int) {
		if i != gone {
			e.MustGiveBack(grants[i], holds[i].Key, "")
		}
	})
}

// largeBatchExtends keeps more holds by one batch than a client has of most things.
func largeBatchExtends(e *engine.Env, a *engine.BackendClient, batch backend.BatchRenewer) {
	if !e.Virtual() || e.Claimed.EndsWithSession { // there are many requests, and time passes
		return
	}
	const large = 1_200
	holds, grants := make([]backend.Hold, large), make([]*engine.Grant, large)
	e.Each(large, func(i int) {
		grants[i] = a.MustTry(e.Request(e.Key("large-%d", i), "", e.Long))
		holds[i] = grants[i].Hold
	})
	e.Pause(e.Long / 2)
	if time.Until(grants[0].Until()) > e.Long/4 {
		from := e.Log.Now()
		answers := batch.RenewBatch(e.Ctx, holds)
		for i, x := range answers {
			switch {
			case x.Err != nil:
				e.UnexpectedFatal(holds[i].Key, x.Err, "hold %d of %d in a batch, which is held, got %s; expected a validity", i+1, large, engine.Outcome(x.Err))
			case x.Validity.For > 0:
				grants[i].Renewed(from, x.Validity)
			case answers[0].Validity.For > 0:
				e.Fatalf(holds[i].Key, "a batch of %d did not extend hold %d, and did the first; expected the same", large, i+1)
			}
		}
		e.Pause(e.Long * 3 / 4) // past the first TTL
	}
	e.Each(large, func(i int) {
		if err := grants[i].Release(e.Ctx); err != nil {
			e.UnexpectedLate(holds[i].Key, err, "Release of hold %d of a batch of %d that was renewed in time returned %s; expected no error", i+1, large, engine.Outcome(err))
		}
	})
}

// batchSizes are of what one request may have, or fewer or more by one.
var batchSizes = []int{1, 2, 8, 10, 16, 25, 32, 49, 50, 51, 64, 100, 128}

// batchesOfManySizes renews the first of the holds. Of all of them, large was the answer.
func batchesOfManySizes(e *engine.Env, batch backend.BatchRenewer, holds []backend.Hold, large []backend.Renewal) {
	for _, n := range batchSizes {
		e.Pause(e.TTL / 8) // else there may be nothing to renew
		answers := batch.RenewBatch(e.Ctx, holds[:n])
		if len(answers) != n {
			e.Fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), n)
		}
		for i, x := range answers {
			if x.Err == nil && x.Validity.For == 0 && large[i].Validity.For > 0 {
				e.Fatalf(holds[i].Key, "a batch of %d did not extend hold %d, and one of %d did; expected the same", n, i+1, len(large))
			}
		}
	}
}
