package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

var waitingRules = []*rule{
	{
		Name:      "WaiterWakes",
		Statement: "A caller that waits in Acquire gets the key soon after its release, through the same Locker and through another.",
		run:       waiterWakes,
	},
	{
		Name:      "WaiterGivesUp",
		Statement: "A wait ends soon after its context, with an error that matches the context's error and ErrHeld, and leaves nothing in the way of others.",
		run:       waiterGivesUp,
	},
	{
		Name:      "WaiterDeathHarmless",
		Statement: "A waiter that gives up in the middle of a queue delays nobody behind it.",
		run:       waiterDeathHarmless,
	},
	{
		Name:      "CancelDuring",
		Statement: "Cancelled at any moment, an acquisition returns soon, and either holds the key or leaves it free.",
		run:       cancelDuring,
	},
	{
		Name:      "CancelBeforeSend",
		Statement: "With a context that has already ended, nothing is sent or acquired, and the context's error is returned.",
		run:       cancelBeforeSend,
	},
	{
		Name:      "CancelHarmsNobody",
		Statement: "The context of one caller, however it ends, fails no call of others through the same Locker.",
		run:       cancelHarmsNobody,
	},
	{
		Name:      "WaiterOrderLocal",
		Statement: "Callers of Acquire through one Locker are served first come, first served.",
		claims:    []claim{claimLocalOrder},
		run:       waiterOrderLocal,
	},
	{
		Name:      "FairOrder",
		Statement: "Waiters of different clients are served in the order of their arrival.",
		claims:    []claim{claimFair},
		run:       fairOrder,
	},
	{
		Name:      "LeavesATurn",
		Statement: "A client that takes the key again and again leaves a waiter of another client its turn, where the backend is fair or a release knows of watchers.",
		run:       leavesATurn,
	},
	{
		Name:      "TryBesideWaiters",
		Statement: "A try may overtake waiters, never waits with them, and never breaks the lock or the waiters: everyone is served in the end.",
		run:       tryBesideWaiters,
	},
	{
		Name:      "ManyWaiters",
		Statement: "A crowd that waits for one key is served to the last, one at a time.",
		run:       manyWaiters,
	},
	{
		Name:      "NoHerd",
		Statement: "When a crowd waits for a key, the requests that a hand-over costs depend on the number of clients, not on the number of waiters.",
		Seam:      true,
		run:       noHerd,
	},
	{
		Name:      "NoLockstep",
		Statement: "Clients that are refused together do not go on asking in step: the pauses between their requests differ at random.",
		Seam:      true,
		run:       noLockstep,
	},
	{
		Name:      "WaitIsCalm",
		Statement: fmt.Sprintf("A caller that waits asks the server at most %d times a second, while somebody holds the key and while the server cannot be reached.", time.Second/calmPause),
		Seam:      true,
		run:       waitIsCalm,
	},
	{
		Name:      "WaiterPolls",
		Statement: "A waiter gets the key soon after its release though every signal of the server was lost.",
		Seam:      true,
		run:       waiterPolls,
	},
	{
		Name:      "WaitOutlastsTTL",
		Statement: "A wait goes on while the holder renews, longer than any time limit of the server: it ends with a grant or with its context.",
		LimitTTLs: 40,
		run:       waitOutlastsTTL,
	},
}

// acquiring calls Acquire in a goroutine. The lease or the error arrives when
// done is closed.
type acquiring struct {
	h       *hold
	err     error
	done    chan struct{}
	wait    func()
	begun   chan struct{}
	cancel  context.CancelFunc
	invoked time.Duration
}

func (c *client) acquiring(key string, more ...lock.Option) *acquiring {
	ctx, cancel := context.WithCancel(c.e.ctx)
	a := &acquiring{done: make(chan struct{}), begun: make(chan struct{}), cancel: cancel}
	a.wait = c.e.start(func() {
		a.invoked = c.e.hist.now()
		close(a.begun)
		a.h, a.err = c.acquire(ctx, key, more...)
		close(a.done)
	})
	return a
}

// mustGet waits for the grant, by a control timer.
func (a *acquiring) mustGet(e *env, key string, d time.Duration, why string) *hold {
	if !e.within(d, a.done) {
		e.look(key)
		e.overdueFatalf(key, "a waiter had not been granted the key after %s; %s", d, why)
	}
	if a.err != nil {
		e.unexpectedFatal(key, a.err, "a waiter's Acquire returned %s; expected a lease: %s", outcome(a.err), why)
	}
	return a.h
}

