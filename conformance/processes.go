package conformance

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var processRules = []*rule{
	{
		Name:      "ExclusiveAcrossProcesses",
		Statement: "Processes exclude each other: what several of them change under the lock loses no update.",
		run:       acrossProcesses(exclusiveAcrossProcesses),
	},
	{
		Name:      "CrashFreesProcess",
		Statement: "When the process of a holder is killed, others get the key within the TTL and the takeover lag, with a larger token where there are tokens.",
		LimitTTLs: 40,
		run:       acrossProcesses(crashFreesProcess),
	},
	{
		Name:      "CrashAtAnyMoment",
		Statement: "Wherever a process is killed, others get the key within the TTL and the takeover lag, nobody too early, and tokens keep growing where there are tokens.",
		LimitTTLs: 80,
		run:       acrossProcesses(crashAtAnyMoment),
	},
	{
		Name:      "PauseIsNoticed",
		Statement: "A holder whose process stood still for longer than its lease sees the loss at its first look, and does no harm to those who got the key.",
		claims:    []claim{claimLossSignal},
		LimitTTLs: 80,
		run:       acrossProcesses(pauseIsNoticed),
	},
	{
		Name:      "ShortPauseIsNoLoss",
		Statement: "A holder whose process stood still for much less than its lease still holds the key when it goes on.",
		LimitTTLs: 40,
		run:       acrossProcesses(shortPauseIsNoLoss),
	},
	{
		Name:      "LostBeforeTakeoverAcrossProcesses",
		Statement: "When a lease ran out and a client in another process is granted the key, the holder's lease already says that it is lost.",
		claims:    []claim{claimLossSignal, claimWithoutRenewal},
		LimitTTLs: 80,
		run:       acrossProcesses(lostBeforeTakeoverAcrossProcesses),
	},
	{
		Name:      "FencedRegister",
		Statement: "A resource that refuses smaller tokens than the largest it has seen takes no write of an older holder after one of a newer, and never refuses the newest.",
		claims:    []claim{claimTokens},
		LimitTTLs: 80,
		run:       acrossProcesses(fencedWrites),
	},
	{
		Name:      "WaiterKilledHarmless",
		Statement: "A process that is killed while it waits for the key delays the other waiters by no more than the TTL and the takeover lag.",
		LimitTTLs: 40,
		run:       acrossProcesses(waiterKilledHarmless),
	},
}

// tokens reports whether the lock claims fencing tokens.
func (e *env) tokens() bool { return claimTokens.made(e.settings) }

// sameStore fails the case unless the process and the client here exclude each
// other.
func (p *process) sameStore(c *client) {
	e := p.e
	const why = "a client in another process holds it. (Does the function given to conformance.Child open the same store for Config.Child as the Config of the run does?)"
	key := e.key("held-there")
	there := p.mustTry(key, e.long, false)
	c.mustRefuse(key, why)
	_ = there.release(e.ctx)

	key = e.key("held-here")
	here := c.mustTry(key)
	h, err := p.try(key, e.long, false)
	if err == nil {
		e.judgeRefusal(key, "TryAcquire", why, h.record, nil)
		panic(abort{})
	}
	e.judgeRefusal(key, "TryAcquire", why, nil, err)
	_ = here.release(e.ctx)
}

func exclusiveAcrossProcesses(e *env, ps *processes) {
	const n = 4
	all := ps.start(n)
	all[0].sameStore(e.locker())
	counter, err := os.CreateTemp("", "conformance-counter-*")
	if err == nil {
		defer os.Remove(counter.Name())
		defer counter.Close()
		_, err = counter.Write(make([]byte, 8))
	}
	if err != nil {
		e.skipf("needs a temporary file: %v", err)
	}
	key := e.key("counter")
	var made atomic.Int64
	var doubted atomic.Bool
	e.each(n, func(i int) {
		a, _ := all[i].cycling(command{Key: key, TTL: e.long, Limit: e.window(), Counter: counter.Name()})()
		made.Add(int64(a.Made))
		if a.Doubted {
			doubted.Store(true)
		}
		e.judgeCycle(key, all[i], a)
	})
	var b [8]byte
	if _, err := counter.ReadAt(b[:], 0); err != nil {
		e.fatalf(key, "the counter cannot be read: %v", err)
	}
	kept := int64(binary.LittleEndian.Uint64(b[:]))
	switch {
	case made.Load() == 0:
		e.overduef(key, "%d processes asked for one key for %s, and none was granted it", n, e.window())
	case kept != made.Load() && !doubted.Load():
		e.failf(key, "%d of %d updates made under the lock were lost: the number in a file was changed by two processes at the same time", made.Load()-kept, made.Load())
	}
	if e.tokens() {
		e.checkTokens(key, false)
	}
	e.notef("%d updates by %d processes", made.Load(), n)
}

