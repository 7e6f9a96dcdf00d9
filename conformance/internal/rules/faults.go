package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var faultRules = []*engine.Rule{
	{
		Name:         "CallsAreBounded",
		Statement:    "When the server hangs, calls end with their contexts, Release and Close by themselves.",
		NeedsBackend: true,
		Run:          engine.AtFaultSites(callsAreBounded),
	},
	{
		Name:         "LostWhenCutOff",
		Statement:    "A holder whose renewals hang or fail is told before the next grant.",
		Claims:       []engine.Claim{engine.ClaimLossSignal},
		NeedsBackend: true,
		LimitTTLs:    40,
		Run:          lostWhenCutOff,
	},
	{
		Name:         "RenewTransient",
		Statement:    "Renewals that fail for less than a third of the TTL are no loss.",
		NeedsBackend: true,
		LimitTTLs:    30,
		Run:          engine.AtFaultSites(renewTransient),
	},
	{
		Name:         "RenewUnknown",
		Statement:    "A renewal whose answer was lost is no loss and moves no deadline.",
		Claims:       []engine.Claim{engine.ClaimManualRenewal, engine.ClaimWithoutRenewal, engine.ClaimDeadline},
		NeedsBackend: true,
		Run:          engine.AtFaultSites(renewUnknown),
	},
	{
		Name:         "OwnGrantRecognised",
		Statement:    "An acquisition whose reply was lost is never refused because of its own grant.",
		NeedsBackend: true,
		Run:          engine.AtFaultSites(ownGrantRecognised),
	},
	{
		Name:         "GrantWithinValidity",
		Statement:    "A grant whose answer comes too late is given back and not returned.",
		NeedsBackend: true,
		LimitTTLs:    30,
		Run:          engine.AtFaultSites(grantWithinValidity),
	},
	{
		Name:         "LateGrant",
		Statement:    "A request that arrives after its caller's error keeps the key for one TTL at most.",
		NeedsBackend: true,
		LimitTTLs:    30,
		Run:          engine.AtFaultSites(lateGrant),
	},
	{
		Name:         "ReleaseUnknown",
		Statement:    "A release whose reply was lost is unknown, is repeated, and harms no next holder.",
		NeedsBackend: true,
		Virtual:      4 * time.Minute,
		Run:          engine.AtFaultSites(releaseUnknown),
	},
	{
		Name:         "ReleaseDelayed",
		Statement:    "A release that arrives late does not end the client's next hold.",
		NeedsBackend: true,
		Run:          engine.AtFaultSites(releaseDelayed),
	},
	{
		Name:         "HandOverUnknown",
		Statement:    "When a release's answer is lost or late, a waiter of the client gets the key.",
		NeedsBackend: true,
		Run:          engine.AtFaultSites(handOverUnknown),
	},
	{
		Name:         "CancelMidRequest",
		Statement:    "An acquisition cancelled in mid-request returns soon, and leaves nothing in the way.",
		NeedsBackend: true,
		Run:          cancelMidRequest,
	},
	{
		Name:         "UnavailableIsTold",
		Statement:    "Without a server a try fails with ErrUnavailable at once, and changes nothing; Acquire goes on.",
		NeedsBackend: true,
		Virtual:      8 * time.Minute,
		Run: engine.AtFaultSites(func(e *engine.Env, via engine.FaultSite) {
			e.Together(func() { unavailableIsTold(e, via) }, func() { awayWhenRefused(e, via) })
		}),
	},
	{
		Name:         "SilenceIsNotHeld",
		Statement:    "Who gives up on a silent server is told unknown or unavailable, not held.",
		NeedsBackend: true,
		Run:          engine.AtFaultSites(silenceIsNotHeld),
	},
	{
		Name:         "PermanentStops",
		Statement:    "What waiting does not cure ends an acquisition at once, with ErrPermanent.",
		NeedsBackend: true,
		Run:          permanentStops,
	},
	{
		Name:         "ReentrantFault",
		Statement:    "Whatever messages are lost, an owner holds the key until its last lease has ended.",
		Claims:       []engine.Claim{engine.ClaimReentrancy},
		NeedsBackend: true,
		Run:          reentrantFault,
	},
	{
		Name:         "ProgressUnderFaults",
		Statement:    "While messages are lost now and then, every client gets the key again and again.",
		NeedsBackend: true,
		Run:          progressUnderFaults,
	},
	{
		Name:         "HungKeyHoldsUpNoOther",
		Statement:    "Requests that hang for some keys hold up no other key.",
		NeedsBackend: true,
		LimitTTLs:    30,
		Run:          engine.AtFaultSites(hungKeyHoldsUpNoOther),
	},
	{
		Name:         "LinearizableUnderFaults",
		Statement:    "Some order explains all answers while messages are lost; unknown outcomes may be either.",
		NeedsBackend: true,
		LimitTTLs:    40,
		Run:          engine.AtFaultSites(linearizableUnderFaults),
	},
}