// lookLimit is how long a look may take.
const lookLimit = 2 * time.Second

// look has a client of its own try a key that a waiter was not granted in time. The
// calls that are shown with the failure then tell whether the key was free, whose it
// was, or that the server did not answer.
func (e *env) look(key string) {
	c, err := e.open(e.openLocker)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, lookLimit)
	defer cancel()
	if h, err := c.tryFor(ctx, key, e.ttl); err == nil {
		_ = h.release(ctx)
	}
}

// settle gives the waiters a moment to reach the server. No rule depends on it.
func (e *env) settle() { e.pause(40 * time.Millisecond) }

// waitBound is how soon after it became free a waiter must have the key: a poll
// interval, and slack.
func (e *env) waitBound() time.Duration { return 4*time.Second + e.slack() }

// wakeBound is waitBound for the fastest of several. A lock that polls has its interval.
func (e *env) wakeBound() time.Duration {
	if (e.says || e.Guarantees != nil) && e.g.Waiting != "" && e.g.Waiting != backend.WaitPoll {
		return e.prompt()
	}
	return time.Second + e.prompt()
}

func waiterWakes(e *env) {
	a, b := e.locker(), e.locker()
	for name, c := range map[string]*client{"same Locker": a, "another Locker": b} {
		var late lateness
		for range 3 {
			key := e.key("%s", name)
			h := a.mustTry(key)
			w := c.acquiring(key)
			e.settle()
			select {
			case <-w.done:
				e.unexpectedFatal(key, w.err, "Acquire returned %s while another lease held the key", outcome(w.err))
			default:
			}
			h.mustRelease()
			released := time.Now()
			got := w.mustGet(e, key, e.waitBound(), "the key was released")
			late.add(time.Since(released))
			got.mustRelease()
		}
		late.judge(e, "", e.wakeBound(), "a waiter through %s was granted the key after its release", name)
	}
}

// givesUp calls Acquire on a held key with a context that ends after a while. On
// a busy machine it may end before the lock has even asked, so that the error
// cannot tell of a holder; then the wait is repeated with more time. In the end the
// error must tell, unless a request took a good part of that time.
func (c *client) givesUp(key string, cancelled bool, late *lateness) (ctxErr, err error) {
	e := c.e
	var given time.Duration
	for _, d := range []time.Duration{60 * time.Millisecond, 400 * time.Millisecond, 2 * time.Second} {
		ctx, cancel := context.WithTimeout(e.ctx, d)
		if cancelled {
			ctx, cancel = context.WithCancel(e.ctx)
			time.AfterFunc(d, cancel)
		}
		begun := time.Now()
		var got *hold
		got, err = c.acquire(ctx, key)
		took := time.Since(begun)
		cancel()
		ctxErr = ctx.Err()
		if err == nil {
			_ = got.release(e.ctx)
			e.fatalf(key, "Acquire was granted a key that was held")
		}
		late.add(took - d)
		if took > d+e.slack() {
			e.overduef(key, "Acquire returned %s after the call; its context had ended after %s", took.Round(time.Millisecond), d)
		}
		if errors.Is(err, lock.ErrHeld) {
			return ctxErr, err
		}
		given = d
	}
	e.fail(excuse{given / 4, anyAnswer}, key, "Acquire of a held key, whose context ended after %s, returned %s; expected an error that matches ErrHeld", given, outcome(err))
	panic(abort{})
}

func waiterGivesUp(e *env) {
	a, b, c := e.locker(), e.locker(), e.locker()
	for name, cancelled := range map[string]bool{"was cancelled": true, "timed out": false} {
		var late lateness
		for _, waiter := range []*client{a, b} {
			key := e.key("%s-%s", name, waiter.who)
			h := a.mustTry(key)
			ctxErr, err := waiter.givesUp(key, cancelled, &late)
			e.is(key, err, "Acquire whose context "+name, ctxErr, lock.ErrHeld)
			e.not(key, err, "Acquire whose context "+name, lock.ErrNotHeld, lock.ErrLost, lock.ErrClosed)
			h.mustLive("somebody who waited for it gave up")
			w := c.acquiring(key)
			h.mustRelease()
			w.mustGet(e, key, e.waitBound(), "the key was released, and the waiter before it had given up").mustRelease()
			a.soon(key, "it was released, and the waiter before had given up").mustRelease()
		}
		late.judge(e, "", e.prompt(), "Acquire whose context %s returned", name)
	}
}

