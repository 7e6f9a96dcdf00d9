package rules

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"
)

var processRules = []*engine.Rule{
	{
		Name:      "ExclusiveAcrossProcesses",
		Statement: "What several processes change under the lock loses no update.",
		Run:       engine.AcrossProcesses(exclusiveAcrossProcesses),
	},
	{
		Name:      "CrashFreesProcess",
		Statement: "When the holder's process is killed, others get the key in time, and tokens grow.",
		RestsOn:   "renewal",
		LimitTTLs: 40,
		Run:       engine.AcrossProcesses(crashFreesProcess),
	},
	{
		Name:      "CrashAtAnyMoment",
		Statement: "Wherever a process is killed, others get the key in time, nobody too early, and tokens grow.",
		LimitTTLs: 80,
		Run:       engine.AcrossProcesses(crashAtAnyMoment),
	},
	{
		Name:      "PauseIsNoticed",
		Statement: "After a pause past its lease a process sees the loss at its first look.",
		Claims:    []engine.Claim{engine.ClaimLossSignal},
		LimitTTLs: 80,
		Run:       engine.AcrossProcesses(pauseIsNoticed),
	},
	{
		Name:      "ReleaseAfterPause",
		Statement: "What a holder releases after a pause past its lease is not the next holder's key.",
		LimitTTLs: 80,
		Run:       engine.AcrossProcesses(releaseAfterPause),
	},
	{
		Name:      "ShortPauseIsNoLoss",
		Statement: "A pause much shorter than the lease is no loss.",
		RestsOn:   "renewal",
		LimitTTLs: 40,
		Run:       engine.AcrossProcesses(shortPauseIsNoLoss),
	},
	{
		Name:      "LostBeforeTakeoverAcrossProcesses",
		Statement: "A lease that ran out says lost before another process is granted the key.",
		Claims:    []engine.Claim{engine.ClaimLossSignal, engine.ClaimWithoutRenewal},
		LimitTTLs: 80,
		Run:       engine.AcrossProcesses(lostBeforeTakeoverAcrossProcesses),
	},
	{
		Name:      "FencedRegister",
		Statement: "A resource that refuses smaller tokens takes no late write, and never refuses the newest holder.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		LimitTTLs: 80,
		Run:       engine.AcrossProcesses(fencedWrites),
	},
	{
		Name:      "WaiterKilledHarmless",
		Statement: "A killed waiter delays others by the TTL and the takeover lag at most.",
		LimitTTLs: 40,
		Run:       engine.AcrossProcesses(waiterKilledHarmless),
	},
	{
		Name:      "HolderAcrossProcesses",
		Statement: "A refusal shows the label and the number of the process that holds the key, not of the one that asks.",
		Claims:    []engine.Claim{engine.ClaimDetails},
		Run:       engine.AcrossProcesses(holderAcrossProcesses),
	},
	{
		Name:      "OwnerAcrossProcesses",
		Statement: "An owner enters from another process where the server counts holds, else is refused.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       engine.AcrossProcesses(ownerAcrossProcesses),
	},
}

// tokens reports whether the lock claims fencing tokens.
func tokens(e *engine.Env) bool { return engine.ClaimTokens.Made(e.Settings) }

// sameStore fails the case unless the process and the client here exclude each
// other.
func sameStore(p *engine.Process, c *engine.Client) {
	e := p.Env
	const why = "a client in another process holds it. (Does the function given to conformance.Child open the same store for Config.Child as the Config of the run does?)"
	key := e.Key("held-there")
	there := p.MustTry(key, e.Long, false)
	c.MustRefuse(key, why)
	_ = there.Release(e.Ctx)

	key = e.Key("held-here")
	here := c.MustTry(key)
	h, err := p.Try(key, e.Long, false)
	if err == nil {
		e.JudgeRefusal(key, "TryAcquire", why, h.Record, nil)
		panic(engine.Abort{})
	}
	e.JudgeRefusal(key, "TryAcquire", why, nil, err)
	_ = here.Release(e.Ctx)
}

func exclusiveAcrossProcesses(e *engine.Env, ps *engine.Processes) {
	const n = 4
	all := ps.Start(n)
	sameStore(all[0], e.Locker())
	counter, err := os.CreateTemp("", "conformance-counter-*")
	if err == nil {
		defer os.Remove(counter.Name())
		defer counter.Close()
		_, err = counter.Write(make([]byte, 8))
	}
	if err != nil {
		e.Skipf("needs a temporary file: %v", err)
	}
	key := e.Key("counter")
	var made atomic.Int64
	var doubted atomic.Bool
	e.Each(n, func(i int) {
		a, _ := all[i].Cycling(engine.Command{Key: key, TTL: e.Long, Limit: e.Window(), Counter: counter.Name()})()
		made.Add(int64(a.Made))
		if a.Doubted {
			doubted.Store(true)
		}
		judgeCycle(e, key, all[i], a)
	})
	var b [8]byte
	if _, err := counter.ReadAt(b[:], 0); err != nil {
		e.Fatalf(key, "the counter cannot be read: %v", err)
	}
	kept := int64(binary.LittleEndian.Uint64(b[:]))
	switch {
	case made.Load() == 0:
		e.Overduef(key, "%d processes asked for one key for %s, and none was granted it", n, e.Window())
	case kept != made.Load() && !doubted.Load():
		e.Failf(key, "%d of %d updates made under the lock were lost: the number in a file was changed by two processes at the same time", made.Load()-kept, made.Load())
	}
	if tokens(e) {
		e.CheckTokens(key, false)
	}
	e.Notef("%d updates by %d processes", made.Load(), n)
}

