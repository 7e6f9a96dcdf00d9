package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Client is a Locker whose calls are recorded.
type Client struct {
	Env    *Env
	Locker lock.Locker
	Who    string
	killed atomic.Bool
	harmed atomic.Bool // a fault was put into a request of it, or into the Network that it is behind: what its calls take excuses nothing
	mu     sync.Mutex
	closed time.Duration // when Close was called, or -1
}

// Hold is a lease whose calls are recorded.
type Hold struct {
	*Record
	Client   *Client
	Lease    lock.Lease
	Settings lock.Settings
}

// DefaultTTL is given as a TTL where a call is to name none.
const DefaultTTL time.Duration = 0

// Opts are the options for a lease with the given TTL.
func (e *Env) Opts(ttl time.Duration, more ...lock.Option) []lock.Option {
	if e.Fixed || ttl == DefaultTTL {
		return more
	}
	return append([]lock.Option{lock.WithTTL(ttl)}, more...)
}

// Try calls TryAcquire with a TTL that outlasts the case; Get makes a call without one.
func (c *Client) Try(key string, more ...lock.Option) (*Hold, error) {
	return c.TryFor(c.Env.Ctx, key, c.Env.Long, more...)
}

// Acquire calls Acquire with a TTL that outlasts the case.
func (c *Client) Acquire(ctx context.Context, key string, more ...lock.Option) (*Hold, error) {
	return c.AcquireFor(ctx, key, c.Env.Long, more...)
}

// TryFor calls TryAcquire with the given TTL.
func (c *Client) TryFor(ctx context.Context, key string, ttl time.Duration, more ...lock.Option) (*Hold, error) {
	return c.Get("TryAcquire", c.Locker.TryAcquire, ctx, key, c.Env.Opts(ttl, more...))
}

// AcquireFor calls Acquire with the given TTL.
func (c *Client) AcquireFor(ctx context.Context, key string, ttl time.Duration, more ...lock.Option) (*Hold, error) {
	return c.Get("Acquire", c.Locker.Acquire, ctx, key, c.Env.Opts(ttl, more...))
}

// Getter is Acquire or TryAcquire of a Locker.
type Getter func(context.Context, string, ...lock.Option) (lock.Lease, error)

// Get records a call of f, which is called op.
func (c *Client) Get(op string, f Getter, ctx context.Context, key string, opts []lock.Option) (*Hold, error) {
	e := c.Env
	set, _ := lock.ResolveOptions(opts...)
	ev := e.Log.Begin(c.Who, op, key)
	lease, err := f(ctx, key, opts...)
	if err == nil && lease != nil {
		e.Log.End(ev, e.describe(lease, set))
	} else {
		e.Log.ended(ev, err)
		if ctx.Err() == nil { // else its caller has ended it
			c.took(ev, err)
		}
	}
	switch {
	case err != nil && lease != nil:
		e.Failf(key, "%s returned a lease together with an error; a caller that gets an error holds nothing", op)
		return nil, err
	case err != nil:
		return nil, err
	case lease == nil:
		e.Fatalf(key, "%s returned neither a lease nor an error", op)
	}
	h := &Hold{Client: c, Lease: lease, Settings: set}
	h.Record = &Record{
		Who: c.Who, Key: key, Owner: set.Owner, Token: lease.Token(), ttl: set.TTL, renews: !set.NoRenewal,
		Invoked: ev.From, Granted: ev.to, released: -1, maxHold: set.MaxHold, closed: c.closedAt, Deadline: h.deadlineNow,
	}
	h.see()
	e.addRecord(h.Record)
	c.took(ev, nil)
	return h, nil
}

// took measures a request that nothing disturbed.
func (c *Client) took(ev *Entry, err error) {
	if !c.harmed.Load() {
		c.Env.Log.tookOrFailed(ev, err)
	}
}