func ownGrantRecognised(e *engine.Env, via engine.FaultSite) {
	b := e.Locker()
	freed := func(key, why string) {
		next := b.Wins(key, e.WaitBound(), 20*time.Millisecond, why)
		_ = next.Release(e.Ctx)
	}
	a, c := e.FaultyAt(via, nil)
	for i := range 5 {
		key := e.Key("%s-acquire-%d", via.Name, i)
		c.Next(1+i%3, faultlock.FailAfter(), faultlock.OpTry, faultlock.OpEnqueue, faultlock.OpWait)
		ctx, cancel := context.WithTimeout(e.Ctx, e.WaitBound())
		h, err := a.Acquire(ctx, key)
		cancel()
		c.Heal()
		switch {
		case err == nil:
			h.MustRelease()
			freed(key, "it was acquired once and released once, whatever happened to the replies")
		case errors.Is(err, lock.ErrOutcomeUnknown):
			freed(key, "the caller was told an error, so that nothing may be left for the TTL of "+e.Long.String())
		default:
			e.Unexpected(key, err, "Acquire of a free key, with replies lost, returned %s; expected a lease, or ErrOutcomeUnknown", engine.Outcome(err))
		}
	}
	for i := range 5 {
		key := e.Key("%s-try-%d", via.Name, i)
		c.Next(1, faultlock.FailAfter(), faultlock.OpTry)
		h, err := a.Try(key)
		c.Heal()
		switch {
		case err == nil:
			h.MustRelease()
		case errors.Is(err, lock.ErrHeld):
			e.Unexpected(key, err, "TryAcquire of a free key, with the reply lost, was refused because of itself: %s", engine.Outcome(err))
		default:
			e.Is(key, err, "TryAcquire whose reply was lost", lock.ErrOutcomeUnknown)
		}
		freed(key, "the caller was told an error, so that nothing may be left for the TTL of "+e.Long.String())
	}
}

func grantWithinValidity(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	b := e.Locker()
	for i, delay := range []time.Duration{e.TTL * 4 / 5, e.TTL * 3 / 2} {
		key := e.Key("%s-%d", via.Name, i)
		c.Next(1, faultlock.DelayAfter(delay).IgnoringContext(), faultlock.OpTry)
		h, err := a.TryFor(e.Ctx, key, e.TTL, unrenewed(e)...)
		if err == nil {
			if time.Now().After(h.Until()) || h.Lost() {
				e.Failf(key, "TryAcquire returned a lease that was over already: its answer took %s and its TTL is %s", delay, e.TTL)
			} else {
				e.Failf(key, "TryAcquire returned a lease after %s, with %s of its TTL of %s left; expected an error below a third", delay, time.Until(h.Until()), e.TTL)
			}
			_ = h.Release(e.Ctx)
		} else if errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrInvalid) {
			e.Unexpected(key, err, "TryAcquire of a free key, with the answer delayed, returned %s; expected an error that says that the server was slow", engine.Outcome(err))
		}
		givenBack(e, c, key, delay)
		next := b.Wins(key, e.TakeoverLimit(e.TTL), 20*time.Millisecond, "the late grant must be given back")
		_ = next.Release(e.Ctx)
	}
	lateIsUnknown(e, via)
}

