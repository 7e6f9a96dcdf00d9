package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// oneLabel is given to one acquisition only.
const oneLabel = "of one acquisition"

// optionsOfOneCall gives each option to one acquisition of a Locker, and leaves it out of the
// next.
func optionsOfOneCall(e *engine.Env) {
	var cases []func()
	for _, w := range ways[:2] {
		cases = append(cases,
			func() { ttlOfOneCall(e, w, e.Locker()) },
			func() { noRenewalOfOneCall(e, w, e.Locker()) },
			func() { maxHoldOfOneCall(e, w, e.Locker()) },
			func() { labelOfOneCall(e, w, e.Locker(), e.Locker()) },
			func() { ownerOfOneCall(e, w, e.Locker()) },
		)
	}
	cases = append(cases, func() { listOfOneCall(e, e.Locker()) })
	if e.Virtual() {
		cases = append(cases, func() { optionsOfAnother(e, e.Locker(), e.Locker()) })
	}
	e.Together(cases...)
}

// optionsOfAnother gives options to a call that was refused, to one that gave up, and to one that
// waits, of which a later one on the same key and Locker has none.
func optionsOfAnother(e *engine.Env, c, other *engine.Client) {
	var more []lock.Option
	for i, o := range []lock.Option{lock.WithLabel(oneLabel), lock.WithMaxHold(e.TTL)} {
		h, err := c.Try(e.Key("has option %d", i), o)
		if err == nil {
			_ = h.Release(e.Ctx)
		}
		if !errors.Is(err, lock.ErrUnsupported) {
			more = append(more, o)
		}
	}
	cases := besideOptions(e, c, other, "a label and a maximum", e.Long, more)
	if e.Claimed.WithoutRenewal {
		cases = append(cases, besideOptions(e, c, other, "no renewal", e.TTL, unrenewed(e))...)
	}
	e.Together(cases...)
}

// besideOptions are cases of leases with nothing but the TTL, after or beside whose calls another one
// had the options.
func besideOptions(e *engine.Env, c, other *engine.Client, of string, ttl time.Duration, more []lock.Option) []func() {
	refused := func(name string, get func(ctx context.Context, key string, ttl time.Duration, more ...lock.Option) (*engine.Hold, error)) func() {
		return func() {
			key := e.Key("after a refused %s with %s", name, of)
			stands := other.MustTry(key)
			short, cancel := context.WithTimeout(e.Ctx, e.TTL/4)
			defer cancel()
			if h, err := get(short, key, e.TTL, more...); err == nil {
				e.JudgeRefusal(key, name, "another client holds it", h.Record, nil)
				_ = h.Release(e.Ctx)
			}
			stands.MustRelease()
			h, err := get(e.Ctx, key, ttl)
			if err != nil {
				e.UnexpectedFatal(key, err, "%s returned %s for a free key; expected a lease", name, engine.Outcome(err))
			}
			hasOwnOptions(e, other, h, "an earlier call that got nothing")
		}
	}
	return []func(){
		refused("TryAcquire", c.TryFor),
		refused("Acquire", c.AcquireFor),
		func() {
			key := e.Key("behind another wait with %s", of)
			stands := other.MustTry(key)
			first := c.AcquiringFor(key, e.TTL, more...)
			<-first.Begun
			e.Settle()
			second := c.AcquiringFor(key, ttl)
			<-second.Begun
			e.Settle()
			stands.MustRelease()
			const why = "those before it release the key"
			e.Together(
				func() { _ = first.MustGet(e, key, e.WaitBound(), why).Release(e.Ctx) },
				func() {
					hasOwnOptions(e, other, second.MustGet(e, key, e.WaitBound(), why), "a caller who waited before it")
				},
			)
		},
	}
}

