package conformance

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

func hungKeyHoldsUpNoOther(e *env) {
	e.eachSeam(func(via seamKind) {
		a, c := e.faultyAt(via, nil)
		defer c.Heal()
		kept := a.mustTryFor(e.key("%s-kept", via.name), e.ttl)
		var stuck []*hold
		hang := func(name string, i int) string {
			key := e.key("%s-%s-%d", via.name, name, i)
			c.Add(faultlock.Rule{Key: key, Fault: faultlock.HangBefore()})
			return key
		}
		const each = 3
		for i := range each {
			stuck = append(stuck, a.mustTryFor(e.key("%s-stuck-%d", via.name, i), e.ttl))
		}
		for i := range each {
			hang("stuck", i)
		}
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		var calls []func()
		for op, get := range map[string]getter{"TryAcquire": a.l.TryAcquire, "Acquire": a.l.Acquire} {
			for i := range each {
				key := hang(op, i)
				calls = append(calls, func() {
					if h, err := a.get(op, get, ctx, key, e.opts(e.long)); err == nil {
						_ = h.release(e.ctx)
						e.failf(key, "%s was granted a key whose requests hang", op)
					}
				})
			}
		}
		calls = append(calls, func() { _ = stuck[0].release(ctx) })
		wait := e.start(calls...)
		e.settle()
		for op, get := range map[string]getter{"TryAcquire": a.l.TryAcquire, "Acquire": a.l.Acquire} {
			key := e.key("%s-free-%s", via.name, op)
			done := make(chan struct{})
			others := e.start(func() {
				defer close(done)
				if h, err := a.get(op, get, e.ctx, key, e.opts(e.long)); err != nil {
					e.unexpected(key, err, "%s of a free key, while requests for other keys hang, returned %s; expected a lease", op, outcome(err))
				} else if err := h.release(e.ctx); err != nil {
					e.unexpected(key, err, "Release, while requests for other keys hang, returned %s; expected no error", outcome(err))
				}
			})
			if !e.within(e.slack(), done) {
				cancel() // what hangs ends, and with it what waits for it
				e.overdueFatalf(key, "%s and Release of a free key had not returned after %s, while requests for other keys hang", op, e.slack())
			}
			others()
		}
		e.pause(2 * e.ttl)
		kept.mustLive("only requests for other keys hang")
		cancel()
		c.Heal()
		wait()
		kept.mustRelease()
		for _, h := range stuck {
			if err := h.release(e.ctx); err == nil && h != stuck[0] {
				e.latef(h.key, "a lease whose renewals hung for two TTLs was released without an error; expected ErrLost")
			} else if err != nil && h != stuck[0] && !errors.Is(err, lock.ErrNotHeld) {
				e.unexpected(h.key, err, "Release of a lease whose renewals hung for two TTLs returned %s; expected ErrLost", outcome(err))
			}
		}
	})
}
