package rules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var networkRules = []*engine.Rule{
	{
		Name:      "CutWhileAcquiring",
		Statement: "An acquisition whose connection is cut ends with a lease, or keeps the key for one TTL at most.",
		Run:       cutWhileAcquiring,
	},
	{
		Name:      "SilenceWhileAcquiring",
		Statement: "An acquisition that gives up on a silent network keeps the key for one TTL at most.",
		Run:       silenceWhileAcquiring,
	},
	{
		Name:      "SilentCallsEnd",
		Statement: "On a silent network TryAcquire, Acquire and Renew return soon after their context has ended, Release and Close by themselves.",
		Run:       silentCallsEnd,
	},
	{
		Name:      "SilentLeaseIsRead",
		Statement: "On a silent network a lease is read at once.",
		Run:       silentLeaseIsRead,
	},
	{
		Name:      "RefusedIsNotUnknown",
		Statement: "A try whose connections are refused says neither \"unknown\" nor \"held\": nothing was sent.",
		Run:       refusedIsNotUnknown,
	},
	{
		Name:      "CutIsNoRefusal",
		Statement: "A try whose connection is cut is not refused because of itself; unless it says unknown, it has changed nothing.",
		Run:       cutIsNoRefusal,
	},
	{
		Name:      "CutWhileReleasing",
		Statement: "A release whose connection is cut succeeds only if the key is free, frees it within a TTL, and harms no next holder.",
		Run:       cutWhileReleasing,
	},
	{
		Name:      "ReentrantThroughCut",
		Statement: "An owner's re-entry whose connection is cut is one more hold, or an error that leaves the others as they are.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       reentrantThroughCut,
	},
	{
		Name:      "CutIsKeptOrTold",
		Statement: "A holder whose connections are cut keeps the key, or is told before the next grant. Its Locker goes on.",
		Run:       cutIsKeptOrTold,
	},
	{
		Name:      "ShortSilenceIsNoLoss",
		Statement: "A network that is silent for a quarter of the TTL costs no lease.",
		RestsOn:   "renewal",
		Run:       shortSilenceIsNoLoss,
	},
	{
		Name:      "LostWhenUnreachable",
		Statement: "A holder whose network is down, silent or loses answers is told before the next grant. What arrives later harms nobody.",
		Claims:    []engine.Claim{engine.ClaimLossSignal},
		LimitTTLs: 40,
		Run:       lostWhenUnreachable,
	},
	{
		Name:      "WaiterSurvivesCut",
		Statement: "A waiter whose connections are cut gets the released key, or an error and the key is free.",
		Run:       waiterSurvivesCut,
	},
	{
		Name:      "ExclusiveThroughFaults",
		Statement: "While the network fails in all ways, no two hold a key; afterwards everybody gets it.",
		LimitTTLs: 40,
		Run:       exclusiveThroughFaults,
	},
}

// mostLosses is how many requests of a call are lost, one at a time, at most.
const mostLosses = 8

// eachLoss runs f for the loss of the first, second, ... request of a call, until the call
// has no more of them, each with a client of its own. f makes the call between arm and
// heal. A call that goes on for as long as the network is down is healed after a while:
// whether calls are bounded is not what is asked.
func eachLoss(e *engine.Env, f func(c *engine.Client, key string, arm, heal func())) {
	e.Each(len(engine.Losses), func(kind int) {
		loss := engine.Losses[kind]
		for i := 1; i <= mostLosses; i++ {
			key := e.Key("%s-%d", loss, i)
			c, net := e.Behind(key)
			var patience *time.Timer
			f(c, key, func() {
				net.Lose(i, loss)
				patience = time.AfterFunc(2*e.TTL, net.Heal)
			}, func() {
				if patience.Stop() {
					net.Heal()
				}
			})
			if net.Lost() == 0 {
				return
			}
		}
	})
}

