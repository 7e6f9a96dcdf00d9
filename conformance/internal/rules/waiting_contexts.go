package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// waitsEnd reports whether waits are meant to end with their contexts. Otherwise the cases of other
// subjects that rest on that are left out.
func waitsEnd(e *engine.Env) bool { return !e.Declared("waiting") }

// endedContexts makes calls whose contexts have ended beside holds and waits, which must
// be none the worse for it.
func endedContexts(e *engine.Env) {
	cancelled, cancel := context.WithCancel(e.Ctx)
	cancel()
	past, cancelPast := context.WithDeadline(e.Ctx, time.Now().Add(-time.Hour))
	defer cancelPast()
	a, b := e.Locker(), e.Locker()
	var cases []func()
	for name, ctx := range map[string]context.Context{"cancelled": cancelled, "past": past} {
		cases = append(cases,
			func() { renewEnded(e, a, b, e.Key("%s-renew", name), ctx) },
			func() {
				failedRenewMovesNothing(e, a, e.Key("%s-renew-unrenewed", name), "with a context that had ended", func(h *engine.Hold) error { return h.Lease.Renew(ctx) })
			},
			func() {
				if e.Claimed.ManualRenewal {
					eachLease(e, a, name, func(h *engine.Hold) { renewKindEnded(e, h, ctx) })
				}
			},
			func() { acquireEnded(e, a, b, e.Key("%s-wait", name), ctx) },
			func() { reenterEnded(e, a, b, e.Key("%s-enter", name), ctx) },
			func() { releaseEnded(e, a, b, e.Key("%s-release", name), ctx) },
			func() { releaseOwnedEnded(e, a, b, e.Key("%s-release-owned", name), ctx) },
			func() { tellEnd(e, a, e.Key("%s-end", name), ctx) },
		)
	}
	e.Together(cases...)
}

// renewEnded renews a lease that renews itself.
func renewEnded(e *engine.Env, a, b *engine.Client, key string, ended context.Context) {
	if !e.Claimed.ManualRenewal {
		return
	}
	h := a.MustTryFor(key, e.TTL)
	for range 3 {
		if err := h.Lease.Renew(ended); err != nil {
			not(e, key, err, "Renew of a lease that is held, with a context that has ended,", lock.ErrNotHeld, lock.ErrLost, lock.ErrClosed, lock.ErrUnsupported)
		}
		if _, known := h.Lease.Deadline(); e.Claimed.Deadline && !known && !h.Lost() {
			e.Failf(key, "the deadline of a lease is unknown after a Renew with a context that has ended; expected that of the last renewal, until when the hold goes on")
		}
	}
	const why = "only the context of a Renew had ended"
	for end := time.Now().Add(e.TTL * 3 / 2); time.Now().Before(end); e.Pause(e.TTL / 8) {
		h.MustLive(why)
		b.MustRefuse(key, why)
	}
	if err := h.Renew(); err != nil {
		e.UnexpectedLate(key, err, "Renew returned %s after one whose context had ended; expected no error", engine.Outcome(err))
	}
	h.MustRelease()
}

// failedRenewMovesNothing looks at the deadline of a lease that nothing but a failing call renews.
// A hold that ends before the deadline which was told was not certain until then.
func failedRenewMovesNothing(e *engine.Env, c *engine.Client, key, how string, renew func(h *engine.Hold) error) {
	if !e.Claimed.ManualRenewal || !e.Claimed.WithoutRenewal || !e.Claimed.Deadline || !e.Virtual() {
		return
	}
	h := c.MustTryFor(key, e.TTL, lock.WithoutRenewal())
	h.Lapses()
	e.Pause(time.Until(h.Until()) / 2)
	if err := renew(h); err != nil && !h.Lost() {
		told := h.Until()
		e.Within(time.Until(told)-e.TTL/8, h.Lease.Context().Done())
		if lost := h.Lost(); lost && time.Now().Before(told) {
			e.Failf(key, "the hold ended with cause %s, %s before the deadline that was told after a Renew %s, which had failed; expected a deadline that stays, since nobody confirmed another",
				engine.Outcome(h.Cause()), engine.Short(time.Until(told)), how)
		}
	}
	_ = h.Release(e.Ctx)
}

