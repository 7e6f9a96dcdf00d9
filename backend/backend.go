package backend

import (
	"context"
	"fmt"
	"time"
)

// Backend is what a lock server can do, as atomic steps. The package comment
// has the rules on repeats, time and outcomes that every method follows.
//
// All methods are safe for concurrent use. None is called after Close. The context
// of a call may go on after the call has returned, by which time a backend should be
// through with it: what it leaves behind must not wait for that context's end.
type Backend interface {
	// Try asks the server once for the key. It grants when the key is free, when
	// the last hold on it has expired, when req.Owner is not empty and owns the
	// record, or when req.ID already holds it. Otherwise it returns an error that
	// matches [ErrHeld], as a [*HeldError] with what the server knows of the
	// holder. It never waits for a holder and leaves nothing behind when it
	// refuses. An owner with [MaxHolds] holds gets [ErrTooManyHolds].
	//
	// A grant whose caller was told an error must end by itself within req.TTL,
	// even if the process and its session live on.
	Try(ctx context.Context, req Request) (Grant, error)

	// Renew gives the hold a full hold.TTL from now, and only if it still exists:
	// a hold that has expired or was removed is never re-created, even if nobody
	// else has taken the key, and the answer is an error matching [ErrNotHeld]
	// (better: [ErrTakenOver], [ErrExpired] or [ErrSessionLost] where the server
	// can tell). Success with a Validity whose For is zero means "still held, not
	// extended". An error matching [ErrUnsupported] means that this backend cannot
	// renew.
	Renew(ctx context.Context, hold Hold) (Validity, error)

	// Release ends the hold, and nothing but it. It returns an error matching
	// [ErrNotHeld] when the server has no such hold. It is called at least once
	// for every grant, for lost holds and for acquisitions of unknown outcome
	// too, so a backend may drop what it keeps per acquisition here. It may be
	// called again after an unknown outcome.
	Release(ctx context.Context, hold Hold) error

	// Guarantees says what this backend promises, as data. It does no I/O and
	// always returns the same value. Its lists are the caller's own.
	Guarantees() Guarantees

	// Close frees what the backend opened itself, and nothing that its caller
	// passed in. Holds have been released before.
	Close() error
}

// Request asks for one hold. Printing it, also as JSON, shows no secret.
type Request struct {
	// Key has passed [ValidateKey].
	Key string
	// ID names this acquisition. It is a secret: who knows it can release.
	ID ID `json:"-"`
	// Owner is the explicit owner that may hold the key several times at once,
	// or empty. It is a secret, for the same reason.
	Owner string `json:"-"`
	// TTL has passed [Guarantees.CheckTTL].
	TTL time.Duration
	// Holder is stored beside the record for those who are refused.
	Holder Holder
	// Renewed says that the lock package renews the hold until it is released or
	// lost, and then releases it until that is confirmed. Such a hold may live on a
	// session that holds of the client share. Without it the hold must end by itself
	// when its TTL has passed and nobody has called Renew, whatever the client does;
	// a backend whose holds always expire by themselves ignores the field.
	Renewed bool
}

// Format prints the request for people, with every verb in the same way.
func (r Request) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "request for %q with the TTL %s", r.Key, r.TTL)
}

// Hold names the hold that a request was granted, or may have been granted. Printing it,
// also as JSON, shows no secret.
type Hold struct {
	Key   string
	ID    ID     `json:"-"`
	Owner string `json:"-"`
	TTL   time.Duration
	// Token is zero when the outcome of the request is unknown.
	Token uint64
}

// Format prints the hold for people, with every verb in the same way.
func (h Hold) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "hold of %q with the token %d", h.Key, h.Token)
}

// HoldOf is the hold that the request asks for.
func HoldOf(req Request) Hold {
	return Hold{Key: req.Key, ID: req.ID, Owner: req.Owner, TTL: req.TTL}
}

// Grant is the answer to a request that was granted.
type Grant struct {
	// Token is the fencing token: strictly increasing per key over grants of the
	// outermost hold, the same for every hold of one owner at a time, and zero
	// where the backend has none.
	Token uint64
	// Holds counts the owner's unexpired holds, this one included.
	Holds int
	// MayArrive says that an earlier request of the acquisition has no answer and may
	// still reach the server: when the hold has ended, it could be granted again. So
	// Release is called a few times more within a TTL from the end on.
	MayArrive bool
	// Validity bounds the hold on the backend's clock.
	Validity
}

// Validity says until when a hold is certain without another renewal.
type Validity struct {
	// Sent was read on the backend's clock just before the request that decided
	// was sent. For sessions, queues and row locks that is not the start of the
	// call. In answers to Try and Renew the lock package counts from the earlier of
	// Sent and the instant at which it made the call.
	Sent Instant
	// For is how long after Sent the hold is safe, the drift allowance already
	// subtracted ([ValidFor]). Zero in the answer to Renew means "not extended".
	For time.Duration
}

// Until is the instant at which the hold stops being certain.
func (v Validity) Until() Instant { return v.Sent.Add(v.For) }

// ValidFor is the time for which a lease with the given server-side TTL may be
// trusted: the TTL less a drift allowance of one percent and 2 ms, the example
// values of the Redis page on distributed locks.
func ValidFor(ttl time.Duration) time.Duration {
	return ttl - (ttl/100 + 2*time.Millisecond)
}
