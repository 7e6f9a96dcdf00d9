package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func waiterGivesUp(e *engine.Env) {
	e.Together(func() { eachGivesUp(e) }, func() { eachKindGivesUp(e) }, func() { manyGiveUp(e) }, func() { holderChanges(e) }, func() { leaseEnds(e) })
}

// leaseEnds has a caller wait for a key with the context of a lease, which ends before the key is free.
func leaseEnds(e *engine.Env) {
	holder, waiter := e.Locker(), e.Locker()
	e.Each(2, func(i int) {
		how := []string{"reached its maximum hold", "was released"}[i]
		key := e.Key("the context of a lease that %s", how)
		h := holder.MustTry(key)
		var err, ended error
		// A busy machine may have no answer for the waiter yet, as in GivesUp.
		for _, d := range []time.Duration{60 * time.Millisecond, 400 * time.Millisecond, 2 * time.Second} {
			var opts []lock.Option
			if i == 0 {
				opts = append(opts, lock.WithMaxHold(d))
			}
			another := e.Key("whose context ends, it %s, %s", how, d)
			over, refused := waiter.Try(another, opts...)
			if errors.Is(refused, lock.ErrUnsupported) && opts != nil {
				h.MustRelease()
				return // which is for other rules
			}
			if refused != nil {
				e.UnexpectedFatal(another, refused, "TryAcquire of a free key returned %s; expected a lease", engine.Outcome(refused))
			}
			ctx := over.Lease.Context()
			w := waiter.AcquiringOn(ctx, key, e.Long)
			if i == 0 {
				e.Within(d+e.Slack(), ctx.Done())
			} else {
				e.Pause(d)
			}
			_ = over.Release(e.Ctx)
			if !e.Within(e.Slack(), w.Done) {
				e.OverdueFatalf(key, "a waiter with the context of a lease that %s had not returned %s later", how, e.Slack())
			}
			if w.Err == nil {
				e.JudgeRefusal(key, "Acquire", "another client holds it", w.Hold.Record, nil)
				panic(engine.Abort{})
			}
			if err, ended = w.Err, ctx.Err(); errors.Is(err, lock.ErrHeld) {
				break
			}
		}
		e.Is(key, err, "Acquire with the context of a lease that "+how, ended)
		if !errors.Is(err, lock.ErrHeld) {
			e.Latef(key, "Acquire with the context of a lease that %s returned %s; expected an error that matches ErrHeld", how, engine.Outcome(err))
		}
		h.MustLive("somebody who waited for it gave up")
		h.MustRelease()
	})
}

// holderChanges has two callers wait for a key, and the one give up that is not granted it when it
// is released: by then the key has another holder than when the wait began.
func holderChanges(e *engine.Env) {
	holder, waiter, other := e.Locker(), e.Locker(), e.Locker()
	for name, second := range map[string]*engine.Client{"one Locker": waiter, "two Lockers": other} {
		var key string
		var err error
		// A busy machine may have no answer for the waiter yet, as in GivesUp.
		for _, d := range []time.Duration{60 * time.Millisecond, 400 * time.Millisecond, 2 * time.Second} {
			key = e.Key("the holder changes, %s, %s", name, d)
			if err = givesUpOnNext(e, key, d, holder, waiter, second); errors.Is(err, lock.ErrHeld) {
				break
			}
		}
		e.Is(key, err, "Acquire that was cancelled after the key had got another holder", context.Canceled)
		if !errors.Is(err, lock.ErrHeld) {
			e.Latef(key, "Acquire that was cancelled after the key had got another holder returned %s; expected an error that matches ErrHeld", engine.Outcome(err))
		}
	}
}