// renewKindEnded renews a lease that has time left.
func renewKindEnded(e *engine.Env, h *engine.Hold, ended context.Context) {
	const what = "Renew of a lease that is held, with a context that has ended,"
	before := h.Until()
	e.Pause(e.TTL / 8)
	if err := h.Lease.Renew(ended); err != nil {
		not(e, h.Key, err, what, lock.ErrNotHeld, lock.ErrLost, lock.ErrClosed, lock.ErrUnsupported)
	} else if e.Claimed.Deadline && !h.Until().After(before) {
		e.Failf(h.Key, "%s returned no error, and the deadline is as before; expected it to move, or the context's error", what)
	}
	h.MustLive("only the context of a Renew had ended")
	h.MustRelease()
}

// acquireEnded asks for a key beside a caller of the same Locker who waits for it.
func acquireEnded(e *engine.Env, a, b *engine.Client, key string, ended context.Context) {
	h := b.MustTry(key)
	w := a.Acquiring(key)
	<-w.Begun
	for op, get := range map[string]engine.Getter{"Acquire": a.Locker.Acquire, "TryAcquire": a.Locker.TryAcquire} {
		_, err := a.Get(op, get, ended, key, e.Opts(e.Long))
		if err == nil {
			e.Fatalf(key, "%s was granted a key that was held", op)
		}
		e.Is(key, err, op+" with a context that had ended", ended.Err())
	}
	h.MustLive("only others asked for it")
	h.MustRelease()
	w.MustGet(e, key, e.WaitBound(), "it was released, and beside the waiter there were only calls whose contexts had ended").MustRelease()
}

// reenterEnded asks for a key that the owner already holds.
func reenterEnded(e *engine.Env, a, b *engine.Client, key string, ended context.Context) {
	if !engine.ClaimReentrancy.Made(e.Settings) {
		return
	}
	owner := lock.WithOwner(e.Owner("A"))
	h := a.MustTry(key, owner)
	if _, err := a.TryFor(ended, key, e.Long, owner); err == nil {
		e.Fatalf(key, "TryAcquire with a context that had ended was granted; expected the context's error")
	}
	h.MustLive("only a call of its owner, whose context had ended, was refused")
	b.MustRefuse(key, "its owner still holds it")
	h.MustRelease()
	next, err := b.Try(key)
	if err != nil {
		e.UnexpectedFatal(key, err, "the only hold of an owner was released, and a try returned %s; expected a lease: a call whose context had ended adds no hold", engine.Outcome(err))
	}
	next.MustRelease()
}

// releaseEnded releases a lease for which a caller of the same Locker waits.
func releaseEnded(e *engine.Env, a, b *engine.Client, key string, ended context.Context) {
	h := a.MustTry(key)
	w := a.Acquiring(key)
	e.Settle()
	if err := h.Release(ended); err != nil {
		e.Unexpected(key, err, "Release with a context that had ended returned %s; expected no error", engine.Outcome(err))
	}
	if err := h.Release(ended); err != nil {
		e.Is(key, err, "a second Release, with a context that had ended,", lock.ErrNotHeld)
	} else {
		e.Failf(key, "a second Release, with a context that had ended, returned no error; expected ErrNotHeld")
	}
	got := w.MustGet(e, key, e.WaitBound(), "it was released, with a context that had ended")
	e.Pause(e.TTL / 4)
	got.MustLive("only the context of the release before it had ended")
	b.MustRefuse(key, "a waiter has got it")
	got.MustRelease()
	b.MustTry(key).MustRelease()
}

