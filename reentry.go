package lock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// reentry counts the holds of explicit owners on this side, for backends whose
// server keeps one hold per key. The first hold of an owner is the server's; the
// others live beside it, each with an expiry of its own, and the server's hold is
// renewed for as long as any of them is. Entering again asks the server to renew,
// so that a hold which was lost is never entered.
//
// Requests without an owner pass through.
type reentry struct {
	backend.Backend
	queuer backend.Queuer
	clock  backend.Clock
	lost   func(id backend.ID, cause error)

	mu     sync.Mutex
	owners map[laneKey]*ownerHolds
}

// ownerHolds are the holds of one owner on one key.
type ownerHolds struct {
	// turn serialises what concerns the server's hold; it is a channel because
	// requests are made while it is taken.
	turn chan struct{}
	refs int // guarded by reentry.mu; the entry goes when it is zero and subs is empty

	// Guarded by reentry.mu.
	server backend.Hold // the hold that the server knows; its ID is zero when there is none
	until  backend.Validity
	subs   map[backend.ID]subHold
}

type subHold struct {
	ttl    time.Duration
	expiry backend.Instant
}

func newReentry(b backend.Backend, clock backend.Clock) *reentry {
	r := &reentry{Backend: b, clock: clock, owners: map[laneKey]*ownerHolds{}}
	r.queuer, _ = b.(backend.Queuer)
	return r
}

// NotifyLoss implements backend.LossNotifier: a loss of the server's hold is a
// loss of all holds beside it.
func (r *reentry) NotifyLoss(lost func(id backend.ID, cause error)) {
	r.lost = lost
	if n, ok := r.Backend.(backend.LossNotifier); ok {
		n.NotifyLoss(r.serverLost)
	}
}

func (r *reentry) serverLost(id backend.ID, cause error) {
	r.mu.Lock()
	for _, o := range r.owners {
		if o.server.ID == id {
			ids := o.clear()
			r.mu.Unlock()
			r.tell(ids, cause)
			return
		}
	}
	r.mu.Unlock()
	r.lost(id, cause)
}

func (r *reentry) tell(ids []backend.ID, cause error) {
	for _, id := range ids {
		r.lost(id, cause)
	}
}

// clear forgets the server's hold and returns the ids of the holds that went with
// it. The mutex is held.
func (o *ownerHolds) clear() []backend.ID {
	ids := make([]backend.ID, 0, len(o.subs))
	for id := range o.subs {
		ids = append(ids, id)
	}
	o.server, o.subs = backend.Hold{}, nil
	return ids
}

// prune drops the holds that have expired. The mutex is held.
func (o *ownerHolds) prune(now backend.Instant) {
	for id, s := range o.subs {
		if now >= s.expiry {
			delete(o.subs, id)
		}
	}
}

// enter takes the owner's turn. Without an error the caller owes a leave.
func (r *reentry) enter(ctx context.Context, k laneKey) (*ownerHolds, error) {
	r.mu.Lock()
	o := r.owners[k]
	if o == nil {
		o = &ownerHolds{turn: make(chan struct{}, 1)}
		r.owners[k] = o
	}
	o.refs++
	r.mu.Unlock()
	select {
	case o.turn <- struct{}{}:
		return o, nil
	case <-ctx.Done():
		r.drop(k, o)
		return nil, ctx.Err()
	}
}

func (r *reentry) leave(k laneKey, o *ownerHolds) {
	<-o.turn
	r.drop(k, o)
}

func (r *reentry) drop(k laneKey, o *ownerHolds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.refs--
	if o.refs == 0 && len(o.subs) == 0 && o.server.ID.IsZero() {
		delete(r.owners, k)
	}
}

// Try implements primitives.
func (r *reentry) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if req.Owner == "" {
		return r.Backend.Try(ctx, req)
	}
	k := laneKey{req.Key, req.Owner}
	o, err := r.enter(ctx, k)
	if err != nil {
		return backend.Grant{}, err
	}
	defer r.leave(k, o)
	r.mu.Lock()
	o.prune(r.clock.Now())
	server := o.server
	_, again := o.subs[req.ID]
	n := len(o.subs)
	r.mu.Unlock()
	if server.ID.IsZero() {
		g, err := r.Backend.Try(ctx, req)
		if err == nil {
			r.begin(o, req, g)
		}
		return g, err
	}
	if n >= backend.MaxHolds && !again {
		return backend.Grant{}, ErrTooManyHolds
	}
	server.TTL = max(server.TTL, req.TTL)
	v, err := r.renewServer(ctx, o, server)
	if errors.Is(err, ErrNotHeld) {
		// The old holds are lost, and told so; this request starts anew.
		g, err := r.Backend.Try(ctx, req)
		if err == nil {
			r.begin(o, req, g)
		}
		return g, err
	}
	if err != nil {
		return backend.Grant{}, err
	}
	return r.add(o, req, v), nil
}

