package conformance

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

// client is a Locker whose calls are recorded.
type client struct {
	e      *env
	l      lock.Locker
	who    string
	killed atomic.Bool
	harmed atomic.Bool // a fault was put into a request of it
	mu     sync.Mutex
	closed time.Duration // when Close was called, or -1
}

// hold is a lease whose calls are recorded.
type hold struct {
	*record
	c     *client
	lease lock.Lease
	set   lock.Settings
}

// opts are the options for a lease with the given TTL.
func (e *env) opts(ttl time.Duration, more ...lock.Option) []lock.Option {
	if e.fixed {
		return more
	}
	return append([]lock.Option{lock.WithTTL(ttl)}, more...)
}

// try calls TryAcquire with a TTL that outlasts the case.
func (c *client) try(key string, more ...lock.Option) (*hold, error) {
	return c.tryFor(c.e.ctx, key, c.e.long, more...)
}

// acquire calls Acquire with a TTL that outlasts the case.
func (c *client) acquire(ctx context.Context, key string, more ...lock.Option) (*hold, error) {
	return c.acquireFor(ctx, key, c.e.long, more...)
}

func (c *client) tryFor(ctx context.Context, key string, ttl time.Duration, more ...lock.Option) (*hold, error) {
	return c.get("TryAcquire", c.l.TryAcquire, ctx, key, c.e.opts(ttl, more...))
}

func (c *client) acquireFor(ctx context.Context, key string, ttl time.Duration, more ...lock.Option) (*hold, error) {
	return c.get("Acquire", c.l.Acquire, ctx, key, c.e.opts(ttl, more...))
}

type getter func(context.Context, string, ...lock.Option) (lock.Lease, error)

func (c *client) get(op string, f getter, ctx context.Context, key string, opts []lock.Option) (*hold, error) {
	e := c.e
	set, _ := lock.ResolveOptions(opts...)
	ev := e.hist.begin(c.who, op, key)
	lease, err := f(ctx, key, opts...)
	if err == nil && lease != nil {
		e.hist.end(ev, e.describe(lease, set))
	} else {
		e.hist.ended(ev, err)
		if ctx.Err() == nil { // else its caller has ended it
			c.took(ev, err)
		}
	}
	switch {
	case err != nil && lease != nil:
		e.failf(key, "%s returned a lease together with an error; a caller that gets an error holds nothing", op)
		return nil, err
	case err != nil:
		return nil, err
	case lease == nil:
		e.fatalf(key, "%s returned neither a lease nor an error", op)
	}
	h := &hold{c: c, lease: lease, set: set}
	h.record = &record{
		who: c.who, key: key, owner: set.Owner, token: lease.Token(), ttl: set.TTL, renews: !set.NoRenewal,
		invoked: ev.from, granted: ev.to, released: -1, maxHold: set.MaxHold, closed: c.closedAt, deadline: h.deadlineNow,
	}
	h.see()
	e.addRecord(h.record)
	c.took(ev, nil)
	return h, nil
}

// took measures a request that nothing disturbed.
func (c *client) took(ev *event, err error) {
	if !c.harmed.Load() {
		c.e.hist.tookOrFailed(ev, err)
	}
}

func (e *env) describe(lease lock.Lease, set lock.Settings) string {
	parts := []string{granted(lease.Token(), 1)}
	if d, ok := lease.Deadline(); ok {
		parts = append(parts, fmt.Sprintf("deadline %.4f", e.hist.at(d).Seconds()))
	}
	if set.TTL > 0 {
		parts = append(parts, "TTL "+set.TTL.String())
	}
	if set.NoRenewal {
		parts = append(parts, "not renewed")
	}
	if set.Owner != "" {
		parts = append(parts, "owner "+e.ownerName(set.Owner))
	}
	return strings.Join(parts, ", ")
}

// mustTry is try on a key that must be free.
func (c *client) mustTry(key string, more ...lock.Option) *hold {
	return c.mustTryFor(key, c.e.long, more...)
}

func (c *client) mustTryFor(key string, ttl time.Duration, more ...lock.Option) *hold {
	h, err := c.tryFor(c.e.ctx, key, ttl, more...)
	if err != nil {
		c.e.unexpectedFatal(key, err, "TryAcquire on a free key returned %s; expected a lease", outcome(err))
	}
	return h
}

// wins tries the key until it is granted, and fails the case when the control
// timer of the limit fires first.
func (c *client) wins(key string, limit, every time.Duration, why string) *hold {
	g := c.e.poll(key, limit, every, why, func() (grip, error) {
		h, err := c.try(key)
		if err != nil {
			return nil, err
		}
		return h, nil
	})
	return g.(*hold)
}

// soon is wins where clean-up in the background may still be under way.
func (c *client) soon(key, why string) *hold {
	return c.wins(key, c.e.slack(), 20*time.Millisecond, why)
}