func cutWhileAcquiring(e *engine.Env) {
	b, d := e.Locker(), e.Locker()
	eachLoss(e, func(a *engine.Client, key string, arm, heal func()) {
		arm()
		h, err := a.TryFor(e.Ctx, key, e.TTL)
		heal()
		if err == nil && !h.Lost() {
			b.MustRefuse(key, "its holder was granted it")
			if err := h.Release(e.Ctx); err == nil {
				b.Soon(key, "its holder has released it").MustRelease()
				return
			}
		}
		next := b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "whoever was told an error holds nothing, and the connection that was cut keeps nothing for longer than the TTL")
		e.Pause(e.TTL / 4) // what is repeated in the background
		unharmed(e, d, next, "the next holder has it, and what is left of the earlier call must not free it")
	})
}

func silentCallsEnd(e *engine.Env) {
	ends := func(op, since string, limit time.Duration, prepare func(a *engine.Client, key string) func(ctx context.Context)) func() {
		return func() {
			key := e.Key("%s", op)
			a, net := e.Behind(key)
			call := prepare(a, key)
			net.Silent()
			defer net.Heal()
			ctx, cancel := context.WithCancel(e.Ctx)
			defer cancel()
			done := make(chan struct{})
			wait := e.Start(func() {
				defer close(done)
				call(ctx)
			})
			e.Pause(e.TTL / 8) // its request is under way
			cancel()
			if !e.Within(limit, done) {
				net.Heal()
				e.OverdueFatalf(key, "%s had not returned %s after it was %s, while the network was silent", op, limit, since)
			}
			wait()
		}
	}
	soon := 2*e.TTL + e.Slack()
	get := func(op string, getter func(c *engine.Client) engine.Getter) func() {
		return ends(op, "cancelled", soon, func(a *engine.Client, key string) func(context.Context) {
			return func(ctx context.Context) {
				if h, err := a.Get(op, getter(a), ctx, key, e.Opts(e.TTL)); err == nil {
					_ = h.Release(e.Ctx)
				}
			}
		})
	}
	// Five seconds are promised of Close, and a bound of Release. They need no context for it.
	bound := 5*time.Second + e.Slack()
	calls := []func(){
		get("TryAcquire", func(c *engine.Client) engine.Getter { return c.Locker.TryAcquire }),
		get("Acquire", func(c *engine.Client) engine.Getter { return c.Locker.Acquire }),
		ends("Release", "called", bound, func(a *engine.Client, key string) func(context.Context) {
			h := a.MustTry(key)
			return func(context.Context) { _ = h.Release(e.Ctx) }
		}),
		ends("Close", "called", bound, func(a *engine.Client, key string) func(context.Context) {
			a.MustTry(key)
			return func(context.Context) { _ = a.Close() }
		}),
	}
	if e.Claimed.ManualRenewal {
		calls = append(calls, ends("Renew", "cancelled", soon, func(a *engine.Client, key string) func(context.Context) {
			h := a.MustTry(key)
			return func(ctx context.Context) { _ = h.Lease.Renew(ctx) }
		}))
	}
	e.Together(calls...)
}

// silentLeaseIsRead is LeaseIsLocal for locks between which and their server there is nothing
// but a network.
func silentLeaseIsRead(e *engine.Env) {
	key := e.Key("a")
	a, net := e.Behind(key)
	h := a.MustTry(key)
	net.Silent()
	defer net.Heal()
	read := make(chan struct{})
	wait := e.Start(func() {
		defer close(read)
		readOften(h.Lease)
	})
	inTime := e.Within(e.Slack(), read)
	net.Heal() // what judges reads the lease too
	if !inTime {
		e.Overduef(key, "reading a lease a thousand times, while the network was silent, had not ended after %s; expected it to wait for nothing", e.Slack())
	}
	wait()
}