// begin records the grant of the outermost hold.
func (r *reentry) begin(o *ownerHolds, req backend.Request, g backend.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.server = backend.HoldOf(req)
	o.server.Token = g.Token
	o.until = g.Validity
	o.subs = map[backend.ID]subHold{req.ID: {req.TTL, g.Sent.Add(req.TTL)}}
}

// add records one more hold beside the server's, which was just renewed.
func (r *reentry) add(o *ownerHolds, req backend.Request, v backend.Validity) backend.Grant {
	v.For = min(v.For, backend.ValidFor(req.TTL))
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.subs == nil {
		o.subs = map[backend.ID]subHold{}
	}
	o.subs[req.ID] = subHold{req.TTL, v.Sent.Add(req.TTL)}
	return backend.Grant{Token: o.server.Token, Holds: len(o.subs), Validity: v}
}

// renewServer renews the server's hold, and has all holds lost when it is gone.
func (r *reentry) renewServer(ctx context.Context, o *ownerHolds, server backend.Hold) (backend.Validity, error) {
	v, err := r.Backend.Renew(ctx, server)
	if errors.Is(err, ErrNotHeld) {
		cause := err
		if !errors.Is(err, ErrLost) {
			cause = ErrTakenOver
		}
		r.mu.Lock()
		ids := o.clear()
		r.mu.Unlock()
		r.tell(ids, cause)
		return v, err
	}
	if err == nil {
		r.mu.Lock()
		o.server.TTL = server.TTL
		if v.For > 0 {
			o.until = v
		} else {
			v = o.until
		}
		r.mu.Unlock()
	}
	return v, err
}

// Renew implements primitives.
func (r *reentry) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if hold.Owner == "" {
		return r.Backend.Renew(ctx, hold)
	}
	k := laneKey{hold.Key, hold.Owner}
	o, err := r.enter(ctx, k)
	if err != nil {
		return backend.Validity{}, err
	}
	defer r.leave(k, o)
	r.mu.Lock()
	o.prune(r.clock.Now())
	_, ok := o.subs[hold.ID]
	server := o.server
	r.mu.Unlock()
	if !ok {
		return backend.Validity{}, ErrNotHeld
	}
	v, err := r.renewServer(ctx, o, server)
	if err != nil {
		return backend.Validity{}, err
	}
	v.For = min(v.For, backend.ValidFor(hold.TTL))
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := o.subs[hold.ID]; !ok {
		return backend.Validity{}, ErrNotHeld
	}
	o.subs[hold.ID] = subHold{hold.TTL, v.Sent.Add(hold.TTL)}
	return v, nil
}

// Release implements primitives. The server is told when the last hold ends.
func (r *reentry) Release(ctx context.Context, hold backend.Hold) error {
	if hold.Owner == "" {
		return r.Backend.Release(ctx, hold)
	}
	k := laneKey{hold.Key, hold.Owner}
	o, err := r.enter(ctx, k)
	if err != nil {
		return err
	}
	defer r.leave(k, o)
	r.mu.Lock()
	_, ok := o.subs[hold.ID]
	if ok && len(o.subs) > 1 {
		delete(o.subs, hold.ID)
	}
	o.prune(r.clock.Now())
	rest, server := len(o.subs), o.server
	_, last := o.subs[hold.ID]
	r.mu.Unlock()
	switch {
	case rest > 0 && !last:
		// Others live on the server's hold.
		if ok {
			return nil
		}
		if server.ID == hold.ID {
			return ErrNotHeld
		}
	case !server.ID.IsZero():
		// The last hold ends, or the last has expired and its server hold remains.
		err := r.Backend.Release(ctx, server)
		if err == nil || errors.Is(err, ErrNotHeld) {
			r.mu.Lock()
			o.clear()
			r.mu.Unlock()
		}
		if ok || server.ID == hold.ID {
			return err
		}
	}
	return r.Backend.Release(ctx, hold)
}

// Enqueue implements backend.Queuer. The owner has asked with Try before, so it
// holds nothing, or lost it since.
func (r *reentry) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := r.queuer.Enqueue(ctx, req)
	if err != nil || req.Owner == "" {
		return t, err
	}
	return &reentryTicket{t, r, req}, nil
}

type reentryTicket struct {
	backend.Ticket
	r   *reentry
	req backend.Request
}

func (t *reentryTicket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := t.Ticket.Wait(ctx)
	if err != nil {
		return g, err
	}
	k := laneKey{t.req.Key, t.req.Owner}
	o, err := t.r.enter(ctx, k)
	if err != nil {
		return backend.Grant{}, err
	}
	defer t.r.leave(k, o)
	t.r.begin(o, t.req, g)
	return g, nil
}

func (t *reentryTicket) Withdraw(ctx context.Context) error {
	if err := t.Ticket.Withdraw(ctx); err != nil {
		return err
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if o := t.r.owners[laneKey{t.req.Key, t.req.Owner}]; o != nil && o.server.ID == t.req.ID {
		o.clear()
	}
	return nil
}
