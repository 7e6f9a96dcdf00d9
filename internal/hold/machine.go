package hold

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

// machine is the life of one hold as a pure state machine: what happened and when
// goes in, what to do comes out. It has no goroutine, no clock and no I/O, so
// that any order of events can be tested in virtual time.
//
//	        release              settled
//	held ------------> releasing ---------> settled
//	 | ^ |                 | ^
//	 | | | renewed         +-+ unknown
//	 | +-+
//	 | deadline, limit, notice of loss, close
//	 v
//	lost
//
// Two rules make it safe. The deadline moves only forward and only while the
// hold is in phase held; and an event that arrives at or after the deadline finds
// the hold lost, whatever the event says.
type machine struct {
	ttl      time.Duration
	deadline backend.Instant // until when the hold is certain
	limit    backend.Instant // end of the maximum hold, or never
	renewAt  backend.Instant // when to send the next renewal, or never
	sentAt   backend.Instant // when the last renewal was sent
	phase    phase
	cause    error // of the loss
}

type phase uint8

const (
	phaseHeld phase = iota
	phaseReleasing
	phaseSettled
	phaseLost
)

// action is what the driver of a hold has to do after an event.
type action uint8

const (
	actEnd     action = 1 << iota // end the lease's context with the hold's cause
	actRenew                      // send a renewal
	actCleanUp                    // tell the server in the background that the hold is over
)

// renewalPeriod is the time from the sending of one confirmed renewal to the
// next: a third of the TTL, less up to a tenth of it so that many leases spread
// out. roll is uniform in [0, 1). A confirmation that is worth much less than the
// TTL is renewed when half of its worth is used up.
func renewalPeriod(ttl, worth time.Duration, roll float64) time.Duration {
	third := float64(ttl) / 3
	return min(time.Duration(third-third/10*roll), worth/2)
}

// retryPeriod is the time after which a renewal that was not confirmed is sent
// again.
func retryPeriod(ttl time.Duration, roll float64) time.Duration {
	sixth := float64(ttl) / 6
	return time.Duration(sixth - sixth/4*roll)
}

// newMachine begins the life of a grant.
func newMachine(ttl time.Duration, v backend.Validity, now backend.Instant, renew bool, maxHold time.Duration, roll float64) machine {
	h := machine{ttl: ttl, deadline: v.Until(), limit: never, renewAt: never, sentAt: v.Sent}
	if renew {
		h.renewAt = v.Sent.Add(renewalPeriod(ttl, v.For, roll))
	}
	if maxHold > 0 {
		h.limit = now.Add(maxHold)
	}
	return h
}

// wake is the next instant at which tick has something to do.
func (h *machine) wake() backend.Instant { return min(h.ends(), h.renewal()) }

// ends is until when the hold lasts if no further renewal is confirmed, or never when
// it is over.
func (h *machine) ends() backend.Instant {
	if h.phase != phaseHeld {
		return never
	}
	return min(h.deadline, h.limit)
}

// renewal is when the next renewal is to be sent, or never.
func (h *machine) renewal() backend.Instant {
	if h.phase != phaseHeld {
		return never
	}
	return h.renewAt
}

// tick is the passing of time.
func (h *machine) tick(now backend.Instant, roll float64) action {
	if h.phase != phaseHeld {
		return 0
	}
	switch {
	case now >= h.limit && h.limit <= h.deadline:
		return h.lose(backend.ErrMaxHold)
	case now >= h.deadline:
		return h.lose(backend.ErrExpired)
	case now >= h.renewAt:
		// A further renewal goes out if this one is not answered in time, on
		// another connection perhaps. Renewals are idempotent.
		h.renewAt, h.sentAt = now.Add(retryPeriod(h.ttl, roll)), now
		return actRenew
	}
	return 0
}

// renewed is a renewal that the server confirmed. A validity of zero length says
// that the hold still exists but was not extended.
func (h *machine) renewed(now backend.Instant, v backend.Validity, roll float64) action {
	if h.phase != phaseHeld {
		return 0
	}
	if now >= h.deadline {
		return h.lose(backend.ErrExpired)
	}
	if v.For <= 0 {
		return 0
	}
	h.deadline = max(h.deadline, v.Until())
	if h.renewAt != never {
		next := max(v.Sent.Add(renewalPeriod(h.ttl, v.For, roll)), now)
		if v.Sent < h.sentAt {
			// A later one is under way, whose turn to be sent again will come. Were the
			// next sent for this answer too, the renewals of a slow server would add up.
			next = max(next, h.renewAt)
		}
		h.renewAt = next
	}
	return 0
}

// failed is a renewal whose outcome is unknown. It is no loss: the renewal is
// sent again, and the deadline stands.
func (h *machine) failed(now backend.Instant, roll float64) action {
	if h.phase != phaseHeld {
		return 0
	}
	if now >= h.deadline {
		return h.lose(backend.ErrExpired)
	}
	if h.renewAt != never {
		h.renewAt = min(h.renewAt, now.Add(retryPeriod(h.ttl, roll)/2))
	}
	return 0
}

// gone is the server's word that the hold no longer exists.
func (h *machine) gone(now backend.Instant, cause error) action {
	if h.phase != phaseHeld {
		return 0
	}
	if now >= h.deadline {
		cause = backend.ErrExpired
	}
	return h.lose(cause)
}

// close is the end of the Locker.
func (h *machine) close() action {
	if h.phase != phaseHeld {
		return 0
	}
	return h.lose(backend.ErrClosed)
}

func (h *machine) lose(cause error) action {
	h.phase, h.cause = phaseLost, cause
	return actEnd | actCleanUp
}

// release is the holder's wish to end the hold. It is possible until the
// deadline; later the hold is lost.
func (h *machine) release(now backend.Instant) action {
	if h.phase != phaseHeld {
		return 0
	}
	if now >= h.deadline {
		return h.lose(backend.ErrExpired)
	}
	h.phase, h.cause = phaseReleasing, ErrReleased
	return actEnd
}

// settle is the server's word that the release took effect, or that there was
// nothing left to release.
func (h *machine) settle() {
	if h.phase == phaseReleasing {
		h.phase = phaseSettled
	}
}
