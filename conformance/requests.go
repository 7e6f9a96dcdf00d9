package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
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

func releaseEndsRequests(e *env) {
	e.each(2, func(i int) {
		a, c := e.faulty()
		key, what, ops := e.key("released"), "release", sending
		if i == 1 {
			// A hold that ended by itself is cleaned up, and may still send releases.
			key, what, ops = e.key("max-hold"), "maximum hold", []faultlock.Op{faultlock.OpRenew, faultlock.OpTry}
		}
		var more []lock.Option
		if i == 1 {
			more = append(more, lock.WithMaxHold(e.ttl/2))
		}
		h, err := a.tryFor(e.ctx, key, e.ttl, more...)
		switch {
		case i == 1 && errors.Is(err, lock.ErrUnsupported):
			return
		case err != nil:
			e.unexpectedFatal(key, err, "TryAcquire on a free key returned %s; expected a lease", outcome(err))
		}
		if i == 1 {
			if !e.within(e.ttl/2+e.slack(), h.lease.Context().Done()) {
				e.overdueFatalf(key, "the lease had not ended %s after its maximum hold", e.slack())
			}
		} else {
			e.pause(e.ttl * 3 / 4) // for two renewals
			h.mustRelease()
		}
		e.pause(e.ttl / 10) // what was under way
		before := requests(c, key, ops...)
		e.hist.note("suite", key, fmt.Sprintf("from here on no request for the key is expected; there were %d", before))
		e.pause(e.ttl + e.ttl/4)
		late := requests(c, key, ops...) - before
		report := e.failf
		if late <= 2 {
			report = e.latef // a slow machine may have kept a request, or its two parts, for so long
		}
		if late > 0 {
			report(key, "requests for the key that were sent between %s and %s after the end of its lease by its %s: %d; expected none. Its TTL was %s",
				e.ttl/10, e.ttl+e.ttl/4+e.ttl/10, what, late, e.ttl)
		}
	})
}

func leaseIsLocal(e *env) {
	a, f := e.disturbed()
	key := e.key("a")
	h := a.mustTry(key)
	before := requests(f, key, sending...)
	f.All(faultlock.HangBefore())
	for range 2 { // beside a server that hangs, and one that answers
		read := make(chan struct{})
		wait := e.start(func() {
			defer close(read)
			for range 1000 {
				_, _ = h.lease.Key(), h.lease.Token()
				_, _ = h.lease.Deadline()
				_, _ = h.lease.Context().Deadline()
				_ = context.Cause(h.lease.Context())
			}
		})
		if !e.within(e.slack(), read) {
			e.overduef(key, "reading a lease a thousand times had not ended after %s; expected it to wait for nothing", e.slack())
		}
		f.Heal()
		wait()
	}
	if n := requests(f, key, sending...) - before; n > 10 { // it may have been renewed
		e.failf(key, "reading a lease two thousand times sent %d requests for its key; expected none, so that a holder can look at it as often as it likes", n)
	}
	h.mustRelease()
}

func waitIsCalm(e *env) {
	const window = time.Second
	holder := e.locker()
	e.together(
		func() {
			a, c := e.faulty()
			e.countWait(a, c, holder, "polling", faultlock.Pass(), "somebody held the key, and nothing told of its release", window)
		},
		func() {
			a, c := e.disturbed()
			e.countWait(a, c, holder, "waiting", faultlock.Pass(), "somebody held the key", window)
		},
		func() {
			a, c := e.faulty()
			e.countWait(a, c, holder, "unreachable", faultlock.FailBefore(), "the server refused connections", window)
		},
	)
}

// countWait has a wait for a held key, and counts its requests.
func (e *env) countWait(a *client, c *faultlock.Faults, holder *client, name string, f faultlock.Fault, why string, window time.Duration) {
	key := e.key("%s", name)
	h := holder.mustTry(key)
	c.All(f)
	w := a.acquiring(key)
	<-w.begun
	// Waiting for its turns here, too, the case learns how fast this machine is now.
	begun, turns := time.Now(), 0
	for time.Since(begun) < window {
		e.pause(calmPause)
		turns++
	}
	n, most := requests(c, key, sending...), max(turns, calmLeast)
	if n > most {
		e.failf(key, "a waiter sent %d requests in %s, while %s; expected at most %d, one every %s",
			n, time.Since(begun).Round(time.Millisecond), why, most, calmPause)
	}
	e.notef("%s: %d requests in %s", name, n, time.Since(begun).Round(time.Millisecond))
	c.Heal()
	h.mustRelease()
	w.mustGet(e, key, e.waitBound(), "the key was released").mustRelease()
}

func waiterPolls(e *env) {
	optional[backend.Watcher](e.backend(), "Watcher")
	holder := e.locker()
	e.each(2, func(i int) {
		a, c := e.disturbed()
		key := e.key("%d", i)
		c.All(faultlock.Drop(), faultlock.OpHint)
		h := holder.mustTry(key)
		w := a.acquiring(key)
		e.settle()
		h.mustRelease()
		w.mustGet(e, key, e.waitBound(), "the key was released; the signal of it was lost on its way, as signals may be").mustRelease()
		if c.Calls(faultlock.OpHint, key) == 0 {
			e.notef("inconclusive: no signal came that could be lost")
		}
	})
}