func refusedIsNotUnknown(e *engine.Env) {
	key := e.Key("a")
	a, net := e.Behind(key)
	net.Refused()
	const mostWaited = 3 // calls that go on until something can be reached
	waited := 0
	// What was sent on a connection that has just been cut may have arrived.
	for end := time.Now().Add(2*e.TTL + e.WaitBound()); ; e.Pause(e.TTL / 50) {
		patience := time.AfterFunc(2*e.TTL, net.Heal) // a call may go on for as long as nothing is reached
		h, err := a.TryFor(e.Ctx, key, e.TTL)
		down := patience.Stop()
		switch {
		case err == nil && down:
			e.Fatalf(key, "TryAcquire was granted a key, though no server can be reached")
		case err == nil:
			_ = h.Release(e.Ctx)
		}
		if down && !errors.Is(err, lock.ErrOutcomeUnknown) && !errors.Is(err, lock.ErrHeld) {
			break
		}
		if !down { // this machine may have stood still, or the call waits for a server
			if waited++; waited == mostWaited {
				break
			}
			net.Refused()
		}
		if time.Now().After(end) {
			e.OverdueFatalf(key, "TryAcquire returns %s again and again, while every connection is refused; expected an error that does not say so, since nothing was sent", engine.Outcome(err))
		}
	}
	net.Heal()
	e.Locker().Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its caller was told an error").MustRelease()
}

func silenceWhileAcquiring(e *engine.Env) {
	b := e.Locker()
	fall := func(name string, fault func(*engine.Network)) func() {
		return func() {
			key := e.Key("%s", name)
			a, net := e.Behind(key)
			fault(net)
			patience := time.AfterFunc(2*e.TTL, net.Heal) // a call may outlast its context
			ctx, cancel := context.WithTimeout(e.Ctx, e.TTL/2)
			h, err := a.TryFor(ctx, key, e.TTL)
			cancel()
			if patience.Stop() {
				if err == nil {
					e.Failf(key, "TryAcquire was granted a key, though its network was %s", name)
				}
				net.Heal()
			}
			if err == nil {
				_ = h.Release(e.Ctx)
			}
			for range 3 { // what was held back arrives, at once or later
				e.Pause(e.TTL / 4)
				b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "whoever was told an error holds nothing, and a request that arrives late keeps the key for one TTL at most").MustRelease()
			}
		}
	}
	e.Together(
		fall("silent", (*engine.Network).Silent),
		fall("without answers", (*engine.Network).Deaf),
	)
}

func cutIsNoRefusal(e *engine.Env) {
	b := e.Locker()
	eachLoss(e, func(a *engine.Client, key string, arm, heal func()) {
		arm()
		h, err := a.TryFor(e.Ctx, key, e.TTL)
		heal()
		switch {
		case err == nil:
			_ = h.Release(e.Ctx)
		case errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrOutcomeUnknown):
			e.Failf(key, "TryAcquire of a key that nobody else wants, whose connection was cut, returned %s; expected a lease, or an error that says that the outcome is unknown or the server unavailable", engine.Outcome(err))
		case errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrOutcomeUnknown):
			unchanged(b, key)
		}
	})
}

func cutWhileReleasing(e *engine.Env) {
	b, d := e.Locker(), e.Locker()
	eachLoss(e, func(a *engine.Client, key string, arm, heal func()) {
		h := a.MustTryFor(key, e.TTL)
		arm()
		err := h.Release(e.Ctx)
		var next *engine.Hold
		if err == nil || saysFree(e, err) {
			var taken error
			if next, taken = b.Try(key); taken != nil {
				e.UnexpectedFatal(key, taken, "Release, whose connection was cut, returned %s, and the next try on the key returned %s; expected a lease, or an error of Release that says that its outcome is unknown", engine.Outcome(err), engine.Outcome(taken))
			}
			heal()
		} else {
			heal()
			next = b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its holder has called Release, and must not renew it any more")
		}
		_ = h.Release(e.Ctx)
		e.Pause(e.TTL / 4) // what is repeated in the background
		unharmed(e, d, next, "the next holder has it, and repeats of the earlier release must not free it")
	})
}

