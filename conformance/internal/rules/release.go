package rules

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var releaseRules = []*engine.Rule{
	{
		Name:      "ReleaseFrees",
		Statement: "When Release has returned, the next try of any client is granted.",
		Run:       releaseFrees,
	},
	{
		Name:      "ReleaseOwnOnly",
		Statement: "Releasing a lease that has run out does not end the next hold, and returns ErrNotHeld.",
		Run:       releaseOwnOnly,
	},
	{
		Name:      "ReleaseOldLeaseSameClient",
		Statement: "A late release of an earlier lease does not end the client's later one.",
		Run:       releaseOldLease,
	},
	{
		Name:      "ReleaseTwice",
		Statement: "A second release returns ErrNotHeld and harms nobody; of simultaneous ones, one succeeds.",
		Run:       releaseTwice,
	},
	{
		Name:      "ReleaseDetached",
		Statement: "Release works when its context has already ended, or ends with the lease.",
		Run:       releaseDetached,
	},
	{
		Name:      "ReleaseReportsLoss",
		Statement: "Releasing a lease that ran out or was removed returns ErrLost, also when nobody took the key.",
		Claims:    []engine.Claim{engine.ClaimWithoutRenewal},
		LimitTTLs: 30,
		Run:       releaseReportsLoss,
	},
	{
		Name:      "ReleaseStopsRenewal",
		Statement: "Nothing renews a key for a released lease.",
		Run:       releaseStopsRenewal,
	},
	{
		Name:      "ReleaseAtExpiry",
		Statement: "A release under way when its lease runs out does not end the next hold.",
		LimitTTLs: 80,
		Run:       releaseAtExpiry,
	},
	{
		Name:      "ReleaseBesideRenewal",
		Statement: "A renewal under way neither prevents nor outlives a release, and is no loss.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		Run:       releaseBesideRenewal,
	},
	{
		Name:         "ReleaseEndsRequests",
		Statement:    "After a lease's release or maximum hold no request is sent for it.",
		NeedsBackend: true,
		Run:          releaseEndsRequests,
	},
	{
		Name:         "ReleaseTwiceSendsNothing",
		Statement:    "A second release of a settled lease sends nothing, and its answer is the same when its context has ended.",
		NeedsBackend: true,
		Run:          releaseTwiceSendsNothing,
	},
}

func releaseFrees(e *engine.Env) {
	key := e.Key("a")
	clients := e.Lockers(2)
	n, end := 0, time.Now().Add(e.Window())
	for i := 0; i < 10 || i < 500 && time.Now().Before(end); i++ {
		n++
		c := clients[i%2]
		var h *engine.Hold
		var err error
		if i%3 == 2 {
			h, err = c.Acquire(e.Ctx, key)
		} else {
			h, err = c.Try(key)
		}
		if err != nil {
			e.UnexpectedFatal(key, err, "the key was released, but the next call for it returned %s; expected a lease", engine.Outcome(err))
		}
		h.MustRelease()
	}
	eachLease(e, clients[0], "kind", func(h *engine.Hold) {
		h.MustRelease()
		clients[1].MustTry(h.Key).MustRelease()
	})
	e.Notef("%d hand-overs", n)
}

// lapse takes the key for p, lets the lease run out, and has the key taken over
// by next.
func lapse(e *engine.Env, p, next engine.Party, key string) (old, taken engine.Grip) {
	old = e.MustTake(p, key, e.TTL)
	taken = e.TakeOver(next, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease of the earlier holder was not renewed")
	return old, taken
}

func releaseOwnOnly(e *engine.Env) {
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b, c := layer.Open(), layer.Open(), layer.Open()
		old, taken := lapse(e, a, b, key)
		for range 2 {
			err := old.Release(e.Ctx)
			if err == nil {
				e.Failf(key, "Release of a lease that had run out returned no error, although somebody else holds the key; expected ErrNotHeld")
			} else {
				e.Is(key, err, "Release of a lease that had run out", lock.ErrNotHeld)
			}
			c.Refuses(key, "the release of a lease that had run out must not free the key for the next holder")
		}
		if e.Claimed.ManualRenewal {
			if err := taken.Renew(); err != nil {
				e.Unexpected(key, err, "the holder's renewal returned %s after somebody else had released an old lease; expected no error", engine.Outcome(err))
			}
			c.Refuses(key, "its holder has just renewed it")
		}
		e.MustGiveBack(taken, key, ", since only an old lease of somebody else had been released")
	})
}