func waiterDeathHarmless(e *env) {
	clients := e.lockers(3)
	for name, pick := range map[string]func(i int) *client{
		"one Locker":  func(int) *client { return clients[1] },
		"two Lockers": func(i int) *client { return clients[1+i%2] },
	} {
		key := e.key("%s", name)
		h := clients[0].mustTry(key)
		waiters := make([]*acquiring, 5)
		for i := range waiters {
			waiters[i] = pick(i).acquiring(key)
			<-waiters[i].begun
			e.pause(10 * time.Millisecond)
		}
		for _, i := range []int{1, 3} { // in the middle, whatever the order is
			waiters[i].cancel()
			if !e.within(e.slack(), waiters[i].done) {
				e.overdueFatalf(key, "a cancelled waiter had not returned after %s", e.slack())
			}
			if waiters[i].err == nil {
				e.fatalf(key, "a waiter was granted a key that was held")
			}
		}
		waiters[0].cancel() // the first, just as the key becomes free
		h.mustRelease()
		e.each(len(waiters), func(i int) {
			w := waiters[i]
			switch {
			case i == 1 || i == 3:
			case i == 0:
				if !e.within(e.waitBound(), w.done) {
					e.overdueFatalf(key, "a cancelled waiter had not returned after %s", e.waitBound())
				}
				if w.err == nil {
					w.h.mustRelease()
				}
			default:
				w.mustGet(e, key, e.waitBound()+e.takeover(0), "the key was released, and others before it gave up").mustRelease()
			}
		})
	}
}

func cancelDuring(e *env) {
	a, b := e.locker(), e.locker()
	n := e.rounds(40*time.Millisecond, 20, 300)
	e.each(3, func(i int) {
		key := e.key("%d", i)
		var late lateness
		defer func() { late.judge(e, key, e.prompt(), "a call returned after its context was cancelled") }()
		for round := range n {
			if late.hopeless(e.prompt()) {
				return
			}
			c := []*client{a, b}[round%2]
			var blocker *hold
			if i == 2 && round%4 == 0 {
				blocker = a.mustAcquire(key)
			}
			ctx, cancel := context.WithCancel(e.ctx)
			var cancelled time.Time
			moment := e.randomly(time.Duration(1+round%8) * 300 * time.Microsecond)
			done := make(chan struct{})
			timer := time.AfterFunc(moment, func() {
				cancelled = time.Now()
				cancel()
				close(done)
			})
			var h *hold
			var err error
			if i == 0 {
				h, err = c.tryFor(ctx, key, e.long)
			} else {
				h, err = c.acquire(ctx, key)
			}
			returned := time.Now()
			if timer.Stop() {
				cancel()
			} else {
				<-done
				after := returned.Sub(cancelled)
				if err != nil {
					late.add(after)
				}
				if after > e.slack() {
					e.overduef(key, "the call returned %s after its context was cancelled", after.Round(time.Millisecond))
				}
			}
			switch {
			case err == nil:
				h.mustRelease()
			case errors.Is(err, context.Canceled):
			case i == 0 && errors.Is(err, lock.ErrHeld):
				// What an earlier, cancelled try may have left is being removed.
			default:
				e.unexpected(key, err, "a call that was cancelled returned %s; expected a lease or the context's error", outcome(err))
			}
			if blocker != nil {
				blocker.mustRelease()
			}
			if e.failed() {
				return
			}
		}
		// The TTL of every attempt was long, so that only clean-up frees the key now.
		last := b.acquiring(key)
		last.mustGet(e, key, e.waitBound(), "every acquisition was cancelled or released").mustRelease()
	})
	e.notef("%d cancellations", 3*n)
}

func cancelBeforeSend(e *env) {
	b := e.locker()
	a, sent := e.locker(), func(string) int { return 0 }
	if e.OpenBackend != nil {
		var f *faultlock.Faults
		a, f = e.disturbed()
		sent = func(key string) int { return requests(f, key, sending...) }
	}
	ended, cancel := context.WithCancel(e.ctx)
	cancel()
	past, cancelPast := context.WithDeadline(e.ctx, time.Now().Add(-time.Hour))
	defer cancelPast()
	for name, ctx := range map[string]context.Context{"cancelled": ended, "past": past} {
		for op, get := range map[string]getter{"TryAcquire": a.l.TryAcquire, "Acquire": a.l.Acquire} {
			key := e.key("%s-%s", name, op)
			if h, err := a.get(op, get, ctx, key, e.opts(e.long)); err == nil {
				_ = h.release(e.ctx)
				e.failf(key, "%s with a context that had already ended was granted; expected the context's error", op)
			} else {
				e.is(key, err, op+" with a context that had already ended", ctx.Err())
			}
			if n := sent(key); n > 0 {
				e.failf(key, "%s with a context that had already ended sent %d requests for the key; expected none", op, n)
			}
			b.mustTry(key).mustRelease()
		}
	}
}

