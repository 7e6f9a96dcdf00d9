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
	others := e.Start(func() { cutRenewals(e) }, func() { cutOperations(e) })
	workers := 2
	if engine.ClaimServerHolds.Made(e.Settings) {
		workers = 4 // the same beside another hold of an owner
	}
	e.Each(workers, func(n int) {
		i := n % 2
		a, b := e.Backend(), e.Backend()
		latest := time.Millisecond
		const enough = 20                  // holds may have connections of their own
		kept := map[string]*engine.Grant{} // of the keys at which nothing was sent
		beside := map[string]*engine.Grant{}
		for round := 0; round < rounds && len(kept) < enough; round++ {
			key, owner := e.Key("%d-%d", n, round), ""
			if n >= 2 {
				owner = e.Owner("A")
				beside[key] = a.MustTry(e.Request(key, owner, e.Long))
			}
			ctx, cancel := context.WithCancel(e.Ctx)
			var h, got *engine.Grant
			if i == 0 {
				h = a.MustTry(e.Request(key, owner, e.Long))
			}
			timer := time.AfterFunc(e.Randomly(latest), cancel)
			var err error
			if i == 0 {
				err = cutRelease(ctx, e, a, h)
			} else {
				got, err = a.TryCtx(ctx, e.Request(key, owner, e.Long))
			}
			timer.Stop()
			cancel()
			asked.Add(1)
			if got != nil {
				_ = got.Release(e.Ctx)
			}
			if errors.Is(err, backend.ErrNotSent) {
				kept[key] = h
			} else if other := beside[key]; other != nil {
				_ = other.Release(e.Ctx)
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
			if other := beside[key]; other != nil && other.Release(e.Ctx) != nil {
				continue
			}
			g, err := b.Try(e.Request(key, "", e.Long))
			if err == nil {
				_ = g.Release(e.Ctx)
			}
			switch {
			case h == nil && errors.Is(err, backend.ErrHeld):
				e.Failf(key, "a request said that nothing was sent, and the key is held, though nobody else asked for it or has it left; expected an error that does not match ErrNotSent, since who reads that cleans nothing up")
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
	others()
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

// cutRenewals renews holds in the middle of their time, with contexts that end in between,
// and looks whether those of which nothing was sent end when they would have ended.
func cutRenewals(e *engine.Env) {
	if !e.Claimed.ManualRenewal || e.Claimed.EndsWithSession { // a session keeps its holds
		return
	}
	a, b := e.Backend(), e.Backend()
	holds := make([]*engine.Grant, 12)
	latest := time.Duration(0) // twice what a request takes
	for i := range holds {
		begun := time.Now()
		holds[i] = a.MustTry(e.Request(e.Key("renewed-%d", i), "", e.TTL))
		latest = max(2*time.Since(begun), latest, time.Millisecond)
	}
	e.Pause(e.TTL / 2)
	var kept []*engine.Grant
	for _, h := range holds {
		h.Lapses()
		ctx, cancel := context.WithCancel(e.Ctx)
		timer := time.AfterFunc(e.Randomly(latest), cancel)
		_, err := a.Backend.Renew(ctx, h.Hold)
		timer.Stop()
		cancel()
		if errors.Is(err, backend.ErrNotSent) {
			kept = append(kept, h)
		} else {
			_ = h.Release(e.Ctx)
		}
	}
	for _, h := range kept {
		if gone := h.Gone(e); e.Log.Now() < gone {
			e.Pause(gone - e.Log.Now())
		}
		g, err := b.Try(e.Request(h.Key, "", e.Long))
		if errors.Is(err, backend.ErrHeld) {
			e.Latef(h.Key, "a renewal said that nothing was sent, and the key is still held when its TTL of %s has passed since the grant; expected an error that does not match ErrNotSent", e.TTL)
		} else if err == nil {
			_ = g.Release(e.Ctx)
		}
		_ = h.Release(e.Ctx)
	}
}

// cutOperations cuts off what hands a hold over, and what an operator does to it, and looks
// whether those holds are as they were of which nothing was sent.
func cutOperations(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	type operation struct {
		name string
		call func(ctx context.Context, h *engine.Grant) error
	}
	var operations []operation
	if ho := able[backend.HandOverer](a, "HandOverer"); ho != nil {
		operations = append(operations, operation{"HandOver", func(ctx context.Context, h *engine.Grant) error {
			to := e.Request(h.Key, "", e.TTL)
			_, err := ho.HandOver(ctx, h.Hold, to)
			if !errors.Is(err, backend.ErrNotSent) {
				_ = a.Backend.Release(e.Ctx, backend.HoldOf(to))
			}
			return err
		}})
	}
	if engine.ClaimTokens.Made(e.Settings) { // which name what an operator ends
		if f := able[backend.ForceReleaser](b, "ForceReleaser"); f != nil {
			operations = append(operations, operation{"ForceRelease", func(ctx context.Context, h *engine.Grant) error { return f.ForceRelease(ctx, h.Key, h.Token) }})
		}
		if r := able[backend.Revoker](b, "Revoker"); r != nil {
			operations = append(operations, operation{"Revoke", func(ctx context.Context, h *engine.Grant) error { return r.Revoke(ctx, h.Key, h.Token) }})
		}
	}
	e.Each(len(operations), func(i int) {
		const rounds = 12
		op, latest := operations[i], time.Millisecond // twice what a request takes
		var kept []*engine.Grant
		for n := range rounds {
			begun := time.Now()
			h := a.MustTry(e.Request(e.Key("%s-%d", op.name, n), "", e.Long))
			latest = max(2*time.Since(begun), latest*3/4)
			ctx, cancel := context.WithCancel(e.Ctx)
			timer := time.AfterFunc(e.Randomly(latest), cancel)
			ev := e.Log.Begin(a.Who, op.name, h.Key)
			err := op.call(ctx, h)
			e.Log.End(ev, engine.Outcome(err))
			timer.Stop()
			cancel()
			if errors.Is(err, backend.ErrNotSent) {
				kept = append(kept, h)
				continue
			}
			h.Releasing(e.Log.Now())
			_ = a.Backend.Release(e.Ctx, h.Hold)
		}
		e.Settle() // until what has left is there
		for _, h := range kept {
			asBefore(e, b, h, op.name)
		}
	})
}

// asBefore looks at a hold to which a request of that name has done nothing, as it said.
func asBefore(e *engine.Env, b *engine.BackendClient, h *engine.Grant, name string) {
	until := h.Until()
	if in := able[backend.Inspector](b, "Inspector"); in != nil {
		if rec, err := in.Inspect(e.Ctx, h.Key); err == nil && rec.Token == h.Token && rec.Revoked {
			e.Failf(h.Key, "%s said that nothing was sent, and the hold is revoked; expected an error that does not match ErrNotSent", name)
		}
	}
	err := h.Release(e.Ctx)
	if errors.Is(err, backend.ErrNotHeld) && time.Now().Before(until) {
		e.Latef(h.Key, "%s said that nothing was sent, and the hold is gone; expected an error that does not match ErrNotSent, since who reads that believes that nothing has changed", name)
	}
}
