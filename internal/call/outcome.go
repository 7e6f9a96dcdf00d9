package call

import (
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

// known are the errors of a backend that say that nothing was applied, or that
// say exactly what was, or that this is not known.
var known = []error{
	backend.ErrHeld, backend.ErrNotHeld, backend.ErrUnavailable, backend.ErrPermanent, backend.ErrInvalid,
	backend.ErrUnsupported, backend.ErrTooManyHolds, backend.ErrOutcomeUnknown, backend.ErrNotSent,
}

// final are the refusals that waiting does not cure.
var final = []error{backend.ErrPermanent, backend.ErrInvalid, backend.ErrUnsupported, backend.ErrTooManyHolds, backend.ErrClosed}

// IsKnown reports whether an error of a backend has a meaning of its own.
func IsKnown(err error) bool { return isAny(err, known) }

// IsDecided reports whether an error says that nothing was applied, or exactly what was.
func IsDecided(err error) bool { return IsKnown(err) && !errors.Is(err, backend.ErrOutcomeUnknown) }

// IsFinal reports whether waiting does not cure what the error tells.
func IsFinal(err error) bool { return isAny(err, final) }

// UnknownUnlessKnown marks an error of a backend that does not say what happened
// as an unknown outcome.
func UnknownUnlessKnown(err error) error {
	if IsKnown(err) {
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, err)
}

func isAny(err error, targets []error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
