package lock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/internal/hold"
	"github.com/mortiselock/lock/internal/reentry"
	"github.com/mortiselock/lock/internal/wait"
)

// Client is the [Locker] that is the same on every backend: it waits, renews, counts,
// cleans up and tells of losses, and has the backend do one atomic step at a time. [Open],
// [New] and the constructors of the backends return it. It is safe for concurrent use.
//
// Functions that use locks take a Locker, so that their tests can give them another one.
type Client struct {
	server     *call.Server
	guarantees backend.Guarantees
	ttl        time.Duration
	host       string
	pid        int

	leases *hold.Leases
	waits  *wait.Waits

	telling call.Tracker // calls of observer and logger under way
	closing atomic.Bool
	closed  chan struct{} // closed when the first Close is through
}

var _ Locker = (*Client)(nil)

// New returns a Client on a backend. It takes over the backend: Close closes it, and New
// itself when it fails.
//
// The options may be nil. A default TTL that the backend cannot keep is refused with an
// error matching ErrInvalid. New does no I/O.
func New(b backend.Backend, opts *Options) (*Client, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: the backend is nil", ErrInvalid)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	c := &Client{
		closed:     make(chan struct{}),
		guarantees: b.Guarantees(),
		pid:        os.Getpid(),
	}
	c.host, _ = os.Hostname()
	if o.TTL == 0 {
		c.ttl = c.guarantees.NearestTTL(DefaultTTL)
	} else if err := c.guarantees.CheckTTL(o.TTL); err != nil {
		_ = b.Close()
		return nil, err
	} else {
		c.ttl = o.TTL
	}
	log := slog.New(openHandler{construct.Logger(o.Logger).Handler(), &c.telling})
	clock := backend.SystemClock()
	if clocked, ok := backend.As[backend.Clocked](b); ok {
		clock = clocked.Clock()
	}
	c.server = call.NewServer(b, clock, log)
	if o.Observer != nil {
		c.server.Observed.By(o.Observer.of(c.guarantees.Name), &c.telling, clock)
	}
	if c.guarantees.Reentrancy == backend.ReentrancyClient {
		// Holds without an owner are not counted, so that the backend may renew them
		// together. It hands nothing over beside what is counted here.
		c.server.Backend, c.server.Counted = reentry.New(c.server.Calls.Open, b, clock), true
	}
	c.leases = hold.NewLeases(c.server)
	c.waits = wait.New(c.server, c.leases)
	return c, nil
}

// Open returns a Client for a URL such as mem:, file:/var/lib/app/locks or
// redis://host:6379. The package of the backend must be imported. The options may be nil.
// An unknown scheme, an unknown parameter and a setting that the backend cannot honour are
// refused with an error matching ErrInvalid or ErrUnsupported. Open does not
// wait for a server that refuses connections: the error matches ErrUnavailable. ctx bounds the
// opening only.
//
// Every URL may have the parameter ttl, as in redis://host?ttl=30s. It means the same as
// Options.TTL, which wins where it is set.
//
// The backend is found in [backend.DefaultMux]. With a mux of your own, give what
// [backend.Mux.Open] returns to [New].
func Open(ctx context.Context, url string, opts *Options) (*Client, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL < 0 {
		return nil, fmt.Errorf("%w: the default TTL is %s; it must be positive, or zero for the default", ErrInvalid, o.TTL)
	}
	url, ttl, err := backend.CutTTL(url)
	if err != nil {
		return nil, err
	}
	o.TTL = cmp.Or(o.TTL, ttl)
	b, err := backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: cmp.Or(o.TTL, DefaultTTL), Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	return New(b, &o)
}

// Format prints what the Client is, with every verb in the same way: not its leases,
// whose owners are secret, and not the password of its server.
func (c *Client) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "Locker on %s", c.guarantees.Name) }

// Guarantees returns what the locks promise, and under which assumptions. It does no
// I/O and always returns the same. Its lists are the caller's own.
func (c *Client) Guarantees() backend.Guarantees { return c.guarantees.Clone() }

// Backend returns the backend, for tools that look at locks or end them: [backend.As]
// finds what it can do beyond locking, such as [backend.Inspector]. It belongs to the
// Client, which closes it. What is acquired there is not renewed, and no lease of the
// Client. Of a lease, [HeldOn] tells more.
func (c *Client) Backend() backend.Backend { return c.server.Own }