func releaseOldLease(e *engine.Env) {
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, c := layer.Open(), layer.Open()
		old, taken := lapse(e, a, a, key)
		if err := old.Release(e.Ctx); err == nil {
			e.Failf(key, "Release of an earlier lease of the same client returned no error, although it had run out; expected ErrNotHeld")
		} else {
			e.Is(key, err, "Release of an earlier lease of the same client", lock.ErrNotHeld)
		}
		c.Refuses(key, "only an earlier lease of its holder was released")
		e.MustGiveBack(taken, key, ", since only an earlier lease of the same client had been released")
		// The same again with a lease that was released, not lost.
		first := e.MustTake(a, key, e.Long)
		e.MustGiveBack(first, key, "")
		second := e.MustTake(a, key, e.Long)
		if err := first.Release(e.Ctx); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "the second release of an earlier lease returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
		c.Refuses(key, "only an earlier lease of its holder was released, for the second time")
		e.MustGiveBack(second, key, ", since only an earlier lease of the same client had been released")
	})
}

func releaseTwice(e *engine.Env) {
	key := e.Key("a")
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	h := a.MustTry(key)
	h.MustRelease()
	e.Is(key, h.Release(e.Ctx), "the second Release", lock.ErrNotHeld)
	other := b.MustTry(key)
	e.Is(key, h.Release(e.Ctx), "the third Release, while somebody else holds the key,", lock.ErrNotHeld)
	c.MustRefuse(key, "a repeated release of an earlier lease must not free it")
	other.MustLive("a repeated release of an earlier lease must not end it")
	other.MustRelease()

	var ended endedLeases
	eachLease(e, a, "kind", func(h *engine.Hold) {
		releaseKindTwice(e, h, b)
		ended.add(h)
	})
	defer func() {
		if !e.Failed() {
			ended.outliveClose(e, a, "a lease that was released before")
		}
	}()

	releaseBesideSlow(e)
	for round := range 20 {
		key := e.Key("race-%d", round)
		h := a.MustTry(key)
		var released atomic.Int64
		e.Each(6, func(int) {
			switch err := h.Release(e.Ctx); {
			case err == nil:
				released.Add(1)
			case !errors.Is(err, lock.ErrNotHeld):
				e.Unexpected(key, err, "one of several simultaneous releases returned %s; expected no error or ErrNotHeld", engine.Outcome(err))
			}
		})
		if n := released.Load(); n != 1 {
			e.Failf(key, "%d of 6 simultaneous releases of a lease returned no error; expected one, and ErrNotHeld of the others", n)
		}
		c.MustTry(key).MustRelease()
	}
}

// releaseBesideSlow releases leases while the server has not answered yet to a release of the same
// leases, with contexts that live and with such as end before the answer. Whoever does not wait for
// the answer does not know what became of the hold, and may say so.
func releaseBesideSlow(e *engine.Env) {
	if e.OpenBackend == nil {
		return
	}
	const slow = 50 * time.Millisecond
	c, server := e.FaultyWhole()
	defer server.Heal()
	of := []kind{plain}
	if e.Virtual() {
		of = append(of, kindsAndUnrenewed(e)...)
	}
	var mu sync.Mutex
	var holds []*engine.Hold
	eachKind(e, of, func(k kind) {
		if h, ok := k.take(c, e.Key("slow-with-%s", k.name), e.Long); ok {
			mu.Lock()
			defer mu.Unlock()
			holds = append(holds, h)
		}
	})
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	server.All(faultlock.DelayBefore(slow), engine.OpsToEnd...)
	e.Each(len(holds), func(i int) {
		h := holds[i]
		short, cancel := context.WithTimeout(e.Ctx, slow/4)
		defer cancel()
		var succeeded atomic.Int64
		release := func(ctx context.Context, what string) {
			switch err := h.Release(ctx); {
			case err == nil:
				succeeded.Add(1)
			case !errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrOutcomeUnknown):
				e.Unexpected(h.Key, err, "Release %s returned %s; expected no error of one of several, and ErrNotHeld or ErrOutcomeUnknown of the others", what, engine.Outcome(err))
			}
		}
		before := engine.Requests(server, h.Key, engine.OpsToEnd...)
		wait := e.Start(func() { release(e.Ctx, "of a lease whose server takes its time") })
		for limit := time.Now().Add(e.Slack()); engine.Requests(server, h.Key, engine.OpsToEnd...) == before && time.Now().Before(limit); {
			e.Pause(time.Millisecond)
		}
		e.Together(
			func() { release(ended, "with a context that had ended, beside another one under way,") },
			func() { release(short, "with a context that ends before the answer to another one under way") },
			func() { release(e.Ctx, "beside another one under way") })
		wait()
		if n := succeeded.Load(); n > 1 {
			e.Failf(h.Key, "%d of 4 releases of a lease, beside each other, returned no error; expected one", n)
		}
	})
}