// reentrantThroughCut has an owner enter again while its connection is cut, and believes
// the answer.
func reentrantThroughCut(e *engine.Env) {
	b := e.Locker()
	eachLoss(e, func(a *engine.Client, key string, arm, heal func()) {
		owner := lock.WithOwner(e.Owner("A"))
		outer := a.MustTryFor(key, e.TTL, owner)
		outer.Lapses() // the network may be down for long
		arm()
		inner, err := a.TryFor(e.Ctx, key, e.TTL, owner)
		heal()
		e.Pause(e.TTL / 8) // what is repeated or taken back in the background
		certain := !outer.Lost() && !endsWithConnection(e)
		leave := func(h *engine.Hold) {
			if h.Release(e.Ctx) != nil {
				certain = false
			}
		}
		switch {
		case err == nil:
			leave(outer)
			if certain && !inner.Lost() {
				b.MustRefuse(key, "its owner has entered it twice, and has released the first of its two leases")
			}
			leave(inner)
		case certain:
			if errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrOutcomeUnknown) {
				e.Failf(key, "TryAcquire by the owner that holds the key, whose connection was cut, returned %s; expected a lease, or an error that says that the outcome is unknown or the server unavailable", engine.Outcome(err))
			}
			b.MustRefuse(key, "its owner holds it, and has only failed to enter it again")
			fallthrough
		default:
			leave(outer)
		}
		if next, taken := b.Try(key); taken == nil {
			_ = next.Release(e.Ctx)
			return
		} else if err == nil && certain {
			e.UnexpectedFatal(key, taken, "TryAcquire returned %s; expected a lease, because both leases of the owner, whose second entry was granted though its connection was cut, were released without an error", engine.Outcome(taken))
		}
		b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its owner has released what it was granted, and what it was told an error of keeps the key for one TTL at most").MustRelease()
	})
}

// unharmed requires that a holder still holds its key, and releases it.
func unharmed(e *engine.Env, other *engine.Client, h *engine.Hold, why string) {
	other.MustRefuse(h.Key, why)
	e.MustGiveBack(h, h.Key, ": "+why)
}

// saysFree reports whether the error of a release says that the server has no such hold. A
// loss is no word of the server, nor is anything where the hold is the connection.
func saysFree(e *engine.Env, err error) bool {
	return errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrOutcomeUnknown) && !endsWithConnection(e)
}

// Three holders are cut, each at another point of its renewals.
func cutIsKeptOrTold(e *engine.Env) {
	e.Each(3, func(i int) { keptOrTold(e, e.Key("cut-%d", i)) })
}

func keptOrTold(e *engine.Env, key string) {
	a, net := e.Behind(key)
	b := e.Locker()
	h := a.MustTryFor(key, e.TTL)
	e.Pause(e.Randomly(e.TTL / 3))
	h.Lapses() // it may end with its connection
	net.Sever((*engine.Network).Cut)
	told := func() {
		switch {
		case !endsWithConnection(e):
			if !h.Lost() {
				e.Latef(key, "another client was granted the key, and the context of the holder, whose connections were cut, had not ended")
			}
		case !e.Within(e.TTL, h.Lease.Context().Done()):
			e.Latef(key, "a holder whose connections were cut had not been told a TTL after another client was granted the key")
		}
	}
	granted := false
	for end := time.Now().Add(e.TTL * 3 / 2); time.Now().Before(end) && !granted; e.Pause(e.TTL / 50) {
		if next, err := b.Try(key); err == nil {
			granted = true
			if engine.ClaimLossSignal.Made(e.Settings) {
				told()
			}
			_ = next.Release(e.Ctx)
		}
	}
	switch {
	case granted:
	case h.Lost():
		b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its holder was told that it is lost").MustRelease()
	default:
		_ = h.Release(e.Ctx)
		b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its holder has released it").MustRelease()
	}
	goesOn(e, a, key+"-after")
}

// endsWithConnection reports whether the lock says that a hold is nothing but a connection.
// That nobody cuts it is then what the lock assumes.
func endsWithConnection(e *engine.Env) bool { return e.Claimed.Expiry == backend.ClockConnection }

