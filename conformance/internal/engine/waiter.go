package engine

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Acquiring calls Acquire in a goroutine. The lease or the error arrives when
// done is closed.
type Acquiring struct {
	Hold    *Hold
	Err     error
	Done    chan struct{}
	Wait    func()
	Begun   chan struct{}
	Cancel  context.CancelFunc
	invoked time.Duration
}

// Acquiring begins to wait for the key, with a TTL that outlasts the case.
func (c *Client) Acquiring(key string, more ...lock.Option) *Acquiring {
	return c.AcquiringFor(key, c.Env.Long, more...)
}

// AcquiringFor is Acquiring with the given TTL.
func (c *Client) AcquiringFor(key string, ttl time.Duration, more ...lock.Option) *Acquiring {
	return c.AcquiringOn(c.Env.Ctx, key, ttl, more...)
}

// AcquiringOn is AcquiringFor with a context of the caller.
func (c *Client) AcquiringOn(ctx context.Context, key string, ttl time.Duration, more ...lock.Option) *Acquiring {
	ctx, cancel := context.WithCancel(ctx)
	a := &Acquiring{Done: make(chan struct{}), Begun: make(chan struct{}), Cancel: cancel}
	a.Wait = c.Env.Start(func() {
		a.invoked = c.Env.Log.Now()
		close(a.Begun)
		a.Hold, a.Err = c.AcquireFor(ctx, key, ttl, more...)
		close(a.Done)
	})
	return a
}

// MustGet waits for the grant, by a control timer.
func (a *Acquiring) MustGet(e *Env, key string, d time.Duration, why string) *Hold {
	if !e.Within(d, a.Done) {
		e.Look(key)
		e.OverdueFatalf(key, "a waiter had not been granted the key after %s; %s", d, why)
	}
	if a.Err != nil {
		e.UnexpectedFatal(key, a.Err, "a waiter's Acquire returned %s; expected a lease: %s", Outcome(a.Err), why)
	}
	return a.Hold
}

// lookLimit is how long a look may take.
const lookLimit = 2 * time.Second

// Look has a client of its own try a key that a waiter was not granted in time. The
// calls that are shown with the failure then tell whether the key was free, whose it
// was, or that the server did not answer.
func (e *Env) Look(key string) {
	c, err := e.open(e.OpenLocker)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.Ctx, lookLimit)
	defer cancel()
	if h, err := c.TryFor(ctx, key, e.TTL); err == nil {
		_ = h.Release(ctx)
	}
}

// Settle gives the waiters a moment to reach the server. No rule depends on it.
func (e *Env) Settle() { e.Pause(40 * time.Millisecond) }

// WaitBound is how soon after it became free a waiter must have the key: a poll
// interval, and slack.
func (e *Env) WaitBound() time.Duration { return 4*time.Second + e.Slack() }

// WakeBound is WaitBound for the fastest of several. A lock that polls has its interval.
func (e *Env) WakeBound() time.Duration {
	if (e.Says || e.Guarantees != nil) && e.Claimed.Waiting != "" && e.Claimed.Waiting != backend.WaitPoll {
		return e.Prompt()
	}
	return time.Second + e.Prompt()
}

// GivesUp calls Acquire on a held key with a context that ends after a while. On
// a busy machine it may end before the lock has even asked, so that the error
// cannot tell of a holder; then the wait is repeated with more time. In the end the
// error must tell, unless a request took a good part of that time.
func (c *Client) GivesUp(key string, cancelled bool, late *Lateness, more ...lock.Option) (ctxErr, err error) {
	e := c.Env
	var given time.Duration
	for _, d := range []time.Duration{60 * time.Millisecond, 400 * time.Millisecond, 2 * time.Second} {
		begun := time.Now() // before the context begins: a pause between them must not shorten the wait
		ctx, cancel := context.WithTimeout(e.Ctx, d)
		if cancelled {
			ctx, cancel = context.WithCancel(e.Ctx)
			time.AfterFunc(d, cancel)
		}
		var got *Hold
		got, err = c.Acquire(ctx, key, more...)
		took := time.Since(begun)
		cancel()
		ctxErr = ctx.Err()
		if err == nil {
			_ = got.Release(e.Ctx)
			e.Fatalf(key, "Acquire was granted a key that was held")
		}
		if took < d-d/8 && !cancelled {
			e.UnexpectedFatal(key, err, "Acquire of a held key returned %s %s after the call; its context was to end after %s, and the holder might release the key before", Outcome(err), Short(took), d)
		}
		late.Add(e, took-d)
		if took > d+e.Slack() {
			e.Overduef(key, "Acquire returned %s after the call; its context had ended after %s", took.Round(time.Millisecond), d)
		}
		if errors.Is(err, lock.ErrHeld) {
			return ctxErr, err
		}
		given = d
	}
	e.Fail(Excuse{given / 4, anyAnswer}, key, "Acquire of a held key, whose context ended after %s, returned %s; expected an error that matches ErrHeld", given, Outcome(err))
	panic(Abort{})
}
