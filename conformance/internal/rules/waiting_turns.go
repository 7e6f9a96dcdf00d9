package rules

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// mostTurnsMissed is how many turns of another client half of all waiters may miss. One
// is what it takes to hear of a release; the others are for a machine that is busy.
const mostTurnsMissed = 5

// starved is after how many turns of another client a waiter is given up on.
const starved = 100 * mostTurnsMissed

// aTurn is how long a client holds the key that takes it again and again.
const aTurn = 2 * time.Millisecond

func leavesATurn(e *engine.Env) {
	knows, took, late := knowsWatchers(e)
	if !e.Claimed.Fair && !knows {
		e.Skipf("the backend is not fair, and a release does not know of those who wait")
	}
	if !e.Claimed.Fair && late != "" {
		e.Skipf("%s, while a turn lasts %s", late, engine.Short(aTurn))
	}
	if e.Open != nil && took > mostTurnsMissed*aTurn {
		e.Skipf("a watch takes %s, and with Config.Open it is not seen from when on the watch of a Locker is in force", engine.Short(took))
	}
	leavesATurnAfter(e, took, "its release", func(release func()) { release() })
	// Its next Acquire begins before the release is through, so that each release finds a
	// waiter of its own client.
	var releases sync.WaitGroup
	leavesATurnAfter(e, took, "a release in another goroutine", func(release func()) { releases.Go(func() { e.Guard(release) }) })
	releases.Wait()
}

// leavesATurnAfter counts the turns that a client takes before another one has its own, from
// when the watch of that one is in force, which takes so long: before, no release can tell of it.
func leavesATurnAfter(e *engine.Env, watch time.Duration, way string, start func(release func())) {
	a := e.Locker()
	b, watches := e.LockerWithWatches()
	if watches == nil {
		b = e.Locker()
	}
	key := e.Key("%s", way)
	var turns, enough atomic.Int64
	var giveUp atomic.Pointer[context.CancelFunc]
	enough.Store(math.MaxInt64)
	ctx, stop := context.WithCancel(e.Ctx)
	defer stop()
	done := make(chan struct{})
	begun := make(chan struct{})
	wait := e.Start(func() {
		defer close(done)
		for ctx.Err() == nil {
			h, err := a.Acquire(ctx, key)
			if err != nil {
				if ctx.Err() == nil {
					e.Unexpected(key, err, "Acquire of the client that takes the key again and again returned %s", engine.Outcome(err))
				}
				return
			}
			switch n := turns.Add(1); {
			case n == 3:
				close(begun)
			case n > enough.Load():
				(*giveUp.Load())()
			}
			time.Sleep(aTurn)
			start(func() {
				if err := h.Release(e.Ctx); err != nil {
					e.Unexpected(key, err, "Release returned %s; expected no error", engine.Outcome(err))
				}
			})
		}
	})
	select {
	case <-begun:
	case <-done:
		wait()
		return
	}
	var missed []int64
	rounds := e.Rounds(e.Work(50*time.Millisecond), 7, 21)
	if watch > 500*time.Millisecond {
		rounds = 3
	}
	for range rounds {
		var before atomic.Int64
		before.Store(turns.Load())
		waited, cancel := context.WithTimeout(e.Ctx, 100*e.WakeBound())
		giveUp.Store(&cancel)
		enough.Store(before.Load() + starved)
		looked := func() {}
		seen, again := 0, 0 // watches
		if watches != nil {
			seen = watches.Begun(key)
			looked = e.Start(func() {
				// A watch may break, and another one begin: what came between tells of nobody. One
				// that breaks for ever has the waiter starve.
				for ; again < 5 && waited.Err() == nil; time.Sleep(time.Millisecond) {
					if now := watches.Begun(key); now > seen {
						before.Store(turns.Load())
						enough.Store(before.Load() + starved)
						seen = now
						again++
					}
				}
			})
		}
		h, err := b.Acquire(waited, key)
		got := turns.Load()
		enough.Store(math.MaxInt64)
		cancel()
		looked()
		if watches != nil && again < 5 && watches.Begun(key) > seen {
			before.Store(got) // its watch began a moment before its turn came
		}
		missed = append(missed, max(0, got-before.Load()))
		if err != nil {
			e.Latef(key, "a waiter did not get the key that another client took %d times meanwhile: Acquire returned %s", missed[len(missed)-1], engine.Outcome(err))
			break
		}
		h.MustRelease()
		// From here on the other one does not know of a waiter, until the next comes.
		for at := turns.Load(); turns.Load() < at+2 && ctx.Err() == nil; {
			time.Sleep(time.Millisecond)
		}
	}
	stop()
	wait()
	slices.Sort(missed)
	if median := missed[len(missed)/2]; median > mostTurnsMissed {
		e.Latef(key, "after %s, waiters saw another client take the key %v times before their turn came; expected at most %d for half of them", way, missed, mostTurnsMissed)
	}
}

