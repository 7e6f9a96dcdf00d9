package rules

import (
	"context"
	"errors"
	"fmt"
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
	says := fixedAnswers(a.Backend)()
	if says[1] && e.Virtual() {
		waitsForNothing(e, a, b)
	}
	if says[0] || says[1] { // what is immediate is interruptible, too
		endsWithItsContext(e, a, b)
	}
}

// prepared is a request for a grant or a release that can be made, and what ends what it leaves.
type prepared struct {
	key, name string
	request   func(ctx context.Context)
	tidy      func()
}

// requests prepares one of each kind that the backend has, each for a key of its own, for which
// another client stands where it is to be refused or to wait.
func requests(e *engine.Env, s, other *engine.BackendClient, when string) (out []prepared) {
	key := func(name string) string { return e.Key("%s, %s", name, when) }
	add := func(name string, request func(ctx context.Context), tidy func()) {
		out = append(out, prepared{key(name), name, request, tidy})
	}
	try := func(name string) {
		req := e.Request(key(name), "", e.Long)
		add(name, func(ctx context.Context) { _, _ = s.Backend.Try(ctx, req) }, func() { _ = s.Backend.Release(e.Ctx, backend.HoldOf(req)) })
	}
	held := func(name string, by *engine.BackendClient) *engine.Grant {
		h := by.MustTry(e.Request(key(name), "", e.Long))
		h.Lapses()
		return h
	}
	release := func(name string, call func(ctx context.Context, h backend.Hold) error) {
		h := held(name, s)
		h.Releasing(e.Log.Now())
		add(name, func(ctx context.Context) { _ = call(ctx, h.Hold) }, func() { _ = s.Backend.Release(e.Ctx, h.Hold) })
	}
	try("Try")
	stands := held("Try of a held key", other)
	try("Try of a held key")
	out[len(out)-1].tidy = func() { _ = stands.Release(e.Ctx) }
	release("Release", s.Backend.Release)
	if r, ok := backend.As[backend.ReleaseTeller](s.Backend); ok {
		release("ReleaseTelling", func(ctx context.Context, h backend.Hold) error { _, err := r.ReleaseTelling(ctx, h); return err })
	}
	if ho, ok := backend.As[backend.HandOverer](s.Backend); ok {
		to := e.Request(key("HandOver"), "", e.Long)
		release("HandOver", func(ctx context.Context, h backend.Hold) error { _, err := ho.HandOver(ctx, h, to); return err })
		give := out[len(out)-1].tidy
		out[len(out)-1].tidy = func() { give(); _ = s.Backend.Release(e.Ctx, backend.HoldOf(to)) }
	}
	q, ok := backend.As[backend.Queuer](s.Backend)
	if !ok {
		return out
	}
	before := held("Enqueue", other)
	req := e.Request(before.Key, "", e.Long)
	add("Enqueue", func(ctx context.Context) {
		if t, err := q.Enqueue(ctx, req); err == nil {
			_ = t.Withdraw(e.Ctx)
		}
	}, func() { _ = before.Release(e.Ctx) })
	first := held("Withdraw", other)
	p := enqueue(e, s, first.Key, e.Long)
	add("Withdraw", func(ctx context.Context) { _ = p.ticket.Withdraw(ctx) }, func() { p.withdraw(e); _ = first.Release(e.Ctx) })
	return out
}

// waitsForNothing makes all requests beside each other, where time passes only if something waits.
func waitsForNothing(e *engine.Env, a, b *engine.BackendClient) {
	all := append(requests(e, a, b, "beside others"), requests(e, a, b, "beside the same")...)
	e.Each(len(all), func(i int) {
		begun := time.Now()
		all[i].request(e.Ctx)
		if took := time.Since(begun); took > 0 {
			e.Failf(all[i].key, "%s took %s beside other requests of its client; expected no time at all of a backend that is Immediate, whose requests wait for nothing", all[i].name, engine.Short(took))
		}
	})
	for _, r := range all {
		r.tidy()
	}
}

// endsWithItsContext makes each request with little time.
func endsWithItsContext(e *engine.Env, a, b *engine.BackendClient) {
	const little = 5 * time.Millisecond
	const late = "%s returned after the end of its context, although the backend is Interruptible, whose requests return at once then:"
	delays, rounds := map[string]*engine.Lateness{}, 4
	if e.Virtual() {
		rounds = 1
	}
	for round := range rounds {
		for _, r := range requests(e, a, b, fmt.Sprintf("with little time, %d", round)) {
			begun := time.Now() // before the context begins
			ctx, cancel := context.WithTimeout(e.Ctx, little)
			r.request(ctx)
			delay := time.Since(begun) - little
			cancel()
			r.tidy()
			if delay > 0 && e.Virtual() { // where nothing else delays it
				e.Failf(r.key, late+" %s later", r.name, engine.Short(delay))
			}
			if delays[r.name] == nil {
				delays[r.name] = &engine.Lateness{}
			}
			delays[r.name].Add(e, delay)
		}
	}
	for name, d := range delays {
		d.Judge(e, "", e.Prompt(), late, name)
	}
}

func endedSendsNothing(e *engine.Env, a, b *engine.BackendClient, ended context.Context, how, owner string) {
	of := how
	if owner != "" {
		of += "-owned"
	}
	// both looks whether an error that matches ErrNotSent comes with that of the context.
	both := func(key, name string, err error) error {
		if errors.Is(err, backend.ErrNotSent) && !errors.Is(err, ended.Err()) {
			e.Failf(key, "%s with a context that had ended (%v) returned %s; expected that ErrNotSent comes with the error of the context", name, ended.Err(), engine.Outcome(err))
		}
		return err
	}
	key := e.Key("free-%s", of)
	_, err := a.TryCtx(ended, e.Request(key, owner, e.Long))
	err = both(key, "Try", err)
	switch {
	case err == nil:
		e.Failf(key, "Try with a context that had ended was granted")
	case errors.Is(err, backend.ErrHeld):
		e.Failf(key, "Try of a free key with a context that had ended returned %s; expected no word about a holder that there is not", engine.Outcome(err))
	}
	b.MustTry(e.Request(key, "", e.Long))
	if q, ok := backend.As[backend.Queuer](a.Backend); ok {
		key := e.Key("queue-%s", of)
		t, err := q.Enqueue(ended, e.Request(key, owner, e.Long))
		if both(key, "Enqueue", err) == nil {
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
		calls["RenewBatch"] = func(h *engine.Grant) error {
			for _, x := range r.RenewBatch(ended, []backend.Hold{h.Hold}) {
				_ = both(h.Key, "RenewBatch", x.Err)
			}
			return nil
		}
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
		calls["Forget"] = func(h *engine.Grant) error { _ = both(h.Key, "Forget", f.Forget(ended, h.Key)); return nil }
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
		err := both(key, name, call(h))
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