// judgeCycle judges how the cycles of a process that was not killed have ended.
func (e *env) judgeCycle(key string, p *process, a answer) {
	if err := a.error(); err != nil {
		e.unexpected(key, err, "the cycles of acquire and release in %s ended at %s with %s; expected a lease each time, and a release without an error", p.who, seconds(p.ps.at(a.To)), outcome(err))
	}
}

func lostBeforeTakeoverAcrossProcesses(e *env, ps *processes) {
	const keys = 3
	rounds := e.rounds(e.ttl*3/2, 2, 20)
	p, b := ps.start(1)[0], e.locker()
	e.each(keys, func(n int) {
		e.pause(e.randomly(e.ttl))
		for round := range rounds {
			key := e.key("%d-%d", n, round)
			old := p.mustTry(key, e.ttl, true)
			saw := old.looking(e.takeover(e.ttl), false)
			e.pause(time.Until(old.until()) - e.ttl/16)
			next := b.wins(key, e.takeover(e.ttl), 2*time.Millisecond, "the holder's lease was not renewed")
			s := saw()
			switch {
			case s.alive >= next.granted:
				// As far as the machine stood still, the look is older than it seems.
				e.fail(excuse{max(s.alive-next.granted, e.timely().from), anyRequest}, key, "%s was granted the key at %s, and %s, whose lease had run out, looked at its lease at %s and found it alive", next.who, seconds(next.granted), p.who, seconds(s.alive))
			case s.ended < 0:
				e.tooSlowf(key, "%s stopped looking at its lease before the key was granted to another client", p.who)
			default:
				e.is(key, s.cause, "context.Cause of a lease that ran out", lock.ErrLost, lock.ErrNotHeld)
			}
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d takeovers", keys*rounds)
}

// waiterKilledHarmless kills the second of four waiting processes before the
// release of one key and at the moment of the release of another.
func waiterKilledHarmless(e *env, ps *processes) {
	const n, victim = 4, 1
	all := ps.start(n)
	holder := e.locker()
	keys := []string{e.key("before"), e.key("during")}
	var holds []*hold
	for _, key := range keys {
		holds = append(holds, holder.mustTry(key))
	}
	limit := e.takeover(e.ttl) + e.waitBound()
	type waiter struct {
		p   *process
		h   *farHold
		err error
	}
	var served [2]chan waiter
	for k := range keys {
		served[k] = make(chan waiter, n)
	}
	var waits []func()
	for _, p := range all {
		for k, key := range keys {
			waits = append(waits, e.start(func() {
				h, err := p.acquire(key, e.ttl, n*limit)
				served[k] <- waiter{p, h, err}
			}))
		}
		e.settle() // so that they queue up in this order
	}
	e.pause(e.ttl / 4)
	e.together(
		func() { e.pause(e.randomly(3 * time.Millisecond)); all[victim].kill() },
		func() { e.pause(e.randomly(3 * time.Millisecond)); holds[1].mustRelease() },
	)
	holds[0].mustRelease()
	e.each(len(keys), func(k int) {
		for left := n; left > 0; left-- {
			w, ok := receive(e, limit, served[k])
			switch {
			case !ok:
				e.look(keys[k])
				e.overdueFatalf(keys[k], "%d waiting processes had not been granted the key %s after the last holder had let it go; one that waited with them was killed, and the TTL is %s", left, limit, e.ttl)
			case errors.Is(w.err, errKilled):
			case w.err != nil:
				e.unexpectedFatal(keys[k], w.err, "Acquire in %s returned %s; expected a lease: the waiters of a key are served one after the other", w.p.who, outcome(w.err))
			default:
				_ = w.h.release(e.ctx)
			}
		}
	})
	for _, wait := range waits {
		wait()
	}
}

// receive is within for a channel that carries something.
func receive[T any](e *env, d time.Duration, from <-chan T) (v T, ok bool) {
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
	ok = e.within(d, arrived)
	return v, ok
}