// knowsWatchers asks the backend whether a release knows of those who watch, how long it
// takes until a watch is in force, and whether its signal comes too late for a turn, in words.
func knowsWatchers(e *engine.Env) (knows bool, took time.Duration, late string) {
	if e.OpenBackend == nil {
		return false, 0, ""
	}
	a, b := e.Backend(), e.Backend()
	t, ok := backend.As[backend.ReleaseTeller](a.Backend)
	w, watches := backend.As[backend.Watcher](b.Backend)
	if !ok || !watches {
		return false, 0, ""
	}
	key := e.Key("probe")
	for range 4 { // one watch may break
		h := a.MustTry(e.Request(key, "", e.Long))
		ctx, cancel := context.WithCancel(e.Ctx)
		begun := time.Now()
		hints, err := w.Watch(ctx, key)
		if err != nil {
			cancel()
			return false, 0, ""
		}
		took = time.Since(begun)
		e.Pause(soonTold)
		select {
		case <-hints: // it was spurious, or the watch broke, which is seen again
		default:
		}
		var others int
		err = h.EndedBy(e, func() (err error) { others, err = t.ReleaseTelling(e.Ctx, h.Hold); return err })
		late = lateSignal(hints)
		cancel()
		if err != nil || others < 0 {
			return false, took, ""
		}
		if late == "" {
			break
		}
	}
	return waitersWatch(e), took, late
}

// soonTold is how soon after a release its signal has to come, for a turn that is left to be
// taken. Who leaves it waits for about as long as the turns of this case last.
const soonTold = mostTurnsMissed * aTurn

// lateSignal says, in words, that the signal of a release comes late, or cannot come.
func lateSignal(hints <-chan backend.Hint) string {
	late := time.NewTimer(soonTold)
	defer late.Stop()
	select {
	case _, more := <-hints:
		if !more {
			return "watches break at once"
		}
		return ""
	case <-late.C:
		return fmt.Sprintf("signals come more than %s after a release", engine.Short(soonTold))
	}
}

// waitersWatch asks whether a caller who waits watches the key: a Locker that polls all the
// same, whatever its backend can do, tells no release of itself.
func waitersWatch(e *engine.Env) bool {
	c, seen := e.FaultyWhole()
	key := e.Key("watched")
	h := e.Locker().MustTry(key)
	w := c.Acquiring(key)
	<-w.Begun
	for end := time.Now().Add(e.WakeBound()); seen.Calls(faultlock.OpWatch, key) == 0 && time.Now().Before(end); {
		e.Pause(5 * time.Millisecond)
	}
	watched := seen.Calls(faultlock.OpWatch, key) > 0
	h.MustRelease()
	w.MustGet(e, key, e.WaitBound(), "it was released").MustRelease()
	return watched
}

