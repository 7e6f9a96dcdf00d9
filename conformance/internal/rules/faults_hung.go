package rules

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func hungKeyHoldsUpNoOther(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	defer c.Heal()
	kept := a.MustTryFor(e.Key("%s-kept", via.Name), e.TTL)
	var stuck []*engine.Hold
	hang := func(name string, i int) string {
		key := e.Key("%s-%s-%d", via.Name, name, i)
		c.Add(faultlock.Rule{Key: key, Fault: faultlock.HangBefore()})
		return key
	}
	const each = 3
	for i := range each {
		stuck = append(stuck, a.MustTryFor(e.Key("%s-stuck-%d", via.Name, i), e.TTL))
	}
	for i := range each {
		hang("stuck", i)
	}
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	var calls []func()
	for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
		if op == "Acquire" && !waitsEnd(e) {
			continue
		}
		for i := range each {
			key := hang(op, i)
			calls = append(calls, func() {
				if h, err := a.Get(op, get, ctx, key, e.Opts(e.Long)); err == nil {
					_ = h.Release(e.Ctx)
					e.Failf(key, "%s was granted a key whose requests hang", op)
				}
			})
		}
	}
	calls = append(calls, func() { _ = stuck[0].Release(ctx) })
	wait := e.Start(calls...)
	e.Settle()
	for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
		key := e.Key("%s-free-%s", via.Name, op)
		done := make(chan struct{})
		others := e.Start(func() {
			defer close(done)
			if h, err := a.Get(op, get, e.Ctx, key, e.Opts(e.Long)); err != nil {
				e.Unexpected(key, err, "%s of a free key, while requests for other keys hang, returned %s; expected a lease", op, engine.Outcome(err))
			} else if err := h.Release(e.Ctx); err != nil {
				e.Unexpected(key, err, "Release, while requests for other keys hang, returned %s; expected no error", engine.Outcome(err))
			}
		})
		if !e.Within(e.Slack(), done) {
			cancel() // what hangs ends, and with it what waits for it
			e.OverdueFatalf(key, "%s and Release of a free key had not returned after %s, while requests for other keys hang", op, e.Slack())
		}
		others()
	}
	e.Pause(2 * e.TTL)
	kept.MustLive("only requests for other keys hang")
	cancel()
	c.Heal()
	wait()
	kept.MustRelease()
	for _, h := range stuck {
		if err := h.Release(e.Ctx); err == nil && h != stuck[0] {
			e.Latef(h.Key, "a lease whose renewals hung for two TTLs was released without an error; expected ErrLost")
		} else if err != nil && h != stuck[0] && !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(h.Key, err, "Release of a lease whose renewals hung for two TTLs returned %s; expected ErrLost", engine.Outcome(err))
		}
	}
}