// goesOn requires that the Locker gets and releases a key, after a few errors at most.
func goesOn(e *engine.Env, a *engine.Client, key string) {
	control := time.Now().Add(e.TakeoverLimit(e.TTL) + e.WaitBound())
	for {
		h, err := a.TryFor(e.Ctx, key, e.TTL)
		if err == nil && h.Release(e.Ctx) == nil {
			return
		}
		if time.Now().After(control) {
			e.Overduef(key, "%s after its network was healed, TryAcquire and Release of a free key still fail; the last error of TryAcquire: %s", (e.TakeoverLimit(e.TTL) + e.WaitBound()).Round(time.Millisecond), engine.Outcome(err))
			return
		}
		e.Pause(e.TTL / 20)
	}
}

func shortSilenceIsNoLoss(e *engine.Env) {
	key := e.Key("silent")
	a, net := e.Behind(key)
	b := e.Locker()
	h := a.MustTryFor(key, e.TTL)
	var others []string // what became of the holder's other acquisitions
	for i := range 3 {
		// Most renew every third of the TTL, so that the first silence meets a renewal.
		e.Pause(e.TTL/5 + e.Randomly(e.TTL/8))
		net.Silent()
		e.Pause(e.TTL / 4)
		net.Heal()
		// How long this takes tells how soon renewals can be answered now.
		asked := time.Now()
		beside, err := a.TryFor(e.Ctx, e.Key("beside %d", i), e.TTL)
		took := time.Since(asked).Round(time.Millisecond)
		if err == nil {
			_ = beside.Release(e.Ctx)
			others = append(others, fmt.Sprintf("granted after %s", took))
		} else {
			others = append(others, fmt.Sprintf("%v after %s", err, took))
		}
	}
	e.Pause(e.TTL / 4)
	h.MustLive("its network was silent for a quarter of its TTL at a time; after each silence it asked for another key: " + strings.Join(others, ", "))
	b.MustRefuse(key, "its holder renews it, and its network was silent for a quarter of the TTL at a time")
	h.MustRelease()
}

func lostWhenUnreachable(e *engine.Env) {
	b, d := e.Locker(), e.Locker()
	fall := func(name string, fault func(*engine.Network)) func() {
		return func() {
			key := e.Key("%s", name)
			a, net := e.Behind(key)
			h := a.MustTryFor(key, e.TTL)
			e.Pause(e.Randomly(e.TTL))
			h.MustLive("it is renewed automatically")
			h.Lapses()
			fault(net)
			e.Pause(time.Until(h.Until()) - e.TTL/16)
			// Without answers the server may hear renewals until the holder gives up.
			next := b.Wins(key, e.TTL+e.TakeoverLimit(e.TTL), 2*time.Millisecond, "its holder does not hear from the server")
			late := !h.Lost()
			switch {
			case late && !e.Within(e.Slack(), h.Lease.Context().Done()):
				e.Overduef(key, "another client was granted the key, and the context of the holder, whose network was %s, had not ended %s later", name, e.Slack())
			case late:
				e.Latef(key, "another client was granted the key, and the context of the holder, whose network was %s, had not ended", name)
			default:
				isLoss(e, key, h.Cause(), "context.Cause of a lease whose holder did not hear from the server")
			}
			net.Heal()
			if err := h.Release(e.Ctx); err == nil {
				e.Failf(key, "Release returned no error, although somebody else was granted the key before; expected ErrLost")
			}
			e.Pause(e.TTL / 3) // what was held back arrives
			unharmed(e, d, next, "the next holder has it, and what the earlier one has sent must not free it")
		}
	}
	e.Together(
		fall("down", func(net *engine.Network) { net.Sever((*engine.Network).Down) }),
		fall("silent", (*engine.Network).Silent),
		fall("without answers", (*engine.Network).Deaf),
	)
}