// lateIsUnknown has a grant come too late whose release does not reach the server yet. Who says that
// the server was unavailable says that nothing was changed.
func lateIsUnknown(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	b, key := e.Locker(), e.Key("%s-not given back yet", via.Name)
	c.All(faultlock.FailBefore(), engine.OpsToEnd...)
	c.Next(1, faultlock.DelayAfter(e.TTL*3/4).IgnoringContext(), faultlock.OpTry)
	h, err := a.TryFor(e.Ctx, key, e.TTL, unrenewed(e)...)
	if err == nil {
		h.Lapses() // which is judged above
	} else if errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrOutcomeUnknown) {
		if next, held := b.Try(key); errors.Is(held, lock.ErrHeld) {
			e.Failf(key, "TryAcquire returned %s, and the key is held: the grant came too late, and was not given back yet; expected ErrOutcomeUnknown, since ErrUnavailable says that nothing was changed", engine.Outcome(err))
		} else if held == nil {
			_ = next.Release(e.Ctx)
		}
	}
	c.Heal()
}

// givenBack requires that a release is sent for a grant that came too late. To wait
// for the end of its TTL is not enough: only the server knows when that began.
func givenBack(e *engine.Env, c *faultlock.Faults, key string, delay time.Duration) {
	for control := time.Now().Add(e.Slack()); engine.Requests(c, key, engine.OpsToEnd...) == 0; e.Pause(2 * time.Millisecond) {
		if time.Now().After(control) {
			e.Overduef(key, "no release had been sent %s after TryAcquire returned; expected one, because the server granted the key, with an answer that took %s", e.Slack(), delay)
			return
		}
	}
}

func releaseUnknown(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	b, d := e.Locker(), e.Locker()
	for i := range 4 {
		key := e.Key("%s-%d", via.Name, i)
		h := a.MustTry(key)
		c.Next(1+i%2, faultlock.FailAfter(), faultlock.OpRelease)
		err := h.Release(e.Ctx)
		if err != nil {
			e.Is(key, err, "Release whose reply was lost", lock.ErrOutcomeUnknown)
		}
		deadlineIsOver(e, h)
		if e.Claimed.ManualRenewal {
			e.Is(key, h.Renew(), "Renew after a Release whose reply was lost", lock.ErrNotHeld)
		}
		next, nextErr := b.Try(key)
		if nextErr != nil {
			e.UnexpectedFatal(key, nextErr, "a try returned %s, although the server had applied the release", engine.Outcome(nextErr))
		}
		again := h.Release(e.Ctx)
		if again != nil && !errors.Is(again, lock.ErrNotHeld) && !errors.Is(again, lock.ErrOutcomeUnknown) {
			e.Failf(key, "the second Release, after one of unknown outcome, returned %s; expected no error, ErrNotHeld or ErrOutcomeUnknown", engine.Outcome(again))
		}
		e.Pause(e.TTL / 4) // repeats in the background
		c.Heal()
		d.MustRefuse(key, "the next holder has it, and repeats of the earlier release must not free it")
		next.MustRelease()
	}
	releasesUnsent(e, via, b)
	if e.Virtual() {
		releasesUntilExpiry(e, via, b)
	}
}

// releasesUntilExpiry has the server be away for a part of the TTL of a lease that is released
// meanwhile: of a new one, and of one that was renewed for more than a TTL.
func releasesUntilExpiry(e *engine.Env, via engine.FaultSite, b *engine.Client) {
	a, c := e.FaultyAt(via, nil)
	defer c.Heal()
	for _, held := range []time.Duration{0, e.Long * 4 / 3} {
		key := e.Key("%s-away-after-%s", via.Name, held)
		h := a.MustTryFor(key, e.Long)
		patiently(e, held)
		until := h.Until()
		c.All(faultlock.FailBefore(), engine.OpsToEnd...)
		ctx, cancel := context.WithCancel(e.Ctx)
		_ = h.Release(ctx)
		cancel() // of a call that has returned
		e.Pause(time.Until(until) / 4)
		c.Heal()
		left := time.Until(until)
		b.Wins(key, engine.Short(max(left*2/3, e.Prompt())), e.TTL/20, "the server can be reached again, "+engine.Short(left).String()+" before the lease would have expired, and its release is repeated until then").MustRelease()
	}
}