// releaseOwnedEnded releases some of an owner's holds, of which the others keep the key.
func releaseOwnedEnded(e *engine.Env, a, b *engine.Client, key string, ended context.Context) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	holds := make([]*engine.Hold, 3)
	for i := range holds {
		holds[i] = a.MustTry(key, owner...)
	}
	for i, h := range holds {
		if err := h.Release(ended); err != nil {
			e.Unexpected(key, err, "Release with a context that had ended returned %s; expected no error", engine.Outcome(err))
		} else {
			e.Is(key, h.Release(ended), "a second Release of a lease of an owner, with a context that had ended,", lock.ErrNotHeld)
		}
		if i == len(holds)-1 {
			break
		}
		e.Settle()
		b.MustRefuse(key, "some of its owner's holds are left; Release was given a context that had ended")
		for _, left := range holds[i+1:] {
			left.MustLive("another hold of its owner was released")
		}
	}
	b.MustAcquire(key).MustRelease()
}

// tellEnd renews and releases leases that have ended before, as their callers are told.
func tellEnd(e *engine.Env, a *engine.Client, key string, ended context.Context) {
	ends := map[string]func(key string) *engine.Hold{
		"was released": func(key string) *engine.Hold {
			h := a.MustTry(key)
			h.MustRelease()
			return h
		},
		"reached its maximum hold": func(key string) *engine.Hold {
			h, err := a.Try(key, lock.WithMaxHold(e.TTL/4))
			if err != nil || !e.Within(e.TTL/4+e.Slack(), h.Lease.Context().Done()) {
				return nil // which is for other rules
			}
			return h
		},
	}
	if e.Claimed.WithoutRenewal && e.Claimed.LossSignal {
		ends["ran out"] = func(key string) *engine.Hold {
			h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
			awaitLapse(e, h)
			return h
		}
	}
	var cases []func()
	for how, end := range ends {
		cases = append(cases, func() {
			h := end(key + " " + how)
			if h == nil {
				return
			}
			what := "with a context that had ended, of a lease that " + how + ","
			if e.Claimed.ManualRenewal {
				e.Is(h.Key, h.Lease.Renew(ended), "Renew, "+what, lock.ErrNotHeld)
				e.Is(h.Key, h.Lease.Renew(ended), "another Renew, "+what, lock.ErrNotHeld)
			}
			if how != "was released" {
				e.Is(h.Key, h.Release(ended), "Release, "+what, lock.ErrLost, lock.ErrNotHeld)
			}
			e.Is(h.Key, h.Release(ended), "a second Release, "+what, lock.ErrNotHeld)
		})
	}
	e.Together(cases...)
}

// ownError is a context that says in more words than those of the standard library why it has ended,
// as that of a session does.
type ownError struct{ context.Context }

// Err implements context.Context.
func (c ownError) Err() error {
	if err := c.Context.Err(); err != nil {
		return sessionOver{err}
	}
	return nil
}

type sessionOver struct{ error }

func (s sessionOver) Error() string { return "the session is over: " + s.error.Error() }
func (s sessionOver) Unwrap() error { return s.error }

// givesUpAsTold ends waits by contexts that tell more than one thing: the error is that of
// the context, and neither that of what else it would have ended by nor its cause alone.
func givesUpAsTold(e *engine.Env, holder, waiter *engine.Client) {
	const after = 60 * time.Millisecond
	why := errors.New("the user has gone")
	for name, with := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"was cancelled long before its deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			time.AfterFunc(after, cancel)
			return ctx, cancel
		},
		"was cancelled with a cause": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(after, func() { cancel(why) })
			return ctx, func() { cancel(nil) }
		},
		"timed out with a cause": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, after, why)
		},
		"has an error of its own": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(after, cancel)
			return ownError{ctx}, cancel
		},
	} {
		key := e.Key("%s", name)
		h := holder.MustTry(key)
		ctx, cancel := with(e.Ctx)
		got, err := waiter.Acquire(ctx, key)
		ended := ctx.Err()
		cancel()
		if err == nil {
			_ = got.Release(e.Ctx)
			e.Fatalf(key, "Acquire was granted a key that was held")
		}
		e.Is(key, err, "Acquire whose context "+name, ended)
		for _, other := range []error{context.Canceled, context.DeadlineExceeded} {
			if !errors.Is(ended, other) {
				not(e, key, err, "Acquire whose context "+name, other)
			}
		}
		h.MustRelease()
	}
}
