package rules

import (
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
			countWait(e, a, c, holder, "polling", faultlock.Pass(), "somebody held the key, and nothing told of its release", window)
		},
		func() {
			a, c := e.FaultyWhole()
			countWait(e, a, c, holder, "waiting", faultlock.Pass(), "somebody held the key", window)
		},
		func() {
			a, c := e.Faulty()
			countWait(e, a, c, holder, "unreachable", faultlock.FailBefore(), "the server refused connections", window)
		},
	)
}

// countWait has a wait for a held key, and counts its requests.
func countWait(e *engine.Env, a *engine.Client, c *faultlock.Faults, holder *engine.Client, name string, f faultlock.Fault, why string, window time.Duration) {
	key := e.Key("%s", name)
	h := holder.MustTry(key)
	c.All(f)
	w := a.Acquiring(key)
	<-w.Begun
	// Waiting for its turns here, too, the case learns how fast this machine is now.
	begun, turns := time.Now(), 0
	for time.Since(begun) < window {
		e.Pause(calmPause)
		turns++
	}
	n, most := engine.Requests(c, key, sending...), max(turns, calmLeast)
	if n > most {
		e.Failf(key, "a waiter sent %d requests in %s, while %s; expected at most %d, one every %s",
			n, time.Since(begun).Round(time.Millisecond), why, most, calmPause)
	}
	e.Notef("%s: %d requests in %s", name, n, time.Since(begun).Round(time.Millisecond))
	c.Heal()
	h.MustRelease()
	w.MustGet(e, key, e.WaitBound(), "the key was released").MustRelease()
}

func waiterPolls(e *engine.Env) {
	optional[backend.Watcher](e.Backend(), "Watcher")
	holder := e.Locker()
	e.Each(2, func(i int) {
		a, c := e.FaultyWhole()
		key := e.Key("%d", i)
		c.All(faultlock.Drop(), faultlock.OpHint)
		h := holder.MustTry(key)
		w := a.Acquiring(key)
		e.Settle()
		h.MustRelease()
		w.MustGet(e, key, e.WaitBound(), "the key was released; the signal of it was lost on its way, as signals may be").MustRelease()
		if c.Calls(faultlock.OpHint, key) == 0 {
			e.Notef("inconclusive: no signal came that could be lost")
		}
	})
}