// releasesUnsent releases leases of each kind while no release reaches the server: they have
// ended all the same. One of them was renewed for more than a TTL.
func releasesUnsent(e *engine.Env, via engine.FaultSite, b *engine.Client) {
	a, c := e.FaultyAt(via, nil)
	holds := []*engine.Hold{a.MustTryFor(e.Key("%s-unsent-after-a-TTL", via.Name), e.TTL)}
	e.Pause(e.TTL * 4 / 3)
	for _, k := range append([]kind{plain}, optionKinds(e, b)...) {
		if h, ok := k.take(a, e.Key("%s-unsent-with-%s", via.Name, k.name), e.TTL); ok {
			holds = append(holds, h)
		}
	}
	c.All(faultlock.FailBefore(), engine.OpsToEnd...)
	e.Each(len(holds), func(i int) {
		h := holds[i]
		h.Lapses()
		var err error
		for _, which := range []string{"Release", "a second Release"} {
			if err = h.Release(e.Ctx); err == nil {
				e.Failf(h.Key, "%s returned no error, and no request of it has reached the server; expected ErrOutcomeUnknown", which)
			}
			if i == 0 {
				break // what is sent for this one from now on is sent in the background
			}
		}
		if !h.Lost() {
			e.Failf(h.Key, "the context of a lease was alive after a Release whose request did not reach the server; Release ends the hold, whatever becomes of its request")
		} else if cause := h.Cause(); !errors.Is(cause, lock.ErrExpired) {
			e.Is(h.Key, cause, "context.Cause after a Release whose request did not reach the server", lock.ErrReleased)
		}
		deadlineIsOver(e, h)
		if e.Claimed.ManualRenewal {
			e.Is(h.Key, h.Renew(), "Renew after a Release whose request did not reach the server", lock.ErrNotHeld)
		}
		// One may have been under way.
		renewed, sent := engine.Requests(c, h.Key, engine.OpsToKeep...), engine.Requests(c, h.Key, engine.OpsToEnd...)
		e.Pause(e.TTL)
		if errors.Is(err, lock.ErrOutcomeUnknown) && engine.Requests(c, h.Key, engine.OpsToEnd...) == sent {
			e.Latef(h.Key, "no release was sent in the %s after a Release whose request did not reach the server; expected it to be repeated until the lease would have expired", e.TTL)
		}
		if n := engine.Requests(c, h.Key, engine.OpsToKeep...) - renewed; n > 1 {
			e.Failf(h.Key, "a lease was renewed %d times in the %s after a Release whose request did not reach the server; expected its renewal to stop", n, e.TTL)
		}
	})
	c.Heal()
	e.Each(len(holds), func(i int) {
		h := holds[i]
		b.Wins(h.Key, max(e.Long, e.TakeoverLimit(e.TTL)), e.TTL/20, "its release is repeated until the server confirms it").MustRelease()
		err := h.Release(e.Ctx) // it may be what settles the lease, and says so
		for n := 0; n < 4 && errors.Is(err, lock.ErrOutcomeUnknown); n++ {
			e.Pause(e.TTL / 4) // nothing disturbs it any more
			err = h.Release(e.Ctx)
		}
		if err == nil {
			err = h.Release(e.Ctx)
		}
		e.Is(h.Key, err, "Release, the last of several, after the lease would have expired,", lock.ErrNotHeld)
	})
}

