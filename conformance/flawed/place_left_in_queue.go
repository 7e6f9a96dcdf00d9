package flawed

import (
	"context"
	"sync/atomic"

	"github.com/mortiselock/lock/backend"
)

var z30 = Lock{
	ID: "Z30", Title: "a waiter that gives up leaves its place in the queue",
	Summary: "Everybody waits behind somebody who has gone.",
	Seen:    "samuel/go-zookeeper#229, zk-ruby/zk#49, redisson/redisson#1104 and #3004.",
	Instead: "Give the place up on every way out, until the server confirms it.",
	File:    "place_left_in_queue.go", Over: Memory,
	Rule: "CancelDuring",
	Also: append([]string{"QueueWithdraw", "WaiterOrderLocal", "CancelHarmsNobody", "NoSecretsInErrors", "LateGrant", "SilenceIsNotHeld"}, cleanUps...),
	On:   onQueue(func(q queued) backend.Backend { return placeLeft{q} }),
}

// placeLeft gives a place up when it was granted the key, and thinks that there is
// nothing to do otherwise.
//
//	A: holds job
//	B: creates the node job/0000000002, waits; its time is up, it returns an error
//	C: creates the node job/0000000003, waits
//	A: deletes its node; 0000000002 is the first now, and nobody is there
//	C: waits until the session of B's process ends, which is not soon: the process is well
//
// Caught by CancelDuring: it gives waits up at random moments, and has somebody else
// ask for the key.
//
// Instead: whatever ends a wait, the place goes. So does one whose creation ended
// with an error: it may be there all the same.
type placeLeft struct{ queued }

func (p placeLeft) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := p.queued.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	return &leftTicket{Ticket: t}, nil
}

type leftTicket struct {
	backend.Ticket
	granted atomic.Bool
}

// Wait implements backend.Ticket.
func (t *leftTicket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := t.Ticket.Wait(ctx)
	t.granted.Store(err == nil)
	return g, err
}

// Withdraw implements backend.Ticket.
func (t *leftTicket) Withdraw(ctx context.Context) error {
	if !t.granted.Load() {
		return nil
	}
	return t.Ticket.Withdraw(ctx)
}
