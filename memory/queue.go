package memlock

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

// queue is the state of one key in the personality with a queue: the first node
// holds the key once it is granted, the others wait in their order.
type queue struct {
	nodes  []*node
	holder backend.Holder
	token  uint64
}

// node is a place in a queue, and the hold once it is granted.
type node struct {
	id      backend.ID
	session *queueBackend
	ttl     time.Duration
	holder  backend.Holder
	expiry  backend.Instant // of the hold, or of a place that nobody waits at
	waiting int             // calls of Wait under way; they keep the place
	granted bool
	revoked bool // it is that of nobody, until it expires
	grant   backend.Grant
	gone    error         // why the node is no longer in the queue
	changed chan struct{} // closed and replaced when the node is granted or gone
}

func (n *node) notify() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// liveQueue returns the queue of the key without its expired nodes, or nil. The
// mutex is held.
func (s *Store) liveQueue(key string, now backend.Instant) *queue {
	q := s.queues[key]
	if q == nil {
		return nil
	}
	s.advance(key, q, now)
	return s.queues[key]
}

// advance drops expired nodes and grants the key to the first. The mutex is held.
func (s *Store) advance(key string, q *queue, now backend.Instant) {
	kept := q.nodes[:0]
	for _, n := range q.nodes {
		if n.waiting == 0 && now >= n.expiry {
			n.gone = backend.ErrExpired
			n.notify()
			continue
		}
		kept = append(kept, n)
	}
	clear(q.nodes[len(kept):])
	q.nodes = kept
	if len(q.nodes) == 0 {
		delete(s.queues, key)
		return
	}
	if first := q.nodes[0]; !first.granted {
		s.grantFirst(q, first, now)
	}
}

func (s *Store) grantFirst(q *queue, n *node, now backend.Instant) {
	wall := time.Now()
	q.token, q.holder = s.nextToken(wall), n.holder
	q.holder.Since = wall
	n.granted = true
	n.expiry = now.Add(n.ttl)
	n.grant = backend.Grant{
		Token: q.token, Holds: 1,
		Validity: backend.Validity{Sent: now, For: backend.ValidFor(n.ttl)},
	}
	// The others sleep until the end of the hold before, and this one may end earlier.
	for _, x := range q.nodes {
		x.notify()
	}
}

// removeHolder drops the node that holds the key. The mutex is held.
func (q *queue) removeHolder() {
	if len(q.nodes) > 0 && q.nodes[0].granted {
		q.drop(q.nodes[0], backend.ErrTakenOver)
	}
}

func (q *queue) drop(n *node, why error) {
	for i, x := range q.nodes {
		if x == n {
			q.nodes = append(q.nodes[:i], q.nodes[i+1:]...)
			n.gone = why
			n.notify()
			return
		}
	}
}

func (q *queue) find(id backend.ID) *node {
	for _, n := range q.nodes {
		if n.id == id && !n.revoked {
			return n
		}
	}
	return nil
}

// queueBackend is one client, with a session of its own, of the personality with
// a queue.
type queueBackend struct {
	s    *Store
	lost func(id backend.ID, cause error)
}

func newQueueBackend(s *Store) (backend.Backend, error) { return &queueBackend{s: s}, nil }

func (b *queueBackend) Guarantees() backend.Guarantees {
	g := guarantees()
	g.Name = "memory queue"
	g.Reentrancy = backend.ReentrancyClient
	g.Waiting = backend.WaitQueue
	g.Fair = true
	return g
}

func (b *queueBackend) Clock() backend.Clock { return b.s.clock }
func (b *queueBackend) Immediate() bool      { return true }
func (b *queueBackend) Close() error         { return nil }

// NotifyLoss implements backend.LossNotifier.
func (b *queueBackend) NotifyLoss(lost func(id backend.ID, cause error)) { b.lost = lost }

func (b *queueBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	q := s.liveQueue(req.Key, now)
	var n *node
	if q != nil {
		n = q.find(req.ID)
	}
	switch {
	case q == nil:
		_, n = s.append(b, req, now)
	case n == nil:
		return backend.Grant{}, q.refuse(req.Key, now)
	case !n.granted:
		return backend.Grant{}, q.refuse(req.Key, now)
	}
	n.expiry = max(n.expiry, now.Add(req.TTL))
	n.grant.Validity = backend.Validity{Sent: now, For: backend.ValidFor(req.TTL)}
	return n.grant, nil
}

// append adds a node to the key's queue and grants it if it is the first. The
// mutex is held.
func (s *Store) append(b *queueBackend, req backend.Request, now backend.Instant) (*queue, *node) {
	q := s.queues[req.Key]
	if q == nil {
		q = &queue{}
		s.queues[req.Key] = q
	}
	n := &node{
		id: req.ID, session: b, ttl: req.TTL, holder: req.Holder,
		expiry: now.Add(req.TTL), changed: make(chan struct{}),
	}
	q.nodes = append(q.nodes, n)
	s.advance(req.Key, q, now)
	return q, n
}

func (q *queue) refuse(key string, now backend.Instant) error {
	return &backend.HeldError{Key: key, Holder: q.holder, Remaining: max(q.nodes[0].expiry.Sub(now), 0)}
}

