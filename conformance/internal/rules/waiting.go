package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func waitOutlastsTTL(e *engine.Env) {
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	key := e.Key("a")
	h := a.MustTryFor(key, e.TTL)
	waits := []*engine.Acquiring{b.Acquiring(key), c.Acquiring(key)}
	// Some locks give up by themselves after a while, or ask less and less often. Half a minute
	// and a minute are usual limits.
	wait := max(e.TTL*5/2, min(e.Budget/2, 10*time.Second))
	if e.Unhurried() {
		wait = max(wait, 75*time.Second)
	}
	for end := time.Now().Add(wait); time.Now().Before(end); {
		e.Pause(e.TTL / 4)
		e.Log.Patient()
		for _, w := range waits {
			select {
			case <-w.Done:
				if w.Err != nil {
					e.UnexpectedFatal(key, w.Err, "Acquire gave up (%s), although neither its context nor the hold had ended", engine.Outcome(w.Err))
				}
				e.JudgeRefusal(key, "Acquire", "its holder renews it", w.Hold.Record, nil)
				panic(engine.Abort{})
			default:
			}
		}
		h.MustLive("it is renewed automatically")
	}
	h.MustRelease()
	released := time.Now()
	var late engine.Lateness
	e.Each(len(waits), func(i int) {
		got := waits[i].MustGet(e, key, e.WaitBound(), "its holder has released it")
		late.Add(e, time.Since(released))
		_ = got.Release(e.Ctx)
	})
	late.Judge(e, key, e.WakeBound(), "callers that had waited for long were granted the key after its release")
	e.Notef("waited for %s", wait)
}

var waitingRules = []*engine.Rule{
	{
		Name:      "WaiterWakes",
		Statement: "A waiter gets the key soon after its release by any Locker.",
		Run:       waiterWakes,
	},
	{
		Name:      "WakesAtAnyMoment",
		Statement: "A release wakes a waiter at whatever moment it comes.",
		Run:       wakesAtAnyMoment,
	},
	{
		Name:      "GaveUpWakesNext",
		Statement: "A waiter that gives up as the key becomes free takes no wake-up along.",
		Run:       gaveUpWakesNext,
	},
	{
		Name:      "WaiterGivesUp",
		Statement: "A wait ends with its context, by that error and ErrHeld, and leaves nothing behind.",
		Run:       waiterGivesUp,
	},
	{
		Name:      "WaiterDeathHarmless",
		Statement: "A waiter that gives up in a queue delays nobody behind it.",
		Run:       waiterDeathHarmless,
	},
	{
		Name:      "CancelDuring",
		Statement: "Cancelled at any moment, an acquisition soon holds the key or leaves it free.",
		Run:       cancelDuring,
	},
	{
		Name:      "CancelBeforeSend",
		Statement: "With an ended context nothing is acquired, and its error is returned.",
		Run:       cancelBeforeSend,
	},
	{
		Name:      "EndedContexts",
		Statement: "With an ended context Renew loses nothing, Acquire adds nothing, and Release hands on, once.",
		Run:       endedContexts,
	},
	{
		Name:      "CancelHarmsNobody",
		Statement: "The end of one caller's context fails no call of others.",
		Run:       cancelHarmsNobody,
	},
	{
		Name:      "WaiterOrderLocal",
		Statement: "Callers of Acquire through one Locker are served first come, first served, whoever leaves.",
		Claims:    []engine.Claim{engine.ClaimLocalOrder},
		Run:       waiterOrderLocal,
	},
	{
		Name:      "FairOrder",
		Statement: "Waiters of different clients are served in the order of their arrival.",
		Claims:    []engine.Claim{engine.ClaimFair},
		Run:       fairOrder,
	},
	{
		Name:      "LeavesATurn",
		Statement: "A busy client leaves a waiting one its turn, where fairness or watchers allow.",
		Run:       leavesATurn,
	},
	{
		Name:      "TryBesideWaiters",
		Statement: "A try may overtake waiters, never waits, and in the end all are served.",
		Run:       tryBesideWaiters,
	},
	{
		Name:      "ManyWaiters",
		Statement: "A crowd that waits for one key is served to the last.",
		Run:       manyWaiters,
	},
	{
		Name:      "NoHerd",
		Statement: "The requests of a hand-over grow with clients, not with waiters.",
		Seam:      true,
		Run:       noHerd,
	},
	{
		Name:      "NoLockstep",
		Statement: "Clients that are refused together ask on with pauses that differ at random.",
		Seam:      true,
		Run:       noLockstep,
	},
	{
		Name:      "WaitIsCalm",
		Statement: fmt.Sprintf("A waiter asks at most %d times a second, also while the server cannot be reached.", time.Second/calmPause),
		Seam:      true,
		Run:       waitIsCalm,
	},
	{
		Name:      "WaiterPolls",
		Statement: "A waiter gets the released key soon, though every signal was lost.",
		Seam:      true,
		Run:       waiterPolls,
	},
	{
		Name:      "WaitOutlastsTTL",
		Statement: "A wait outlasts every time limit of the server.",
		Limit:     2 * time.Minute,
		LimitTTLs: 40,
		Run:       waitOutlastsTTL,
	},
}

