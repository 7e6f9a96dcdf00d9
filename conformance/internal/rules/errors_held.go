package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func heldDetails(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	e.Together(
		func() { eachWay(e, everyWay, func(w way) { lookAtHolder(e, w, a, b) }) },
		func() { lookAtEnd(e) },
		func() { lookAtLabels(e, a, b) },
		func() { lookAtKinds(e, a, b) },
		func() { lookAtOwner(e, a, b) },
		func() { lookAtKeptRefusal(e, a, b) },
		func() { lookAtNextHolder(e, a, b) },
		func() { lookAtOddKey(e, a, b) },
	)
}

// lookAtNextHolder has a wait outlast the holder that it began behind. Who gives up is told of the
// present holder, if of any: a wait has asked again since.
func lookAtNextHolder(e *engine.Env, a, b *engine.Client) {
	if !e.Virtual() || !e.Claimed.HolderDetails || !waitsEnd(e) {
		return
	}
	for n := range 8 {
		key := e.Key("next-holder-%d", n)
		first := a.MustTry(key, lock.WithLabel("the first"))
		next := e.Locker().Acquiring(key, lock.WithLabel("the next"))
		e.Settle()
		w := b.Acquiring(key, lock.WithLabel("who gives up"))
		e.Settle()
		first.MustRelease()
		came := make(chan *engine.Acquiring, 2)
		for _, one := range []*engine.Acquiring{next, w} {
			e.Start(func() { one.Wait(); came <- one })
		}
		if <-came == w {
			next.Cancel()
			<-came
			for _, one := range []*engine.Acquiring{next, w} {
				if one.Err == nil {
					_ = one.Hold.Release(e.Ctx)
				}
			}
			continue
		}
		e.Pause(2 * e.WaitBound())
		holder := next.MustGet(e, key, e.WaitBound(), "the key was released")
		w.Cancel()
		<-came
		if held := (*lock.HeldError)(nil); w.Err != nil && errors.As(w.Err, &held) && held.Holder.Label == "the first" {
			e.Failf(key, "who gave up a wait was told of the holder %s, which had released the key %s before; expected the present holder, or none", held.Holder, engine.Short(2*e.WaitBound()))
		}
		holder.MustRelease()
		return
	}
}

// lookAtOddKey has a key that is written otherwise in quotes, in URLs and in patterns. Whoever is
// refused it, or gives up waiting for it, is told of it as it is.
func lookAtOddKey(e *engine.Env, a, b *engine.Client) {
	key := e.Key("%s", "a\"b\\c'd%25 {e}<f>&amp;\u00e4a\u0308")
	h, err := a.Try(key)
	if err != nil {
		return // which keys there are is for other rules
	}
	var gaveUp error
	if waitsEnd(e) {
		_, gaveUp = b.GivesUp(key, false, new(engine.Lateness))
	}
	for what, err := range map[string]error{
		"TryAcquire": b.Refusal(key, "another client holds it"), "Acquire whose context ended": gaveUp,
	} {
		// Whether there is one is for the other cases: a waiter in a queue was not refused.
		if held := (*lock.HeldError)(nil); errors.As(err, &held) && held.Key != key {
			e.Failf(key, "the error of %s, for the key %s, names the key %s; expected the one that was asked for", what, engine.QuoteKey(key), engine.QuoteKey(held.Key))
		}
	}
	h.MustRelease()
}

// lookAtKeptRefusal keeps a refusal while other calls are refused: it is of its key still, and of
// the holder that there was.
func lookAtKeptRefusal(e *engine.Env, a, b *engine.Client) {
	key, other := e.Key("kept"), e.Key("other")
	h, beside := a.MustTry(key, lock.WithLabel("the first")), a.MustTry(other)
	err := b.Refusal(key, "another client holds it")
	before := err.Error()
	_ = b.Refusal(other, "another client holds it")
	if now := err.Error(); now != before {
		e.Failf(key, "the refusal said %q, and %q once another key was refused; expected it as it was", before, now)
	}
	beside.MustRelease()
	h.MustRelease()
	next := a.MustTry(key, lock.WithLabel("the next"))
	_ = b.Refusal(key, "another client holds it")
	if now := err.Error(); now != before {
		e.Failf(key, "the refusal said %q, and %q once the key was refused because of its next holder; expected it as it was", before, now)
	}
	next.MustRelease()
}

