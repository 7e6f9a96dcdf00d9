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
type cleanup struct {
	c       *client
	key     string
	send    func(ctx context.Context) error
	until   backend.Instant
	backoff time.Duration
	first   chan struct{} // closed after the first attempt
	once    sync.Once     // closes it
	at      slot
}

// cleanUpPatience is how long a call whose context has ended waits for the first
// attempt to clean up after it, so that normally nothing is left when it returns.
const cleanUpPatience = 50 * time.Millisecond

// cleanUp schedules a clean-up for now. After Close it returns nil.
func (c *client) cleanUp(key string, ttl time.Duration, send func(ctx context.Context) error) *cleanup {
	c.sched.mu.Lock()
	defer c.sched.mu.Unlock()
	return c.cleanUpLocked(key, ttl, send)
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

// cleanUpLocked is cleanUp with the scheduler's mutex held.
func (c *client) cleanUpLocked(key string, ttl time.Duration, send func(ctx context.Context) error) *cleanup {
	if c.sched.stopped {
		return nil
	}
	now := c.clock.Now()
	c.calls.follow()
	until := now.Add(ttl)
	if c.guarantees.EndsWithSession {
		until = never
	}
	cl := &cleanup{c: c, key: key, send: send, until: until, backoff: 20 * time.Millisecond, first: make(chan struct{})}
	c.sched.set(cl, now)
	return cl
}

func (cl *cleanup) slot() *slot { return &cl.at }

func (cl *cleanup) due(now backend.Instant) func() {
	cl.at.wake = never
	if now >= cl.until {
		return func() { cl.c.cleaners.run(cl.giveUp) }
	}
	return func() { cl.c.cleaners.run(cl.attempt) }
}

func (cl *cleanup) attempt() {
	c := cl.c
	ctx, cancel := context.WithTimeout(c.life, min(closeLimit, max(cl.until.Sub(c.clock.Now()), time.Millisecond)))
	defer cancel()
	_, err := bounded(ctx, c, nil, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, cl.send(ctx) })
	cl.once.Do(func() { close(cl.first) })
	if err == nil || errors.Is(err, ErrNotHeld) || errors.Is(err, ErrUnsupported) {
		c.calls.done()
		return
	}
	c.log.Debug("lock clean-up not confirmed yet", "key", cl.key, "error", err)
	cl.backoff = min(2*cl.backoff, time.Second)
	s := c.sched
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		c.calls.done()
		return
	}
	s.set(cl, c.clock.Now().Add(between(cl.backoff)))
}

func (cl *cleanup) giveUp() {
	cl.c.log.Warn("lock clean-up was not confirmed; the hold has ended by its TTL", "key", cl.key)
	cl.c.calls.done()
}
