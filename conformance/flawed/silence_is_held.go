package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z51 = Lock{
	ID: "Z51", Title: "No answer is told as held",
	Summary: "When the server hangs, everybody is told \"held\".",
	Seen:    "One error for every wait that ran out.",
	Instead: "Say \"held\" when the server has said so, and \"no answer\" otherwise.",
	File:    "silence_is_held.go", Over: Memory,
	Rule: "SilenceIsNotHeld",
	Also: []string{"QueueOrder", "FairOrder"}, // a place is taken when its waiter gets to it
	On:   onQueue(func(q queued) backend.Backend { return silenceIsHeld{q} }),
}

// silenceIsHeld asks the server for a place when it begins to wait, and calls it a
// refusal to have begun.
//
//	A: waits for job, with a second of time
//	server: is stopped, and holds the request back
//	A, after the second: "held by another owner", though nobody holds it
//
// Caught by SilenceIsNotHeld: it holds back the requests for keys that nobody holds.
type silenceIsHeld struct{ queued }

func (q silenceIsHeld) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	return &hastyTicket{q: q.queued, req: req}, ctx.Err()
}

type hastyTicket struct {
	q   queued
	req backend.Request

	mu    sync.Mutex
	place backend.Ticket // once the server was asked
}

// Behind implements backend.Ticket.
func (t *hastyTicket) Behind() bool { return true }

// Wait implements backend.Ticket.
func (t *hastyTicket) Wait(ctx context.Context) (backend.Grant, error) {
	place, err := t.q.Enqueue(ctx, t.req)
	if err != nil {
		return backend.Grant{}, err
	}
	t.mu.Lock()
	t.place = place
	t.mu.Unlock()
	return place.Wait(ctx)
}

// Withdraw implements backend.Ticket.
func (t *hastyTicket) Withdraw(ctx context.Context) error {
	t.mu.Lock()
	place := t.place
	t.mu.Unlock()
	if place == nil {
		return nil
	}
	return place.Withdraw(ctx)
}