// lookAtOwner has an owner hold a key twice. What is left is that of the longer hold.
func lookAtOwner(e *engine.Env, a, b *engine.Client) {
	longer := e.Fit(20 * e.TTL)
	if !engine.ClaimReentrancy.Made(e.Settings) || longer < 3*e.TTL {
		return
	}
	owner := oneOwner(e)
	e.Each(2, func(i int) {
		key, ttls := e.Key("owner-%d", i), []time.Duration{longer, e.TTL * 2}
		opts := append(unrenewed(e), owner...)
		first := a.MustTryFor(key, ttls[i], opts...)
		second := a.MustTryFor(key, ttls[1-i], opts...)
		long := []*engine.Hold{first, second}[i] // the first of the first case
		err := b.Refusal(key, "another client holds it")
		left := time.Until(long.Until()) - max(e.Claimed.TTLGrain, time.Millisecond) - longer/20
		if held := (*lock.HeldError)(nil); errors.As(err, &held) && held.Remaining > 0 && held.Remaining < left {
			e.Failf(key, "the refusal says that the key is held for another %s; expected at least the %s that are left of the longer of its owner's two holds", held.Remaining, left)
		}
		_ = first.Release(e.Ctx)
		_ = second.Release(e.Ctx)
	})
}

// lookAtLabels has labels that some store would change.
func lookAtLabels(e *engine.Env, a, b *engine.Client) {
	key := e.Key("labels")
	for _, label := range []string{
		"null", "0", "\ufffd", `a,b;c:d|e=f \\ \n 'g' ''h'' "i" <j>&amp;</j> 50%25 %s {"k":1} +` + " \U0001f512 \u200b\uff41a\u0308",
	} {
		h := a.MustTry(key, lock.WithLabel(label))
		err := b.Refusal(key, "another client holds it")
		if held := (*lock.HeldError)(nil); errors.As(err, &held) { // else told elsewhere
			namesLabel(e, key, held, label, "")
		}
		h.MustRelease()
	}
}

// namesLabel looks for the label of the holder in a refusal, which a server that is slow to tell
// who holds the key leaves out.
func namesLabel(e *engine.Env, key string, held *lock.HeldError, label, whose string) {
	switch held.Holder.Label {
	case label:
	case "":
		e.Latef(key, "the refusal does not name the holder%s; expected its label %q", whose, label)
	default:
		e.Failf(key, "the refusal names the holder %q%s; expected its label %q", held.Holder.Label, whose, label)
	}
}

// lookAtKinds labels leases that have more than a label, and such as were asked for without a
// TTL. Who is refused names none either.
func lookAtKinds(e *engine.Env, a, b *engine.Client) {
	const label = "with another option"
	all := []kind{plain}
	for _, k := range append(kindsAndUnrenewed(e), pairs(e)...) {
		if set, err := lock.ResolveOptions(k.opts...); err == nil && set.Label == "" {
			all = append(all, k)
		}
	}
	look := func(k kind, ttl time.Duration, called string) {
		key := e.Key("%s%s", k.name, called)
		h, ok := k.take(a, key, ttl, lock.WithLabel(label))
		if !ok {
			return
		}
		refused, err := b.TryFor(e.Ctx, key, engine.DefaultTTL)
		if err == nil {
			e.JudgeRefusal(key, "TryAcquire without an option", "another client holds it", refused.Record, nil)
			_ = refused.Release(e.Ctx)
			return
		}
		switch held := (*lock.HeldError)(nil); {
		case !errors.As(err, &held):
			e.Unexpected(key, err, "TryAcquire without an option returned %s on a held key; expected a *lock.HeldError in it", engine.Outcome(err))
		case held.Key != key:
			e.Failf(key, "the refusal of a call without an option names the key %q; expected %q", held.Key, key)
		default:
			namesLabel(e, key, held, label, ", whose lease"+called+" has "+k.name)
		}
		h.MustRelease()
	}
	eachKind(e, all, func(k kind) {
		look(k, e.Long, "")
		if !k.unrenewed && !e.Fixed {
			look(k, engine.DefaultTTL, " without a TTL")
		}
	})
}

// lookAtEnd asks for a key until the lease on it has run out. What is left of it is never
// less than nothing.
func lookAtEnd(e *engine.Env) {
	for _, layer := range e.Layers() {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		h := e.MustTake(a, key, e.TTL)
		h.Lapses()
		e.Pause(time.Until(h.Until()) - e.TTL/20)
		next := e.Poll(key, e.TakeoverLimit(e.TTL), e.TTL/400, "its holder did not renew it", func() (engine.Grip, error) {
			got, err := b.Take(key, e.Long)
			if held := (*lock.HeldError)(nil); errors.As(err, &held) && held.Remaining < 0 {
				e.Fatalf(key, "a refusal says that the lease lasts for another %s; expected nothing where it is over, or not known", held.Remaining)
			}
			return got, err
		})
		_ = next.Release(e.Ctx)
	}
}

