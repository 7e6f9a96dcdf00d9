package etcdflawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z33 = Lock{
	ID: "Z33", Title: "loss only from events of the session",
	Summary: "Another client holds the key before the library tells of the session's end.",
	Seen:    "concurrency.Session.Done; docker/libkv#156. With a lease of 2 s, Done came after 3.7 s.",
	Instead: "Count a deadline from before the last confirmed renewal was sent.",
	File:    "session_events.go",
	Rule:    "LostBeforeTakeover",
	On:      onEtcd(func(h healthy) backend.Backend { return sessionEvents{h} }),
}

// sessionEvents ends a hold when the client library says so.
type sessionEvents struct{ healthy }

// late is when the event of a session comes that the server has ended: the client
// library counts from the arrival of answers, and looks now and then.
func late(v backend.Validity, ttl time.Duration) backend.Validity {
	if v.For > 0 {
		v.For = 2 * backend.ValidFor(ttl)
	}
	return v
}

func (s sessionEvents) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := s.healthy.Try(ctx, req)
	g.Validity = late(g.Validity, req.TTL)
	return g, err
}

func (s sessionEvents) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	v, err := s.healthy.Renew(ctx, hold)
	if err != nil && !errors.Is(err, backend.ErrNotHeld) {
		return backend.Validity{}, nil // no event of the session
	}
	return late(v, hold.TTL), err
}

func (s sessionEvents) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := s.healthy.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	return eventTicket{t, req.TTL}, nil
}

type eventTicket struct {
	backend.Ticket
	ttl time.Duration
}

func (t eventTicket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := t.Ticket.Wait(ctx)
	g.Validity = late(g.Validity, t.ttl)
	return g, err
}
