package otellock

import (
	"context"
	"errors"

	"github.com/mortiselock/lock"
)

// failures name the errors. The first that matches counts: a wait that ended because its
// context did matches what kept it waiting too, which says more.
var failures = []struct {
	err  error
	name string
}{
	{lock.ErrClosed, "closed"},
	{lock.ErrTooManyHolds, "too_many_holds"},
	{lock.ErrMaxHold, "max_hold"},
	{lock.ErrSessionLost, "session_lost"},
	{lock.ErrTakenOver, "taken_over"},
	{lock.ErrExpired, "expired"},
	{lock.ErrNotHeld, "not_held"},
	{lock.ErrPermanent, "permanent"},
	{lock.ErrUnavailable, "unavailable"},
	{lock.ErrHeld, "held"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "timeout"},
	{lock.ErrOutcomeUnknown, "unknown"},
}

// failure returns the name of an error, and an empty one for nil.
func failure(err error) string {
	if err == nil {
		return ""
	}
	for _, f := range failures {
		if errors.Is(err, f.err) {
			return f.name
		}
	}
	return "_OTHER" // as in the semantic conventions
}

// outcome is how an acquisition has ended.
func outcome(err error) string {
	if err == nil {
		return "granted"
	}
	return failure(err)
}

// Outcomes of a release.
const (
	confirmed   = "confirmed"
	unconfirmed = "unknown"
	closed      = "closed"
)

// released is how a release has ended.
func released(err error) string {
	switch {
	case err == nil:
		return confirmed
	case errors.Is(err, lock.ErrClosed):
		return closed
	}
	return unconfirmed
}
