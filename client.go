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
	"github.com/mortiselock/lock/internal/reentry"
	"github.com/mortiselock/lock/internal/schedule"
)

// client is the Locker on any backend.
type client struct {
	server     *call.Server
	backend    backend.Backend
	guarantees backend.Guarantees
	ttl        time.Duration
	observer   Observer
	host       string
	pid        int

	// What the backend can do, looked up once. Optional abilities are nil when
	// they are missing.
	watcher  backend.Watcher
	queuer   backend.Queuer
	batch    backend.BatchRenewer
	handOver backend.HandOverer
	teller   backend.ReleaseTeller
	counter  *reentry.Counter // of the holds of explicit owners, where that is done on this side

	expiries  *expiries
	lanes     lanes
	renewers  call.Pool
	reporters call.Pool // of ends that nobody asked for
	notices   *notices  // nil when the backend notifies nobody

	dueRenewals []dueRenewal // guarded by the scheduler's mutex

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
		backend:    b,
		guarantees: b.Guarantees(),
		observer:   o.Observer,
		pid:        os.Getpid(),
		renewers:   call.Pool{Limit: 32, Urgent: true},
		reporters:  call.Pool{Limit: 32},
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
	c.expiries = &expiries{clock: clock, armed: schedule.Never, begin: c.server.Calls.Follow, after: c.afterExpiry}
	c.server.Sched.Before, c.server.Sched.Along = c.expiries.run, c.takeAlong
	c.lanes.m = map[laneKey]*lane{}
	c.watcher, _ = backend.As[backend.Watcher](b)
	c.queuer, _ = backend.As[backend.Queuer](b)
	c.batch, _ = backend.As[backend.BatchRenewer](b)
	c.handOver, _ = backend.As[backend.HandOverer](b)
	c.teller, _ = backend.As[backend.ReleaseTeller](b)
	notifier, _ := backend.As[backend.LossNotifier](b)
	if c.guarantees.Reentrancy == backend.ReentrancyClient {
		r := reentry.New(b, clock)
		// Holds without an owner are not counted, so that the backend may renew them
		// together. It hands nothing over beside what is counted here.
		c.server.Backend, c.counter, c.handOver = r, r, nil
		if c.queuer != nil {
			c.queuer = r
		}
		notifier = r
	}
	if notifier != nil {
		c.notices = &notices{leases: map[backend.ID]*lease{}, early: map[backend.ID]error{}}
		notifier.NotifyLoss(c.lossNoticed)
	}
	return c, nil
}

// Format prints what the Locker is, with every verb in the same way: not its leases,
// whose owners are secret, and not the password of its server.
func (c *client) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "Locker on %s", c.guarantees.Name) }

// Guarantees implements Guaranteer.
func (c *client) Guarantees() backend.Guarantees { return c.guarantees }

// Backend gives access to the optional interfaces of the backend, for tools that
// inspect locks.
func (c *client) Backend() backend.Backend { return c.backend }

// TryAcquire implements Locker.
func (c *client) TryAcquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	a, err := c.begin(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	defer c.server.Calls.Done()
	l, err := a.try(ctx)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return l, nil
}

// Acquire implements Locker.
func (c *client) Acquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	a, err := c.begin(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	defer c.server.Calls.Done()
	l, err := a.acquire(ctx)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return l, nil
}

// begin checks what can be checked before anything is sent. Without an error the
// caller owes a Calls.Done.
func (c *client) begin(ctx context.Context, key string, opts []Option) (*acquisition, error) {
	if err := ValidateKey(key); err != nil {
		return nil, err
	}
	s, err := ResolveOptions(opts...)
	if err != nil {
		return nil, err
	}
	if s.TTL == 0 {
		s.TTL = c.ttl
	} else if err := c.guarantees.CheckTTL(s.TTL); err != nil {
		return nil, err
	}
	if s.Owner != "" && c.guarantees.Reentrancy == backend.ReentrancyNone {
		return nil, fmt.Errorf("%w: %s has no reentrant locks; leave out WithOwner", ErrUnsupported, c.guarantees.Name)
	}
	if s.NoRenewal && !c.guarantees.WithoutRenewal {
		return nil, fmt.Errorf("%w: %s always renews; leave out WithoutRenewal, or use WithMaxHold", ErrUnsupported, c.guarantees.Name)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("lock: acquiring %q: %w", key, err)
	}
	if !c.server.Calls.Add() {
		return nil, ErrClosed
	}
	return &acquisition{
		c:        c,
		settings: s,
		req: backend.Request{
			Key: key, ID: backend.NewID(), Owner: s.Owner, TTL: s.TTL,
			Holder:  backend.Holder{Label: s.Label, Host: c.host, PID: c.pid},
			Renewed: !s.NoRenewal,
		},
	}, nil
}

// ended does what follows when the context of a lease has ended. If it was lost, the
// server is told, and log and observer are; the caller has counted that as under way.
func (c *client) ended(l *lease, cause error, lost bool) {
	if c.notices != nil {
		c.notices.forget(l.hold.ID)
	}
	if !lost {
		return
	}
	// Not before the context's end: the clean-up lets others have the key.
	l.giveBack()
	if c.observer == nil && !c.server.Log.Enabled(context.Background(), slog.LevelWarn) {
		c.server.Calls.Done()
		return
	}
	c.reporters.Run("", call.Patience, func() {
		defer c.server.Calls.Done()
		c.reportEnd(l, cause)
	})
}

// afterExpiry has the states of leases follow their terms, which are over and whose
// contexts have ended.
func (c *client) afterExpiry(ended []*lease) {
	for _, l := range ended {
		l.step(func(h *hold, now backend.Instant) action { return h.tick(now, 0) })
		c.server.Calls.Done()
	}
}

// reportEnd tells log and observer about a hold that ended without a release.
func (c *client) reportEnd(l *lease, cause error) {
	e := Event{Kind: EventLoss, Key: l.hold.Key, Token: l.hold.Token, Duration: c.server.Clock.Now().Sub(l.since), Err: cause}
	if cause == ErrClosed {
		e.Kind = EventRelease
	} else {
		c.server.Log.Warn("lock lost", "key", e.Key, "token", e.Token, "cause", cause, "held", e.Duration)
	}
	c.observe(context.Background(), e)
}

// Close implements Locker.
func (c *client) Close() error {
	var err error
	c.closed.Do(func() {
		c.server.Calls.Close()
		c.server.Calls.Shut()
		c.endLeases()
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
		if cerr := c.backend.Close(); cerr != nil && err == nil {
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

// endLeases ends every lease with the cause ErrClosed, and then schedules the releases.
func (c *client) endLeases() {
	c.server.Sched.Lock()
	leases := c.expiries.all()
	acts := make([]action, len(leases))
	causes := make([]error, len(leases))
	for i, l := range leases {
		acts[i] = l.apply(func(h *hold, _ backend.Instant) action { return h.close() })
		causes[i] = l.state.cause
	}
	c.server.Sched.Unlock()
	for i, l := range leases {
		l.end(causes[i])
	}
	for i, l := range leases {
		l.carryOut(acts[i], causes[i])
	}
}