// givesUpOnNext returns the error of who gives up so long after another one got the key.
func givesUpOnNext(e *engine.Env, key string, d time.Duration, holder, waiter, second *engine.Client) error {
	h := holder.MustTry(key)
	next, loser := waiter.Acquiring(key), second.Acquiring(key)
	e.Pause(d)
	h.MustRelease()
	control := time.NewTimer(e.WaitBound())
	defer control.Stop()
	select {
	case <-next.Done:
	case <-loser.Done:
		next, loser = loser, next
	case <-control.C:
	}
	got := next.MustGet(e, key, e.Slack(), "the key was released")
	e.Pause(d)
	loser.Cancel()
	if !e.Within(e.Slack(), loser.Done) {
		e.OverdueFatalf(key, "a cancelled waiter had not returned after %s", e.Slack())
	}
	if loser.Err == nil {
		e.JudgeRefusal(key, "Acquire", "another caller has got it", loser.Hold.Record, nil)
		panic(engine.Abort{})
	}
	got.MustLive("somebody who waited for it gave up")
	got.MustRelease()
	return loser.Err
}

// manyGiveUp has so many callers of one Locker give up that what each of them took along would
// be missing.
func manyGiveUp(e *engine.Env) {
	const rounds, callers = 6, 20
	a, b := e.Locker(), e.Locker()
	key := e.Key("many give up")
	h := b.MustTry(key)
	for range rounds {
		waits := make([]*engine.Acquiring, callers)
		for i := range waits {
			waits[i] = a.Acquiring(key)
		}
		e.Settle()
		for _, w := range waits {
			w.Cancel()
		}
		for _, w := range waits {
			if !e.Within(e.Slack(), w.Done) {
				e.OverdueFatalf(key, "one of %d cancelled waiters had not returned after %s", callers, e.Slack())
			}
			if w.Err == nil {
				e.JudgeRefusal(key, "Acquire", "another client holds it", w.Hold.Record, nil)
				panic(engine.Abort{})
			}
		}
	}
	h.MustLive("others have given up waiting for it")
	w := a.Acquiring(key)
	e.Settle()
	h.MustRelease()
	w.MustGet(e, key, e.WaitBound(), fmt.Sprintf("the key was released, and %d callers had given up before", rounds*callers)).MustRelease()
	b.Soon(key, "it was released, and those who waited before had given up").MustRelease()
}

func eachGivesUp(e *engine.Env) {
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	for name, cancelled := range map[string]bool{"was cancelled": true, "timed out": false} {
		var late engine.Lateness
		for _, waiter := range []*engine.Client{a, b} {
			key := e.Key("%s-%s", name, waiter.Who)
			h := a.MustTry(key)
			ctxErr, err := waiter.GivesUp(key, cancelled, &late)
			e.Is(key, err, "Acquire whose context "+name, ctxErr, lock.ErrHeld)
			not(e, key, err, "Acquire whose context "+name, lock.ErrNotHeld, lock.ErrLost, lock.ErrClosed)
			h.MustLive("somebody who waited for it gave up")
			givesUpBehind(e, waiter, key, cancelled)
			e.Pause(10 * time.Millisecond) // a wait that goes on is in the way by then
			w := c.Acquiring(key)
			h.MustRelease()
			w.MustGet(e, key, e.WaitBound(), "the key was released, and the waiter before it had given up").MustRelease()
			a.Soon(key, "it was released, and the waiter before had given up").MustRelease()
		}
		late.Judge(e, "", e.Prompt(), "Acquire whose context %s returned", name)
	}
	givesUpAsTold(e, a, b)
}

// givesUpBehind has a caller give up who waits behind another one of the same Locker, and may
// never have asked the server.
func givesUpBehind(e *engine.Env, c *engine.Client, key string, cancelled bool, more ...lock.Option) {
	first := c.Acquiring(key, more...)
	<-first.Begun
	ctxErr, err := c.GivesUp(key, cancelled, new(engine.Lateness), more...)
	e.Is(key, err, "Acquire behind another caller of its Locker, whose context ended,", ctxErr, lock.ErrHeld)
	first.Cancel()
	if !e.Within(e.Slack(), first.Done) {
		e.OverdueFatalf(key, "a cancelled waiter had not returned after %s", e.Slack())
	}
	if first.Err == nil {
		e.Fatalf(key, "a waiter was granted a key that was held")
	}
}