// TryAcquire asks the server once for the key, as [Locker] says in full. Without an error
// the lease is not nil. ErrHeld: somebody else holds the key; a [HeldError] says who, where
// the server tells. ErrOutcomeUnknown: no answer arrived, and a grant that there may be is
// removed in the background. Options that the backend cannot honour are refused with
// ErrUnsupported or ErrInvalid, and nothing is sent. An attempt is given up after two
// thirds of the TTL, which [Options.TTL] or [WithTTL] sets.
func (c *Client) TryAcquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	req, longest, err := c.begin(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	defer c.server.Calls.Done()
	l, err := c.waits.TryAcquire(ctx, req, longest)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Acquire waits until the key is held or ctx ends, as [Locker] says in full. Callers of one
// Client without an owner are served first come, first served. Without an error the lease is
// not nil. The error of a wait that ctx has ended matches the error of ctx, and ErrHeld or
// ErrUnavailable, whichever kept it waiting. Options that the backend cannot honour are
// refused as in TryAcquire. ErrPermanent and ErrClosed end the wait at once.
func (c *Client) Acquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	req, longest, err := c.begin(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	defer c.server.Calls.Done()
	l, err := c.waits.Acquire(ctx, req, longest)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// begin checks what can be checked before anything is sent. Without an error the
// caller owes a Calls.Done.
func (c *Client) begin(ctx context.Context, key string, opts []Option) (req backend.Request, longest time.Duration, _ error) {
	if err := ValidateKey(key); err != nil {
		return req, 0, err
	}
	s, err := ResolveOptions(opts...)
	if err != nil {
		return req, 0, err
	}
	if s.TTL == 0 {
		s.TTL = c.ttl
	} else if err := c.guarantees.CheckTTL(s.TTL); err != nil {
		return req, 0, err
	}
	if s.Owner != "" && c.guarantees.Reentrancy == backend.ReentrancyNone {
		return req, 0, fmt.Errorf("%w: %s has no reentrant locks; leave out WithOwner", ErrUnsupported, c.guarantees.Name)
	}
	if s.NoRenewal && !c.guarantees.WithoutRenewal {
		return req, 0, fmt.Errorf("%w: %s always renews; leave out WithoutRenewal, or use WithMaxHold", ErrUnsupported, c.guarantees.Name)
	}
	if err := ctx.Err(); err != nil {
		return req, 0, fmt.Errorf("lock: acquiring %q: %w", key, err)
	}
	if !c.server.Calls.Add() {
		return req, 0, ErrClosed
	}
	return backend.Request{
		Key: key, ID: backend.NewID(), Owner: s.Owner, TTL: s.TTL,
		Holder:  backend.Holder{Label: s.Label, Host: c.host, PID: c.pid, PairID: s.pair},
		Renewed: !s.NoRenewal,
	}, s.MaxHold, nil
}

// Close ends every wait and every lease with ErrClosed, releases what is held, and closes
// the backend, as [Locker] says in full. It takes at most five seconds and then the time of
// the backend's Close. ErrOutcomeUnknown: not every release was confirmed, and what is left
// ends within its TTL. Only the first Close returns an error; others wait for it.
func (c *Client) Close() error {
	if c.closing.Swap(true) {
		<-c.closed
		return nil
	}
	defer close(c.closed)
	var err error
	c.server.Calls.Close()
	c.server.Calls.Shut()
	c.leases.EndAll()
	end := time.Now().Add(call.Limit)
	limit, cancel := context.WithDeadline(context.Background(), end)
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
	told := c.server.Observed.Close()
	if cerr := c.server.Own.Close(); cerr != nil && err == nil {
		err = fmt.Errorf("lock: closing the backend: %w", cerr)
	}
	// Past the limit there is a moment for what an observer was not told before.
	patience := time.NewTimer(max(time.Until(end), call.Patience))
	defer patience.Stop()
	select {
	case <-told:
	case <-patience.C:
	}
	c.telling.Close()
	select {
	case <-c.telling.Idle():
	case <-patience.C:
	}
	return err
}
