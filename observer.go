package lock

import (
	"context"
	"log/slog"
	"time"

	"github.com/mortiselock/lock/internal/call"
)

// Observer is told what happens in a [Client], for metrics and traces. Gauges that are
// computed from its events are exact.
//
// Each wait is told once when it begins (EventWaitBegun) and once when it has ended
// (EventWaitEnded), with a grant or without. Begun less ended is who waits now. Each lease is
// told once when it is granted (EventGranted) and once when it has ended: either lost
// (EventLost) or released (EventReleased). Granted less ended is who holds now. A second
// Release tells nothing. With [WithOwner] each lease counts for itself. Each call of Acquire or
// TryAcquire that has asked the server is told once how it has ended: by EventGranted, by
// EventRefused, or by EventWaitEnded with an error. What begins is told before what ends it,
// and what Close ends is told before Close returns. A key that a Release hands to a waiter of
// the same Client is told as released before it is told as granted.
//
// An Observer is called from many goroutines at once, never while a mutex is held. It must not
// panic, and should return quickly: an Acquire, a renewal, a Release or Close waits for
// it. It must not call Close, which waits for it. When Close has returned it is not called
// any more, unless a call of it took longer than the five seconds of Close; such an Observer
// may miss ends. The context is that of the call that caused the event, or one without values
// for events that no call caused. Events contain no secret.
type Observer func(ctx context.Context, e Event)

// EventKind says what happened.
type EventKind uint8

// The kinds of events.
const (
	// EventAttempt: the server was asked for the key, or for a place in its queue and then
	// the key. Duration is how long the answer took, Err is nil for a grant. A key that is
	// handed over is granted without an attempt.
	EventAttempt = EventKind(call.Attempt)
	// EventWaitBegun: Acquire could not have the key at once, and waits. Duration is how
	// long ago it was called.
	EventWaitBegun = EventKind(call.WaitBegun)
	// EventWaitEnded: that wait has ended. Duration is the time since Acquire was called,
	// Err is what Acquire is about to return: nil when it got the key.
	EventWaitEnded = EventKind(call.WaitEnded)
	// EventGranted: the caller of Acquire or TryAcquire is about to get a lease. Duration is
	// the time since the call.
	EventGranted = EventKind(call.Granted)
	// EventRenewed: the server has confirmed a renewal. Duration is how long it took.
	EventRenewed = EventKind(call.Renewed)
	// EventRenewalFailed: a renewal was not confirmed, for the reason Err. That is no loss:
	// the lease goes on until its deadline, unless EventLost tells otherwise. Duration is
	// how long it took. A renewal that ends after its lease is told all the same.
	EventRenewalFailed = EventKind(call.RenewalFailed)
	// EventLost: the lease has ended before its release, or the release found it gone. Err
	// is the cause, which matches ErrLost. Duration is how long it was held.
	EventLost = EventKind(call.Lost)
	// EventReleased: Release or Close has ended the lease. Err is nil when the server has
	// confirmed it. It matches ErrOutcomeUnknown when the server has not, and ErrClosed when
	// Close has ended the lease. Duration is how long it was held, including the release.
	EventReleased = EventKind(call.Released)
	// EventRefused: TryAcquire, or an Acquire that has not begun to wait, is about to return
	// Err: somebody else holds the key, or the server could not be asked. Duration is the time
	// since the call.
	EventRefused = EventKind(call.Refused)
)

// String is the name of the kind in lower case.
func (k EventKind) String() string {
	switch k {
	case EventAttempt:
		return "attempt"
	case EventWaitBegun:
		return "wait begun"
	case EventWaitEnded:
		return "wait ended"
	case EventGranted:
		return "granted"
	case EventRenewed:
		return "renewed"
	case EventRenewalFailed:
		return "renewal failed"
	case EventLost:
		return "lost"
	case EventReleased:
		return "released"
	case EventRefused:
		return "refused"
	}
	return "unknown"
}

// Event is one thing that happened.
type Event struct {
	Kind    EventKind
	Backend string // its name, as in its Guarantees
	Key     string
	Label   string // of WithLabel
	// Lease is the number of the lease among those of the Client, from 1 on, and zero where
	// none was granted. It is no secret.
	Lease uint64
	// Token is the fencing token of the lease, and zero where none was granted.
	Token    uint64
	Duration time.Duration
	Err      error
}

// of has the observer told of what happens on a backend.
func (o Observer) of(backend string) func(context.Context, call.Event) {
	return func(ctx context.Context, e call.Event) {
		o(ctx, Event{Kind: EventKind(e.What), Backend: backend, Key: e.Key, Label: e.Label, Lease: e.Lease, Token: e.Token, Duration: e.Took, Err: e.Err})
	}
}

// openHandler hands log records on until Close has returned.
type openHandler struct {
	slog.Handler
	telling *call.Tracker
}

func (h openHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.telling.Add() {
		return nil
	}
	defer h.telling.Done()
	return h.Handler.Handle(ctx, r)
}

func (h openHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return openHandler{h.Handler.WithAttrs(attrs), h.telling}
}

func (h openHandler) WithGroup(name string) slog.Handler {
	return openHandler{h.Handler.WithGroup(name), h.telling}
}
