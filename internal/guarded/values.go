// Package guarded is how lockctl check gets at the guarded writes of a backend that it
// has opened by URL. Each backend has a form of its own for them; here they all set a
// value. It is for this module alone: programs use what the backends' packages export.
package guarded

import (
	"context"

	"github.com/mortiselock/lock"
)

// Values are one for each key, in the store of the locks. The methods are safe
// for concurrent use.
type Values interface {
	// Write sets the value of the lease's key while the lease is held. Otherwise it
	// changes nothing and returns an error that matches lock.ErrNotHeld. It may end the
	// lease. The lease is one of a Locker on the same store.
	Write(ctx context.Context, lease lock.Lease, value string) error
	// Read returns the value of the key, without any lock; empty when there is none.
	Read(ctx context.Context, key string) (string, error)
	// Remove removes the values and what was made to keep them.
	Remove(ctx context.Context) error
}

// Opener is what Values have where a guarded write takes more than one step.
type Opener interface {
	// Open is Write that calls between after its first step and before its last one.
	Open(ctx context.Context, lease lock.Lease, value string, between func()) error
}

// Keeper is a backend that has guarded writes.
type Keeper interface {
	// GuardedValues makes a place for values that nobody else uses, with the client of
	// the backend, which must stay open until they are removed. ctx bounds the making.
	GuardedValues(ctx context.Context) (Values, error)
}