// eachKindGivesUp waits for leases of each kind, in vain.
func eachKindGivesUp(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	type wait struct {
		kind
		cancelled bool
	}
	var all []wait
	for _, k := range kindsAndUnrenewed(e) {
		all = append(all, wait{k, true}, wait{k, false})
	}
	for i, k := range optionPairs(e, b) {
		all = append(all, wait{k, i%2 == 0})
	}
	e.Each(len(all), func(i int) {
		k, cancelled := all[i].kind, all[i].cancelled
		key := e.Key("%s-%t", k.name, cancelled)
		before, ok := k.take(b, key, e.Long)
		if !ok {
			return
		}
		before.MustRelease()
		h := a.MustTry(key)
		ctxErr, err := b.GivesUp(key, cancelled, new(engine.Lateness), k.opts...)
		e.Is(key, err, "Acquire of a lease with "+k.name+", whose context ended,", ctxErr, lock.ErrHeld)
		h.MustLive("somebody who waited for it gave up")
		if len(k.opts) > 0 {
			givesUpBehind(e, b, key, cancelled, k.opts...)
		}
		e.Pause(10 * time.Millisecond) // a wait that goes on is in the way by then
		h.MustRelease()
		e.Settle()
		a.Soon(key, "it was released, and the waiter with "+k.name+" had given up").MustRelease()
		if e.Virtual() {
			comesAgain(e, k, a, b, key)
		}
	})
}

// comesAgain has a Locker that has given up waiting for the key hold it after all: nothing of the
// wait counts for that, or ends it.
func comesAgain(e *engine.Env, k kind, a, b *engine.Client, key string) {
	const why = "only a wait of its Locker for the same key was given up before"
	h, ok := k.take(b, key, e.Long)
	if !ok {
		return
	}
	e.Pause(e.TTL / 4) // a clean-up that is late has come by then
	h.MustLive(why)
	a.MustRefuse(key, why)
	h.MustRelease()
	a.Soon(key, "its holder, with "+k.name+", has released it; "+why).MustRelease()
}

func waiterDeathHarmless(e *engine.Env) {
	clients := e.Lockers(3)
	for name, pick := range map[string]func(i int) *engine.Client{
		"one Locker":  func(int) *engine.Client { return clients[1] },
		"two Lockers": func(i int) *engine.Client { return clients[1+i%2] },
	} {
		key := e.Key("%s", name)
		h := clients[0].MustTry(key)
		waiters := make([]*engine.Acquiring, 5)
		for i := range waiters {
			waiters[i] = pick(i).Acquiring(key)
			<-waiters[i].Begun
			e.Pause(10 * time.Millisecond)
		}
		for _, i := range []int{1, 3} { // in the middle, whatever the order is
			waiters[i].Cancel()
			if !e.Within(e.Slack(), waiters[i].Done) {
				e.OverdueFatalf(key, "a cancelled waiter had not returned after %s", e.Slack())
			}
			if waiters[i].Err == nil {
				e.Fatalf(key, "a waiter was granted a key that was held")
			}
		}
		waiters[0].Cancel() // the first, just as the key becomes free
		h.MustRelease()
		e.Each(len(waiters), func(i int) {
			w := waiters[i]
			switch {
			case i == 1 || i == 3:
			case i == 0:
				if !e.Within(e.WaitBound(), w.Done) {
					e.OverdueFatalf(key, "a cancelled waiter had not returned after %s", e.WaitBound())
				}
				if w.Err == nil {
					w.Hold.MustRelease()
				}
			default:
				w.MustGet(e, key, e.WaitBound()+e.TakeoverLimit(0), "the key was released, and others before it gave up").MustRelease()
			}
		})
	}
}