func (e *Env) describe(lease lock.Lease, set lock.Settings) string {
	parts := []string{granted(lease.Token(), 1)}
	if d, ok := lease.Deadline(); ok {
		parts = append(parts, fmt.Sprintf("deadline %.4f", e.Log.At(d).Seconds()))
	}
	if set.TTL > 0 {
		parts = append(parts, "TTL "+set.TTL.String())
	}
	if set.NoRenewal {
		parts = append(parts, "not renewed")
	}
	if set.Owner != "" {
		parts = append(parts, "owner "+e.OwnerName(set.Owner))
	}
	return strings.Join(parts, ", ")
}

// MustTry is try on a key that must be free.
func (c *Client) MustTry(key string, more ...lock.Option) *Hold {
	return c.MustTryFor(key, c.Env.Long, more...)
}

// MustTryFor is TryFor on a key that must be free.
func (c *Client) MustTryFor(key string, ttl time.Duration, more ...lock.Option) *Hold {
	h, err := c.TryFor(c.Env.Ctx, key, ttl, more...)
	if err != nil {
		c.Env.UnexpectedFatal(key, err, "TryAcquire on a free key returned %s; expected a lease", Outcome(err))
	}
	return h
}

// Wins tries the key until it is granted, and fails the case when the control
// timer of the limit fires first.
func (c *Client) Wins(key string, limit, every time.Duration, why string) *Hold {
	g := c.Env.Poll(key, limit, every, why, func() (Grip, error) {
		h, err := c.Try(key)
		if err != nil {
			return nil, err
		}
		return h, nil
	})
	return g.(*Hold)
}

// Soon is wins where clean-up in the background may still be under way.
func (c *Client) Soon(key, why string) *Hold {
	return c.Wins(key, c.Env.Slack(), 20*time.Millisecond, why)
}

// MustAcquire is acquire on a key that is free, or that the owner may enter.
func (c *Client) MustAcquire(key string, more ...lock.Option) *Hold {
	ctx, cancel := context.WithTimeout(c.Env.Ctx, c.Env.WaitBound())
	defer cancel()
	return c.MustWait(ctx, key, more...)
}

// MustWait is acquire on a key that others want too.
func (c *Client) MustWait(ctx context.Context, key string, more ...lock.Option) *Hold {
	h, err := c.Acquire(ctx, key, more...)
	if err != nil {
		c.Env.UnexpectedFatal(key, err, "Acquire returned %s; expected a lease", Outcome(err))
	}
	return h
}

// MustRefuse tries the key, which must be held.
func (c *Client) MustRefuse(key, why string, more ...lock.Option) { _ = c.Refusal(key, why, more...) }

// Refusal is MustRefuse, and returns the error of the refusal.
func (c *Client) Refusal(key, why string, more ...lock.Option) error {
	h, err := c.Try(key, more...)
	if err != nil {
		c.Env.JudgeRefusal(key, "TryAcquire", why, nil, err)
		return err
	}
	c.Env.JudgeRefusal(key, "TryAcquire", why, h.Record, nil)
	_ = h.Release(context.Background())
	panic(Abort{})
}

// JudgeRefusal fails the case unless the error is that of a refusal. It is called with a
// grant or an error, not with both. A grant is a
// broken rule, unless the lease that should have kept the caller out has run out
// in the meantime: then the case was late.
func (e *Env) JudgeRefusal(key, op, why string, granted *Record, err error) {
	switch {
	case granted != nil && e.inForce(granted):
		e.Failf(key, "%s was granted; expected a refusal, because %s", op, why)
	case granted != nil:
		e.Latef(key, "%s was granted; expected a refusal, because %s. (The lease that stood in the way may have run out.)", op, why)
	case !errors.Is(err, lock.ErrHeld):
		e.Unexpected(key, err, "%s on a held key returned %s; expected an error that matches ErrHeld, because %s", op, Outcome(err), why)
	}
}

