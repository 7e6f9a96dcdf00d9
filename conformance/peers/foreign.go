package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bsm/redislock"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Foreign makes a lock.Locker of a lock of another library whose holds end by a TTL, as
// lock.Both needs it: it renews, and its leases end by their deadline at the latest. It is
// an example, for programs that leave that library: docs/migrating.md.
type Foreign struct {
	// Name is the library's.
	Name string
	// TTL is what the rest of the service uses, which knows that library only.
	TTL time.Duration
	// Try asks for the key once. Its error matches lock.ErrHeld when somebody else has it.
	Try func(ctx context.Context, key string, ttl time.Duration) (Grip, error)
	// Pause is how long Acquire waits between two tries.
	Pause time.Duration
}

// Grip is one hold. The errors of both functions match lock.ErrNotHeld when it is gone.
type Grip struct {
	Extend  func(ctx context.Context, ttl time.Duration) error
	Release func(ctx context.Context) error
}

// Redislock is the lock of github.com/bsm/redislock under the names that the service uses.
func Redislock(client *redislock.Client, name func(key string) string, ttl time.Duration) *Foreign {
	gone := func(err error) error {
		if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, redislock.ErrLockNotHeld) {
			return fmt.Errorf("%w: %w", lock.ErrNotHeld, err)
		}
		return err
	}
	return &Foreign{Name: "redislock", TTL: ttl, Pause: 20 * time.Millisecond, Try: func(ctx context.Context, key string, ttl time.Duration) (Grip, error) {
		l, err := client.Obtain(ctx, name(key), ttl, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			err = fmt.Errorf("%w: %w", lock.ErrHeld, err)
		}
		if err != nil {
			return Grip{}, err
		}
		return Grip{
			Extend:  func(ctx context.Context, ttl time.Duration) error { return gone(l.Refresh(ctx, ttl, nil)) },
			Release: func(ctx context.Context) error { return gone(l.Release(ctx)) },
		}, nil
	}}
}

// Guarantees says what the pair may promise. The assumptions are the library's.
func (f *Foreign) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name: f.Name, Reach: backend.ReachNetwork, Expiry: backend.ClockUnknown, TTLGrain: time.Millisecond,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll,
		ManualRenewal: true, WithoutRenewal: true, LossSignal: true, Deadline: true,
		Assumptions: []string{"The lock of the other library keeps what its documentation promises."},
	}
}

// TryAcquire implements lock.Locker.
func (f *Foreign) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	s, err := lock.ResolveOptions(opts...)
	switch {
	case err != nil:
		return nil, err
	case s.Owner != "" || s.MaxHold != 0:
		return nil, fmt.Errorf("%w: owners and maximum holds", lock.ErrUnsupported)
	case s.TTL == 0:
		s.TTL = f.TTL
	}
	sent := time.Now()
	grip, err := f.Try(ctx, key, s.TTL)
	if err != nil {
		return nil, err
	}
	l := &foreignLease{key: key, ttl: s.TTL, grip: grip}
	ctx, end := context.WithCancelCause(context.Background())
	l.ctx, l.end = foreignContext{ctx, l}, end
	l.confirmed(sent)
	if !s.NoRenewal {
		go l.renew()
	}
	return l, nil
}

// Acquire implements lock.Locker.
func (f *Foreign) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	for {
		l, err := f.TryAcquire(ctx, key, opts...)
		if !errors.Is(err, lock.ErrHeld) {
			return l, err
		}
		select {
		case <-time.After(f.Pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Close implements lock.Locker. The leases are released by those who hold them.
func (f *Foreign) Close() error { return nil }

type foreignLease struct {
	key  string
	ttl  time.Duration
	grip Grip
	ctx  foreignContext
	end  context.CancelCauseFunc

	mu    sync.Mutex
	until time.Time
	timer *time.Timer
}

// confirmed moves the deadline: the TTL counts from the sending of a request that was
// confirmed, less one percent for clocks that run at other rates.
func (l *foreignLease) confirmed(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = sent.Add(l.ttl - l.ttl/100)
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(l.until), func() { _ = l.ctx.Err() })
	} else {
		l.timer.Reset(time.Until(l.until))
	}
}

func (l *foreignLease) renew() {
	t := time.NewTicker(l.ttl / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			ctx, cancel := context.WithTimeout(l.ctx, l.ttl/3)
			_ = l.Renew(ctx) // the next one may work, or the deadline comes
			cancel()
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *foreignLease) Key() string              { return l.key }
func (l *foreignLease) Token() uint64            { return 0 }
func (l *foreignLease) Context() context.Context { return l.ctx }

func (l *foreignLease) Deadline() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until, true
}

func (l *foreignLease) Renew(ctx context.Context) error {
	if l.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, context.Cause(l.ctx))
	}
	sent := time.Now()
	err := l.grip.Extend(ctx, l.ttl)
	switch {
	case err == nil:
		l.confirmed(sent)
	case errors.Is(err, lock.ErrNotHeld):
		l.end(lock.ErrTakenOver)
	}
	return err
}

func (l *foreignLease) Release(ctx context.Context) error {
	lost := l.ctx.Err() != nil
	cause := context.Cause(l.ctx)
	l.end(lock.ErrReleased)
	l.timer.Stop()
	if lost {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, cause)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err := l.grip.Release(ctx)
	if err != nil && !errors.Is(err, lock.ErrNotHeld) {
		err = fmt.Errorf("%w: the key is free again within %s: %w", lock.ErrOutcomeUnknown, l.ttl, err)
	}
	return err
}

// foreignContext also ends at the first look after the deadline, before a timer could run.
type foreignContext struct {
	context.Context
	l *foreignLease
}

func (c foreignContext) Err() error {
	if until, _ := c.l.Deadline(); !time.Now().Before(until) {
		c.l.end(lock.ErrExpired)
	}
	return c.Context.Err()
}
