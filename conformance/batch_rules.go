package conformance

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

// batchRenewBesideGuardedWrite has a client stay in the middle of a guarded write whose
// key lies among those that another renews in one request.
func batchRenewBesideGuardedWrite(e *env) {
	e.needsGuardedOpen()
	a := e.backend()
	batch := optional[backend.BatchRenewer](a, "BatchRenewer")
	const n = 24
	var mine []*seamHold
	var holds []backend.Hold
	for i := range n {
		h := a.mustTry(e.request(e.key("%02d", i), "", e.long))
		mine, holds = append(mine, h), append(holds, h.h)
	}
	written := e.locker().mustTryFor(e.key("%02d-written", n/2), e.long)
	err := e.guardedOpen(written, "new", func() {
		ctx, cancel := context.WithTimeout(e.ctx, e.slack())
		defer cancel()
		ev := e.hist.begin(a.who, "RenewBatch", "")
		answers := batch.RenewBatch(ctx, holds)
		e.hist.end(ev, "")
		if len(answers) != n {
			e.fatalf("", "RenewBatch returned %d answers for %d holds", len(answers), n)
		}
		extended, example := 0, ""
		for i, r := range answers {
			if r.Err == nil && r.Validity.For > 0 {
				extended++
			} else {
				example = holds[i].Key + ": " + outcome(r.Err)
			}
		}
		if extended < n {
			e.latef("", "while a guarded write of another client was under way on another key, a batch renewed %d of %d holds within %s; for example %s", extended, n, e.slack(), example)
		}
	})
	if err != nil {
		e.unexpectedFatal(written.key, err, "a guarded write under a lease that is held returned %s; expected no error", outcome(err))
	}
	for _, h := range mine {
		_ = h.release(e.ctx)
	}
	if !written.lost() {
		written.mustRelease()
	}
}