func unavailableIsTold(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	b := e.Locker()
	key := e.Key("%s", via.Name)
	asks := append(optionKinds(e, b), optionPairs(e, b)...)
	c.All(faultlock.FailBefore(), engine.OpsToGet...)
	begun, before := time.Now(), engine.Requests(c, key, engine.OpsToGet...)
	_, err := a.Try(key)
	if n := engine.Requests(c, key, engine.OpsToGet...) - before; n > 1 {
		e.Failf(key, "TryAcquire has asked a server that refuses connections %d times; expected once", n)
	}
	only(e, key, "TryAcquire, with the server refusing connections,", err, lock.ErrUnavailable)
	e.Is(key, err, "TryAcquire, with the server refusing connections,", faultlock.ErrInjected)
	unchanged(b, key)
	if d := time.Since(begun); d > e.Slack() {
		e.Latef(key, "TryAcquire took %s to report a server that refuses connections", d.Round(time.Millisecond))
	}
	const patience = 200 * time.Millisecond
	for how, cancelled := range map[string]bool{"ran out": false, "was cancelled": true} {
		if !waitsEnd(e) {
			break
		}
		ctx, cancel := context.WithTimeout(e.Ctx, patience)
		if cancelled {
			ctx, cancel = context.WithCancel(e.Ctx)
			time.AfterFunc(patience, cancel)
		}
		_, err = a.Acquire(ctx, key)
		ended := ctx.Err()
		cancel()
		switch {
		case err == nil:
			e.Fatalf(key, "Acquire was granted a key, though the server cannot be reached")
		case ended == nil:
			e.Fatalf(key, "Acquire, with the server refusing connections, returned %s before its context had ended; expected it to keep trying", engine.Outcome(err))
		}
		e.Is(key, err, "Acquire whose context "+how+", with the server refusing connections,", ended, lock.ErrUnavailable, faultlock.ErrInjected)
	}
	eachKind(e, asks, func(k kind) {
		key := e.Key("%s-with-%s", via.Name, k.name) // nobody is before this one
		_, err := a.Try(key, k.opts...)
		only(e, key, "TryAcquire for a lease with "+k.name+", with the server refusing connections,", err, lock.ErrUnavailable)
		unchanged(b, key)
		if !waitsEnd(e) {
			return
		}
		ctx, cancel := context.WithTimeout(e.Ctx, patience)
		_, err = a.Acquire(ctx, key, k.opts...)
		cancel()
		if err == nil {
			e.Fatalf(key, "Acquire was granted a key, though the server cannot be reached")
		}
		e.Is(key, err, "Acquire for a lease with "+k.name+", with the server refusing connections,", context.DeadlineExceeded, lock.ErrUnavailable)
	})
	w := a.Acquiring(key)
	e.Settle()
	if e.Virtual() && !e.Declared("WaitOutlastsTTL", "waiting") { // the server may be away for longer than a restart takes
		e.Pause(time.Minute)
	}
	c.Heal()
	w.MustGet(e, key, e.WaitBound(), "the server can be reached again").MustRelease()
	b.MustTry(key).MustRelease()
	// However often it was asked in vain, the next try asks again.
	c.All(faultlock.FailBefore(), engine.OpsToGet...)
	for range 10 {
		_, err := a.Try(key)
		e.Is(key, err, "TryAcquire, with the server refusing connections,", lock.ErrUnavailable)
	}
	c.Heal()
	a.MustTry(key).MustRelease()
	if e.Virtual() {
		refusedWhenBack(e, a, b, c, key)
	}
}

