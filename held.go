package lock

import (
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/reentry"
	"github.com/mortiselock/lock/internal/wait"
)

// Held is what a lease of a [Client] is on the server.
type Held[B any] struct {
	// Backend is that of the Client, as [backend.As] finds it.
	Backend B
	// Hold is the hold that the server knows. Where explicit owners are counted on this
	// side ([backend.ReentrancyClient]), the others of its owner live beside it, and its
	// ID is not that of the lease. The ID is a secret: who knows it can release.
	Hold backend.Hold
	// Renewed says that the lease renews itself, since it was acquired without
	// [WithoutRenewal]: what needs more time may renew it unasked.
	Renewed bool
}

// HeldOn returns what the lease is on a server whose backend is a B. It is for packages
// that do something in the same store only while the lease is held, such as the guarded
// writes of the backends. They check the hold on the server again, in the same atomic
// step.
//
// The error matches ErrInvalid when the lease is nil, ErrUnsupported when it is not one
// of a Client on a B, and ErrNotHeld when its hold is known to have ended on the server.
// HeldOn does no I/O and is safe for concurrent use.
//
// Of a lease in two stores ([Both]) it is that in the store which is a B. Where both are,
// it can't be known which one is meant, and the error matches ErrUnsupported.
func HeldOn[B any](lease Lease) (Held[B], error) {
	if lease == nil {
		return Held[B]{}, fmt.Errorf("%w: the lease is nil", ErrInvalid)
	}
	if pair, ok := lease.(*pairLease); ok {
		return heldOnOne[B](pair)
	}
	own, ok := lease.(*wait.Lease)
	if !ok {
		return Held[B]{}, fmt.Errorf("%w: the lease of %q is a %T, and not one of a lock.Client", ErrUnsupported, lease.Key(), lease)
	}
	b, hold, held := own.Backend(), *own.Hold(), true
	if r, counted := b.(*reentry.Counter); counted {
		b = r.Backend
		if hold.Owner != "" {
			hold, held = r.ServerHold(hold)
		}
	}
	as, ok := backend.As[B](b)
	switch {
	case !ok:
		return Held[B]{}, fmt.Errorf("%w: the lease of %q is on another backend: %s", ErrUnsupported, own.Key(), b.Guarantees().Name)
	case !held:
		return Held[B]{}, fmt.Errorf("%w: the hold of %q has ended on the server", ErrNotHeld, own.Key())
	}
	return Held[B]{as, hold, own.RenewsItself()}, nil
}

// heldOnOne is HeldOn for a lease in two stores.
func heldOnOne[B any](pair *pairLease) (Held[B], error) {
	old, errOld := HeldOn[B](pair.sides[oldSide])
	next, errNext := HeldOn[B](pair.sides[newSide])
	switch {
	case errors.Is(errOld, ErrUnsupported):
		return next, errNext
	case errors.Is(errNext, ErrUnsupported):
		return old, errOld
	}
	return Held[B]{}, fmt.Errorf("%w: the lease of %q is in two stores of one kind; write under the lease of one store, or move to another kind of store first", ErrUnsupported, pair.Key())
}
