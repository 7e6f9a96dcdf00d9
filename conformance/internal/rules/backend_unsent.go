package rules

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// notSentIsTrue cuts requests off at random moments. The longer of these come to twice the
// time that a request takes here and now.
func notSentIsTrue(e *engine.Env) {
	rounds := e.Rounds(e.Work(5*time.Millisecond), 40, 200)
	var asked, cut, unsent atomic.Int64
	e.Each(2, func(i int) {
		a, b := e.Backend(), e.Backend()
		latest := time.Millisecond
		const enough = 20                  // holds may have connections of their own
		kept := map[string]*engine.Grant{} // of the keys at which nothing was sent
		for round := 0; round < rounds && len(kept) < enough; round++ {
			key := e.Key("%d-%d", i, round)
			ctx, cancel := context.WithCancel(e.Ctx)
			var h, got *engine.Grant
			if i == 0 {
				h = a.MustTry(e.Request(key, "", e.Long))
			}
			timer := time.AfterFunc(e.Randomly(latest), cancel)
			var err error
			if i == 0 {
				err = cutRelease(ctx, e, a, h)
			} else {
				got, err = a.TryCtx(ctx, e.Request(key, "", e.Long))
			}
			timer.Stop()
			cancel()
			asked.Add(1)
			if got != nil {
				_ = got.Release(e.Ctx)
			}
			if errors.Is(err, backend.ErrNotSent) {
				kept[key] = h
			}
			if err != nil {
				cut.Add(1)
				latest = min(latest*4/3, e.TTL)
			} else {
				latest = max(latest*3/4, time.Microsecond)
			}
		}
		unsent.Add(int64(len(kept)))
		e.Settle() // until what has left is there
		for key, h := range kept {
			g, err := b.Try(e.Request(key, "", e.Long))
			if err == nil {
				_ = g.Release(e.Ctx)
			}
			switch {
			case h == nil && errors.Is(err, backend.ErrHeld):
				e.Failf(key, "a request for a free key said that nothing was sent, and the key is held; expected an error that does not match ErrNotSent, since who reads that cleans nothing up")
			case h != nil && err == nil:
				e.Latef(key, "a release said that nothing was sent, and the hold is gone; expected an error that does not match ErrNotSent, since who reads that believes the key is held")
			}
			if e.Failed() {
				return
			}
			if h != nil {
				_ = h.Release(e.Ctx)
			}
		}
	})
	e.Notef("%d requests: %d were cut off, of %d nothing was sent", asked.Load(), cut.Load(), unsent.Load())
}

// cutRelease releases with a context that ends in between.
func cutRelease(ctx context.Context, e *engine.Env, a *engine.BackendClient, h *engine.Grant) error {
	ev := e.Log.Begin(a.Who, "Release", h.Key)
	err := a.Release(ctx, h.Hold)
	e.Log.End(ev, engine.Outcome(err))
	if !errors.Is(err, backend.ErrNotSent) {
		h.Releasing(e.Log.Now())
	}
	return err
}