// awayWhenRefused has somebody wait who has met a holder, and then asks in vain: while both keep it
// waiting, its error tells of both. Who does not ask, because it waits to be told, knows nothing of
// the server.
func awayWhenRefused(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	key := e.Key("%s-refused before", via.Name)
	h := e.Locker().MustTry(key)
	defer h.MustRelease()
	defer c.Heal()
	var err error
	for _, patience := range []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second} {
		w := a.Acquiring(key)
		<-w.Begun
		e.Pause(patience)
		c.All(faultlock.FailBefore(), engine.OpsToGet...)
		before := engine.Requests(c, key, engine.OpsToGet...)
		for end := time.Now().Add(e.Slack()); engine.Requests(c, key, engine.OpsToGet...) == before; e.Pause(20 * time.Millisecond) {
			if time.Now().After(end) {
				w.Cancel()
				return
			}
		}
		e.Pause(patience)
		w.Cancel()
		if !e.Within(e.Slack(), w.Done) || w.Err == nil {
			return // other rules say so
		}
		c.Heal()
		if err = w.Err; errors.Is(err, lock.ErrUnavailable) {
			return
		}
	}
	// Who stood still meanwhile had no time to hear of it.
	standstill := engine.Excuse{From: time.Second, By: engine.ThisProcess}
	e.Fail(standstill, key, "Acquire, which was refused a key that another client holds, and then asked a server that refuses connections until it gave up, returned %s; expected an error that matches ErrUnavailable too", engine.Outcome(err))
}

// refusedWhenBack has somebody begin to wait while the server is away, who gives up when it has
// asked again and met a holder.
func refusedWhenBack(e *engine.Env, a, b *engine.Client, c *faultlock.Faults, key string) {
	h := b.MustTry(key)
	defer h.MustRelease()
	var err error
	for _, patience := range []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second} {
		c.All(faultlock.FailBefore(), engine.OpsToGet...)
		w := a.Acquiring(key)
		<-w.Begun
		e.Settle()
		c.Heal()
		before := engine.Requests(c, key, engine.OpsToGet...)
		for end := time.Now().Add(e.WaitBound()); engine.Requests(c, key, engine.OpsToGet...) == before; e.Pause(20 * time.Millisecond) {
			if time.Now().After(end) {
				w.Cancel()
				return // it is granted in time, as above
			}
		}
		e.Pause(patience)
		w.Cancel()
		if !e.Within(e.Slack(), w.Done) || w.Err == nil {
			return // other rules say so
		}
		if err = w.Err; errors.Is(err, lock.ErrHeld) {
			return
		}
	}
	e.Unexpected(key, err, "Acquire, which began while the server was away, asked again, and gave up while another client held the key, returned %s; expected an error that matches ErrHeld", engine.Outcome(err))
}

// unchanged requires that nobody has the key of a call that was told that the server is
// unavailable.
func unchanged(other *engine.Client, key string) {
	if h, err := other.Try(key); err != nil {
		other.Env.Unexpected(key, err, "TryAcquire of another client returned %s after a call for the key that failed with ErrUnavailable; expected a lease, since such a call has changed nothing", engine.Outcome(err))
	} else {
		h.MustRelease()
	}
}

func callsAreBounded(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	defer c.Heal()
	key := e.Key("%s", via.Name)
	other, endless, h := a.MustTry(key+"-beside"), a.MustTry(key+"-endless"), a.MustTry(key)
	c.All(faultlock.HangBefore())
	bounded := func(what string, limit time.Duration, f func()) {
		returnsWithin(e, key, what, "with the server hanging", limit, f)
	}
	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(e.Ctx, min(100*time.Millisecond, e.Long/10)) // three of them are to end before the hold
	}
	for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
		if op == "Acquire" && !waitsEnd(e) {
			continue
		}
		bounded(op, 100*time.Millisecond, func() {
			ctx, cancel := short()
			defer cancel()
			if _, err := a.Get(op, get, ctx, e.Key("%s-%s", via.Name, op), e.Opts(e.Long)); err != nil {
				e.Is(e.Key("%s-%s", via.Name, op), err, op+" whose context ran out, with the server hanging,", context.DeadlineExceeded)
			} else {
				e.Failf(key, "%s was granted a key, with the server hanging", op)
			}
		})
	}
	if e.Claimed.ManualRenewal {
		bounded("Renew", 100*time.Millisecond, func() {
			ctx, cancel := short()
			defer cancel()
			if err := h.Lease.Renew(ctx); err == nil {
				e.Failf(key, "Renew returned no error, with the server hanging")
			}
		})
	}
	bounded("Release", 5*time.Second, func() {
		ctx, cancel := short()
		defer cancel()
		if err := h.Release(ctx); err != nil {
			e.Is(key, err, "Release, with the server hanging,", lock.ErrOutcomeUnknown)
		} else {
			e.Failf(key, "Release returned no error, with the server hanging; expected ErrOutcomeUnknown")
		}
	})
	if e.Virtual() {
		releasesBesideHanging(e, key, other, bounded, short)
		bounded("Release with context.Background()", 5*time.Second, func() { _ = endless.Release(context.Background()) })
	}
	closesBesideHanging(e, via, a, c, bounded)
	endlessReleaseRefused(e, via)
	closesBesideRenew(e, via)
}