func releaseTells(e *engine.Env) {
	a, b, third := e.Backend(), e.Backend(), e.Backend()
	t := optional[backend.ReleaseTeller](a, "ReleaseTeller")
	own, theirs := optional[backend.Watcher](a, "Watcher"), optional[backend.Watcher](b, "Watcher")
	aside := e.Key("aside") // what is watched all the time, and does not count
	for _, w := range []backend.Watcher{own, theirs} {
		if _, err := w.Watch(e.Ctx, aside); err != nil {
			e.UnexpectedFatal(aside, err, "Watch returned %s", engine.Outcome(err))
		}
	}
	for _, c := range []struct {
		name        string
		own, theirs bool
		third       bool          // a third client watches
		ceased      bool          // its own client has just ceased to watch
		after       time.Duration // it releases so long after that
		owner       string
		least, most int
	}{
		{name: "nobody watches"},
		{name: "its own client watches", own: true},
		{name: "another client watches", theirs: true, least: 1, most: 1},
		{name: "both watch", own: true, theirs: true, least: 1, most: 1},
		{name: "two other clients watch", own: true, theirs: true, third: true, least: 2, most: 2},
		{name: "its own client has just ceased to watch", ceased: true},
		{name: "its own client ceased to watch a moment ago", ceased: true, after: 5 * time.Millisecond},
		{name: "another client watches, and one hold is left", theirs: true, owner: "A"},
	} {
		key := e.Key("%s", c.name)
		if c.owner != "" && e.Claimed.Reentrancy != backend.ReentrancyServer {
			continue
		}
		h := a.MustTry(e.Request(key, c.owner, e.Long))
		if c.owner != "" {
			a.MustTry(e.Request(key, c.owner, e.Long))
		}
		ctx, cancel := context.WithCancel(e.Ctx)
		var watchers []backend.Watcher
		var signals []<-chan backend.Hint
		if c.own {
			watchers = append(watchers, own)
		}
		if c.theirs {
			watchers = append(watchers, theirs)
		}
		if c.third {
			watchers = append(watchers, optional[backend.Watcher](third, "Watcher"))
		}
		for _, w := range watchers {
			hints, err := w.Watch(ctx, key)
			if err != nil {
				cancel()
				e.UnexpectedFatal(key, err, "Watch returned %s", engine.Outcome(err))
			}
			signals = append(signals, hints)
		}
		if _, err := theirs.Watch(ctx, key+"/below"); err != nil { // which does not count either
			cancel()
			e.UnexpectedFatal(key, err, "Watch returned %s", engine.Outcome(err))
		}
		_, err := t.ReleaseTelling(e.Ctx, engine.Stranger(h.Hold))
		e.Is(key, err, "ReleaseTelling of another id", backend.ErrNotHeld)
		if c.ceased {
			ctx, cease := context.WithCancel(e.Ctx)
			if _, err := own.Watch(ctx, key); err != nil {
				cease()
				e.UnexpectedFatal(key, err, "Watch returned %s", engine.Outcome(err))
			}
			cease()
			if c.after > 0 {
				e.Pause(c.after)
			}
		}
		others, err := t.ReleaseTelling(e.Ctx, h.Hold)
		if c.owner == "" {
			judgeSignals(e, key, signals)
		}
		cancel()
		switch {
		case err != nil:
			e.Unexpected(key, err, "ReleaseTelling returned %s; expected no error", engine.Outcome(err))
		case others < 0: // it can't say
		case others < c.least || others > c.most:
			e.Failf(key, "%s, and another one a longer key: the release tells of %d other clients; expected %d", c.name, others, c.least)
		}
		if _, err := t.ReleaseTelling(e.Ctx, h.Hold); !errors.Is(err, backend.ErrNotHeld) {
			e.Unexpected(key, err, "a second ReleaseTelling returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
	}
	// Clean-up after an unknown outcome knows no token.
	key := e.Key("no token")
	h := a.MustTry(e.Request(key, "", e.Long))
	unknown := h.Hold
	unknown.Token = 0
	if err := h.EndedBy(e, func() error { _, err := t.ReleaseTelling(e.Ctx, unknown); return err }); err != nil {
		e.Unexpected(key, err, "ReleaseTelling of a hold whose token is not known returned %s; expected no error", engine.Outcome(err))
	}
	watchesAreFreed(e, a, t, theirs)
	if !e.Claimed.EndsWithSession { // whose session keeps it
		key := e.Key("expired")
		h := a.MustTry(e.Request(key, "", e.TTL))
		e.Expire(h)
		_, err := t.ReleaseTelling(e.Ctx, h.Hold)
		e.Is(key, err, "ReleaseTelling of a hold that has run out", backend.ErrNotHeld)
	}
}

// judgeSignals looks at the signals of a release to clients of which each watches the key once.
// That one does not come is for other rules.
func judgeSignals(e *engine.Env, key string, signals []<-chan backend.Hint) {
	late := time.NewTimer(e.Slack())
	defer late.Stop()
	for _, hints := range signals {
		select {
		case hint := <-hints:
			if hint.Watchers != 0 && hint.Watchers != len(signals) {
				e.Failf(key, "a signal tells of %d clients that watch the key; expected %d, or 0 for unknown", hint.Watchers, len(signals))
			}
		case <-late.C:
			return
		}
	}
}

// watchesAreFreed asks releases who still watches a key that another client has ceased to
// watch.
func watchesAreFreed(e *engine.Env, a *engine.BackendClient, t backend.ReleaseTeller, theirs backend.Watcher) {
	key := e.Key("another client has ceased to watch")
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	for range 3 {
		if _, err := theirs.Watch(ctx, key); err != nil {
			e.UnexpectedFatal(key, err, "Watch returned %s", engine.Outcome(err))
		}
	}
	cancel()
	for end := time.Now().Add(e.Slack()); ; e.Pause(20 * time.Millisecond) {
		h, others := a.MustTry(e.Request(key, "", e.Long)), 0
		err := h.EndedBy(e, func() (err error) { others, err = t.ReleaseTelling(e.Ctx, h.Hold); return err })
		switch {
		case err != nil:
			e.UnexpectedFatal(key, err, "ReleaseTelling returned %s; expected no error", engine.Outcome(err))
		case others <= 0:
			return
		case time.Now().After(end):
			e.Overduef(key, "the release tells of %d other clients %s after the contexts of all watches had ended; expected the watches to end with them", others, e.Slack())
			return
		}
	}
}