// releaseKindTwice releases a lease again that was held until its release.
func releaseKindTwice(e *engine.Env, h *engine.Hold, b *engine.Client) {
	h.MustRelease()
	what := "the second Release"
	for range 2 {
		err := h.Release(e.Ctx)
		e.Is(h.Key, err, what, lock.ErrNotHeld)
		not(e, h.Key, err, what, lock.ErrLost, lock.ErrClosed)
		next := b.MustTry(h.Key)
		e.Is(h.Key, h.Release(e.Ctx), "another Release, while somebody else holds the key,", lock.ErrNotHeld)
		next.MustLive("a repeated release of an earlier lease must not end it")
		next.MustRelease()
		what = "another Release, after somebody else had held the key,"
	}
}

func releaseDetached(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	past, cancelPast := context.WithDeadline(e.Ctx, time.Now().Add(-time.Second))
	defer cancelPast()
	for name, ctx := range map[string]context.Context{"a cancelled context": ended, "a context whose deadline has passed": past} {
		eachLease(e, a, name, func(h *engine.Hold) { freesWith(e, h, b, ctx, name) })
	}
	// The context of the lease ends in the course of the release.
	e.Together(
		func() {
			eachLease(e, a, "its own", func(h *engine.Hold) { freesWith(e, h, b, h.Lease.Context(), "the context of its lease") })
		},
		func() {
			eachLease(e, a, "made", func(h *engine.Hold) {
				made, cancel := context.WithCancel(h.Lease.Context())
				defer cancel()
				freesWith(e, h, b, made, "a context made from that of its lease")
			})
		})
	if e.Virtual() && e.Claimed.WithoutRenewal && e.Claimed.Deadline {
		h := a.MustTryFor(e.Key("soon over"), e.TTL, lock.WithoutRenewal())
		h.Lapses()
		e.Pause(time.Until(h.Until()) - e.TTL/5)
		freesWith(e, h, b, ended, "a cancelled context "+(e.TTL/5).String()+" before it would have run out")
	}
	// The usual shape: acquire with the context of the work, which ends first.
	key := e.Key("work")
	work, stop := context.WithCancel(e.Ctx)
	h, err := a.Acquire(work, key)
	if err != nil {
		e.UnexpectedFatal(key, err, "Acquire of a free key returned %s; expected a lease", engine.Outcome(err))
	}
	stop()
	if err := h.Release(work); err != nil {
		e.Unexpected(key, err, "Release with the context of the Acquire, which has ended, returned %s; expected no error", engine.Outcome(err))
	}
	b.MustTry(key).MustRelease()
}

// freesWith releases a lease with the context, which must free the key at once.
func freesWith(e *engine.Env, h *engine.Hold, b *engine.Client, ctx context.Context, name string) {
	if err := h.Release(ctx); err != nil {
		e.Unexpected(h.Key, err, "Release with %s returned %s; expected no error", name, engine.Outcome(err))
	}
	again, err := b.Try(h.Key)
	if err != nil {
		e.Unexpected(h.Key, err, "the key was released with %s, but a try then returned %s; expected a lease", name, engine.Outcome(err))
		return
	}
	again.MustRelease()
}