// closesBesideRenew closes a Locker while a Renew hangs, of a lease that lasts for longer than Close.
func closesBesideRenew(e *engine.Env, via engine.FaultSite) {
	if !e.Claimed.ManualRenewal {
		return
	}
	a, server := e.FaultyAt(via, nil)
	defer server.Heal()
	h := a.MustTry(e.Key("%s-renewed at Close", via.Name))
	fails := hangingRenew(e, h, server)
	defer fails()
	returnsWithin(e, h.Key, "Close beside a Renew that hangs", "with the server hanging for renewals", 5*time.Second, func() { _ = a.Close() })
}

// closesBesideHanging closes a Locker while calls of it hang whose contexts live.
func closesBesideHanging(e *engine.Env, via engine.FaultSite, a *engine.Client, c *faultlock.Faults, bounded func(string, time.Duration, func())) {
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	var calls []func()
	for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
		calls = append(calls, func() {
			if h, err := a.Get(op, get, ctx, e.Key("%s-%s-at-close", via.Name, op), e.Opts(e.Long)); err == nil {
				_ = h.Release(e.Ctx)
			}
		})
	}
	wait := e.Start(calls...)
	e.Settle()
	bounded("Close, with calls under way whose contexts live,", 5*time.Second, func() { _ = a.Close() })
	cancel()
	c.Heal()
	wait()
}

// returnsWithin makes the call, and fails the case unless it returns by itself.
func returnsWithin(e *engine.Env, key, what, trouble string, limit time.Duration, call func()) {
	done := make(chan struct{})
	wait := e.Start(func() { call(); close(done) })
	if !e.Within(limit+e.Slack(), done) {
		e.OverdueFatalf(key, "%s had not returned after %s, %s", what, limit+e.Slack(), trouble)
	}
	wait()
}

// endlessReleaseRefused has a release fail again and again, whose context never ends.
func endlessReleaseRefused(e *engine.Env, via engine.FaultSite) {
	a, c := e.FaultyAt(via, nil)
	defer c.Heal()
	h := a.MustTry(e.Key("%s-refused", via.Name))
	c.All(faultlock.FailBefore(), engine.OpsToEnd...)
	returnsWithin(e, h.Key, "Release with context.Background()", "with the server refusing its requests", 5*time.Second, func() { _ = h.Release(context.Background()) })
}

// releasesBesideHanging has calls on a lease hang, which hold up no Release of it, and are no
// answer to it.
func releasesBesideHanging(e *engine.Env, key string, h *engine.Hold, bounded func(string, time.Duration, func()), short func() (context.Context, context.CancelFunc)) {
	renewing, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	renews := e.Start(func() { _ = h.Lease.Renew(renewing) })
	e.Settle()
	bounded("Release beside a Renew that hangs", 5*time.Second, func() {
		ctx, cancel := short()
		defer cancel()
		e.Together(func() { _ = h.Release(ctx) }, func() {
			e.Settle()
			if err := h.Lease.Release(ctx); err == nil {
				e.Failf(key, "Release beside another one that hangs returned no error; expected it to say no such thing, since the server has released nothing")
			}
		})
	})
	cancel()
	renews()
}
