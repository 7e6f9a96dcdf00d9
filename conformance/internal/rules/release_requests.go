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

// sending are the operations that send something for a key.
var sending = []faultlock.Op{
	faultlock.OpTry, faultlock.OpRenew, faultlock.OpRelease, faultlock.OpEnqueue, faultlock.OpWait, faultlock.OpWithdraw,
	faultlock.OpWatch, faultlock.OpHandOver, faultlock.OpInspect, faultlock.OpForceRelease,
}

// arriveLate reports whether the backend says of a grant that an earlier request may still
// arrive, though nothing disturbs it. Releases are then repeated for a TTL.
func arriveLate(e *engine.Env) bool {
	if e.OpenBackend == nil {
		return false
	}
	key := e.Key("undisturbed")
	h := e.Backend().MustTry(e.Request(key, "", e.Long))
	defer e.MustGiveBack(h, key, "")
	return h.Answer.MayArrive
}

func releaseEndsRequests(e *engine.Env) {
	repeated := arriveLate(e)
	e.Each(2, func(i int) {
		a, c := e.Faulty()
		key, what, ops := e.Key("released"), "release", sending
		if repeated {
			ops = []faultlock.Op{faultlock.OpRenew, faultlock.OpTry}
		}
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
		before := engine.Requests(c, key, ops...)
		e.Log.Note("suite", key, fmt.Sprintf("from here on no request for the key is expected; there were %d", before))
		e.Pause(e.TTL + e.TTL/4)
		late := engine.Requests(c, key, ops...) - before
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

// releaseTwiceSendsNothing releases leases again whose release has succeeded, with contexts
// that live and with such as have ended.
func releaseTwiceSendsNothing(e *engine.Env) {
	if arriveLate(e) {
		e.Skipf("the backend says of each grant that an earlier request may still arrive, so that releases are repeated in the background")
	}
	cancelled, cancel := context.WithCancel(e.Ctx)
	cancel()
	past, cancelPast := context.WithDeadline(e.Ctx, time.Now().Add(-time.Hour))
	defer cancelPast()
	contexts := []struct {
		name string
		ctx  context.Context
	}{{"a cancelled context", cancelled}, {"a context whose deadline has passed", past}}
	e.EachFaultSite(func(via engine.FaultSite) {
		a, c := e.FaultyAt(via, nil)
		eachLease(e, a, via.Name, func(h *engine.Hold) {
			h.MustRelease()
			before := engine.Requests(c, h.Key, sending...)
			e.Log.Note("suite", h.Key, fmt.Sprintf("from here on no request for the key is expected; there were %d", before))
			living := h.Release(e.Ctx)
			e.Is(h.Key, living, "the second Release", lock.ErrNotHeld)
			for _, with := range contexts {
				if err := h.Release(with.ctx); !sameKinds(living, err) {
					e.Unexpected(h.Key, err, "another Release, with %s, returned %s; with a context that lives it was %s, and the same kind is expected",
						with.name, engine.Outcome(err), engine.Outcome(living))
				}
			}
			e.Settle() // for what is sent in the background
			if more := engine.Requests(c, h.Key, sending...) - before; more > 0 {
				e.Failf(h.Key, "requests for the key that were sent by further releases of a lease that had been released: %d; expected none", more)
			}
		})
	})
}

// sameKinds reports whether the errors mean the same to a caller.
func sameKinds(a, b error) bool {
	if a == nil || b == nil {
		return a == b
	}
	for _, k := range errorKinds {
		if errors.Is(a, k) != errors.Is(b, k) {
			return false
		}
	}
	return true
}
