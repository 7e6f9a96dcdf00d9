package rules

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// batchKeepsTTLs renews holds of two TTLs in one batch, and waits until those with the longer
// one would have run out without it, and the others have.
func batchKeepsTTLs(e *engine.Env, a, b *engine.BackendClient, batch backend.BatchRenewer) {
	longer := e.Fit(2 * e.TTL)
	if longer < 2*e.TTL || e.Claimed.EndsWithSession { // whose session keeps what is not renewed
		return
	}
	var grants []*engine.Grant
	var holds []backend.Hold
	for i, ttl := range []time.Duration{longer, e.TTL, longer, e.TTL, longer} {
		h := a.MustTry(e.Request(e.Key("of its own TTL %d", i), "", ttl))
		grants, holds = append(grants, h), append(holds, h.Hold)
	}
	first := grants[0].Until()
	e.Pause(e.TTL / 2)
	from := e.Log.Now()
	answers := batch.RenewBatch(e.Ctx, holds)
	if len(answers) != len(holds) {
		e.Fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), len(holds))
	}
	for i, x := range answers {
		if x.Err != nil {
			e.LateFatalf(holds[i].Key, "a batch after half of the shortest TTL answers %s for hold %d; expected a validity", engine.Outcome(x.Err), i+1)
		}
		if x.Validity.For == 0 {
			return // it says that it did not extend it
		}
		grants[i].Renewed(from, x.Validity)
	}
	gone := e.Log.Now() + e.TTL + e.Claimed.TakeoverLag + e.TTL/10 // those with the shorter one
	e.Pause(time.Until(first.Add(e.TTL / 4)))
	for i := 0; i < len(grants); i += 2 {
		b.MustRefuse(holds[i].Key, "a batch has renewed it by its own TTL, which is longer than that of others in it")
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
