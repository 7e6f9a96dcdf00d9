package rules

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// calmPause is between two requests of a waiter on average. Polling after 15 ms at
// first and less often later, or every 20 ms for good, is calm enough; a loop without
// a pause is not, on a slow machine either. So few requests as calmLeast are always
// calm.
const (
	calmPause = 20 * time.Millisecond
	calmLeast = 20
)

func waitIsCalm(e *engine.Env) {
	const window = time.Second
	holder := e.Locker()
	e.Together(
		func() {
			a, c := e.Faulty()
			countWait(e, a, c, nil, holder, "polling", plain, false, faultlock.Pass(), "somebody held the key, and nothing told of its release", window)
		},
		func() {
			a, c, watches := e.FaultyWatched()
			countWait(e, a, c, watches, holder, "waiting", plain, false, faultlock.Pass(), "somebody held the key", window)
		},
		func() {
			eachKind(e, optionKinds(e, holder), func(k kind) {
				a, c, watches := e.FaultyWatched()
				countWait(e, a, c, watches, holder, "waiting with "+k.name, k, false, faultlock.Pass(), "somebody held the key", window)
			})
		},
		func() {
			a, c, watches := e.FaultyWatched()
			countWait(e, a, c, watches, holder, "waiting with a deadline", plain, true, faultlock.Pass(), "somebody held the key", window)
		},
		func() {
			a, c := e.Faulty()
			countWait(e, a, c, nil, holder, "unreachable", plain, false, faultlock.FailBefore(), "the server refused connections", window)
		},
	)
}

// countWait has a wait for a held key, and counts its requests.
func countWait(e *engine.Env, a *engine.Client, c *faultlock.Faults, watches *engine.Watches, holder *engine.Client, name string, k kind, timed bool, f faultlock.Fault, why string, window time.Duration) {
	key := e.Key("%s", name)
	h := holder.MustTry(key)
	c.All(f)
	ctx, cancel := e.Ctx, context.CancelFunc(func() {})
	if timed {
		ctx, cancel = context.WithTimeout(ctx, time.Hour)
	}
	defer cancel()
	w := a.AcquiringOn(ctx, key, e.Long, k.opts...)
	<-w.Begun
	// Waiting for its turns here, too, the case learns how fast this machine is now.
	begun, turns := time.Now(), 0
	for time.Since(begun) < window {
		e.Pause(calmPause)
		turns++
	}
	// A signal may be spurious, and has the waiter ask. So has the end of a watch, and again
	// once the next watch is in force. One new watch in a pause is calm, too.
	n, most := engine.Requests(c, key, sending...), max(turns, calmLeast)+c.Calls(faultlock.OpHint, key)
	if watches != nil {
		most += 3 * min(watches.Broken(key), turns)
	}
	if n > most {
		e.Failf(key, "a waiter (%s) sent %d requests in %s, while %s; expected at most %d: one every %s, one for each signal, and three for each watch that broke",
			name, n, time.Since(begun).Round(time.Millisecond), why, most, calmPause)
	}
	e.Notef("%s: %d requests in %s", name, n, time.Since(begun).Round(time.Millisecond))
	c.Heal()
	h.MustRelease()
	w.MustGet(e, key, e.WaitBound(), "the key was released").MustRelease()
}

func waiterPolls(e *engine.Env) {
	optional[backend.Watcher](e.Backend(), "Watcher")
	holder := e.Locker()
	all := append([]kind{plain, plain}, optionKinds(e, holder)...)
	e.Each(len(all), func(i int) {
		a, c := e.FaultyWhole()
		key := e.Key("%d", i)
		c.All(faultlock.Drop(), faultlock.OpHint)
		h := holder.MustTry(key)
		w := a.Acquiring(key, all[i].opts...)
		e.Settle()
		h.MustRelease()
		w.MustGet(e, key, e.WaitBound(), "the key was released; the signal of it was lost on its way to a waiter with "+all[i].name+", as signals may be").MustRelease()
		if c.Calls(faultlock.OpHint, key) == 0 {
			e.Notef("inconclusive: no signal came that could be lost")
		}
	})
}
