package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// cancelledSendsNothing calls every method with a context that has ended. What returns no
// error was sent and confirmed all the same, which is harmless.
func cancelledSendsNothing(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	cancelled, cancel := context.WithCancel(e.Ctx)
	cancel()
	over, cancel := context.WithDeadline(e.Ctx, time.Now().Add(-time.Second))
	defer cancel()
	contexts := map[string]context.Context{"cancelled": cancelled, "over": over}
	owners := []string{""}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owners = append(owners, e.Owner("A"))
	}
	e.Each(2*len(owners), func(i int) {
		how := []string{"cancelled", "over"}[i%2]
		endedSendsNothing(e, a, b, contexts[how], how, owners[i/2])
	})
}

func endedSendsNothing(e *engine.Env, a, b *engine.BackendClient, ended context.Context, how, owner string) {
	of := how
	if owner != "" {
		of += "-owned"
	}
	key := e.Key("free-%s", of)
	switch _, err := a.TryCtx(ended, e.Request(key, owner, e.Long)); {
	case err == nil:
		e.Failf(key, "Try with a context that had ended was granted")
	case errors.Is(err, backend.ErrHeld):
		e.Failf(key, "Try of a free key with a context that had ended returned %s; expected no word about a holder that there is not", engine.Outcome(err))
	}
	b.MustTry(e.Request(key, "", e.Long))
	if q, ok := backend.As[backend.Queuer](a.Backend); ok {
		key := e.Key("queue-%s", of)
		if t, err := q.Enqueue(ended, e.Request(key, owner, e.Long)); err == nil {
			_ = t.Withdraw(e.Ctx)
		}
		b.MustTry(e.Request(key, "", e.Long))
	}
	calls := map[string]func(h *engine.Grant) error{
		"Release": func(h *engine.Grant) error { return a.Release(ended, h.Hold) },
		"Renew":   func(h *engine.Grant) error { _, err := a.Backend.Renew(ended, h.Hold); return err },
	}
	if r, ok := backend.As[backend.ReleaseTeller](a.Backend); ok {
		calls["ReleaseTelling"] = func(h *engine.Grant) error { _, err := r.ReleaseTelling(ended, h.Hold); return err }
	}
	if r, ok := backend.As[backend.BatchRenewer](a.Backend); ok {
		calls["RenewBatch"] = func(h *engine.Grant) error { _ = r.RenewBatch(ended, []backend.Hold{h.Hold}); return nil }
	}
	if ho, ok := backend.As[backend.HandOverer](a.Backend); ok {
		calls["HandOver"] = func(h *engine.Grant) error {
			_, err := ho.HandOver(ended, h.Hold, e.Request(h.Key, "", e.Long))
			return err
		}
	}
	if f, ok := backend.As[backend.ForceReleaser](a.Backend); ok {
		calls["ForceRelease"] = func(h *engine.Grant) error { return f.ForceRelease(ended, h.Key, h.Token) }
	}
	if r, ok := backend.As[backend.Revoker](a.Backend); ok {
		calls["Revoke"] = func(h *engine.Grant) error { return r.Revoke(ended, h.Key, h.Token) }
	}
	if f, ok := backend.As[backend.Forgetter](a.Backend); ok {
		calls["Forget"] = func(h *engine.Grant) error { _ = f.Forget(ended, h.Key); return nil }
	}
	if in, ok := backend.As[backend.Inspector](a.Backend); ok {
		calls["Inspect"] = func(h *engine.Grant) error { _, err := in.Inspect(ended, h.Key); return err }
	}
	if r, ok := backend.As[backend.BatchRenewer](a.Backend); ok {
		key := e.Key("batch of what is gone-%s", of)
		gone := a.MustTry(e.Request(key, owner, e.Long))
		e.MustGiveBack(gone, key, "")
		if x := r.RenewBatch(ended, []backend.Hold{gone.Hold}); len(x) == 1 && x[0].Err == nil {
			e.Failf(key, "RenewBatch with a context that had ended has no error for a hold that was released, which says that it is held; expected the error of the context, or ErrNotHeld")
		}
	}
	for name, call := range calls {
		key := e.Key("%s-%s", name, of)
		holder, other := a, b // a session knows its own holds only
		if name == "ForceRelease" || name == "Revoke" || name == "Forget" || name == "Inspect" {
			holder, other = b, a
		}
		h := holder.MustTry(e.Request(key, owner, e.Long))
		ev := e.Log.Begin(a.Who, name, key)
		err := call(h)
		e.Log.End(ev, "with a context that had ended: "+engine.Outcome(err))
		if err == nil && name != "Renew" && name != "RenewBatch" && name != "Forget" && name != "Inspect" {
			h.Releasing(e.Log.Now())
			if name == "Release" || name == "ReleaseTelling" || name == "ForceRelease" {
				freed(e, key, nil, b) // it says so
			}
			if name == "Revoke" && e.Claimed.ManualRenewal {
				if _, err := holder.Renew(h.Hold); err == nil {
					e.Failf(key, "Revoke of a hold, with a context that had ended, returned no error, and the hold was renewed; expected an error, or a hold that is revoked")
				}
				_ = h.Release(e.Ctx)
			}
			continue
		}
		if errors.Is(err, backend.ErrNotHeld) {
			e.Failf(key, "%s of a hold that is held, with a context that had ended, returned %s; expected no word of a loss", name, engine.Outcome(err))
		}
		other.MustRefuse(key, "only "+name+" with a context that had ended was called")
		if e.Claimed.ManualRenewal {
			if err := h.Renew(); err != nil {
				e.Unexpected(key, err, "Renew of a hold returned %s after %s with a context that had ended, which had returned an error; expected no error", engine.Outcome(err), name)
			}
		}
		if err := h.Release(e.Ctx); err != nil {
			e.Unexpected(key, err, "Release of a hold returned %s after %s with a context that had ended; expected no error", engine.Outcome(err), name)
		}
	}
}