// inForce reports whether some other hold on the key is certainly in force now.
func (e *Env) inForce(granted *Record) bool {
	now := e.Log.Now()
	e.mu.Lock()
	records, removals := slices.Clone(e.records), e.removed[granted.Key]
	e.mu.Unlock()
	for _, r := range records {
		if r != granted && r.Key == granted.Key {
			if end, _ := r.End(e, removals); end > now {
				return true
			}
		}
	}
	return false
}

// MustRelease releases a lease that is held.
func (h *Hold) MustRelease() {
	if err := h.Release(h.Client.Env.Ctx); err != nil {
		h.Client.Env.UnexpectedFatal(h.Key, err, "Release of a lease that was held returned %s; expected no error", Outcome(err))
	}
}

// Release releases the lease.
func (h *Hold) Release(ctx context.Context) error {
	h.see()
	from := h.Client.Env.Log.Now()
	err := h.endedBy(h.Client.Env, h.Lost(), func() error {
		return h.Client.call("Release", h.Key, func() error { return h.Lease.Release(ctx) })
	})
	if !h.Client.harmed.Load() {
		h.unheard(h.Client.Env.Log.Now()-from, err)
	}
	return err
}

// Renew renews the lease by hand.
func (h *Hold) Renew() error {
	from := h.Client.Env.Log.Now()
	err := h.Client.call("Renew", h.Key, func() error { return h.Lease.Renew(h.Client.Env.Ctx) })
	if err == nil {
		h.confirmed(from)
	}
	h.see()
	return err
}

// call records a call on a lease or a Locker.
func (c *Client) call(op, key string, f func() error) error {
	ev := c.Env.Log.Begin(c.Who, op, key)
	err := f()
	c.Env.Log.End(ev, Outcome(err))
	c.took(ev, err)
	return err
}

// Close closes the Locker.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed < 0 {
		c.closed = c.Env.Log.Now()
	}
	c.mu.Unlock()
	return c.call("Close", "", c.Locker.Close)
}

func (c *Client) closedAt() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Kill abandons the Locker with Config.Kill.
func (c *Client) Kill() {
	c.killed.Store(true)
	c.Env.Log.Note("suite", "", "killed "+c.Who)
	c.Env.Kill(c.Locker)
}

// deadlineNow is the deadline that the lease states, and false when unknown.
func (h *Hold) deadlineNow() (time.Duration, bool) {
	d, ok := h.Lease.Deadline()
	if !ok {
		return 0, false
	}
	return h.Client.Env.Log.At(d), true
}

// Until is when the lease ends at the earliest when it is not renewed: its
// deadline, or where that is unknown, the TTL less the drift allowance.
func (h *Hold) Until() time.Time {
	if d, ok := h.Lease.Deadline(); ok {
		return d
	}
	return h.Client.Env.Log.Base.Add(h.Invoked + backend.ValidFor(h.EffectiveTTL()))
}

// UntilAtMost is when it ends at the latest: its deadline, or where that is unknown, a TTL
// after its grant.
func (h *Hold) UntilAtMost() time.Time {
	if d, ok := h.Lease.Deadline(); ok {
		return d
	}
	return h.Client.Env.Log.Base.Add(h.Granted + h.EffectiveTTL())
}

// EffectiveTTL is the TTL that the lease was asked for, or that of the run.
func (h *Hold) EffectiveTTL() time.Duration {
	if h.Settings.TTL > 0 {
		return h.Settings.TTL
	}
	return h.Client.Env.TTL
}

// Lost reports whether the lease says that it has ended.
func (h *Hold) Lost() bool { return h.Lease.Context().Err() != nil }

// Cause is why the lease has ended.
func (h *Hold) Cause() error { return context.Cause(h.Lease.Context()) }

// MustLive fails the case if the lease has ended.
func (h *Hold) MustLive(why string) {
	if h.Lost() {
		h.Client.Env.LateFatalf(h.Key, "the lease of %s has ended with cause %s; expected it to be held, because %s", h.Who, Outcome(h.Cause()), why)
	}
}