// hasOwnOptions looks at a lease without options, beside whose call another one had some.
func hasOwnOptions(e *engine.Env, other *engine.Client, h *engine.Hold, of string) {
	if left := time.Until(h.Until()); e.Claimed.Deadline && !e.Fixed && !h.Lost() && h.EffectiveTTL() == e.Long && left < e.Long/3 {
		e.Failf(h.Key, "a lease with a TTL of %s is certain for another %s only; expected most of its TTL, because the TTL of %s and the maximum hold were those of %s",
			e.Long, engine.Short(left), e.TTL, of)
	}
	if err := other.Refusal(h.Key, "another client holds it"); e.Claimed.HolderDetails {
		if held := (*lock.HeldError)(nil); errors.As(err, &held) && held.Holder.Label == oneLabel {
			e.Failf(h.Key, "a refusal names the holder %q, which was the label of %s; expected no label", held.Holder.Label, of)
		}
	}
	e.Pause(e.TTL * 5 / 4)
	h.MustLive("it is renewed automatically; a maximum hold, or no renewal, was that of " + of)
	h.MustRelease()
}

// ttlOfOneCall compares a lease without a TTL with one that was taken before any TTL was named.
// A deadline is at least a third of its TTL away, so eight times as long is more than any
// default that it can stand for.
func ttlOfOneCall(e *engine.Env, w way, c *engine.Client) {
	if e.Fixed {
		return
	}
	key := e.Key("TTL-by-%s", w.name)
	get := c.Locker.TryAcquire
	if w.name != ways[0].name {
		get = c.Locker.Acquire
	}
	take := func(opts ...lock.Option) *engine.Hold {
		h, err := c.Get(w.name, get, e.Ctx, key, opts)
		if err != nil {
			e.UnexpectedFatal(key, err, "%s returned %s for a free key; expected a lease", w.name, engine.Outcome(err))
		}
		return h
	}
	first := take()
	deadline, known := first.Lease.Deadline()
	usual := deadline.Sub(e.Log.Base.Add(first.Invoked))
	first.MustRelease()
	longer := e.Fit(8 * usual)
	if !known || usual <= 0 || longer < 7*usual {
		return
	}
	take(lock.WithTTL(longer)).MustRelease()
	h := take()
	if d, known := h.Lease.Deadline(); known && time.Until(d) > longer/2 {
		e.Failf(key, "a lease without lock.WithTTL is certain for another %s, after one with a TTL of %s; expected about the %s of a lease that was acquired before that",
			engine.Short(time.Until(d)), longer, engine.Short(usual))
	}
	_ = h.Release(e.Ctx)
	stands := e.Locker().MustTry(key)
	short, cancel := context.WithTimeout(e.Ctx, e.TTL/4)
	if got, err := c.Get(w.name, get, short, key, []lock.Option{lock.WithTTL(longer)}); err == nil {
		e.JudgeRefusal(key, w.name, "another client holds it", got.Record, nil)
		_ = got.Release(e.Ctx)
	}
	cancel()
	stands.MustRelease()
	h = take()
	if d, known := h.Lease.Deadline(); known && time.Until(d) > longer/2 {
		e.Failf(key, "a lease without lock.WithTTL is certain for another %s, after a refused call with a TTL of %s; expected about the %s of a lease that was acquired before that",
			engine.Short(time.Until(d)), longer, engine.Short(usual))
	}
	_ = h.Release(e.Ctx)
	if owner := oneOwner(e); owner != nil {
		outer := take(append(owner, lock.WithTTL(longer))...)
		inner := take(owner...)
		if d, known := inner.Lease.Deadline(); known && time.Until(d) > longer/2 {
			e.Failf(key, "a lease without lock.WithTTL, whose owner has one with a TTL of %s, is certain for another %s; expected about the %s of a lease without",
				longer, engine.Short(time.Until(d)), engine.Short(usual))
		}
		_ = inner.Release(e.Ctx)
		_ = outer.Release(e.Ctx)
	}
}

