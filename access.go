package lock

import (
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/reentry"
	"github.com/mortiselock/lock/internal/wait"
)

// HoldOf returns the backend of a lease and the hold that the server knows, and
// false when the lease is not one of a Locker made by [New] or [Open], or when the
// server's hold has already ended. It is for packages that do something in the same
// store only while the lease is held, such as the guarded writes of the backends;
// they check the hold on the server again in the same atomic step.
//
// Where explicit owners are counted on this side ([backend.ReentrancyClient]), the
// hold is the one on the server beside which the others live, and its ID is not
// that of the lease. The ID is a secret: who knows it can release. HoldOf does no
// I/O and is safe for concurrent use.
func HoldOf(l Lease) (backend.Backend, backend.Hold, bool) {
	own, ok := l.(*wait.Lease)
	if !ok {
		return nil, backend.Hold{}, false
	}
	b, hold := own.Backend(), *own.Hold()
	if r, counted := b.(*reentry.Counter); counted {
		b = r.Backend
		if hold.Owner != "" {
			hold, ok = r.ServerHold(hold)
		}
	}
	if !ok {
		return nil, backend.Hold{}, false
	}
	return b, hold, true
}

// RenewsItself reports whether the lease is one of a Locker made by [New] or [Open]
// and was acquired without [WithoutRenewal], so that what needs more time may renew
// it unasked. It does no I/O and is safe for concurrent use.
func RenewsItself(l Lease) bool {
	own, ok := l.(*wait.Lease)
	return ok && own.RenewsItself()
}