// mustAcquire is acquire on a key that is free, or that the owner may enter.
func (c *client) mustAcquire(key string, more ...lock.Option) *hold {
	ctx, cancel := context.WithTimeout(c.e.ctx, c.e.waitBound())
	defer cancel()
	return c.mustWait(ctx, key, more...)
}

// mustWait is acquire on a key that others want too.
func (c *client) mustWait(ctx context.Context, key string, more ...lock.Option) *hold {
	h, err := c.acquire(ctx, key, more...)
	if err != nil {
		c.e.unexpectedFatal(key, err, "Acquire returned %s; expected a lease", outcome(err))
	}
	return h
}

// mustRefuse tries the key, which must be held.
func (c *client) mustRefuse(key, why string, more ...lock.Option) {
	h, err := c.try(key, more...)
	if err != nil {
		c.e.judgeRefusal(key, "TryAcquire", why, nil, err)
		return
	}
	c.e.judgeRefusal(key, "TryAcquire", why, h.record, nil)
	_ = h.release(context.Background())
	panic(abort{})
}

// judgeRefusal fails the case unless the error is that of a refusal. A grant is a
// broken rule, unless the lease that should have kept the caller out has run out
// in the meantime: then the case was late.
func (e *env) judgeRefusal(key, op, why string, granted *record, err error) {
	switch {
	case granted != nil && e.inForce(granted):
		e.failf(key, "%s was granted; expected a refusal, because %s", op, why)
	case granted != nil:
		e.latef(key, "%s was granted; expected a refusal, because %s. (The lease that stood in the way may have run out.)", op, why)
	case !errors.Is(err, lock.ErrHeld):
		e.unexpected(key, err, "%s on a held key returned %s; expected an error that matches ErrHeld, because %s", op, outcome(err), why)
	}
}

// inForce reports whether some other hold on the key is certainly in force now.
func (e *env) inForce(granted *record) bool {
	now := e.hist.now()
	e.mu.Lock()
	records, removals := slices.Clone(e.records), e.removed[granted.key]
	e.mu.Unlock()
	for _, r := range records {
		if r != granted && r.key == granted.key {
			if end, _ := r.end(e, removals); end > now {
				return true
			}
		}
	}
	return false
}

// mustRelease releases a lease that is held.
func (h *hold) mustRelease() {
	if err := h.release(h.c.e.ctx); err != nil {
		h.c.e.unexpectedFatal(h.key, err, "Release of a lease that was held returned %s; expected no error", outcome(err))
	}
}

func (h *hold) release(ctx context.Context) error {
	h.see()
	from := h.c.e.hist.now()
	err := h.endedBy(h.c.e, func() error {
		return h.c.call("Release", h.key, func() error { return h.lease.Release(ctx) })
	})
	if !h.c.harmed.Load() {
		h.unheard(h.c.e.hist.now()-from, err)
	}
	return err
}

func (h *hold) renew() error {
	from := h.c.e.hist.now()
	err := h.c.call("Renew", h.key, func() error { return h.lease.Renew(h.c.e.ctx) })
	if err == nil {
		h.confirmed(from)
	}
	h.see()
	return err
}

// call records a call on a lease or a Locker.
func (c *client) call(op, key string, f func() error) error {
	ev := c.e.hist.begin(c.who, op, key)
	err := f()
	c.e.hist.end(ev, outcome(err))
	c.took(ev, err)
	return err
}

// close closes the Locker.
func (c *client) close() error {
	c.mu.Lock()
	if c.closed < 0 {
		c.closed = c.e.hist.now()
	}
	c.mu.Unlock()
	return c.call("Close", "", c.l.Close)
}

func (c *client) closedAt() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// kill abandons the Locker with Config.Kill.
func (c *client) kill() {
	c.killed.Store(true)
	c.e.hist.note("suite", "", "killed "+c.who)
	c.e.Kill(c.l)
}

// deadlineNow is the deadline that the lease states, and false when unknown.
func (h *hold) deadlineNow() (time.Duration, bool) {
	d, ok := h.lease.Deadline()
	if !ok {
		return 0, false
	}
	return h.c.e.hist.at(d), true
}

// until is when the lease ends at the earliest when it is not renewed: its
// deadline, or where that is unknown, the TTL less the drift allowance.
func (h *hold) until() time.Time {
	if d, ok := h.lease.Deadline(); ok {
		return d
	}
	return h.c.e.hist.base.Add(h.invoked + backend.ValidFor(h.effectiveTTL()))
}

func (h *hold) effectiveTTL() time.Duration {
	if h.set.TTL > 0 {
		return h.set.TTL
	}
	return h.c.e.ttl
}

// lost reports whether the lease says that it has ended.
func (h *hold) lost() bool { return h.lease.Context().Err() != nil }

// cause is why the lease has ended.
func (h *hold) cause() error { return context.Cause(h.lease.Context()) }

// mustLive fails the case if the lease has ended.
func (h *hold) mustLive(why string) {
	if h.lost() {
		h.c.e.lateFatalf(h.key, "the lease of %s has ended with cause %s; expected it to be held, because %s", h.who, outcome(h.cause()), why)
	}
}
