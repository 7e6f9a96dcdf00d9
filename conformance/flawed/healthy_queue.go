package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var healthyQueue = Lock{
	ID: "healthy", Title: "memlock's queue",
	File: "healthy_queue.go", Over: Memory,
	On: onQueue(func(q queued) backend.Backend { return q }),
}

// queued is memlock with sessions and a queue, of which it keeps Queuer and
// LossNotifier alone.
type queued struct{ backend.Backend }

// Enqueue implements backend.Queuer.
func (q queued) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	return q.Backend.(backend.Queuer).Enqueue(ctx, req)
}

// Clock implements backend.Clocked.
func (q queued) Clock() backend.Clock { return q.Backend.(backend.Clocked).Clock() }

// NotifyLoss implements backend.LossNotifier.
func (q queued) NotifyLoss(lost func(id backend.ID, cause error)) {
	q.Backend.(backend.LossNotifier).NotifyLoss(lost)
}
