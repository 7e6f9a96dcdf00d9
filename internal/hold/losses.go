package hold

import (
	"sync"

	"github.com/mortiselock/lock/backend"
)

// losses finds the lease that a backend's notice of loss is about. A notice may
// come before the answer to the request that was granted; it is kept for the
// lease that is to come.
type losses struct {
	mu     sync.Mutex
	leases map[backend.ID]*Lease
	early  map[backend.ID]error // acquisitions under way, with the notice if there was one
}

// Expect keeps a notice about the acquisition until its lease heeds it or the acquisition
// is forgotten. One that came before the request which is about to be sent was about an
// earlier grant.
func (c *Leases) Expect(id backend.ID) {
	n := c.losses
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.early[id] = nil
}

// Heed registers an admitted lease for notices of loss, and ends it if there was one before.
func (c *Leases) Heed(l *Lease) {
	n := c.losses
	if n == nil {
		return
	}
	n.mu.Lock()
	cause := n.early[l.hold.ID]
	delete(n.early, l.hold.ID)
	n.leases[l.hold.ID] = l
	n.mu.Unlock()
	if cause != nil {
		l.step(func(h *machine, now backend.Instant) action { return h.gone(now, cause) })
	}
	if l.end.why() != nil {
		c.Forget(l.hold.ID) // it may have ended before it was registered
	}
}

// Forget drops an acquisition, or a lease that has ended.
func (c *Leases) Forget(id backend.ID) {
	n := c.losses
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
	n := c.losses
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
