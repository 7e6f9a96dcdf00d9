package lock

import (
	"context"
	"log/slog"
	"time"

	"github.com/mortiselock/lock/internal/call"
)

// Observer is told what happens in a Locker, for metrics and traces. It is
// called from many goroutines at once, never while a mutex is held. It must not
// panic, and should return quickly: an Acquire, a renewal, a Release or Close waits for
// it. It must not call Close, which waits for it. When Close has returned it is not
// called any more, unless a call of it took longer than the five seconds of Close. The
// context is that of the call that caused the event, or one without values for events of
// renewal and loss. Events contain no secret.
type Observer func(ctx context.Context, e Event)

// EventKind says what happened.
type EventKind uint8

// The kinds of events.
const (
	// EventAttempt: the server was asked for the key. Duration is how long the
	// answer took, Err is nil for a grant.
	EventAttempt = EventKind(call.Attempt)
	// EventWait: Acquire could not have the key at once and has now ended its
	// wait. Duration is the whole wait, Err is nil when it ended in a grant.
	EventWait = EventKind(call.Wait)
	// EventRenewal: a renewal ended. Duration is how long it took, Err is nil
	// when it was confirmed.
	EventRenewal = EventKind(call.Renewal)
	// EventLoss: a hold ended before its release. Duration is how long it was
	// held, Err is the cause.
	EventLoss = EventKind(call.Loss)
	// EventRelease: a release ended. Duration is how long the lease was held, Err
	// is what Release returned.
	EventRelease = EventKind(call.Release)
)

// String is the name of the kind in lower case.
func (k EventKind) String() string {
	switch k {
	case EventAttempt:
		return "attempt"
	case EventWait:
		return "wait"
	case EventRenewal:
		return "renewal"
	case EventLoss:
		return "loss"
	case EventRelease:
		return "release"
	}
	return "unknown"
}

// Event is one thing that happened.
type Event struct {
	Kind     EventKind
	Key      string
	Token    uint64 // zero where none was granted yet
	Duration time.Duration
	Err      error
}

// untilClosed has the observer told of what happens, until telling is closed.
func (o Observer) untilClosed(telling *call.Tracker) func(context.Context, call.What, string, uint64, time.Duration, error) {
	return func(ctx context.Context, what call.What, key string, token uint64, took time.Duration, err error) {
		if telling.Add() {
			defer telling.Done()
			o(ctx, Event{Kind: EventKind(what), Key: key, Token: token, Duration: took, Err: err})
		}
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
