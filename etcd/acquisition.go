package etcdlock

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

// acquisition is one that a request was sent for, until it is refused,
// released or known to be gone.
type acquisition struct {
	holder backend.Holder
	slot   slot

	// Guarded by the backend's mutex.
	session *session
	next    *session // to which a longer TTL moves the key; nil otherwise
	rev     int64    // create revision of its key; zero while that is unknown
	floor   uint64   // that its token is counted on from
	granted bool     // it holds the lock: the end of its session is a loss
	// pending counts the requests that create the key and have no answer: they may
	// still be on their way, even if nobody waits for them any more.
	pending int
	// doubtful: a request that deletes the key has no answer.
	doubtful bool
	// deleting counts the requests under way that delete the key.
	deleting int
	// revoked: the key was seen on a lease that is none of this client's. It keeps
	// others out until that lease ends, and its name is not used again.
	revoked bool
}

// acquisition returns what is known of an acquisition of the key, or nil.
func (b *etcdBackend) acquisition(id backend.ID, key string) *acquisition {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.acquisitions[id]; m != nil && m.slot.key == key {
		return m
	}
	return nil
}

// enlist finds or makes the session for a request, and remembers the acquisition.
// A repeated request stays with the session of the first.
func (b *etcdBackend) enlist(ctx context.Context, n names, req backend.Request) (*acquisition, error) {
	b.mu.Lock()
	m := b.acquisitions[req.ID]
	if m != nil && !m.session.gone {
		b.mu.Unlock()
		return m, nil
	}
	b.mu.Unlock()
	open := b.ownSession
	if req.Renewed {
		open = b.sharedSession
	}
	s, err := open(ctx, req.TTL)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	now := b.acquisitions[req.ID]
	if now != nil && now != m {
		b.mu.Unlock() // another request of the same acquisition was quicker
		if !s.shared {
			b.revoke(s)
		}
		return now, nil
	}
	defer b.mu.Unlock()
	if now != nil {
		b.slots.free(now.slot, now.doubtful || now.revoked) // on a lease that has ended nothing can be created
	}
	m = &acquisition{holder: req.Holder, slot: b.slots.take(n), session: s}
	b.acquisitions[req.ID] = m
	return m, nil
}

// forget drops an acquisition that has no key, and no request on its way that
// could make one.
func (b *etcdBackend) forget(id backend.ID, m *acquisition) {
	b.mu.Lock()
	keep := m.pending > 0 && m.session.shared && !m.session.gone
	gone := m.session.gone
	b.mu.Unlock()
	if !keep {
		b.drop(id, m)
	}
	if !m.session.shared && !gone {
		b.revoke(m.session)
	}
}

// drop ends what is known of an acquisition that has no key any more.
func (b *etcdBackend) drop(id backend.ID, m *acquisition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.acquisitions[id] == m {
		delete(b.acquisitions, id)
		b.slots.free(m.slot, m.pending > 0 || m.doubtful || m.revoked || m.deleting > 0)
	}
}

// deletes notes that a request which deletes the key is about to be sent, and reports
// whether the name is still the acquisition's. Until the returned function is called,
// the name is not used again.
func (b *etcdBackend) deletes(id backend.ID, m *acquisition) (ended func(), still bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.acquisitions[id] != m {
		return nil, false
	}
	m.deleting++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		m.deleting--
	}, true
}

// sending notes that a request which creates the key is about to be sent.
func (b *etcdBackend) sending(m *acquisition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.pending++
}

// answered notes that a request which creates the key was answered, or was never
// sent. Of the others nobody knows when they arrive.
func (b *etcdBackend) answered(m *acquisition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.pending--
}

// created notes the create revision of the key, and what its token is counted on from.
func (b *etcdBackend) created(m *acquisition, rev int64, floor uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.rev, m.floor = rev, floor
}

// grants makes the acquisition a hold, unless its session is known to have ended. From
// then on the end of the session is told as a loss, and not before: a request that meets
// the end of one session goes on in the next one.
func (b *etcdBackend) grants(m *acquisition) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.granted = m.granted || !m.session.gone
	return m.granted
}