// judgeCycle judges how the cycles of a process that was not killed have ended.
func judgeCycle(e *engine.Env, key string, p *engine.Process, a engine.Answer) {
	if err := a.Error(); err != nil {
		e.Unexpected(key, err, "the cycles of acquire and release in %s ended at %s with %s; expected a lease each time, and a release without an error", p.Who, engine.Seconds(p.Processes.At(a.To)), engine.Outcome(err))
	}
}

func lostBeforeTakeoverAcrossProcesses(e *engine.Env, ps *engine.Processes) {
	const keys = 3
	rounds := e.Rounds(e.TTL*3/2, 2, 20)
	p, b := ps.Start(1)[0], e.Locker()
	e.Each(keys, func(n int) {
		e.Pause(e.Randomly(e.TTL))
		for round := range rounds {
			key := e.Key("%d-%d", n, round)
			old := p.MustTry(key, e.TTL, true)
			saw := old.Looking(e.TakeoverLimit(e.TTL), false)
			e.Pause(time.Until(old.Until()) - e.TTL/16)
			next := b.Wins(key, e.TakeoverLimit(e.TTL), 2*time.Millisecond, "the holder's lease was not renewed")
			s := saw()
			switch {
			case s.Alive >= next.Granted:
				// As far as the machine stood still, the look is older than it seems.
				e.Fail(engine.Excuse{From: max(s.Alive-next.Granted, e.Timely().From), By: engine.AnyRequest}, key, "%s was granted the key at %s, and %s, whose lease had run out, looked at its lease at %s and found it alive", next.Who, engine.Seconds(next.Granted), p.Who, engine.Seconds(s.Alive))
			case s.Ended < 0:
				e.TooSlowf(key, "%s stopped looking at its lease before the key was granted to another client", p.Who)
			default:
				isLoss(e, key, s.Cause, "context.Cause of a lease that ran out")
			}
			_ = next.Release(e.Ctx)
		}
	})
	e.Notef("%d takeovers", keys*rounds)
}

// waiterKilledHarmless kills the second of four waiting processes before the
// release of one key and at the moment of the release of another.
func waiterKilledHarmless(e *engine.Env, ps *engine.Processes) {
	const n, victim = 4, 1
	all := ps.Start(n)
	holder := e.Locker()
	keys := []string{e.Key("before"), e.Key("during")}
	var holds []*engine.Hold
	for _, key := range keys {
		holds = append(holds, holder.MustTry(key))
	}
	limit := e.TakeoverLimit(e.TTL) + e.WaitBound()
	type waiter struct {
		p   *engine.Process
		h   *engine.FarHold
		err error
	}
	var served [2]chan waiter
	for k := range keys {
		served[k] = make(chan waiter, n)
	}
	var waits []func()
	for _, p := range all {
		for k, key := range keys {
			waits = append(waits, e.Start(func() {
				h, err := p.Acquire(key, e.TTL, n*limit)
				served[k] <- waiter{p, h, err}
			}))
		}
		e.Settle() // so that they queue up in this order
	}
	e.Pause(e.TTL / 4)
	e.Together(
		func() { e.Pause(e.Randomly(3 * time.Millisecond)); all[victim].Kill() },
		func() { e.Pause(e.Randomly(3 * time.Millisecond)); holds[1].MustRelease() },
	)
	holds[0].MustRelease()
	e.Each(len(keys), func(k int) {
		for left := n; left > 0; left-- {
			w, ok := receive(e, limit, served[k])
			switch {
			case !ok:
				e.Look(keys[k])
				e.OverdueFatalf(keys[k], "%d waiting processes had not been granted the key %s after the last holder had let it go; one that waited with them was killed, and the TTL is %s", left, limit, e.TTL)
			case errors.Is(w.err, engine.ErrKilled):
			case w.err != nil:
				e.UnexpectedFatal(keys[k], w.err, "Acquire in %s returned %s; expected a lease: the waiters of a key are served one after the other", w.p.Who, engine.Outcome(w.err))
			default:
				_ = w.h.Release(e.Ctx)
			}
		}
	})
	for _, wait := range waits {
		wait()
	}
}

// receive is within for a channel that carries something.
func receive[T any](e *engine.Env, d time.Duration, from <-chan T) (v T, ok bool) {
	arrived := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		select {
		case v = <-from:
			close(arrived)
		case <-stop:
		}
	}()
	defer close(stop)
	ok = e.Within(d, arrived)
	return v, ok
}
