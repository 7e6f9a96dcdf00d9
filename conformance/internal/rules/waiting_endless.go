package rules

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// endlessContexts makes calls as many programs do: with context.Background(), or with a deadline
// that nobody lives to see.
func endlessContexts(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	far, cancel := context.WithDeadline(context.Background(), time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC))
	defer cancel()
	var cases []func()
	for name, ctx := range map[string]context.Context{"context.Background()": context.Background(), "a context that ends in the year 3000": far} {
		for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
			cases = append(cases, func() { endlessHold(e, a, b, op, get, name, ctx) })
		}
		cases = append(cases, func() { endlessWait(e, a, b, name, ctx) })
	}
	e.Together(cases...)
}

// endlessHold takes, keeps, renews and releases a lease with the context.
func endlessHold(e *engine.Env, a, b *engine.Client, op string, get engine.Getter, name string, ctx context.Context) {
	key := e.Key("%s-%d", op, len(name))
	h, err := a.Get(op, get, ctx, key, e.Opts(e.TTL))
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with %s returned %s for a free key; expected a lease", op, name, engine.Outcome(err))
	}
	why := "it was taken with " + name + ", and is renewed automatically"
	for end := time.Now().Add(2 * e.TTL); time.Now().Before(end); e.Pause(e.TTL / 4) {
		b.MustRefuse(key, why)
		h.MustLive(why)
	}
	if err := h.Release(ctx); err != nil {
		e.UnexpectedFatal(key, err, "Release with %s returned %s; expected no error", name, engine.Outcome(err))
	}
	free, err := b.Try(key)
	if err != nil {
		e.UnexpectedFatal(key, err, "the key was released with %s, but a try then returned %s; expected a lease", name, engine.Outcome(err))
	}
	free.MustRelease()

	if !e.Claimed.WithoutRenewal || !e.Claimed.ManualRenewal {
		return
	}
	h, err = a.Get(op, get, ctx, key, e.Opts(e.TTL, lock.WithoutRenewal()))
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with %s and WithoutRenewal returned %s for a free key; expected a lease", op, name, engine.Outcome(err))
	}
	before, known := h.Lease.Deadline()
	e.Pause(e.TTL / 4)
	if err := h.Lease.Renew(ctx); err != nil {
		e.UnexpectedLateFatal(key, err, "Renew with %s returned %s; expected no error", name, engine.Outcome(err))
	}
	if after, ok := h.Lease.Deadline(); known && ok && !after.After(before) {
		e.Failf(key, "Renew with %s returned no error, and the deadline stayed as it was", name)
	}
	h.MustRelease()
}

// endlessWait waits with the context for a lease to run out.
func endlessWait(e *engine.Env, a, b *engine.Client, name string, ctx context.Context) {
	if !e.Claimed.WithoutRenewal {
		return
	}
	key := e.Key("wait-%d", len(name))
	if e.OpenBackend != nil { // of which nobody cleans up what runs out
		e.Backend().MustTry(e.Request(key, "", e.TTL)).Lapses()
	} else {
		a.MustTryFor(key, e.TTL, lock.WithoutRenewal()).Lapses()
	}
	granted := make(chan struct{})
	var h *engine.Hold
	var err error
	wait := e.Start(func() {
		defer close(granted)
		h, err = b.Get("Acquire", b.Locker.Acquire, ctx, key, e.Opts(e.Long))
	})
	limit := e.TakeoverLimit(e.TTL) + e.WaitBound()
	if !e.Within(limit, granted) {
		e.Look(key)
		e.OverdueFatalf(key, "Acquire with %s had not been granted the key after %s, though the lease that it waited for had run out", name, limit)
	}
	wait()
	if err != nil {
		e.UnexpectedFatal(key, err, "Acquire with %s returned %s; expected a lease, since the one that it waited for had run out", name, engine.Outcome(err))
	}
	h.MustRelease()
}
