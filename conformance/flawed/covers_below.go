package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z93 = Lock{
	ID: "Z93", Title: "a key that covers what is below it",
	Summary: "Whoever holds orders/17 keeps everybody else from orders/17/invoice.",
	Seen:    "Locks on paths; WebDAV's LOCK, unless it says Depth: 0 (RFC 4918).",
	Instead: "Every key is a name of its own.",
	File:    "covers_below.go", Over: Memory,
	Rule: "IndependentKeys",
	On:   onMemory(func(m primitives) backend.Backend { return &coversBelow{primitives: m, own: map[string]int{}} }),
}

// coversBelow refuses a key when somebody else holds one that it lies below.
//
//	A: holds orders/17
//	B: tries orders/17/invoice -> refused, although nobody holds it
//
// Its own client may go on, so that a test with one client passes. Caught by
// IndependentKeys, in which each key is free once while any other is held.
//
// Instead: compare whole keys.
type coversBelow struct {
	primitives
	mu  sync.Mutex
	own map[string]int // how often this client was granted each key
}

// Try implements backend.Backend.
func (c *coversBelow) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	inspector := c.Backend.(backend.Inspector)
	for i := range req.Key {
		if req.Key[i] != '/' || i == 0 || c.owns(req.Key[:i]) {
			continue
		}
		if _, err := inspector.Inspect(ctx, req.Key[:i]); err == nil {
			return backend.Grant{}, held(req.Key)
		}
	}
	g, err := c.primitives.Try(ctx, req)
	if err == nil {
		c.mu.Lock()
		c.own[req.Key]++
		c.mu.Unlock()
	}
	return g, err
}

func (c *coversBelow) owns(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.own[key] > 0
}

// Release implements backend.Backend.
func (c *coversBelow) Release(ctx context.Context, hold backend.Hold) error {
	err := c.primitives.Release(ctx, hold)
	if err == nil {
		c.mu.Lock()
		c.own[hold.Key]--
		c.mu.Unlock()
	}
	return err
}
