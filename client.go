package lock

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// closeLimit bounds Close, and one release or clean-up request.
const closeLimit = 5 * time.Second

// primitives are the atomic steps that leases are made of: the backend itself,
// or the backend with its holds counted on this side.
type primitives interface {
	Try(ctx context.Context, req backend.Request) (backend.Grant, error)
	Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error)
	Release(ctx context.Context, hold backend.Hold) error
}

// client is the Locker on any backend.
type client struct {
	backend    backend.Backend
	guarantees backend.Guarantees
	ttl        time.Duration
	log        *slog.Logger
	observer   Observer
	host       string
	pid        int

	// What the backend can do, looked up once. Optional abilities are nil when
	// they are missing.
	ops      primitives
	watcher  backend.Watcher
	queuer   backend.Queuer
	batch    backend.BatchRenewer
	handOver backend.HandOverer
	counted  bool // the holds of explicit owners are counted on this side

	clock    backend.Clock
	sched    *scheduler
	lanes    lanes
	renewers pool
	cleaners pool
	callers  workers  // requests whose callers may stop waiting
	notices  *notices // nil when the backend notifies nobody

	dueRenewals []*lease // guarded by the scheduler's mutex

	calls  tracker         // calls, requests and clean-ups under way
	open   context.Context // ends when Close begins
	shut   context.CancelFunc
	done   <-chan struct{} // of open
	life   context.Context // ends when Close has finished
	kill   context.CancelFunc
	asking deadlines // of attempts that only Close ends early
	ending deadlines // of releases
	closed sync.Once
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
		log:        o.Logger,
		observer:   o.Observer,
		pid:        os.Getpid(),
		clock:      backend.SystemClock(),
		renewers:   pool{limit: 32},
		cleaners:   pool{limit: 32},
	}
	c.host, _ = os.Hostname()
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if o.TTL == 0 {
		c.ttl = nearestTTL(DefaultTTL, c.guarantees)
	} else if err := c.guarantees.CheckTTL(o.TTL); err != nil {
		return nil, err
	} else {
		c.ttl = o.TTL
	}
	if clocked, ok := b.(backend.Clocked); ok {
		c.clock = clocked.Clock()
	}
	c.sched = newScheduler(c.clock)
	c.open, c.shut = context.WithCancel(context.Background())
	c.done = c.open.Done()
	c.life, c.kill = context.WithCancel(context.Background())
	c.asking.parent, c.ending.parent = c.open, c.life
	c.callers = newWorkers(c.life.Done())
	c.lanes.m = map[laneKey]*lane{}
	c.ops = b
	c.watcher, _ = b.(backend.Watcher)
	c.queuer, _ = b.(backend.Queuer)
	c.batch, _ = b.(backend.BatchRenewer)
	c.handOver, _ = b.(backend.HandOverer)
	notifier, _ := b.(backend.LossNotifier)
	if c.guarantees.Reentrancy == backend.ReentrancyClient {
		r := newReentry(b, c.clock)
		// Holds without an owner are not counted, so that the backend may renew them
		// together. It hands nothing over beside what is counted here.
		c.ops, c.counted, c.handOver = r, true, nil
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

// nearestTTL is the TTL closest to want that the backend accepts.
func nearestTTL(want time.Duration, g backend.Guarantees) time.Duration {
	ttl := max(want, g.MinTTL)
	if g.MaxTTL > 0 {
		ttl = min(ttl, g.MaxTTL)
	}
	if grain := g.TTLGrain; grain > 1 {
		ttl -= ttl % grain
		if ttl < g.MinTTL || ttl <= 0 {
			ttl += grain
		}
	}
	return ttl
}

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
	defer c.calls.done()
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
	defer c.calls.done()
	l, err := a.acquire(ctx)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return l, nil
}

// begin checks what can be checked before anything is sent. Without an error the
// caller owes a calls.done.
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
	if !c.calls.add() {
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

// act turns what the state machine asks for into deeds. The scheduler's mutex is
// held; the deeds that may block, or that run code of others, are in the function
// that is returned.
func (c *client) act(l *lease, a action) func() {
	if a == 0 {
		return nil
	}
	var renewals func()
	if a&actRenew != 0 {
		if len(c.dueRenewals) == 0 {
			renewals = c.sendRenewals
		}
		c.dueRenewals = append(c.dueRenewals, l)
	}
	if a&actEnd == 0 {
		return renewals
	}
	cleanUp := a&actCleanUp != 0
	if cleanUp {
		c.calls.follow() // Close waits until the clean-up is scheduled, and then for itself
	}
	cause := l.state.cause
	return func() {
		l.end(cause)
		if cleanUp {
			// Not before: the clean-up lets others have the key.
			c.cleanUp(l.hold.Key, l.hold.TTL, func(ctx context.Context) error { return c.ops.Release(ctx, l.hold) })
			c.calls.done()
		}
		if c.notices != nil {
			c.notices.forget(l.hold.ID)
		}
		if cause != ErrReleased {
			go c.reportEnd(l, cause)
		}
	}
}

// reportEnd tells log and observer about a hold that ended without a release.
func (c *client) reportEnd(l *lease, cause error) {
	e := Event{Kind: EventLoss, Key: l.hold.Key, Token: l.hold.Token, Duration: c.clock.Now().Sub(l.since), Err: cause}
	if cause == ErrClosed {
		e.Kind = EventRelease
	} else {
		c.log.Warn("lock lost", "key", e.Key, "token", e.Token, "cause", cause, "held", e.Duration)
	}
	c.observe(context.Background(), e)
}

func (c *client) observe(ctx context.Context, e Event) {
	if c.observer != nil {
		c.observer(ctx, e)
	}
}

// Close implements Locker.
func (c *client) Close() error {
	var err error
	c.closed.Do(func() {
		c.calls.close()
		c.shut()
		c.endLeases()
		limit := time.NewTimer(closeLimit)
		defer limit.Stop()
		for stopped := false; !stopped; {
			select {
			case <-c.calls.idle():
				// A lease that ended just now may have something to clean up.
				stopped = c.sched.stopIf(c.calls.none)
			case <-limit.C:
				err = fmt.Errorf("%w: Close: not every release was confirmed within %s; what is left ends within its TTL", ErrOutcomeUnknown, closeLimit)
				stopped = c.sched.stopIf(func() bool { return true })
			}
		}
		c.kill()
		if cerr := c.backend.Close(); cerr != nil && err == nil {
			err = fmt.Errorf("lock: closing the backend: %w", cerr)
		}
	})
	return err
}

// endLeases ends every lease with the cause ErrClosed and schedules the releases.
func (c *client) endLeases() {
	var todo []func()
	s := c.sched
	s.mu.Lock()
	for _, e := range append([]entry(nil), s.entries...) {
		l, ok := e.(*lease)
		if !ok {
			continue
		}
		act := l.state.close()
		s.set(l, l.state.wake())
		if f := c.act(l, act); f != nil {
			todo = append(todo, f)
		}
	}
	s.mu.Unlock()
	for _, f := range todo {
		f()
	}
}

// between returns a random duration from d to d plus a quarter of it.
func between(d time.Duration) time.Duration {
	return d + time.Duration(rand.Float64()*float64(d)/4)
}
