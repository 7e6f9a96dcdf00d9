package hold

import (
	"sync"

	"github.com/mortiselock/lock/backend"
)

// notices finds the lease that a backend's notice of loss is about. A notice may
// come before the answer to the request that was granted; it is kept for the
// lease that is to come. All methods work on a nil pointer, for backends that
// notify nobody.
type notices struct {
	mu     sync.Mutex
	leases map[backend.ID]*Lease
	early  map[backend.ID]error // acquisitions under way, with the notice if there was one
}

// expect keeps a notice about the acquisition until it is admitted or forgotten. One
// that came before the request which is about to be sent was about an earlier grant.
func (n *notices) expect(id backend.ID) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.early[id] = nil
}

// admit registers the lease of an acquisition and returns the cause if it was
// lost already.
func (n *notices) admit(l *Lease) error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	cause := n.early[l.hold.ID]
	delete(n.early, l.hold.ID)
	n.leases[l.hold.ID] = l
	return cause
}

// forget drops an acquisition.
func (n *notices) forget(id backend.ID) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.early, id)
	delete(n.leases, id)
}

// lossNoticed is the function that the backend calls.
func (c *Leases) lossNoticed(id backend.ID, cause error) {
	n := c.notices
	n.mu.Lock()
	l := n.leases[id]
	if _, ok := n.early[id]; ok && l == nil {
		n.early[id] = cause
	}
	n.mu.Unlock()
	if l != nil {
		l.step(func(h *machine, now backend.Instant) action { return h.gone(now, cause) })
	}
}

// Expect keeps a notice of loss about the acquisition until its lease is admitted or it
// is forgotten.
func (c *Leases) Expect(id backend.ID) { c.notices.expect(id) }

// Forget drops an acquisition that has led to no lease.
func (c *Leases) Forget(id backend.ID) { c.notices.forget(id) }

// Heed ends an admitted lease if its loss was noticed before.
func (c *Leases) Heed(l *Lease) {
	if cause := c.notices.admit(l); cause != nil {
		l.step(func(h *machine, now backend.Instant) action { return h.gone(now, cause) })
	}
	if l.ctx.Context.Err() != nil {
		c.notices.forget(l.hold.ID) // it may have ended before it was registered
	}
}
