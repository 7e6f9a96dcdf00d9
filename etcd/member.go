package etcdlock

import (
	"context"
	"errors"

	"github.com/mortiselock/lock/backend"
)

// member is one acquisition that a request was sent for, until it is refused,
// released or known to be gone.
type member struct {
	holder backend.Holder
	queued bool // it took a place, rather than asking once

	// Guarded by the backend's mutex.
	session *session
	next    *session // to which a longer TTL moves the key; nil otherwise
	rev     int64    // create revision of its key; zero while that is unknown
	// unsettled: a request that creates the key may still be on its way.
	unsettled bool
}

// member returns what is known of the acquisition, or nil.
func (b *etcdBackend) member(id backend.ID) *member {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.members[id]
}

// enlist finds or makes the session for a request, and remembers the acquisition.
// A repeated request stays with the session of the first.
func (b *etcdBackend) enlist(ctx context.Context, req backend.Request, queued bool) (*member, error) {
	b.mu.Lock()
	m := b.members[req.ID]
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
	m = &member{holder: req.Holder, queued: queued, session: s}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members[req.ID] = m
	return m, nil
}

// forget drops an acquisition that has no key, and no request on its way that
// could make one.
func (b *etcdBackend) forget(id backend.ID, m *member) {
	b.mu.Lock()
	keep := m.unsettled && m.session.shared && !m.session.gone
	if !keep && b.members[id] == m {
		delete(b.members, id)
	}
	gone := m.session.gone
	b.mu.Unlock()
	if !m.session.shared && !gone {
		b.revoke(m.session)
	}
}

// applied notes how a request that creates the key ended.
func (b *etcdBackend) applied(m *member, rev int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		m.rev = rev
	case !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, backend.ErrPermanent):
		m.unsettled = true
	}
}