func cancelDuring(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	n := e.Rounds(e.Work(40*time.Millisecond), 20, 300)
	e.Each(3, func(i int) {
		key := e.Key("%d", i)
		var late engine.Lateness
		defer func() { late.Judge(e, key, e.Prompt(), "a call returned after its context was cancelled") }()
		for round := range n {
			if late.Hopeless(e.Prompt()) {
				return
			}
			c := []*engine.Client{a, b}[round%2]
			var blocker *engine.Hold
			if i == 2 && round%4 == 0 {
				blocker = a.MustAcquire(key)
			}
			ctx, cancel := context.WithCancel(e.Ctx)
			var cancelled time.Time
			moment := e.Randomly(time.Duration(1+round%8) * 300 * time.Microsecond)
			done := make(chan struct{})
			timer := time.AfterFunc(moment, func() {
				cancelled = time.Now()
				cancel()
				close(done)
			})
			var h *engine.Hold
			var err error
			if i == 0 {
				h, err = c.TryFor(ctx, key, e.Long)
			} else {
				h, err = c.Acquire(ctx, key)
			}
			returned := time.Now()
			if timer.Stop() {
				cancel()
			} else {
				<-done
				after := returned.Sub(cancelled)
				if err != nil {
					late.Add(e, after)
				}
				if after > e.Slack() {
					e.Overduef(key, "the call returned %s after its context was cancelled", after.Round(time.Millisecond))
				}
			}
			switch {
			case err == nil:
				h.MustRelease()
			case errors.Is(err, context.Canceled):
			case i == 0 && errors.Is(err, lock.ErrHeld):
				// What an earlier, cancelled try may have left is being removed.
			default:
				e.Unexpected(key, err, "a call that was cancelled returned %s; expected a lease or the context's error", engine.Outcome(err))
			}
			if blocker != nil {
				blocker.MustRelease()
			}
			if e.Failed() {
				return
			}
		}
		// The TTL of every attempt was long, so that only clean-up frees the key now.
		last := b.Acquiring(key)
		last.MustGet(e, key, e.WaitBound(), "every acquisition was cancelled or released").MustRelease()
	})
	e.Notef("%d cancellations", 3*n)
}

func cancelBeforeSend(e *engine.Env) {
	b := e.Locker()
	a, sent := e.Locker(), func(string) int { return 0 }
	if e.OpenBackend != nil {
		var f *faultlock.Faults
		a, f = e.FaultyWhole()
		sent = func(key string) int { return engine.Requests(f, key, sending...) }
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	past, cancelPast := context.WithDeadline(e.Ctx, time.Now().Add(-time.Hour))
	defer cancelPast()
	for name, ctx := range map[string]context.Context{"cancelled": ended, "past": past} {
		for op, get := range map[string]engine.Getter{"TryAcquire": a.Locker.TryAcquire, "Acquire": a.Locker.Acquire} {
			if more := oneOwner(e); more != nil {
				endedReentry(e, a, ctx, e.Key("%s-%s-again", name, op), op, get, more)
			}
			key := e.Key("%s-%s", name, op)
			if h, err := a.Get(op, get, ctx, key, e.Opts(e.Long)); err == nil {
				_ = h.Release(e.Ctx)
				e.Failf(key, "%s with a context that had already ended was granted; expected the context's error", op)
			} else {
				e.Is(key, err, op+" with a context that had already ended", ctx.Err())
			}
			if n := sent(key); n > 0 {
				e.Failf(key, "%s with a context that had already ended sent %d requests for the key; expected none", op, n)
			}
			b.MustTry(key).MustRelease()
		}
	}
}

// endedReentry has an owner enter with a context that has ended.
func endedReentry(e *engine.Env, a *engine.Client, ended context.Context, key, op string, get engine.Getter, owner []lock.Option) {
	outer := a.MustTry(key, owner...)
	if h, err := a.Get(op, get, ended, key, e.Opts(e.Long, owner...)); err == nil {
		_ = h.Release(e.Ctx)
		e.Failf(key, "%s by the owner of the key, with a context that had already ended, was granted; expected the context's error", op)
	} else {
		e.Is(key, err, op+" by the owner of the key, with a context that had already ended", ended.Err())
	}
	outer.MustLive("its owner has asked once more, with a context that had ended")
	outer.MustRelease()
}