func waiterWakes(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	var cases []func()
	for name, c := range map[string]*engine.Client{"same Locker": a, "another Locker": b} {
		cases = append(cases, func() { wakes(e, a, c, name) })
		if engine.ClaimReentrancy.Made(e.Settings) {
			cases = append(cases, func() { wakes(e, a, c, name+", behind an owner", lock.WithOwner(e.Owner("A"))) })
		}
	}
	e.Together(cases...)
}

// wakes has one Locker hold a key, and another one or the same wait for it.
func wakes(e *engine.Env, holder, waiter *engine.Client, name string, more ...lock.Option) {
	var late engine.Lateness
	for range 3 {
		key := e.Key("%s", name)
		h := holder.MustTry(key, more...)
		w := waiter.Acquiring(key)
		e.Settle()
		select {
		case <-w.Done:
			e.UnexpectedFatal(key, w.Err, "Acquire returned %s while another lease held the key", engine.Outcome(w.Err))
		default:
		}
		h.MustRelease()
		released := time.Now()
		got := w.MustGet(e, key, e.WaitBound(), "the key was released")
		late.Add(e, time.Since(released))
		got.MustRelease()
	}
	late.Judge(e, "", e.WakeBound(), "a waiter through %s was granted the key after its release", name)
}

func waiterGivesUp(e *engine.Env) {
	e.Together(func() { eachGivesUp(e) }, func() { eachKindGivesUp(e) }, func() { manyGiveUp(e) })
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

// eachKindGivesUp waits for leases of each kind, in vain.
func eachKindGivesUp(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	all := kinds(e)[1:]
	e.Each(2*len(all), func(i int) {
		k, cancelled := all[i/2], i%2 == 0
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
		h.MustRelease()
	})
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

// inOrder has waiters arrive one after the other, each with time to take its
// place, and checks that they are served in that order. On a busy machine a place
// may take longer; then it is repeated with more time, and only an order that is
// wrong each time is a broken rule.
func inOrder(e *engine.Env, name string, holder *engine.Client, pick func(i int) *engine.Client, n int, gap time.Duration) {
	var order []int
	for round := range 3 {
		key := e.Key("%s-%d", name, round)
		if order = served(e, key, holder, pick, n, gap); slices.IsSorted(order) {
			return
		}
		gap *= 3
	}
	e.Latef(e.Key("%s-2", name), "the waiters, numbered by their arrival, were served in the order %v", order)
}

// served is the order in which waiters get the key.
func served(e *engine.Env, key string, holder *engine.Client, pick func(i int) *engine.Client, n int, gap time.Duration) (order []int) {
	h := holder.MustTry(key)
	waiters := make([]*engine.Acquiring, n)
	for i := range waiters {
		waiters[i] = pick(i).Acquiring(key, asksFor(e, i)...)
		<-waiters[i].Begun
		e.Pause(gap)
	}
	if n == moreThanADigit { // who leaves in the middle changes no order
		for _, i := range []int{7, 3} {
			waiters[i].Cancel()
			if !e.Within(e.Slack(), waiters[i].Done) {
				e.OverdueFatalf(key, "a cancelled waiter had not returned after %s", e.Slack())
			}
			if waiters[i].Err == nil {
				e.Fatalf(key, "a waiter was granted a key that was held")
			}
			waiters = slices.Delete(waiters, i, i+1)
		}
	}
	n = len(waiters)
	var mu sync.Mutex
	h.MustRelease()
	e.Each(n, func(i int) {
		got := waiters[i].MustGet(e, key, e.WaitBound()+time.Duration(n)*2*time.Second, "the key was released")
		mu.Lock()
		order = append(order, i)
		mu.Unlock()
		got.MustRelease()
	})
	return order
}

// asksFor is what the waiter asks for. It changes nothing about whose turn it is.
func asksFor(e *engine.Env, i int) []lock.Option {
	switch {
	case i%4 == 1 && !e.Fixed:
		return []lock.Option{lock.WithTTL(e.Fit(e.Long / 2))}
	case i%4 == 2:
		return []lock.Option{lock.WithLabel("a waiter")}
	case i%4 == 3 && e.Claimed.WithoutRenewal:
		return []lock.Option{lock.WithoutRenewal()}
	}
	return nil
}

// moreThanADigit is how many wait where the order is asked for: numbers that are sorted as
// text are in order up to nine.
const moreThanADigit = 12

func waiterOrderLocal(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	e.Each(2, func(i int) {
		holder := []*engine.Client{a, b}[i]
		inOrder(e, holder.Who, holder, func(int) *engine.Client { return b }, moreThanADigit, 30*time.Millisecond)
	})
}

func fairOrder(e *engine.Env) {
	n := moreThanADigit
	if !e.Claimed.Fair {
		n = 5 // it is tried for the report only
	}
	clients := e.Lockers(1 + n)
	inOrder(e, "a", clients[0], func(i int) *engine.Client { return clients[1+i] }, n, 60*time.Millisecond)
}

func tryBesideWaiters(e *engine.Env) {
	clients, beside := e.Lockers(3), e.Locker()
	key := e.Key("a")
	h := clients[0].MustTry(key)
	const waiters = 8
	stop := make(chan struct{})
	var served sync.WaitGroup
	served.Add(waiters)
	fs := []func(){}
	for i := range waiters {
		fs = append(fs, func() {
			defer served.Done()
			got := clients[i%3].MustWait(e.Ctx, key)
			e.Pause(e.Randomly(3 * time.Millisecond))
			got.MustRelease()
		})
	}
	for _, c := range clients {
		fs = append(fs, func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := c.Try(key); err == nil {
					e.Pause(e.Randomly(2 * time.Millisecond))
					got.MustRelease()
				} else {
					e.JudgeRefusal(key, "TryAcquire", "others hold it", nil, err)
				}
				e.Pause(3*time.Millisecond + e.Randomly(5*time.Millisecond))
			}
		})
	}
	wait := e.Start(fs...)
	go func() { served.Wait(); close(stop) }()
	e.Settle()
	var late engine.Lateness
	for i := range 2 * len(clients) {
		beside.MustTry(e.Key("beside-%d", i)).MustRelease() // as long as this takes, nothing is late
		mustAnswerTry(clients[i/2], key, &late, "while the key was held and others waited for it through the same Locker; a try does not wait with them")
	}
	late.Judge(e, key, e.Prompt(), "TryAcquire of a key that was held, and that others waited for through the same Locker, returned")
	h.MustRelease()
	wait()
}

// mustAnswerTry tries a key that is not released before the answer is there.
func mustAnswerTry(c *engine.Client, key string, late *engine.Lateness, when string) {
	e := c.Env
	answered := make(chan struct{})
	begun := time.Now()
	wait := e.Start(func() {
		defer close(answered)
		if got, err := c.Try(key); err == nil {
			got.MustRelease()
		}
	})
	if d := e.WaitBound(); !e.Within(d, answered) {
		e.OverdueFatalf(key, "TryAcquire had not returned after %s, %s", d, when)
	}
	late.Add(e, time.Since(begun))
	wait()
}

func manyWaiters(e *engine.Env) {
	clients := e.Lockers(4)
	key := e.Key("a")
	h := clients[0].MustTry(key)
	const crowd = 40
	var work engine.Updates
	wait := e.Start(func() {
		e.Each(crowd, func(i int) {
			got := clients[i%len(clients)].MustWait(e.Ctx, key)
			work.Work(got)
			got.MustRelease()
		})
	})
	e.Settle()
	h.MustRelease()
	wait()
	work.Check(e, key)
}
