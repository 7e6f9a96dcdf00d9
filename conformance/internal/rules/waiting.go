package rules

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var waitingRules = []*engine.Rule{
	{
		Name:      "WaiterWakes",
		Statement: "A waiter gets the key soon after its release by any Locker.",
		Run:       waiterWakes,
	},
	{
		Name:      "WakesAtAnyMoment",
		Statement: "A waiter wakes at whatever moment the hold ends, and whatever ends it.",
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
		Name:      "EndlessContexts",
		Statement: "A call whose context never ends, or in centuries only, is served as any other.",
		RestsOn:   "renewal",
		Run:       endlessContexts,
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
		Name:         "NoHerd",
		Statement:    "The requests of a hand-over grow with clients, not with waiters.",
		NeedsBackend: true,
		Run:          noHerd,
	},
	{
		Name:         "NoLockstep",
		Statement:    "Clients that are refused together ask on with pauses that differ at random.",
		NeedsBackend: true,
		Run:          noLockstep,
	},
	{
		Name:         "WaitIsCalm",
		Statement:    fmt.Sprintf("A waiter asks at most %d times a second, also while the server cannot be reached.", time.Second/calmPause),
		NeedsBackend: true,
		Run:          waitIsCalm,
	},
	{
		Name:         "WaiterPolls",
		Statement:    "A waiter gets the released key soon, though every signal was lost.",
		NeedsBackend: true,
		Run:          waiterPolls,
	},
	{
		Name:      "WaitOutlastsTTL",
		Statement: "A wait outlasts every time limit of the server, and keeps its place in its Locker.",
		RestsOn:   "renewal",
		Limit:     2 * time.Minute,
		Virtual:   13 * time.Minute,
		LimitTTLs: 40,
		Run:       waitOutlastsTTL,
	},
}