// noRenewalOfOneCall has a lease follow that was not to be renewed.
func noRenewalOfOneCall(e *engine.Env, w way, c *engine.Client) {
	if !e.Claimed.WithoutRenewal {
		return
	}
	key := e.Key("renewal-by-%s", w.name)
	w.mustGet(c, key, e.Long, lock.WithoutRenewal()).MustRelease()
	h := w.mustGet(c, key, e.TTL)
	for end := time.Now().Add(e.TTL * 3 / 2); time.Now().Before(end); e.Pause(e.TTL / 8) {
		h.MustLive("it is renewed automatically; lock.WithoutRenewal was given to an earlier acquisition")
	}
	_ = h.Release(e.Ctx)
}

// maxHoldOfOneCall has a lease follow that had a maximum.
func maxHoldOfOneCall(e *engine.Env, w way, c *engine.Client) {
	key := e.Key("maximum hold-by-%s", w.name)
	limited, err := w.get(c, key, e.Long, lock.WithMaxHold(e.TTL))
	if errors.Is(err, lock.ErrUnsupported) {
		return
	}
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with a maximum hold returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	_ = limited.Release(e.Ctx) // it may have ended by now
	var h *engine.Hold
	if w.name == ways[0].name {
		h = c.Soon(key, "its holder has released it")
	} else {
		h = w.mustGet(c, key, e.Long).Hold
	}
	for end := time.Now().Add(e.TTL * 3 / 2); time.Now().Before(end); e.Pause(e.TTL / 8) {
		if errors.Is(h.Cause(), lock.ErrMaxHold) {
			e.Fatalf(key, "a lease without lock.WithMaxHold has ended with the cause ErrMaxHold; expected it to be held, because the maximum was that of an earlier acquisition")
		}
		h.MustLive("lock.WithMaxHold was given to an earlier acquisition")
	}
	_ = h.Release(e.Ctx)
}

// labelOfOneCall has a lease without a label follow one that had one.
func labelOfOneCall(e *engine.Env, w way, c, other *engine.Client) {
	if !e.Claimed.HolderDetails {
		return
	}
	key := e.Key("label-by-%s", w.name)
	w.mustGet(c, key, e.Long, lock.WithLabel(oneLabel)).MustRelease()
	h := w.mustGet(c, key, e.Long)
	err := other.Refusal(key, "another client holds it")
	if held := (*lock.HeldError)(nil); errors.As(err, &held) && held.Holder.Label == oneLabel {
		e.Failf(key, "a refusal names the holder %q, which was the label of an earlier acquisition; expected no label", held.Holder.Label)
	}
	h.MustRelease()
}

// ownerOfOneCall has two leases without an owner follow one that had one.
func ownerOfOneCall(e *engine.Env, w way, c *engine.Client) {
	if oneOwner(e) == nil {
		return
	}
	key := e.Key("owner-by-%s", w.name)
	w.mustGet(c, key, e.Long, oneOwner(e)...).MustRelease()
	h := w.mustGet(c, key, e.Long)
	c.MustRefuse(key, "it is held, and lock.WithOwner was given to an earlier acquisition only")
	h.MustRelease()
}

// listOfOneCall gives a list of options that has room for more, which is the caller's.
func listOfOneCall(e *engine.Env, c *engine.Client) {
	for op, get := range map[string]engine.Getter{"TryAcquire": c.Locker.TryAcquire, "Acquire": c.Locker.Acquire} {
		key := e.Key("list-by-%s", op)
		opts := append(make([]lock.Option, 0, 8), e.Opts(e.Long)...)
		h, err := c.Get(op, get, e.Ctx, key, opts)
		if err != nil {
			e.UnexpectedFatal(key, err, "%s of a free key returned %s; expected a lease", op, engine.Outcome(err))
		}
		for _, o := range opts[len(opts):cap(opts)] {
			if o != nil {
				e.Failf(key, "%s wrote an option of its own into the caller's list, behind its end, where the next call may find it", op)
				break
			}
		}
		h.MustRelease()
	}
}
