package lock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// cleanup is a release that the server still has to confirm, after a lost hold,
// an acquisition of unknown outcome, or a release without an answer. It is
// repeated, detached from every caller's context, until the server confirms it or
// the TTL has passed and the server has ended the hold by itself. Where only the end
// of a session that others share would end the hold, it is repeated until the
// server confirms it or the Locker closes.
//
// A request without an answer may reach the server after its clean-up, and take the key for
// a TTL. So where the server had nothing to end, it is asked again a few times in that
// TTL. Nobody waits for these, Close included.
type cleanup struct {
	c       *client
	key     string
	send    func(ctx context.Context) error
	late    func(err error) bool // given how the server confirmed: a request may still arrive; nil: none can
	ttl     time.Duration
	look    time.Duration // until the server is asked again, once it has confirmed
	until   backend.Instant
	backoff time.Duration
	first   chan struct{} // closed after the first attempt
	once    sync.Once     // closes it
	at      int32         // the place in the scheduler
}

// cleanUpPatience is how long a call whose context has ended waits for the first
// attempt to clean up after it, so that normally nothing is left when it returns.
const cleanUpPatience = 50 * time.Millisecond

// A confirmed clean-up looks again after this part of the TTL, or this time if it is shorter,
// and then after pauses that double up to half the TTL.
const (
	firstLookPart = 16
	firstLook     = 250 * time.Millisecond
)

// cleanUp begins a clean-up. After Close it returns nil.
func (c *client) cleanUp(key string, ttl time.Duration, late func(error) bool, send func(ctx context.Context) error) *cleanup {
	until := c.clock.Now().Add(ttl)
	if c.guarantees.EndsWithSession {
		until = never
	}
	cl := &cleanup{c: c, key: key, send: send, late: late, ttl: ttl, until: until, backoff: 20 * time.Millisecond, first: make(chan struct{})}
	c.sched.mu.Lock()
	stopped := c.sched.stopped
	if !stopped {
		c.calls.follow()
	}
	c.sched.mu.Unlock()
	if stopped {
		return nil
	}
	cl.run(cl.attempt)
	return cl
}

// giveBack ends in the background what the server has granted.
func (c *client) giveBack(hold backend.Hold) {
	c.cleanUp(hold.Key, hold.TTL, nil, func(ctx context.Context) error { return c.ops.Release(ctx, hold) })
}

// await waits a moment for the first attempt.
func (cl *cleanup) await() {
	if cl == nil {
		return
	}
	patience := time.NewTimer(cleanUpPatience)
	defer patience.Stop()
	select {
	case <-cl.first:
	case <-patience.C:
	}
}

func (cl *cleanup) place() *int32 { return &cl.at }

func (cl *cleanup) due(now backend.Instant) (backend.Instant, func()) {
	if cl.look > 0 {
		cl.c.calls.follow()
	} else if now >= cl.until {
		return never, func() { cl.run(cl.giveUp) }
	}
	return never, func() { cl.run(cl.attempt) }
}

func (cl *cleanup) run(f func()) {
	cl.c.cleaners.run(cl.c.partition(cl.key), poolPatience, f)
}

func (cl *cleanup) attempt() {
	c := cl.c
	ctx, cancel := context.WithTimeout(c.life, min(closeLimit, max(cl.until.Sub(c.clock.Now()), time.Millisecond)))
	defer cancel()
	_, err := bounded(ctx, c, nil, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, cl.send(ctx) })
	cl.once.Do(func() { close(cl.first) })
	confirmed := err == nil || errors.Is(err, ErrNotHeld) || errors.Is(err, ErrUnsupported)
	again := cl.look > 0 || confirmed && cl.late != nil && cl.late(err)
	if !confirmed && !again {
		c.log.Debug("lock clean-up not confirmed yet", "key", cl.key, "error", err)
	}
	s := c.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case again:
		cl.lookLater()
		c.calls.done()
	case confirmed || s.stopped:
		c.calls.done()
	default:
		cl.backoff = min(2*cl.backoff, time.Second)
		s.set(cl, c.clock.Now().Add(between(cl.backoff)))
	}
}

// lookLater has the server asked again, unless the TTL is about to be over. The
// scheduler's mutex is held.
func (cl *cleanup) lookLater() {
	if cl.look *= 2; cl.look == 0 {
		cl.look = max(min(firstLook, cl.ttl/firstLookPart), time.Millisecond)
	}
	if cl.look <= cl.ttl/2 {
		cl.c.sched.set(cl, cl.c.clock.Now().Add(cl.look))
	}
}

func (cl *cleanup) giveUp() {
	cl.c.log.Warn("lock clean-up was not confirmed; the hold has ended by its TTL", "key", cl.key)
	cl.c.calls.done()
}
