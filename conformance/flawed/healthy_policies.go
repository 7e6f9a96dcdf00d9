package flawed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var (
	healthyWatchdog = Lock{
		ID: "healthy", Title: "renewal by a goroutine of the lease",
		File: "healthy_policies.go", Over: Memory,
		On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return watchdog{policy{l}, keepRenewing} }),
	}
	healthyAsking = Lock{
		ID: "healthy", Title: "waiting in a loop",
		File: "healthy_policies.go", Over: Memory,
		On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return newAsking(l, nowAndThen) }),
	}
)

// announced is memlock's primitives with its watches and without re-entry: what the
// policies of this package are made for.
type announced struct{ primitives }

// Watch implements backend.Watcher.
func (a announced) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	return a.Backend.(backend.Watcher).Watch(ctx, key)
}

func (a announced) Guarantees() backend.Guarantees {
	g := a.Backend.Guarantees()
	g.Reentrancy = backend.ReentrancyNone
	return g
}

// rest waits, and reports whether the context is still alive.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// watchdog is a Locker that renews with a goroutine for each lease, as people write
// it on top of a lock that does not renew by itself.
type watchdog struct {
	policy
	// guard starts what renews the lease.
	guard func(lease lock.Lease, ttl time.Duration) lock.Lease
}

// keepRenewing renews five times in a TTL, whatever became of the last time, until
// the lease ends: with its release, or by its own account when nothing was confirmed.
func keepRenewing(lease lock.Lease, ttl time.Duration) lock.Lease {
	go func() {
		for rest(lease.Context(), ttl/5) {
			_ = renewal(lease, ttl)
		}
	}()
	return lease
}

// renewal gives up one that hangs while there is time for another.
func renewal(lease lock.Lease, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(lease.Context(), ttl/3)
	defer cancel()
	return lease.Renew(ctx)
}

// Acquire implements lock.Locker.
func (w watchdog) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return w.guarded(opts)(w.policy.Acquire(ctx, key, slices.Concat(opts, []lock.Option{lock.WithoutRenewal()})...))
}

// TryAcquire implements lock.Locker.
func (w watchdog) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return w.guarded(opts)(w.policy.TryAcquire(ctx, key, slices.Concat(opts, []lock.Option{lock.WithoutRenewal()})...))
}

func (w watchdog) guarded(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	set, _ := lock.ResolveOptions(opts...)
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		if err != nil || set.NoRenewal {
			return lease, err
		}
		return w.guard(lease, cmp.Or(set.TTL, TTL)), nil
	}
}

// withContext is a lease with another context.
type withContext struct {
	lock.Lease
	ctx context.Context
}

// Context implements lock.Lease.
func (l withContext) Context() context.Context { return l.ctx }

// Format implements fmt.Formatter: what prints the fields of a context reads them while
// others write them.
func (l withContext) Format(s fmt.State, _ rune) { fmt.Fprint(s, "lease of ", l.Key()) }

// asking is a Locker that waits in a loop of its own.
type asking struct {
	policy
	// prepare is called before the first request for the key. It returns what waits
	// between two requests, until ctx ends.
	prepare func(ctx context.Context, key string) (pause func())

	life context.Context // ends with Close
	shut context.CancelFunc

	mu    sync.Mutex
	turns map[string]*turn
}

// turn lets one caller at a time ask for a key.
type turn struct {
	taken   chan struct{}
	held    atomic.Bool // by what the server said last
	callers int         // guarded by the mutex of the Locker
}

// nowAndThen waits for a while that is never twice the same.
func nowAndThen(ctx context.Context, _ string) (pause func()) {
	return func() { rest(ctx, 50*time.Millisecond+rand.N(50*time.Millisecond)) }
}

func newAsking(l *lock.Client, prepare func(context.Context, string) func()) *asking {
	life, shut := context.WithCancel(context.Background())
	return &asking{policy: policy{l}, prepare: prepare, life: life, shut: shut, turns: map[string]*turn{}}
}

// Acquire implements lock.Locker. Callers have their turns in the order in which
// they came, as senders to a channel have.
func (a *asking) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	turn, leave := a.turn(key)
	defer leave()
	select {
	case turn.taken <- struct{}{}:
		defer func() { <-turn.taken }()
	case <-ctx.Done():
		return nil, gaveUp(ctx, turn.known(key))
	case <-a.life.Done():
		return nil, lock.ErrClosed
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(a.life, stop)()
	pause := a.prepare(waiting, key)
	last := turn.known(key)
	for {
		lease, err := a.TryAcquire(ctx, key, opts...)
		if err == nil || ctx.Err() == nil {
			turn.held.Store(err == nil || errors.Is(err, lock.ErrHeld))
		}
		switch {
		case err == nil:
			return lease, nil
		case errors.Is(err, lock.ErrHeld), errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrOutcomeUnknown):
			if ctx.Err() == nil { // else it was the end of the context that broke it off
				last = err
			}
		case ctx.Err() == nil:
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, last)
		}
		pause()
	}
}

func gaveUp(ctx context.Context, last error) error {
	return fmt.Errorf("flawed: gave up: %w; %w", ctx.Err(), last)
}

// turn is that of the key, until the last caller has left it.
func (a *asking) turn(key string) (t *turn, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t = a.turns[key]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		a.turns[key] = t
	}
	t.callers++
	return t, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if t.callers--; t.callers == 0 {
			delete(a.turns, key)
		}
	}
}

// known is what those tell who were before a caller without an answer of its own.
func (t *turn) known(key string) error {
	if t.held.Load() {
		return held(key)
	}
	return fmt.Errorf("%w: the server has not answered", lock.ErrUnavailable)
}

// Close implements lock.Locker.
func (a *asking) Close() error {
	a.shut()
	return a.policy.Close()
}
