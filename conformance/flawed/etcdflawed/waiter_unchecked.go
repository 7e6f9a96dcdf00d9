package etcdflawed

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z47 = Lock{
	ID: "Z47", Title: "a waiter is granted without a look at its own lease",
	Summary: "A waiter whose place went with its lease holds beside the next.",
	Seen:    "etcd 3.4.3 (Jepsen, 2020; etcd-io/etcd#11456).",
	Instead: "Read one's own place again, with its lease, in the step that grants.",
	File:    "waiter_unchecked.go",
	Rule:    "WaiterSessionCheck",
	On:      onEtcd(func(h healthy) backend.Backend { return waiterUnchecked{h} }),
}

// waiterUnchecked waits for the place before, and never for its own.
type waiterUnchecked struct{ healthy }

func (w waiterUnchecked) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	before, err := w.Inspect(ctx, req.Key)
	if err != nil && !errors.Is(err, backend.ErrNotHeld) {
		return nil, err
	}
	t, err := w.healthy.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	return &uncheckedTicket{Ticket: t, w: w, req: req, before: before.Token}, nil
}

type uncheckedTicket struct {
	backend.Ticket
	w      waiterUnchecked
	req    backend.Request
	before uint64 // the token of the holder that it waits for
}

func (t *uncheckedTicket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := t.Ticket.Wait(ctx)
	if !errors.Is(err, backend.ErrNotHeld) || t.before == 0 {
		return g, err
	}
	for {
		sent := backend.SystemClock().Now()
		rec, err := t.w.Inspect(ctx, t.req.Key)
		if err != nil && !errors.Is(err, backend.ErrNotHeld) {
			return backend.Grant{}, err
		}
		if rec.Token != t.before {
			return backend.Grant{Token: t.before + 1, Holds: 1, Validity: backend.Validity{Sent: sent, For: backend.ValidFor(t.req.TTL)}}, nil
		}
		time.Sleep(time.Millisecond)
	}
}

// escape writes a key as one element of a path, as package etcdlock does.
func escape(key string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(key)
}