// mostLeft is for how long a hold of the TTL can be said to last, so long after its grant and
// without a renewal. Where it has an expiry of its own on the server, that comes nearer; half
// of the time that has passed may get lost in the difference of two clocks.
func mostLeft(e *engine.Env, ttl, passed time.Duration) time.Duration {
	most := ttl + max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag) + time.Millisecond
	if !e.Claimed.EndsWithSession && e.Claimed.Expiry != backend.ClockConnection && e.Claimed.TTLGrain < time.Second {
		most -= passed / 2
	}
	return most
}

// rounding is by how much a remaining time may be off that is shown in whole seconds, as
// servers do that keep no more.
func rounding(shown time.Duration) time.Duration {
	if shown%time.Second == 0 {
		return time.Second
	}
	return 0
}

// unwhole is a TTL near the given one that is no whole number of seconds, if the lock has such.
// A lock that rounds what is left shows whole seconds; one that shows the TTL itself does not.
func unwhole(e *engine.Env, ttl time.Duration) time.Duration {
	return e.Fit(ttl - ttl%time.Second + 300*time.Millisecond)
}

func lookAtHolder(e *engine.Env, w way, a, b *engine.Client) {
	key := e.Key("%s", w.name)
	label := "nightly report by " + w.name
	ttl := unwhole(e, 20*e.TTL)
	h, told := w.take(a, key, ttl, append(unrenewed(e), lock.WithLabel(label))...)
	if !told {
		return
	}
	granted := e.Log.Base.Add(h.Granted)
	coarse := time.Duration(0) // what is left is shown in such units, less the time that has passed since
	check := func(op string, until, asked time.Time, err error) {
		var held *lock.HeldError
		if errors.As(err, &held) {
			coarse = max(coarse, rounding(held.Remaining))
		}
		// The holder relies on it until then, so the server keeps it for no less.
		relied := max(time.Until(until), ttl-e.Log.Now()+h.since)
		least := relied - max(e.Claimed.TTLGrain, time.Millisecond) - ttl/20
		most := mostLeft(e, ttl, asked.Sub(granted))
		if !e.Claimed.WithoutRenewal {
			most = mostLeft(e, ttl, 0)
		}
		switch known := errors.As(err, &held); {
		case !known && (op == "TryAcquire" || e.Claimed.Waiting != backend.WaitQueue && errors.Is(err, lock.ErrHeld)):
			e.Unexpected(key, err, "%s on a held key returned %s; expected a *lock.HeldError in it", op, engine.Outcome(err))
		case !known: // a waiter in a queue was not refused, so it need not know
		case held.Key != key:
			e.Failf(key, "the refusal names the key %q; expected %q", held.Key, key)
		case held.Holder.Label != label:
			namesLabel(e, key, held, label, "")
		case held.Remaining <= 0 || held.Remaining > most+coarse:
			e.Failf(key, "the refusal says that the lease lasts for another %s; expected more than 0 and at most %s, %s after its grant for %s", held.Remaining, most, engine.Short(asked.Sub(granted)), ttl)
		case held.Remaining < least-coarse:
			e.Failf(key, "the refusal says that the lease lasts for another %s; expected at least the %s that are left of its TTL of %s",
				held.Remaining, least, ttl)
		}
	}
	until := h.Until()
	_, err := b.TryFor(e.Ctx, key, e.TTL) // what is left is not that of who asks
	check("TryAcquire", until, granted, err)
	ctx, cancel := context.WithTimeout(e.Ctx, min(200*time.Millisecond, ttl/4))
	defer cancel()
	_, err = b.Acquire(ctx, key)
	check("Acquire whose context ended", until, granted, err) // it may have asked at its beginning only
	asked := time.Now()
	_, err = b.TryFor(e.Ctx, key, e.TTL)
	check("TryAcquire", until, asked, err)
	asked = time.Now()
	_, err = a.TryFor(e.Ctx, key, e.TTL)
	check("TryAcquire", until, asked, err)
	h.MustLive("its TTL is long")
	h.MustRelease()
}