func waiterSurvivesCut(e *engine.Env) {
	cut := func(name string, settles int, fault func(*engine.Network)) func() {
		return func() {
			key := e.Key("%s", name)
			a, net := e.Behind(key)
			b := e.Locker()
			holder := b.MustTry(key)
			w := a.Acquiring(key, e.Opts(e.TTL)...)
			for range settles {
				e.Settle()
			}
			fault(net)
			e.Settle()
			net.Heal()
			holder.MustRelease()
			limit := e.WaitBound() + e.TakeoverLimit(e.TTL) // of what its lost requests may have left
			if !e.Within(limit, w.Done) {
				e.Look(key)
				e.OverdueFatalf(key, "a waiter, whose connections were cut, had neither the key nor an error %s after its release", limit)
			}
			if w.Err == nil {
				if err := w.Hold.Release(e.Ctx); err != nil && !errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrOutcomeUnknown) {
					e.Unexpected(key, err, "Release of a lease that was granted after a cut returned %s; expected no error", engine.Outcome(err))
				}
			}
			b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "nobody holds it, and nobody waits for it").MustRelease()
		}
	}
	e.Together(
		cut("cut", 1, (*engine.Network).Cut),
		cut("cut later", 10, (*engine.Network).Cut), // a slow machine takes long to begin a wait
		cut("down", 1, func(net *engine.Network) {
			net.Down()
			e.Pause(e.TTL / 4)
		}),
	)
}

func exclusiveThroughFaults(e *engine.Env) {
	keys := []string{e.Key("0"), e.Key("1")}
	lockers := make([]*engine.Client, 2*len(keys))
	nets := make([]*engine.Network, len(lockers))
	e.Each(len(lockers), func(i int) { lockers[i], nets[i] = e.Behind(keys[i%len(keys)]) })
	e.Each(len(keys), func(k int) { lostBesideHolder(e, keys[k], lockers[k], lockers[k+len(keys)], nets[k+len(keys)]) })
	end := time.Now().Add(min(max(e.Window(), 2*e.TTL), 4*e.TTL))
	e.Each(len(lockers), func(i int) {
		key, a, net := keys[i%len(keys)], lockers[i], nets[i]
		stop := make(chan struct{})
		disturbing := e.Start(func() { disturb(e, net, stop) })
		defer disturbing()
		defer close(stop)
		for time.Now().Before(end) {
			h, err := a.TryFor(e.Ctx, key, e.TTL)
			if err != nil {
				e.Pause(e.TTL/200 + e.Randomly(e.TTL/50))
				continue
			}
			e.Pause(e.Randomly(e.TTL / 8))
			_ = h.Release(e.Ctx)
		}
	})
	grants := e.GrantsOf(keys[0]) + e.GrantsOf(keys[1])
	e.Each(len(keys), func(k int) {
		for i := k; i < len(lockers); i += len(keys) {
			goesOn(e, lockers[i], keys[k])
		}
	})
	e.Notef("%d grants", grants)
}

// lostBesideHolder loses each kind of try of one client while another holds the key: that
// two hold it then needs no luck to be seen.
func lostBesideHolder(e *engine.Env, key string, holder, other *engine.Client, net *engine.Network) {
	h := holder.MustTryFor(key, e.TTL)
	for _, loss := range engine.Losses {
		net.Lose(1, loss)
		patience := time.AfterFunc(2*e.TTL, net.Heal) // a call may go on for as long as nothing is reached
		second, err := other.TryFor(e.Ctx, key, e.TTL)
		patience.Stop()
		net.Heal()
		if err == nil {
			_ = second.Release(e.Ctx)
		}
	}
	_ = h.Release(e.Ctx)
}

// disturb breaks the network again and again until stop is closed, and then heals it.
func disturb(e *engine.Env, net *engine.Network, stop <-chan struct{}) {
	defer net.Heal()
	wait := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-stop:
			return false
		case <-t.C:
			return true
		}
	}
	kinds := int64(6)
	if endsWithConnection(e) {
		kinds = 2
	}
	for wait(e.Randomly(e.TTL / 2)) {
		switch e.Random(kinds) {
		case 0:
			net.Silent()
		case 1:
			net.Deaf()
		case 2:
			net.Cut()
		case 3:
			net.Down()
		default:
			net.Lose(1, engine.Losses[e.Random(int64(len(engine.Losses)))])
		}
		last := e.Randomly(e.TTL / 8)
		if e.Random(4) == 0 { // past the TTL
			last += e.TTL
		}
		if !wait(last) {
			return
		}
		net.Heal()
	}
}