// inOrder has waiters arrive one after the other, each with time to take its
// place, and checks that they are served in that order. On a busy machine a place
// may take longer; then it is repeated with more time, and only an order that is
// wrong each time is a broken rule.
func (e *env) inOrder(name string, holder *client, pick func(i int) *client, n int, gap time.Duration) {
	var order []int
	for round := range 3 {
		key := e.key("%s-%d", name, round)
		if order = e.served(key, holder, pick, n, gap); slices.IsSorted(order) {
			return
		}
		gap *= 3
	}
	e.latef(e.key("%s-2", name), "the waiters, numbered by their arrival, were served in the order %v", order)
}

// served is the order in which waiters get the key.
func (e *env) served(key string, holder *client, pick func(i int) *client, n int, gap time.Duration) (order []int) {
	h := holder.mustTry(key)
	waiters := make([]*acquiring, n)
	for i := range waiters {
		waiters[i] = pick(i).acquiring(key)
		<-waiters[i].begun
		e.pause(gap)
	}
	var mu sync.Mutex
	h.mustRelease()
	e.each(n, func(i int) {
		got := waiters[i].mustGet(e, key, e.waitBound()+time.Duration(n)*2*time.Second, "the key was released")
		mu.Lock()
		order = append(order, i)
		mu.Unlock()
		got.mustRelease()
	})
	return order
}

func waiterOrderLocal(e *env) {
	a, b := e.locker(), e.locker()
	e.each(2, func(i int) {
		holder := []*client{a, b}[i]
		e.inOrder(holder.who, holder, func(int) *client { return b }, 6, 30*time.Millisecond)
	})
}

func fairOrder(e *env) {
	clients := e.lockers(6)
	e.inOrder("a", clients[0], func(i int) *client { return clients[1+i] }, 5, 60*time.Millisecond)
}

func tryBesideWaiters(e *env) {
	clients, beside := e.lockers(3), e.locker()
	key := e.key("a")
	h := clients[0].mustTry(key)
	const waiters = 8
	stop := make(chan struct{})
	var served sync.WaitGroup
	served.Add(waiters)
	fs := []func(){}
	for i := range waiters {
		fs = append(fs, func() {
			defer served.Done()
			got := clients[i%3].mustWait(e.ctx, key)
			e.pause(e.randomly(3 * time.Millisecond))
			got.mustRelease()
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
				if got, err := c.try(key); err == nil {
					e.pause(e.randomly(2 * time.Millisecond))
					got.mustRelease()
				} else {
					e.judgeRefusal(key, "TryAcquire", "others hold it", nil, err)
				}
				e.pause(3*time.Millisecond + e.randomly(5*time.Millisecond))
			}
		})
	}
	wait := e.start(fs...)
	go func() { served.Wait(); close(stop) }()
	e.settle()
	var late lateness
	for i := range 2 * len(clients) {
		beside.mustTry(e.key("beside-%d", i)).mustRelease() // as long as this takes, nothing is late
		clients[i/2].mustAnswerTry(key, &late, "while the key was held and others waited for it through the same Locker; a try does not wait with them")
	}
	late.judge(e, key, e.prompt(), "TryAcquire of a key that was held, and that others waited for through the same Locker, returned")
	h.mustRelease()
	wait()
}

// mustAnswerTry tries a key that is not released before the answer is there.
func (c *client) mustAnswerTry(key string, late *lateness, when string) {
	e := c.e
	answered := make(chan struct{})
	begun := time.Now()
	wait := e.start(func() {
		defer close(answered)
		if got, err := c.try(key); err == nil {
			got.mustRelease()
		}
	})
	if d := e.waitBound(); !e.within(d, answered) {
		e.overdueFatalf(key, "TryAcquire had not returned after %s, %s", d, when)
	}
	late.add(time.Since(begun))
	wait()
}

func manyWaiters(e *env) {
	clients := e.lockers(4)
	key := e.key("a")
	h := clients[0].mustTry(key)
	const crowd = 40
	var work updates
	wait := e.start(func() {
		e.each(crowd, func(i int) {
			got := clients[i%len(clients)].mustWait(e.ctx, key)
			work.work(got)
			got.mustRelease()
		})
	})
	e.settle()
	h.mustRelease()
	wait()
	work.check(e, key)
}
