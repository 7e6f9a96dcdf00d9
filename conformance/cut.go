package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// fault is what happens to a request on its way.
type fault int

const (
	passes       fault = iota
	hangs              // no answer until its context ends; not applied
	refused            // an error at once; not applied
	replyLost          // applied, and then an error
	replyDelayed       // applied, and the answer takes its time
)

// cut is a backend whose requests can be disturbed between the Locker and the
// server. The optional interfaces are left out, so that every request passes
// here: the lock package does without them.
type cut struct {
	backend.Backend

	mu     sync.Mutex
	faults map[string]fault
	times  map[string]int // how many more requests are disturbed
	delay  time.Duration
	healed chan struct{}
	hits   int
}

// clockedCut keeps the clock of the backend.
type clockedCut struct {
	*cut
	clock backend.Clock
}

func (c clockedCut) Clock() backend.Clock { return c.clock }

var errReplyLost = errors.New("the reply was lost (a fault made by the conformance suite)")

// faulty opens a Locker whose requests can be disturbed.
func (e *env) faulty() (*client, *cut) {
	var c *cut
	cl := e.lockerFrom(func(ctx context.Context) (lock.Locker, error) {
		b, err := e.openBackend(ctx)
		if err != nil {
			return nil, err
		}
		c = &cut{Backend: b, faults: map[string]fault{}, times: map[string]int{}, healed: make(chan struct{})}
		if clocked, ok := b.(backend.Clocked); ok {
			return wrap(clockedCut{c, clocked.Clock()}, e.ttl)
		}
		return wrap(c, e.ttl)
	})
	return cl, c
}

// disturb makes the next n requests of the operations meet the fault; a negative
// n means all until it heals.
func (c *cut) disturb(f fault, n int, ops ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range ops {
		c.faults[op], c.times[op] = f, n
	}
}

// heal lets requests pass from now on. Those that hang get an error.
func (c *cut) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.faults)
	close(c.healed)
	c.healed = make(chan struct{})
}

// disturbed is how many requests met a fault.
func (c *cut) disturbed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hits
}

func (c *cut) meets(op string) (fault, time.Duration, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.faults[op]
	if f != passes {
		if c.times[op] == 0 {
			return passes, 0, nil
		}
		c.times[op]--
		c.hits++
	}
	return f, c.delay, c.healed
}

// through carries one request, with what happens to it.
func (c *cut) through(ctx context.Context, op string, send func() error) error {
	f, delay, healed := c.meets(op)
	switch f {
	case hangs:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-healed:
			return fmt.Errorf("%w: the connection was cut (a fault made by the conformance suite)", backend.ErrUnavailable)
		}
	case refused:
		return fmt.Errorf("%w: the connection was refused (a fault made by the conformance suite)", backend.ErrUnavailable)
	case replyLost:
		if err := send(); err != nil {
			return err
		}
		return errReplyLost
	case replyDelayed:
		err := send()
		time.Sleep(delay)
		return err
	}
	return send()
}

func (c *cut) Try(ctx context.Context, req backend.Request) (g backend.Grant, err error) {
	err = c.through(ctx, "Try", func() (err error) { g, err = c.Backend.Try(ctx, req); return err })
	return g, err
}

func (c *cut) Renew(ctx context.Context, h backend.Hold) (v backend.Validity, err error) {
	err = c.through(ctx, "Renew", func() (err error) { v, err = c.Backend.Renew(ctx, h); return err })
	return v, err
}

func (c *cut) Release(ctx context.Context, h backend.Hold) error {
	return c.through(ctx, "Release", func() error { return c.Backend.Release(ctx, h) })
}
