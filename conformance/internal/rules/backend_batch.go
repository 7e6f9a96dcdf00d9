package rules

import (
	"context"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

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
