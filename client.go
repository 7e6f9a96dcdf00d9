package lock

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/hold"
	"github.com/mortiselock/lock/internal/reentry"
	"github.com/mortiselock/lock/internal/wait"
)

// client is the Locker on any backend.
type client struct {
	server     *call.Server
	guarantees backend.Guarantees
	ttl        time.Duration
	host       string
	pid        int

	leases *hold.Leases
	waits  *wait.Waits

	telling call.Tracker // calls of observer and logger under way
	closed  sync.Once
}

// New returns a Locker on a backend. It takes over the backend: Close closes it.
// The options may be nil. A default TTL that the backend cannot keep is refused.
func New(b backend.Backend, opts *Options) (Locker, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: the backend is nil", ErrInvalid)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	c := &client{
		guarantees: b.Guarantees(),
		pid:        os.Getpid(),
	}
	c.host, _ = os.Hostname()
	if o.TTL == 0 {
		c.ttl = c.guarantees.NearestTTL(DefaultTTL)
	} else if err := c.guarantees.CheckTTL(o.TTL); err != nil {
		return nil, err
	} else {
		c.ttl = o.TTL
	}
	log := slog.New(slog.DiscardHandler)
	if o.Logger != nil {
		log = slog.New(openHandler{o.Logger.Handler(), &c.telling})
	}
	clock := backend.SystemClock()
	if clocked, ok := backend.As[backend.Clocked](b); ok {
		clock = clocked.Clock()
	}
	c.server = call.NewServer(b, clock, log)
	if o.Observer != nil {
		c.server.Observe = o.Observer.untilClosed(&c.telling)
	}
	if c.guarantees.Reentrancy == backend.ReentrancyClient {
		// Holds without an owner are not counted, so that the backend may renew them
		// together. It hands nothing over beside what is counted here.
		c.server.Backend, c.server.Counted = reentry.New(b, clock), true
	}
	c.leases = hold.NewLeases(c.server)
	c.waits = wait.New(c.server, c.leases)
	return c, nil
}

// Format prints what the Locker is, with every verb in the same way: not its leases,
// whose owners are secret, and not the password of its server.
func (c *client) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "Locker on %s", c.guarantees.Name) }

// Guarantees implements Guaranteer.
func (c *client) Guarantees() backend.Guarantees { return c.guarantees }

// Backend gives access to the optional interfaces of the backend, for tools that
// inspect locks.
func (c *client) Backend() backend.Backend { return c.server.Own }

// TryAcquire implements Locker.
func (c *client) TryAcquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	req, terms, err := c.begin(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	defer c.server.Calls.Done()
	l, err := c.waits.TryAcquire(ctx, req, terms)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Acquire implements Locker.
func (c *client) Acquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	req, terms, err := c.begin(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	defer c.server.Calls.Done()
	l, err := c.waits.Acquire(ctx, req, terms)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// begin checks what can be checked before anything is sent. Without an error the
// caller owes a Calls.Done.
func (c *client) begin(ctx context.Context, key string, opts []Option) (req backend.Request, terms hold.Terms, _ error) {
	if err := ValidateKey(key); err != nil {
		return req, terms, err
	}
	s, err := ResolveOptions(opts...)
	if err != nil {
		return req, terms, err
	}
	if s.TTL == 0 {
		s.TTL = c.ttl
	} else if err := c.guarantees.CheckTTL(s.TTL); err != nil {
		return req, terms, err
	}
	if s.Owner != "" && c.guarantees.Reentrancy == backend.ReentrancyNone {
		return req, terms, fmt.Errorf("%w: %s has no reentrant locks; leave out WithOwner", ErrUnsupported, c.guarantees.Name)
	}
	if s.NoRenewal && !c.guarantees.WithoutRenewal {
		return req, terms, fmt.Errorf("%w: %s always renews; leave out WithoutRenewal, or use WithMaxHold", ErrUnsupported, c.guarantees.Name)
	}
	if err := ctx.Err(); err != nil {
		return req, terms, fmt.Errorf("lock: acquiring %q: %w", key, err)
	}
	if !c.server.Calls.Add() {
		return req, terms, ErrClosed
	}
	return backend.Request{
		Key: key, ID: backend.NewID(), Owner: s.Owner, TTL: s.TTL,
		Holder:  backend.Holder{Label: s.Label, Host: c.host, PID: c.pid},
		Renewed: !s.NoRenewal,
	}, hold.Terms{Renewed: !s.NoRenewal, Longest: s.MaxHold}, nil
}

// Close implements Locker.
func (c *client) Close() error {
	var err error
	c.closed.Do(func() {
		c.server.Calls.Close()
		c.server.Calls.Shut()
		c.leases.EndAll()
		limit, cancel := context.WithTimeout(context.Background(), call.Limit)
		defer cancel()
		for stopped := false; !stopped; {
			select {
			case <-c.server.Calls.Idle():
				// A lease that ended just now may have something to clean up.
				stopped = c.server.Sched.StopIf(c.server.Calls.None)
			case <-limit.Done():
				err = fmt.Errorf("%w: Close: not every release was confirmed within %s; what is left ends within its TTL", ErrOutcomeUnknown, call.Limit)
				stopped = c.server.Sched.StopIf(func() bool { return true })
			}
		}
		c.server.Calls.Kill()
		if cerr := c.server.Own.Close(); cerr != nil && err == nil {
			err = fmt.Errorf("lock: closing the backend: %w", cerr)
		}
		c.telling.Close()
		select {
		case <-c.telling.Idle():
		case <-limit.Done():
		}
	})
	return err
}
