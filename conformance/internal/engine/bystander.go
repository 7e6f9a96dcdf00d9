package engine

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock"
)

// bystander makes a small request all the time, beside the cases. So it is known how long
// the server makes anybody wait, also where the requests of a case can't be seen: the
// renewals of a Locker, and what other processes do.
type bystander struct {
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	begun time.Time // of the request under way
	slow  []stall   // requests that took long
}

// bystanderPause is between two requests. What holds the server up for longer is noticed.
const bystanderPause = 100 * time.Millisecond

func (s *Settings) newBystander() *bystander {
	ctx, stop := context.WithCancel(context.Background())
	b := &bystander{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		defer func() { _ = recover() }() // a lock that panics does so in the cases, which tell
		opening, cancel := context.WithTimeout(ctx, OpenLimit)
		l, err := s.OpenLocker(opening)
		cancel()
		if err != nil {
			return // the cases will say why
		}
		defer func() { _ = l.Close() }()
		// A call waits for its answer for a part of its TTL only.
		var lasting []lock.Option
		if !s.Fixed {
			lasting = append(lasting, lock.WithTTL(s.Long))
		}
		for {
			b.ask(ctx, l, s.KeySpace+"bystander", lasting)
			select {
			case <-time.After(bystanderPause):
			case <-ctx.Done():
				return
			}
		}
	}()
	return b
}

func (b *bystander) ask(ctx context.Context, l lock.Locker, key string, lasting []lock.Option) {
	ctx, cancel := context.WithTimeout(ctx, OpenLimit)
	defer cancel()
	start := time.Now()
	b.mu.Lock()
	b.begun = start
	b.mu.Unlock()
	if lease, err := l.TryAcquire(ctx, key, lasting...); err == nil {
		_ = lease.Release(ctx)
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun = time.Time{}
	if took := now.Sub(start); took >= stallNoted {
		b.slow = append(b.slow, stall{now, took})
	}
}

// since is the longest that a request took which ended after the given time, or has not
// ended.
func (b *bystander) since(t time.Time) (worst time.Duration) {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.begun.IsZero() {
		worst = time.Since(b.begun)
	}
	for _, s := range b.slow {
		if s.at.After(t) {
			worst = max(worst, s.length)
		}
	}
	return worst
}

func (b *bystander) close() {
	if b != nil {
		b.stop()
		select {
		case <-b.done:
		case <-time.After(closeLimit):
		}
	}
}