func releaseReportsLoss(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	targets := []error{lock.ErrNotHeld}
	if e.Claimed.LossSignal {
		targets = append(targets, lock.ErrLost)
	}
	e.Each(2, func(i int) {
		key, what := e.Key("nobody"), "a lease that had run out"
		if i == 1 {
			key, what = e.Key("somebody"), "a lease that had run out, with the key taken by another client,"
		}
		h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
		awaitLapse(e, h)
		var next *engine.Hold
		if i == 1 {
			next = b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease had run out")
		}
		if err := h.Release(e.Ctx); err == nil {
			e.Failf(key, "Release of %s returned no error; expected ErrLost, since exclusion was not kept for the whole time", what)
		} else {
			e.Is(key, err, "Release of "+what, targets...)
			if e.Claimed.LossSignal {
				isLoss(e, key, err, "Release of "+what)
			}
		}
		if err := h.Release(e.Ctx); err == nil {
			e.Failf(key, "a second Release of %s returned no error; expected ErrNotHeld", what)
		} else {
			e.Is(key, err, "a second Release of "+what, lock.ErrNotHeld)
		}
		if next == nil {
			next = b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease had run out")
		}
		_ = next.Release(e.Ctx)
	})
	lostReleasedAtOnce(e, a)
	if e.Remove == nil {
		return
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	for with, ctx := range map[string]context.Context{"": e.Ctx, ", with a context that had ended,": ended} {
		key := e.Key("removed%s", with) // which nobody has told the holder
		h := a.MustTry(key)
		e.RemoveByForce(key)
		if err := h.Release(ctx); err == nil {
			e.Failf(key, "Release of a lease whose record had been removed a moment before%s returned no error; expected ErrLost", with)
		} else if with == "" && !errors.Is(err, lock.ErrOutcomeUnknown) { // of the other, ReleaseDetached tells
			e.Is(key, err, "Release of a lease whose record had been removed a moment before", targets...)
		}
	}
}

// lostReleasedAtOnce has several callers release a lease that has run out, at the same time. None of
// them has kept the key for the whole time.
func lostReleasedAtOnce(e *engine.Env, a *engine.Client) {
	key := e.Key("at once")
	h := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
	awaitLapse(e, h)
	e.Each(4, func(int) {
		switch err := h.Release(e.Ctx); {
		case err == nil:
			e.Failf(key, "one of 4 simultaneous releases of a lease that had run out returned no error; expected ErrLost, and ErrNotHeld of the others")
		case !errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrOutcomeUnknown):
			e.Unexpected(key, err, "one of 4 simultaneous releases of a lease that had run out returned %s; expected ErrLost, and ErrNotHeld of the others", engine.Outcome(err))
		}
	})
}

// awaitLapse waits until a lease that is not renewed has ended by its own
// account, or where it does not tell, until its time is over on a control timer.
func awaitLapse(e *engine.Env, h *engine.Hold) {
	h.Lapses()
	if e.Claimed.LossSignal {
		if !e.Within(e.TakeoverLimit(h.EffectiveTTL()), h.Lease.Context().Done()) {
			e.OverdueFatalf(h.Key, "the context of a lease that is not renewed had not ended after %s; its TTL is %s", e.TakeoverLimit(h.EffectiveTTL()), h.EffectiveTTL())
		}
		return
	}
	e.Pause(h.EffectiveTTL() + e.Claimed.TakeoverLag + e.TTL/2)
}

func releaseStopsRenewal(e *engine.Env) {
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a := e.Locker()
		h := a.MustTryFor(key, e.TTL)
		first := h.Until()
		e.Pause(e.TTL / 2)
		for e.Claimed.Deadline && !h.Until().After(first) && time.Until(first) > e.TTL/4 {
			e.Pause(e.TTL / 20) // until a renewal has happened, if the lock renews by itself
		}
		h.MustRelease()
		b, c := layer.Open(), layer.Open()
		e.MustTake(b, key, e.TTL)
		next := e.TakeOver(c, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/10, "its holder does not renew it, and the leases of others were released")
		_ = next.Release(e.Ctx)
	})
}