func (b *queueBackend) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if err := ctx.Err(); err != nil {
		return backend.Validity{}, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	n := s.holding(h, now)
	if n == nil {
		return backend.Validity{}, backend.ErrNotHeld
	}
	n.expiry = max(n.expiry, now.Add(h.TTL))
	return backend.Validity{Sent: now, For: backend.ValidFor(h.TTL)}, nil
}

// holding returns the node of the hold if it is granted. The mutex is held.
func (s *Store) holding(h backend.Hold, now backend.Instant) *node {
	if q := s.liveQueue(h.Key, now); q != nil {
		if n := q.find(h.ID); n != nil && n.granted {
			return n
		}
	}
	return nil
}

func (b *queueBackend) Release(ctx context.Context, h backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	q := s.liveQueue(h.Key, now)
	if q == nil || q.find(h.ID) == nil {
		return backend.ErrNotHeld
	}
	q.drop(q.find(h.ID), backend.ErrNotHeld)
	s.advance(h.Key, q, now)
	return nil
}

// Enqueue implements backend.Queuer.
func (b *queueBackend) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	var n *node
	if q := s.liveQueue(req.Key, now); q != nil {
		n = q.find(req.ID)
	}
	if n == nil {
		_, n = s.append(b, req, now)
	}
	return &ticket{b, req.Key, n, !n.granted}, nil
}

type ticket struct {
	b      *queueBackend
	key    string
	n      *node
	behind bool
}

// Behind implements backend.Ticket.
func (t *ticket) Behind() bool { return t.behind }

// Wait implements backend.Ticket. The place lasts while somebody waits at it.
func (t *ticket) Wait(ctx context.Context) (backend.Grant, error) {
	s := t.b.s
	s.mu.Lock()
	t.n.waiting++
	defer func() {
		// A place that nobody waits at lasts for its TTL, from now on.
		if t.n.waiting--; !t.n.granted {
			t.n.expiry = s.clock.Now().Add(t.n.ttl)
		}
		s.mu.Unlock()
	}()
	for {
		now := s.clock.Now()
		q := s.liveQueue(t.key, now)
		switch {
		case t.n.gone != nil:
			return backend.Grant{}, t.n.gone
		case t.n.revoked:
			return backend.Grant{}, backend.ErrTakenOver
		case t.n.granted && now < t.n.expiry:
			// A grant is dated from here: the node could not expire while we waited.
			t.n.expiry = now.Add(t.n.ttl)
			t.n.grant.Sent = now
			return t.n.grant, nil
		case t.n.granted:
			q.drop(t.n, backend.ErrExpired)
			s.advance(t.key, q, now)
			return backend.Grant{}, backend.ErrExpired
		}
		if err := t.sleep(ctx, q.nodes[0].expiry.Sub(now)); err != nil {
			return backend.Grant{}, err
		}
	}
}

// sleep gives the mutex up until the node changes, the holder's lease can have
// ended, or ctx ends.
func (t *ticket) sleep(ctx context.Context, d time.Duration) error {
	changed := t.n.changed
	t.b.s.mu.Unlock()
	defer t.b.s.mu.Lock()
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Withdraw implements backend.Ticket.
func (t *ticket) Withdraw(ctx context.Context) error {
	err := t.b.Release(ctx, backend.Hold{Key: t.key, ID: t.n.id})
	if err == backend.ErrNotHeld {
		return nil
	}
	return err
}

// Inspect implements backend.Inspector.
func (b *queueBackend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	if err := ctx.Err(); err != nil {
		return backend.Record{}, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	q := s.liveQueue(key, now)
	if q == nil {
		return backend.Record{}, backend.ErrNotHeld
	}
	return backend.Record{
		Key: key, Token: q.token, Holds: 1, Waiters: len(q.nodes) - 1,
		Remaining: max(q.nodes[0].expiry.Sub(now), 0), Holder: q.holder, Revoked: q.nodes[0].revoked,
	}, nil
}

// ForceRelease implements backend.ForceReleaser.
func (b *queueBackend) ForceRelease(ctx context.Context, key string, token uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	q := s.liveQueue(key, now)
	if q == nil || q.token != token {
		return backend.ErrNotHeld
	}
	q.removeHolder()
	s.advance(key, q, now)
	return nil
}

// Revoke implements backend.Revoker.
func (b *queueBackend) Revoke(ctx context.Context, key string, token uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.liveQueue(key, s.clock.Now())
	if q == nil || q.token != token {
		return backend.ErrNotHeld
	}
	q.nodes[0].revoked = true
	return nil
}

// RaiseFloor implements backend.FloorRaiser.
func (b *queueBackend) RaiseFloor(ctx context.Context, above uint64) error {
	return b.s.raiseFloor(ctx, above)
}

// LastToken implements backend.TokenTeller.
func (b *queueBackend) LastToken(ctx context.Context) (uint64, error) { return b.s.lastToken(ctx) }

// List implements backend.Lister.
func (b *queueBackend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return b.s.list(ctx, prefix, func(s *Store) []string { return keysOf(s.queues) }, b.Inspect, visit)
}
