package lock

import (
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/hold"
)

// The errors of every backend, matched with errors.Is.
var (
	// ErrHeld: somebody else holds the key. errors.As with a *[HeldError] gives
	// what is known of the holder.
	ErrHeld = backend.ErrHeld
	// ErrNotHeld: there is no such hold: released, expired, or never granted.
	ErrNotHeld = backend.ErrNotHeld
	// ErrLost: the hold ended before it was released. It also matches ErrNotHeld.
	ErrLost = backend.ErrLost
	// ErrExpired: lost, because no renewal was confirmed before the deadline.
	ErrExpired = backend.ErrExpired
	// ErrTakenOver: lost, because the record was removed or replaced.
	ErrTakenOver = backend.ErrTakenOver
	// ErrSessionLost: lost, because the session or connection ended.
	ErrSessionLost = backend.ErrSessionLost
	// ErrMaxHold: lost, because the limit of WithMaxHold was reached.
	ErrMaxHold = backend.ErrMaxHold
	// ErrOutcomeUnknown: the request may or may not have taken effect.
	ErrOutcomeUnknown = backend.ErrOutcomeUnknown
	// ErrUnavailable: the server could not be reached or refuses writes for now.
	ErrUnavailable = backend.ErrUnavailable
	// ErrPermanent: the server refused for a reason that waiting does not cure.
	ErrPermanent = backend.ErrPermanent
	// ErrInvalid: a key, a TTL, an option or a URL is not acceptable; nothing was
	// sent.
	ErrInvalid = backend.ErrInvalid
	// ErrUnsupported: the backend cannot do what was asked; nothing was sent.
	ErrUnsupported = backend.ErrUnsupported
	// ErrTooManyHolds: the owner already has backend.MaxHolds holds on the key.
	ErrTooManyHolds = backend.ErrTooManyHolds
	// ErrClosed: the Locker was closed. It is also the cause of the leases that
	// Close ended. Their Release returns it, or an error that matches ErrNotHeld.
	ErrClosed = backend.ErrClosed

	// ErrReleased is the cause of a lease's context after its Release. It is no
	// loss.
	ErrReleased = hold.ErrReleased
)

// HeldError is a refusal with what the server knows about the holder: key, label,
// host, process, since when, and for how long at most. It matches ErrHeld.
type HeldError = backend.HeldError

// Holder is the public part of a record.
type Holder = backend.Holder