func waitOutlastsTTL(e *engine.Env) {
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	key := e.Key("a")
	ttl := e.TTL
	if e.Declared("RenewKeeps", "renewal") { // nothing else keeps it
		ttl = e.Long
	}
	h := a.MustTryFor(key, ttl)
	waits := []*engine.Acquiring{b.Acquiring(key), c.Acquiring(key)}
	// Some locks give up by themselves after a while, or ask less and less often. Half a minute
	// and a minute are usual limits.
	wait := max(e.TTL*5/2, min(e.Budget/2, 10*time.Second))
	if e.Unhurried() {
		wait = max(wait, 75*time.Second)
	}
	step := e.TTL / 4
	if e.Virtual() { // so are five and ten minutes
		wait = 11 * time.Minute
		step = max(step, wait/300)
	}
	if ttl > e.TTL {
		wait = min(wait, ttl/2)
	}
	own := []int{0} // of one Locker, as they came
	begun := time.Now()
	for end := begun.Add(wait); time.Now().Before(end); {
		e.Pause(step)
		e.Log.Patient()
		if n := len(own); n < 3 && time.Since(begun) > time.Duration(n)*wait*37/100 {
			own = append(own, len(waits))
			waits = append(waits, b.Acquiring(key))
		}
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
	var mu sync.Mutex
	var order []int
	e.Each(len(waits), func(i int) {
		got := waits[i].MustGet(e, key, e.WaitBound(), "its holder has released it")
		late.Add(e, time.Since(released))
		mu.Lock()
		if slices.Contains(own, i) {
			order = append(order, i)
		}
		mu.Unlock()
		_ = got.Release(e.Ctx)
	})
	if engine.ClaimLocalOrder.Made(e.Settings) && !e.Declared("WaiterOrderLocal", "waiting") && !slices.IsSorted(order) {
		e.Latef(key, "callers of one Locker, numbered by their arrival, were served in the order %v; they had come in the course of %s, and wait however long", order, wait)
	}
	late.Judge(e, key, e.WakeBound(), "callers that had waited for long were granted the key after its release")
	e.Notef("waited for %s", wait)
}

func waiterWakes(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	var cases []func()
	for name, c := range map[string]*engine.Client{"same Locker": a, "another Locker": b} {
		cases = append(cases, func() { wakes(e, a, c, name, nil, nil) })
		for _, k := range optionKinds(e, a) {
			cases = append(cases,
				func() { wakes(e, a, c, name+", behind "+k.name, k.opts, nil) },
				func() { wakes(e, a, c, name+", with "+k.name, nil, k.opts) })
		}
	}
	for name, c := range map[string]*engine.Client{"same Locker": a, "another Locker": b} {
		for _, ttl := range longTTLs(e) {
			long := []lock.Option{lock.WithTTL(ttl)}
			cases = append(cases,
				func() { wakes(e, a, c, fmt.Sprintf("%s, behind a TTL of %s", name, ttl), long, nil) },
				func() { wakes(e, a, c, fmt.Sprintf("%s, with a TTL of %s", name, ttl), nil, long) },
				func() { wakes(e, a, c, fmt.Sprintf("%s, with and behind a TTL of %s", name, ttl), long, long) })
		}
	}
	cases = append(cases, func() { wakesBesideOthers(e) })
	e.Together(cases...)
}

// longTTLs are longer than what cases ask for otherwise, where nothing that is left is in the way of
// another run.
func longTTLs(e *engine.Env) (ttls []time.Duration) {
	if !e.Virtual() {
		return nil
	}
	for _, d := range []time.Duration{time.Minute, time.Hour} {
		if e.Fit(d) == d && d > e.Long {
			ttls = append(ttls, d)
		}
	}
	return ttls
}

// wakesBesideOthers has a hold be waited for in company, or end in parts.
func wakesBesideOthers(e *engine.Env) {
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	owned := oneOwner(e)
	var besides sync.WaitGroup
	defer besides.Wait()
	timed, cancel := context.WithTimeout(e.Ctx, time.Hour)
	defer cancel()
	type scene struct {
		name string
		opts []lock.Option
		// with begins what goes on beside the wait, and returns what ends the hold.
		with func(key string) (end func())
		ctx  context.Context
		// longer is for what a client that is gone leaves at the server, until its expiry.
		longer time.Duration
	}
	release := func(key string, opts ...lock.Option) func() {
		h := a.MustTry(key, opts...)
		return func() { h.MustRelease() }
	}
	scenes := []scene{
		{name: "who has a deadline", ctx: timed, with: func(key string) func() { return release(key) }},
	}
	if !e.Declared("CloseEndsWaits", "close") { // else it goes on, and may be served
		scenes = append(scenes, scene{name: "when another waiter's Locker was closed", longer: e.TakeoverLimit(e.TTL), with: func(key string) func() {
			end := release(key)
			other := e.Locker()
			w := other.Acquiring(key)
			e.Settle()
			return func() {
				_ = other.Close()
				if e.Within(e.Slack(), w.Done) && w.Err == nil {
					e.Fatalf(key, "a waiter was granted a key that was held")
				}
				end()
			}
		}})
	}
	if owned != nil {
		another := lock.WithOwner(e.Owner("B"))
		scenes = append(scenes,
			scene{name: "of an owner, behind another owner", opts: owned, with: func(key string) func() { return release(key, another) }},
			scene{name: "when an owner's inner hold was the last", with: func(key string) func() {
				outer, inner := a.MustTry(key, owned...), a.MustTry(key, owned...)
				return func() { outer.MustRelease(); inner.MustRelease() }
			}},
			scene{name: "when an owner's outermost hold was the last", with: func(key string) func() {
				outer, inner := a.MustTry(key, owned...), a.MustTry(key, owned...)
				return func() { inner.MustRelease(); outer.MustRelease() }
			}},
			scene{name: "of an owner, beside one of the same Locker without", opts: owned, with: func(key string) func() {
				end := release(key)
				beside := b.Acquiring(key)
				e.Settle()
				return func() {
					end()
					besides.Add(1)
					e.Start(func() {
						defer besides.Done()
						beside.MustGet(e, key, e.WaitBound(), "it was released, and who else got it released it at once").MustRelease()
					})
				}
			}},
			scene{name: "without an owner, beside one of the same Locker with", with: func(key string) func() {
				end := release(key)
				beside := b.Acquiring(key, owned...)
				e.Settle()
				return func() {
					end()
					besides.Add(1)
					e.Start(func() {
						defer besides.Done()
						beside.MustGet(e, key, e.WaitBound(), "it was released, and who else got it released it at once").MustRelease()
					})
				}
			}})
	}
	e.Each(len(scenes), func(i int) {
		s := scenes[i]
		var late engine.Lateness
		for round := range 3 {
			key := e.Key("%s-%d", s.name, round)
			end := s.with(key)
			ctx := e.Ctx
			if s.ctx != nil {
				ctx = s.ctx
			}
			w := b.AcquiringOn(ctx, key, e.Long, s.opts...)
			e.Settle()
			end()
			ended := time.Now()
			got := w.MustGet(e, key, e.WaitBound(), "the key was released")
			late.Add(e, time.Since(ended))
			got.MustRelease()
			c.Soon(key, "everybody who had it has released it").MustRelease()
		}
		late.Judge(e, "", e.WakeBound()+s.longer, "a waiter %s was granted the key after the end of the hold", s.name)
	})
}

// wakes has one Locker hold a key, and another one or the same wait for it.
func wakes(e *engine.Env, holder, waiter *engine.Client, name string, held, waits []lock.Option) {
	var late engine.Lateness
	for range 3 {
		key := e.Key("%s", name)
		h := holder.MustTry(key, held...)
		w := waiter.Acquiring(key, waits...)
		e.Settle()
		select {
		case <-w.Done:
			e.UnexpectedFatal(key, w.Err, "Acquire returned %s while another lease held the key", engine.Outcome(w.Err))
		default:
		}
		h.MustRelease()
		released := time.Now()
		got := w.MustGet(e, key, e.WaitBound(), "the key was released; it waits through "+name)
		late.Add(e, time.Since(released))
		got.MustRelease()
	}
	late.Judge(e, "", e.WakeBound(), "a waiter through %s was granted the key after its release", name)
}
