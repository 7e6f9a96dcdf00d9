package lock

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock/backend"
)

// cleanup is a release that the server still has to confirm, after a lost hold,
// an acquisition of unknown outcome, or a release without an answer. It is
// repeated, detached from every caller's context, until the server confirms it or
// the TTL has passed and the server has ended the hold by itself.
type cleanup struct {
	c       *client
	key     string
	send    func(ctx context.Context) error
	until   backend.Instant
	backoff time.Duration
	at      slot
}

// cleanUp schedules a clean-up for now.
func (c *client) cleanUp(key string, ttl time.Duration, send func(ctx context.Context) error) {
	c.sched.mu.Lock()
	defer c.sched.mu.Unlock()
	c.cleanUpLocked(key, ttl, send)
}

// cleanUpLocked is cleanUp with the scheduler's mutex held.
func (c *client) cleanUpLocked(key string, ttl time.Duration, send func(ctx context.Context) error) {
	if c.sched.stopped {
		return
	}
	now := c.clock.Now()
	c.calls.follow()
	cl := &cleanup{c: c, key: key, send: send, until: now.Add(ttl), backoff: 20 * time.Millisecond}
	c.sched.set(cl, now)
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
	_, err := bounded(ctx, nil, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, cl.send(ctx) })
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
