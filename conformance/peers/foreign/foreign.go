// Package foreign makes lock.Lockers of the locks of other libraries, for programs that
// leave them: docs/migrating.md. It is an example, to be copied: this file, and that of
// the library.
package foreign

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Locker is a lock.Locker as lock.Both needs it: its leases are renewed, are lost when
// theirs is, and end by their deadline at the latest.
type Locker struct {
	// Name is the library's.
	Name string
	// TTL is what the rest of the service uses, which knows that library only.
	TTL time.Duration
	// Renews: the library renews by itself, or its holds have no TTL. Then no deadline is
	// known, and Extend only looks whether the hold is still there, every third of the TTL.
	Renews bool
	// Try asks for the key once. Its error matches lock.ErrHeld when somebody else has it.
	Try func(ctx context.Context, key string, ttl time.Duration) (Hold, error)
	// Wait is the same for a library with a queue: it waits for a while. It may be nil.
	Wait func(ctx context.Context, key string, ttl time.Duration) (Hold, error)
}

// Hold is one hold of theirs. Its functions are called one at a time. Their errors match
// lock.ErrNotHeld when it is gone.
type Hold struct {
	// Extend may be nil where Held is given and the library renews.
	Extend func(ctx context.Context, ttl time.Duration) error
	// Release is called once, also for a hold that was lost.
	Release func(ctx context.Context) error
	// Held ends when the library knows of a loss. It may be nil.
	Held context.Context
	// Token is 0 where there is none.
	Token uint64
}

// pause is how long Acquire waits between two tries.
const pause = 20 * time.Millisecond

// Guarantees says what the pair may promise. The assumptions are the library's.
func (f *Locker) Guarantees() backend.Guarantees {
	g := backend.Guarantees{
		Name: f.Name, Reach: backend.ReachNetwork, Expiry: backend.ClockUnknown, TTLGrain: time.Millisecond,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll,
		ManualRenewal: !f.Renews, WithoutRenewal: !f.Renews, LossSignal: true, Deadline: !f.Renews,
		Assumptions: []string{"The lock of the other library keeps what its documentation promises."},
	}
	if f.Renews {
		g.MinTTL, g.MaxTTL = f.TTL, f.TTL
	}
	return g
}

// TryAcquire implements lock.Locker.
func (f *Locker) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return f.acquire(ctx, f.Try, key, opts)
}

// Acquire implements lock.Locker.
func (f *Locker) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	ask := f.Try
	if f.Wait != nil {
		ask = f.Wait
	}
	for {
		l, err := f.acquire(ctx, ask, key, opts)
		if !errors.Is(err, lock.ErrHeld) {
			return l, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

func (f *Locker) acquire(ctx context.Context, ask func(context.Context, string, time.Duration) (Hold, error), key string, opts []lock.Option) (lock.Lease, error) {
	s, err := lock.ResolveOptions(opts...)
	if err != nil {
		return nil, err
	}
	if s.Owner != "" || s.MaxHold != 0 || s.NoRenewal && f.Renews {
		return nil, fmt.Errorf("%w: %s has no owners, no maximum hold, and perhaps always renews", lock.ErrUnsupported, f.Name)
	}
	if s.TTL == 0 {
		s.TTL = f.TTL
	}
	if err := f.Guarantees().CheckTTL(s.TTL); err != nil {
		return nil, err
	}
	sent := time.Now()
	hold, err := ask(ctx, key, s.TTL)
	if err != nil {
		return nil, err
	}
	l := &lease{key: key, ttl: s.TTL, hold: hold, renews: f.Renews, renewals: make(chan chan error), released: make(chan error, 1)}
	ends, end := context.WithCancelCause(context.Background())
	l.ctx, l.end = leaseContext{ends, l}, end
	l.confirmed(sent)
	if hold.Held != nil {
		context.AfterFunc(hold.Held, func() { l.end(lock.ErrSessionLost) })
	}
	go l.keep(!s.NoRenewal)
	return l, nil
}

// Close implements lock.Locker. The leases are released by those who hold them.
func (f *Locker) Close() error { return nil }

type lease struct {
	key      string
	ttl      time.Duration
	hold     Hold
	renews   bool // the library, by itself
	ctx      leaseContext
	end      context.CancelCauseFunc
	renewals chan chan error
	released chan error

	mu    sync.Mutex
	until time.Time // zero where no deadline is known
	timer *time.Timer
}

// keep has the hold until the lease ends, and then releases it, also after a loss.
func (l *lease) keep(renew bool) {
	t := time.NewTicker(l.ttl / 3)
	defer t.Stop()
	for l.ctx.Err() == nil {
		select {
		case <-t.C:
			if renew && l.hold.Extend != nil {
				_ = l.extend() // the next one may work, or the deadline comes
			}
		case reply := <-l.renewals:
			reply <- l.extend()
		case <-l.ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	l.released <- l.hold.Release(ctx)
}

func (l *lease) extend() error {
	ctx, cancel := context.WithTimeout(context.Background(), l.ttl/3)
	defer cancel()
	sent := time.Now()
	err := l.hold.Extend(ctx, l.ttl)
	switch {
	case err == nil:
		l.confirmed(sent)
	case errors.Is(err, lock.ErrNotHeld):
		l.end(lock.ErrTakenOver)
	}
	return err
}

// confirmed moves the deadline: the TTL counts from the sending of a request that was
// confirmed, less one percent for clocks that run at other rates.
func (l *lease) confirmed(sent time.Time) {
	if l.renews {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = sent.Add(l.ttl - l.ttl/100)
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(l.until), func() { _ = l.ctx.Err() })
	} else {
		l.timer.Reset(time.Until(l.until))
	}
}

func (l *lease) Key() string              { return l.key }
func (l *lease) Token() uint64            { return l.hold.Token }
func (l *lease) Context() context.Context { return l.ctx }

func (l *lease) Deadline() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until, !l.until.IsZero()
}

func (l *lease) Renew(ctx context.Context) error {
	if l.hold.Extend == nil {
		return fmt.Errorf("%w: the library renews by itself", lock.ErrUnsupported)
	}
	if l.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, context.Cause(l.ctx))
	}
	reply := make(chan error, 1)
	select {
	case l.renewals <- reply:
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, context.Cause(l.ctx))
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", lock.ErrOutcomeUnknown, ctx.Err())
	}
}

func (l *lease) Release(context.Context) error {
	lost, cause := l.ctx.Err() != nil, context.Cause(l.ctx)
	l.end(lock.ErrReleased)
	if lost {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, cause)
	}
	err := <-l.released
	if err != nil && !errors.Is(err, lock.ErrNotHeld) {
		err = fmt.Errorf("%w: the key is free again within %s: %w", lock.ErrOutcomeUnknown, l.ttl, err)
	}
	return err
}

// leaseContext also ends at the first look after the deadline, before a timer could run.
type leaseContext struct {
	context.Context
	l *lease
}

func (c leaseContext) Err() error {
	if until, known := c.l.Deadline(); known && !time.Now().Before(until) {
		c.l.end(lock.ErrExpired)
	}
	return c.Context.Err()
}

// as returns the error so that it also matches ours, if it is one of theirs.
func as(ours, err error, theirs ...error) error {
	for _, t := range theirs {
		if errors.Is(err, t) {
			return fmt.Errorf("%w: %w", ours, err)
		}
	}
	return err
}
