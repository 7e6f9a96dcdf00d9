package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Locks of kinds that are seldom met, on which no rule may fail.
var (
	healthyWholeSeconds = Lock{
		ID: "healthy", Title: "tells the remaining time in whole seconds",
		File: "healthy_kinds.go", Over: Memory,
		On: onAll(func(b backend.Backend) backend.Backend { return wholeSeconds{b} }),
	}
	healthySlowRelease = Lock{
		ID: "healthy", Title: "half a second for each release",
		File: "healthy_kinds.go", Over: Memory,
		On: onMemory(func(m primitives) backend.Backend { return slowRelease{m} }),
	}
	healthySlowPlace = Lock{
		ID: "healthy", Title: "a queue in which it takes long to get a place",
		File: "healthy_kinds.go", Over: Memory,
		On: onQueue(func(q queued) backend.Backend { return slowPlace{q} }),
	}
)

// wholeSeconds is a backend that keeps no more of the time than seconds.
type wholeSeconds struct{ backend.Backend }

// Unwrap implements backend.Wrapper.
func (w wholeSeconds) Unwrap() backend.Backend { return w.Backend }

func (w wholeSeconds) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := w.Backend.Try(ctx, req)
	var held *backend.HeldError
	if errors.As(err, &held) {
		rounded := *held
		rounded.Remaining = held.Remaining.Round(time.Second)
		err = &rounded
	}
	return g, err
}

// Inspect implements backend.Inspector.
func (w wholeSeconds) Inspect(ctx context.Context, key string) (backend.Record, error) {
	r, err := w.Backend.(backend.Inspector).Inspect(ctx, key)
	r.Remaining = r.Remaining.Round(time.Second)
	return r, err
}

// List implements backend.Lister.
func (w wholeSeconds) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return w.Backend.(backend.Lister).List(ctx, prefix, func(r backend.Record) bool {
		r.Remaining = r.Remaining.Round(time.Second)
		return visit(r)
	})
}

// slowRelease is a backend whose server takes its time to end a hold.
type slowRelease struct{ primitives }

func (s slowRelease) Release(ctx context.Context, hold backend.Hold) error {
	if !rest(ctx, 500*time.Millisecond) {
		return ctx.Err()
	}
	return s.Backend.Release(ctx, hold)
}

// slowPlace is a backend whose queue takes its time to let somebody in. Its hold counts from
// the request after that.
type slowPlace struct{ queued }

// Enqueue implements backend.Queuer.
func (s slowPlace) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	if !rest(ctx, 100*time.Millisecond) {
		return nil, ctx.Err()
	}
	return s.queued.Enqueue(ctx, req)
}
