package etcdflawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z135 = Lock{
	ID: "Z135", Title: "renewals that a former leader answers",
	Summary: "A member that has lost the lead says that the lease was renewed, and the new leader lets it run out.",
	Seen:    "A leader that hangs in a write goes on answering keep-alives, while others have elected another (etcd-io/etcd#15247).",
	Instead: "Make sure, before the renewal counts, that the one that answered still leads.",
	File:    "former_leader.go",
	Rule:    "RenewByHand",
	On: onEtcd(func(h healthy) backend.Backend {
		return &formerLeader{healthy: h, renewals: map[backend.ID]int{}}
	}),
}

// formerLeader sends the renewals of a hold to one member, which loses the lead after the
// second.
//
//	A: keep-alive to member 1 -> TTL 15
//	member 1 is cut off from the others, and member 2 is elected
//	A: keep-alive to member 1 -> TTL 15, from its memory
//	member 2: A's lease has run out; B: granted
//	A: keep-alive to member 1 -> TTL 15
//
// Caught by RenewByHand, which renews for many TTLs, with others who ask for the key.
type formerLeader struct {
	healthy
	mu       sync.Mutex
	renewals map[backend.ID]int
}

// Renew implements backend.Backend.
func (f *formerLeader) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	f.mu.Lock()
	f.renewals[hold.ID]++
	leads := f.renewals[hold.ID] <= 2
	f.mu.Unlock()
	if leads {
		return f.healthy.Renew(ctx, hold)
	}
	return backend.Validity{Sent: backend.SystemClock().Now(), For: backend.ValidFor(hold.TTL)}, nil
}

// Release implements backend.Backend.
func (f *formerLeader) Release(ctx context.Context, hold backend.Hold) error {
	f.mu.Lock()
	delete(f.renewals, hold.ID)
	f.mu.Unlock()
	return f.healthy.Release(ctx, hold)
}
