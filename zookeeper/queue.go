package zklock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

// Enqueue creates the node of the request.
func (b *zkBackend) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	s, err := b.session()
	if err != nil {
		return nil, err
	}
	n, isNew, err := s.record(req)
	switch {
	case err != nil:
		return nil, keyError(req.Key, err)
	case !isNew:
		return nil, fmt.Errorf("zklock: key %q: %w: this acquisition already has a node", req.Key, backend.ErrInvalid)
	}
	data := encodeHolder(req)
	for range tryRounds {
		var c creation
		if c, err = n.create(ctx, data, anyVersion); err == nil {
			return &ticket{n: n, first: c.alone}, nil
		}
		if !errors.Is(err, zk.ErrNoNode) {
			break
		}
		// The server removes the node of a key that nobody uses.
		if err = s.makeDir(ctx, n.dir); err != nil {
			break
		}
	}
	n.forgetUnlessDoomed()
	return nil, writeError(req.Key, err)
}

// ticket is a node in the queue of its key.
type ticket struct {
	n     *node
	first bool // nothing was before the node when it was created
}

// Wait returns when nothing is before the node. Nodes are only ever added behind it,
// so that what a server shows, however old it is, never shows too few before it. That
// the session is alive, and the node with it, is proven by a write: one that was
// confirmed a moment ago, or another.
func (t *ticket) Wait(ctx context.Context) (backend.Grant, error) {
	n, s := t.n, t.n.s
	s.mu.Lock()
	n.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		n.waiting--
		n.expiry = max(n.expiry, s.clock.Now().Add(n.ttl))
		s.mu.Unlock()
	}()
	for {
		changed := s.reattached()
		g, watch, err := t.step(ctx)
		switch {
		case err == nil && watch == nil:
			return g, nil
		case err == nil:
			select {
			case <-watch:
			case <-changed: // a watch can get lost with its connection
			case <-s.gone:
			case <-ctx.Done():
				return backend.Grant{}, ctx.Err()
			}
			continue
		case s.ended():
			return backend.Grant{}, fmt.Errorf("zklock: key %q: %w while waiting", n.key, backend.ErrSessionLost)
		case ctx.Err() != nil:
			return backend.Grant{}, ctx.Err()
		case !disconnected(err):
			return backend.Grant{}, writeError(n.key, err)
		}
		// The place lasts as long as the session.
		if err := s.await(ctx, func() bool { return false }); err != nil && !s.ended() {
			return backend.Grant{}, readError(n.key, err)
		}
	}
}

// step looks once. It returns the grant, or the watch to wait for.
func (t *ticket) step(ctx context.Context) (backend.Grant, <-chan zk.Event, error) {
	n, s := t.n, t.n.s
	for !t.first {
		children, _, err := s.children(ctx, n.dir)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return backend.Grant{}, nil, err
		}
		before, found, alone := predecessor(children, n.own())
		switch {
		case !found:
			n.forget()
			return backend.Grant{}, nil, fmt.Errorf("zklock: key %q: the node in the queue was removed: %w", n.key, backend.ErrTakenOver)
		case alone:
			t.first = true
			continue
		}
		watch, exists, err := s.watch(ctx, n.dir+"/"+before.name)
		if err != nil || exists {
			return backend.Grant{}, watch, err
		}
	}
	v, fresh := s.proven(n)
	if !fresh {
		var err error
		if v, err = n.confirm(ctx); err != nil {
			return backend.Grant{}, nil, err
		}
	}
	g, err := n.grant(v)
	return g, nil, err
}

// proven is what the last confirmed write proves, and whether it leaves half of the
// TTL.
func (s *session) proven(n *node) (backend.Validity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.proof.write
	return v, v.Until().Sub(s.clock.Now()) >= n.ttl/2
}

// Withdraw deletes the node.
func (t *ticket) Withdraw(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.n.s.ended() {
		return nil // the node ended with its session
	}
	_, err := t.n.remove(ctx)
	return writeError(t.n.key, err)
}
