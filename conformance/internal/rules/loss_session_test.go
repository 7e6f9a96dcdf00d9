package rules_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// sessionClient has a session that all its holds live on, as on an etcd lease. That it
// has ended is found out by its next request, which tells of the holds and goes on in the
// next session.
type sessionClient struct {
	backend.Backend
	backend.Queuer
	hasty bool                             // it also tells of what the request asks for, which the next session grants
	first bool                             // it tells of that hold only for which the session was ended
	apart bool                             // each hold has a session of its own
	told  func(id backend.ID, cause error) // instead of telling, where that is the mistake

	mu    sync.Mutex
	held  map[backend.ID]backend.Hold
	ended bool
	gone  []backend.ID // what ended with it, and was not told
	lost  func(id backend.ID, cause error)
}

func (c *sessionClient) NotifyLoss(lost func(id backend.ID, cause error)) { c.lost = lost }

func (c *sessionClient) Release(ctx context.Context, h backend.Hold) error {
	err := c.Backend.Release(ctx, h)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, h.ID)
	return err
}

func (c *sessionClient) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	c.findOut(req)
	g, err := c.Backend.Try(ctx, req)
	if err == nil {
		c.holds(req)
	}
	return g, err
}

func (c *sessionClient) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	c.findOut(req)
	t, err := c.Queuer.Enqueue(ctx, req)
	if err == nil {
		c.holds(req)
	}
	return t, err
}

func (c *sessionClient) holds(req backend.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[req.ID] = backend.HoldOf(req)
}

func (c *sessionClient) findOut(req backend.Request) {
	c.mu.Lock()
	ended, held := c.ended, c.gone
	c.ended, c.gone = false, nil
	c.mu.Unlock()
	if !ended {
		return
	}
	if c.first {
		held = held[:1]
	}
	for _, id := range held {
		if c.told != nil {
			c.told(id, backend.ErrSessionLost)
		} else {
			c.lost(id, backend.ErrSessionLost)
		}
	}
	if c.hasty {
		c.lost(req.ID, backend.ErrSessionLost)
	}
}

// end ends the session of whoever holds the key.
func (c *sessionClient) end(ctx context.Context, key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for first, h := range c.held {
		if h.Key != key {
			continue
		}
		c.ended, c.gone = true, append(c.gone, first)
		for id, other := range c.held {
			if c.apart && other != h {
				continue
			}
			_ = c.Backend.Release(ctx, other)
			if id != first {
				c.gone = append(c.gone, id)
			}
			delete(c.held, id)
		}
		return true
	}
	return false
}

func (c *sessionClient) Guarantees() backend.Guarantees {
	g := c.Backend.Guarantees()
	g.EndsWithSession = true
	return g
}

func lossSessionConfig(change func(c *sessionClient)) conformance.Config {
	store := memlock.NewStore(nil)
	var mu sync.Mutex
	var clients []*sessionClient
	cfg := memory()
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		c := &sessionClient{Backend: b, Queuer: b.(backend.Queuer), held: map[backend.ID]backend.Hold{}}
		change(c)
		clients = append(clients, c)
		return c, nil
	}
	cfg.EndSession = func(ctx context.Context, key string) error {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range clients {
			if c.end(ctx, key) {
				return nil
			}
		}
		return errors.New("nobody holds the key")
	}
	cfg.Only = []string{"NextSessionHolds"}
	return cfg
}

func TestMutantNextSession(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *sessionClient){
		"tells of what the next session grants": func(c *sessionClient) { c.hasty = true },
		"each hold has a session of its own":    func(c *sessionClient) { c.apart = true },
		"tells twice": func(c *sessionClient) {
			c.told = func(id backend.ID, cause error) { c.lost(id, cause); c.lost(id, cause) }
		},
		"tells of the first only": func(c *sessionClient) { c.first = true },
		"tells of nobody, too": func(c *sessionClient) {
			c.told = func(id backend.ID, cause error) { c.lost(id, cause); c.lost(backend.NewID(), cause) }
		},
		"does not say why": func(c *sessionClient) {
			c.told = func(id backend.ID, _ error) { c.lost(id, nil) }
		},
		"says what is no loss": func(c *sessionClient) {
			c.told = func(id backend.ID, _ error) { c.lost(id, errors.New("the session is over")) }
		},
		"says that it was released": func(c *sessionClient) {
			c.told = func(id backend.ID, _ error) { c.lost(id, backend.ErrNotHeld) }
		},
		"says that the owner's limit was reached": func(c *sessionClient) {
			c.told = func(id backend.ID, _ error) { c.lost(id, backend.ErrMaxHold) }
		},
	} {
		t.Run(name, func(t *testing.T) { mustFail(t, lossSessionConfig(change), "NextSessionHolds") })
	}
	rep, err := conformance.Check(t.Context(), lossSessionConfig(func(*sessionClient) {}))
	if res := rep.Results[0]; err != nil || res.Verdict != conformance.Pass {
		t.Errorf("that tells of its holds alone: %s (%s, %v)", res.Verdict, res.Evidence, err)
	}
}
