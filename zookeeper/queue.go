package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

// Enqueue creates the node of the request. The place of a request that comes twice is
// the one that it has.
func (b *zkBackend) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	s, err := b.session()
	if err != nil {
		return nil, err
	}
	n, isNew, err := s.record(req)
	if err == nil && !isNew {
		if n.stands(ctx) {
			return &ticket{n: n}, nil
		}
		if _, err = n.remove(ctx); err == nil {
			n, isNew, err = s.record(req)
		}
	}
	switch {
	case err != nil:
		return nil, writeError(req.Key, err)
	case !isNew:
		return nil, fmt.Errorf("zklock: key %q: %w: the same request is under way", req.Key, backend.ErrUnavailable)
	}
	d := detailsOf(req)
	for range tryRounds {
		if d, err = s.counted(ctx, req.Key, d); err != nil {
			n.forgetUnlessDoomed()
			return nil, err
		}
		var c creation
		if c, err = n.create(ctx, d, anyVersion); err == nil {
			return &ticket{n: n, first: c.alone, settled: c.alone}, nil
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
	if err == nil { // each round came too late
		return nil, fmt.Errorf("zklock: key %q: %w: others change its node or the floor of the tokens all the time", req.Key, backend.ErrUnavailable)
	}
	return nil, writeError(req.Key, err)
}

// stands reports whether the node is there, once the request that creates it has been
// answered.
func (n *node) stands(ctx context.Context) bool {
	n.s.mu.Lock()
	busy := n.busy
	n.s.mu.Unlock()
	if busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
			return false
		case <-n.s.gone:
			return false
		}
	}
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return n.path != "" && !n.doomed
}

// ticket is a node in the queue of its key.
type ticket struct {
	n       *node
	first   bool // nothing is before the node
	settled bool // its token is larger than all before it
	behind  atomic.Bool
}

// Behind implements backend.Ticket.
func (t *ticket) Behind() bool { return t.behind.Load() }

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
		era, changed := s.connection()
		v, err := t.look(ctx)
		var g backend.Grant
		if err == nil && t.first && !t.settled {
			err = n.settle(ctx)
			t.settled = err == nil
		}
		if err == nil && t.first {
			g, err = t.grant(ctx)
		}
		switch {
		case s.ended(), errors.Is(err, zk.ErrSessionExpired):
			return backend.Grant{}, fmt.Errorf("zklock: key %q: %w while waiting", n.key, backend.ErrSessionLost)
		case ctx.Err() != nil:
			return backend.Grant{}, ctx.Err()
		case disconnected(err):
			// The place lasts as long as the session.
			if err := s.await(ctx, func() bool { return false }); err != nil && !s.ended() {
				return backend.Grant{}, readError(n.key, err)
			}
			continue
		case err != nil:
			return backend.Grant{}, writeError(n.key, err)
		case t.first:
			return g, nil
		case v.gone:
			continue
		}
		select {
		case e := <-v.before:
			// Events come in the order of what happened, on one connection: the node was
			// there when the only one before it went. A revocation changes that one, and
			// leaves it there. Of several who watch one node, one is told what happened.
			t.first = e.Type == zk.EventNodeDeleted && v.only && s.sameConnection(era) && !fired(v.own)
		case <-v.own:
		case <-changed: // a watch can get lost with its connection
		case <-s.gone:
		case <-ctx.Done():
		}
	}
}

// view is what a place sees of the queue.
type view struct {
	gone   bool // what was before the node is gone already
	only   bool // there is one node before it
	before <-chan zk.Event
	own    <-chan zk.Event // if there is one node before it
}

// look sees who is before the node, unless nobody is, and watches: where there is one,
// that one and the node itself, so that the event will do; else the last but one, whose
// end leaves time to look again before the turn comes.
//
// Both watches begin at once: what is before a node only gets less, so that it does not matter
// which answer is the older one.
func (t *ticket) look(ctx context.Context) (v view, err error) {
	n, s := t.n, t.n.s
	if t.first {
		return v, nil
	}
	children, _, err := s.children(ctx, n.dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return v, err
	}
	a, found := aheadOf(children, n.own())
	if !found {
		n.forget()
		return v, fmt.Errorf("zklock: key %q: the node in the queue was removed: %w", n.key, backend.ErrTakenOver)
	}
	if a.n == 0 {
		t.first = true
		return v, nil
	}
	t.behind.Store(true)
	var w watching
	switch a.n {
	case 1:
		own, last := s.beginWatch(ctx, n.path), s.beginWatch(ctx, n.dir+"/"+a.last.name)
		if w = <-own; w.err == nil && w.exists {
			v.only, v.own = true, w.events
			w = <-last
		}
	default:
		w = <-s.beginWatch(ctx, n.dir+"/"+a.second.name)
	}
	v.before, v.gone = w.events, w.err == nil && !w.exists
	return v, w.err
}

// watching is what [session.watch] returns.
type watching struct {
	events <-chan zk.Event
	exists bool
	err    error
}

func (s *session) beginWatch(ctx context.Context, path string) <-chan watching {
	begun := make(chan watching, 1)
	go func() {
		var w watching
		w.events, w.exists, w.err = s.watch(ctx, path)
		begun <- w
	}()
	return begun
}

func fired(ch <-chan zk.Event) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// grant is for the first in the queue.
func (t *ticket) grant(ctx context.Context) (backend.Grant, error) {
	v, fresh := t.n.s.proven(t.n)
	if !fresh {
		var err error
		if v, err = t.n.confirm(ctx); err != nil {
			return backend.Grant{}, err
		}
	}
	return t.n.grant(v)
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
