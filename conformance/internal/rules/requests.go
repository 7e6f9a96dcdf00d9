package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
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

// sending are the operations that send something for a key.
var sending = []faultlock.Op{
	faultlock.OpTry, faultlock.OpRenew, faultlock.OpRelease, faultlock.OpEnqueue, faultlock.OpWait, faultlock.OpWithdraw,
	faultlock.OpWatch, faultlock.OpHandOver, faultlock.OpInspect, faultlock.OpForceRelease,
}

// requests is how many requests of the operations were sent for the key.
func requests(f *faultlock.Faults, key string, ops ...faultlock.Op) (n int) {
	for _, op := range ops {
		n += f.Calls(op, key)
	}
	return n
}

func releaseEndsRequests(e *engine.Env) {
	e.Each(2, func(i int) {
		a, c := e.Faulty()
		key, what, ops := e.Key("released"), "release", sending
		if i == 1 {
			// A hold that ended by itself is cleaned up, and may still send releases.
			key, what, ops = e.Key("max-hold"), "maximum hold", []faultlock.Op{faultlock.OpRenew, faultlock.OpTry}
		}
		var more []lock.Option
		if i == 1 {
			more = append(more, lock.WithMaxHold(e.TTL/2))
		}
		h, err := a.TryFor(e.Ctx, key, e.TTL, more...)
		switch {
		case i == 1 && errors.Is(err, lock.ErrUnsupported):
			return
		case err != nil:
			e.UnexpectedFatal(key, err, "TryAcquire on a free key returned %s; expected a lease", engine.Outcome(err))
		}
		if i == 1 {
			if !e.Within(e.TTL/2+e.Slack(), h.Lease.Context().Done()) {
				e.OverdueFatalf(key, "the lease had not ended %s after its maximum hold", e.Slack())
			}
		} else {
			e.Pause(e.TTL * 3 / 4) // for two renewals
			h.MustRelease()
		}
		e.Pause(e.TTL / 10) // what was under way
		before := requests(c, key, ops...)
		e.Log.Note("suite", key, fmt.Sprintf("from here on no request for the key is expected; there were %d", before))
		e.Pause(e.TTL + e.TTL/4)
		late := requests(c, key, ops...) - before
		report := e.Failf
		if late <= 2 {
			report = e.Latef // a slow machine may have kept a request, or its two parts, for so long
		}
		if late > 0 {
			report(key, "requests for the key that were sent between %s and %s after the end of its lease by its %s: %d; expected none. Its TTL was %s",
				e.TTL/10, e.TTL+e.TTL/4+e.TTL/10, what, late, e.TTL)
		}
	})
}

func leaseIsLocal(e *engine.Env) {
	a, f := e.Disturbed()
	key := e.Key("a")
	h := a.MustTry(key)
	before := requests(f, key, sending...)
	f.All(faultlock.HangBefore())
	for range 2 { // beside a server that hangs, and one that answers
		read := make(chan struct{})
		wait := e.Start(func() {
			defer close(read)
			for range 1000 {
				_, _ = h.Lease.Key(), h.Lease.Token()
				_, _ = h.Lease.Deadline()
				_, _ = h.Lease.Context().Deadline()
				_ = context.Cause(h.Lease.Context())
			}
		})
		if !e.Within(e.Slack(), read) {
			e.Overduef(key, "reading a lease a thousand times had not ended after %s; expected it to wait for nothing", e.Slack())
		}
		f.Heal()
		wait()
	}
	if n := requests(f, key, sending...) - before; n > 10 { // it may have been renewed
		e.Failf(key, "reading a lease two thousand times sent %d requests for its key; expected none, so that a holder can look at it as often as it likes", n)
	}
	h.MustRelease()
}

func waitIsCalm(e *engine.Env) {
	const window = time.Second
	holder := e.Locker()
	e.Together(
		func() {
			a, c := e.Faulty()
			countWait(e, a, c, holder, "polling", faultlock.Pass(), "somebody held the key, and nothing told of its release", window)
		},
		func() {
			a, c := e.Disturbed()
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
	n, most := requests(c, key, sending...), max(turns, calmLeast)
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
		a, c := e.Disturbed()
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
