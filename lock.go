// Package lock gives programs that run on several machines locks that they
// share. One small interface, [Locker], stands for all of them. [Client]
// implements it on every backend; the backend is chosen by a URL.
//
//	locker, err := lock.Open(ctx, "redis://localhost:6379", nil)
//	...
//	err = lock.Do(ctx, locker, "nightly-report", func(ctx context.Context, lease lock.Lease) error {
//		return report(ctx)
//	})
//
// [Do] waits for the key, gives the work a context that ends with that of the caller and
// with the hold, releases the key, and returns what the release says. [Locker] has the
// single steps.
//
// # A hold is a lease
//
// A lease ends by itself when it is not renewed, so that a crashed holder does
// not keep others out. Renewal is automatic, every third of the TTL. When
// renewals fail, [Lease.Context] ends at the last confirmed deadline, which is
// counted from the instant before the confirming request was sent; nobody else
// is granted the key before that. One failed renewal is not a loss.
//
// The context given to Acquire bounds the waiting only. The hold ends with
// Release, with the loss of the lease, or with Close of the Locker.
//
// # What no lock can promise
//
// A process that stops between checking its lease and acting can still act
// late. Pass [Lease.Token] to whatever is being protected and let it refuse a
// token that is smaller than one it has already seen, where that matters.
//
// # Errors
//
// Errors are matched with errors.Is: [ErrHeld], [ErrNotHeld], [ErrLost],
// [ErrOutcomeUnknown], [ErrUnavailable], [ErrPermanent], [ErrInvalid],
// [ErrUnsupported], [ErrClosed]. They mean the same on every backend.
package lock

import (
	"context"
	"time"
)

// Locker hands out leases on keys. It is what functions that use locks take: [Client]
// implements it, and so do locks of others. It is safe for concurrent use.
//
// Two acquisitions of one key exclude each other, in one process too, unless
// both name the same owner ([WithOwner]).
type Locker interface {
	// Acquire waits until the key is held or ctx ends. Acquisitions through one
	// Locker are served first come, first served. Those of each owner ([WithOwner]) wait
	// apart from all others, and may come before them, who may be waiting for this very
	// owner.
	//
	// When ctx ends while somebody else holds the key, the error matches both the
	// context's error and ErrHeld. While the server cannot be reached, Acquire
	// keeps trying until ctx ends, and the error then matches ErrUnavailable too.
	// A refusal that waiting does not cure (ErrPermanent, ErrInvalid,
	// ErrUnsupported, ErrClosed) ends the wait at once. A caller that gets an
	// error holds nothing, and what its last request may have left on the server
	// is cleaned up in the background.
	Acquire(ctx context.Context, key string, opts ...Option) (Lease, error)

	// TryAcquire asks the server once and does not wait for a holder: it returns
	// an error matching ErrHeld. It may overtake callers of Acquire. An error
	// that matches ErrOutcomeUnknown means that the answer did not arrive; the
	// possible grant is removed in the background.
	TryAcquire(ctx context.Context, key string, opts ...Option) (Lease, error)

	// Close ends every wait and every lease with ErrClosed and releases what is
	// held, in at most five seconds. Without a reachable server what is left ends
	// within its TTL. A second Close waits for the first and does nothing. When Close
	// has returned, neither logger nor observer is called any more.
	Close() error
}

// Lease is one hold of one key. It is safe for concurrent use.
type Lease interface {
	// Key is the key that was acquired.
	Key() string

	// Token is the fencing token: strictly increasing per key from grant to
	// grant, whatever happens to the holders in between, and 0 where the backend
	// has none. Tokens of different backends don't compare.
	Token() uint64

	// Context ends when the hold ends. context.Cause then matches ErrReleased,
	// ErrClosed, or ErrLost with its reason (ErrExpired, ErrTakenOver,
	// ErrSessionLost, ErrMaxHold). It ends by the deadline at the latest, by a
	// local timer that no hanging call can delay. Its Err method compares
	// the clock with the deadline, so that after a pause the first look already
	// tells. It carries no values and reading it does no I/O. It does not end with
	// the context given to Acquire; that of [Do] ends with both.
	Context() context.Context

	// Deadline is until when the hold is certain without another renewal,
	// measured on a clock that counts suspend. The second result is false when
	// it is unknown. When the hold has ended, it is not in the future.
	Deadline() (time.Time, bool)

	// Renew extends the lease by its full TTL from now. Leases renew themselves
	// unless WithoutRenewal was given. The error matches ErrNotHeld when the
	// hold has ended, ErrUnsupported when the backend cannot renew; after any
	// other error the hold goes on until its deadline.
	Renew(ctx context.Context) error

	// Release ends the hold: renewal stops and Context ends first, then the
	// server is told. It works with a context that has already ended, and is
	// bounded in time. The error matches ErrLost when the hold had ended before,
	// so that exclusion was not kept for the whole time, and ErrOutcomeUnknown
	// when the server did not confirm: the release is then repeated in the
	// background until the lease would have expired. A second Release of a
	// settled lease returns ErrNotHeld and sends nothing, whatever its context. Of
	// several at once, one returns what became of the hold, and the others ErrNotHeld, or
	// ErrOutcomeUnknown where their context ends first.
	Release(ctx context.Context) error
}

// DefaultTTL is the TTL of a lease when nothing else is said.
const DefaultTTL = 15 * time.Second
