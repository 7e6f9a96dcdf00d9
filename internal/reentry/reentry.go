// Package reentry counts the holds of explicit owners in front of a backend whose server
// keeps one hold per key.
package reentry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Counter is the backend with its owners' holds counted on this side. The first hold of an owner is the server's; the
// others live beside it, each with an expiry of its own, and the server's hold is
// renewed for as long as any of them is. Entering again asks the server to renew,
// so that a hold which was lost is never entered.
//
// Requests without an owner pass through. What the backend can do beyond trying, renewing,
// releasing and queueing is not to be used for a hold with an owner.
type Counter struct {
	backend.Backend
	queuer backend.Queuer
	clock  backend.Clock
	open   context.Context // ends when the Locker closes
	lost   func(id backend.ID, cause error)

	mu     sync.Mutex
	owners map[ownerKey]*ownerHolds
}

type ownerKey struct{ key, owner string }

// ownerHolds are the holds of one owner on one key.
type ownerHolds struct {
	// turn serialises what concerns the server's hold; it is a channel because
	// requests are made while it is taken.
	turn chan struct{}
	refs int // guarded by Counter.mu; the entry goes when it is zero and subs is empty

	// Guarded by Counter.mu.
	renewals []*renewing  // that wait for the turn
	server   backend.Hold // the hold that the server knows; its ID is zero when there is none
	until    backend.Validity
	subs     map[backend.ID]sub

	// ending is set when a release of the server's hold is sent. That hold is not
	// entered again: a release that seemed to fail may reach the server later.
	ending bool
}

// sub is one hold of an owner.
type sub struct {
	expiry backend.Instant
	ttl    time.Duration
}

// ErrOwnerHolds refuses a place in the queue to an owner that holds the key: it
// would wait for itself.
var ErrOwnerHolds = fmt.Errorf("%w: by the same owner", backend.ErrHeld)

// New returns a Counter in front of the backend, whose clock is given. open ends when the
// Locker closes.
func New(open context.Context, b backend.Backend, clock backend.Clock) *Counter {
	r := &Counter{Backend: b, clock: clock, open: open, owners: map[ownerKey]*ownerHolds{}}
	r.queuer, _ = backend.As[backend.Queuer](b)
	return r
}

// ServerHold returns the hold on the server that the owner's hold lives on.
func (r *Counter) ServerHold(hold backend.Hold) (backend.Hold, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.owners[ownerKey{hold.Key, hold.Owner}]
	if o == nil {
		return backend.Hold{}, false
	}
	_, ok := o.subs[hold.ID]
	return o.server, ok && !o.ending && o.server.Token == hold.Token
}

// NotifyLoss implements backend.LossNotifier: a loss of the server's hold is a
// loss of all holds beside it.
func (r *Counter) NotifyLoss(lost func(id backend.ID, cause error)) {
	r.lost = lost
	if n, ok := backend.As[backend.LossNotifier](r.Backend); ok {
		n.NotifyLoss(r.serverLost)
	}
}

func (r *Counter) serverLost(id backend.ID, cause error) {
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

func (r *Counter) tell(ids []backend.ID, cause error) {
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
	o.server, o.subs, o.ending = backend.Hold{}, nil, false
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

// beside is what the renewal of one hold owes to the others: the longest TTL of all,
// for which the server's hold has to last, and for how long the renewals of the others
// can wait for this one; zero means that there are no others. The mutex is held.
func (o *ownerHolds) beside(hold backend.Hold) (longest, patience time.Duration) {
	longest = hold.TTL
	for id, s := range o.subs {
		longest = max(longest, s.ttl)
		if id != hold.ID && (patience == 0 || s.ttl/3 < patience) {
			patience = s.ttl / 3
		}
	}
	return longest, patience
}

// refer returns the owner's holds, which stay until drop.
func (r *Counter) refer(k ownerKey) *ownerHolds {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.owners[k]
	if o == nil {
		o = &ownerHolds{turn: make(chan struct{}, 1)}
		r.owners[k] = o
	}
	o.refs++
	return o
}

// enter takes the owner's turn. Without an error the caller owes a leave.
func (r *Counter) enter(ctx context.Context, k ownerKey) (*ownerHolds, error) {
	o := r.refer(k)
	select {
	case o.turn <- struct{}{}:
		return o, nil
	case <-ctx.Done():
		r.drop(k, o)
		return nil, ctx.Err()
	}
}

func (r *Counter) leave(k ownerKey, o *ownerHolds) {
	<-o.turn
	r.drop(k, o)
}

func (r *Counter) drop(k ownerKey, o *ownerHolds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.refs--
	if o.refs == 0 && len(o.subs) == 0 && o.server.ID.IsZero() {
		delete(r.owners, k)
	}
}

// Try implements backend.Backend.
func (r *Counter) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if req.Owner == "" {
		return r.Backend.Try(ctx, req)
	}
	k := ownerKey{req.Key, req.Owner}
	o, err := r.enter(ctx, k)
	if err != nil {
		return backend.Grant{}, err
	}
	defer r.leave(k, o)
	r.mu.Lock()
	o.prune(r.clock.Now())
	server, ending := o.server, o.ending
	_, again := o.subs[req.ID]
	n := len(o.subs)
	// A grant that this request was given before, and that nobody used, is counted when it
	// is given again: it is not lost if the request turns out to be granted anew.
	delete(o.subs, req.ID)
	r.mu.Unlock()
	switch {
	case server.ID.IsZero():
	case ending:
		if err := r.end(ctx, o, func(ctx context.Context) error { return r.Backend.Release(ctx, server) }); err != nil && !errors.Is(err, backend.ErrNotHeld) {
			return backend.Grant{}, err
		}
	case n >= backend.MaxHolds && !again:
		return backend.Grant{}, backend.ErrTooManyHolds
	default:
		g, err := r.add(ctx, o, server, backend.HoldOf(req))
		if !errors.Is(err, backend.ErrNotHeld) {
			return g, err
		}
		// The old holds are lost, and told so; this request starts anew.
	}
	g, err := r.Backend.Try(ctx, req)
	if err == nil {
		r.begin(o, req, g)
	}
	return g, err
}

// begin records the grant of the outermost hold. What is known of an older one is
// over, since the server has granted the key again.
func (r *Counter) begin(o *ownerHolds, req backend.Request, g backend.Grant) {
	r.mu.Lock()
	delete(o.subs, req.ID)
	ids := o.clear()
	o.server = backend.HoldOf(req)
	o.server.Token = g.Token
	o.until = g.Validity
	o.subs = map[backend.ID]sub{req.ID: {g.Sent.Add(req.TTL), req.TTL}}
	r.mu.Unlock()
	r.tell(ids, backend.ErrTakenOver)
}

// add renews the server's hold and records a new hold beside it.
func (r *Counter) add(ctx context.Context, o *ownerHolds, server, hold backend.Hold) (backend.Grant, error) {
	v, err := r.renewBeside(ctx, o, &server, hold)
	if err != nil {
		return backend.Grant{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return o.extended(server, v, hold)
}

// renewBeside renews the server's hold on behalf of one beside it, for long enough
// for all of them: that is its TTL from then on.
func (r *Counter) renewBeside(ctx context.Context, o *ownerHolds, server *backend.Hold, hold backend.Hold) (backend.Validity, error) {
	r.mu.Lock()
	var patience time.Duration
	server.TTL, patience = o.beside(hold)
	r.mu.Unlock()
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	return r.renewServer(ctx, o, *server)
}

// extended records that the hold lives on the server's, which was renewed. The mutex is
// held.
func (o *ownerHolds) extended(server backend.Hold, v backend.Validity, hold backend.Hold) (backend.Grant, error) {
	if o.server.ID != server.ID {
		return backend.Grant{}, backend.ErrSessionLost // noticed meanwhile
	}
	o.server.TTL = server.TTL
	if v.For > 0 {
		o.until = v
	} else {
		v = o.until
	}
	v.For = min(v.For, backend.ValidFor(hold.TTL))
	o.subs[hold.ID] = sub{v.Sent.Add(hold.TTL), hold.TTL}
	return backend.Grant{Token: o.server.Token, Holds: len(o.subs), Validity: v}, nil
}

// renewServer renews the server's hold, and has all holds lost when it is gone.
func (r *Counter) renewServer(ctx context.Context, o *ownerHolds, server backend.Hold) (backend.Validity, error) {
	v, err := r.Backend.Renew(ctx, server)
	if errors.Is(err, backend.ErrNotHeld) {
		cause := err
		if !errors.Is(err, backend.ErrLost) {
			cause = backend.ErrTakenOver
		}
		r.mu.Lock()
		ids := o.clear()
		r.mu.Unlock()
		r.tell(ids, cause)
		return v, err
	}
	return v, err
}

// Release implements backend.Backend. The server is told when the last hold ends. A hold
// that is not counted may be on the server all the same; its release keeps nobody's
// turn, so that the renewals of the others do not wait for an answer.
func (r *Counter) Release(ctx context.Context, hold backend.Hold) error {
	if hold.Owner == "" {
		return r.Backend.Release(ctx, hold)
	}
	if done, err := r.releaseCounted(ctx, hold); done || err != nil {
		return err
	}
	return r.Backend.Release(ctx, hold)
}

// releaseCounted also reports whether that was all that there is to release.
func (r *Counter) releaseCounted(ctx context.Context, hold backend.Hold) (done bool, err error) {
	k := ownerKey{hold.Key, hold.Owner}
	o, err := r.enter(ctx, k)
	if err != nil {
		return false, err
	}
	defer r.leave(k, o)
	r.mu.Lock()
	_, ok := o.subs[hold.ID]
	if ok && len(o.subs) > 1 {
		delete(o.subs, hold.ID)
	}
	o.prune(r.clock.Now())
	server := o.server
	_, last := o.subs[hold.ID]
	others := len(o.subs) > 0 && !last
	r.mu.Unlock()
	switch {
	case others && ok:
		return true, nil // they live on the server's hold
	case others && server.ID == hold.ID:
		return true, backend.ErrNotHeld
	case !others && !server.ID.IsZero():
		// The last hold ends, or the last has expired and its server hold remains.
		err := r.end(ctx, o, func(ctx context.Context) error { return r.Backend.Release(ctx, server) })
		if ok || server.ID == hold.ID {
			return true, err
		}
	}
	return false, nil
}

// end ends the server's hold, beside which nothing lives any more.
func (r *Counter) end(ctx context.Context, o *ownerHolds, release func(context.Context) error) error {
	r.mu.Lock()
	o.ending = true
	r.mu.Unlock()
	err := release(ctx)
	if err == nil || errors.Is(err, backend.ErrNotHeld) {
		r.mu.Lock()
		o.clear()
		r.mu.Unlock()
	}
	return err
}

// Enqueue implements backend.Queuer. An owner that holds the key gets no place.
func (r *Counter) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	if req.Owner == "" {
		return r.queuer.Enqueue(ctx, req)
	}
	k := ownerKey{req.Key, req.Owner}
	o, err := r.enter(ctx, k)
	if err != nil {
		return nil, err
	}
	defer r.leave(k, o)
	r.mu.Lock()
	holds := !o.server.ID.IsZero()
	r.mu.Unlock()
	if holds {
		return nil, ErrOwnerHolds
	}
	t, err := r.queuer.Enqueue(ctx, req)
	if err != nil || t == nil {
		return nil, err
	}
	return &ticket{Ticket: t, r: r, req: req}, nil
}

type ticket struct {
	backend.Ticket
	r   *Counter
	req backend.Request

	withdrawn bool // guarded by the owner's turn
}

// Wait implements backend.Ticket.
func (t *ticket) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := t.Ticket.Wait(ctx)
	if err != nil {
		return g, err
	}
	k := ownerKey{t.req.Key, t.req.Owner}
	o, err := t.r.enter(ctx, k)
	if err != nil {
		return backend.Grant{}, err
	}
	defer t.r.leave(k, o)
	if t.withdrawn || t.r.outdated(o, g) {
		return backend.Grant{}, backend.ErrNotHeld
	}
	t.r.begin(o, t.req, g)
	return g, nil
}

// outdated reports whether the server has granted the key to the owner again since the
// grant, which had to wait for the owner's turn and has ended meanwhile.
func (r *Counter) outdated(o *ownerHolds, g backend.Grant) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.server.ID.IsZero() {
		return false
	}
	return g.Token < o.server.Token || g.Token == o.server.Token && g.Sent < o.until.Sent
}

// MayArrive implements backend.LateTicket.
func (t *ticket) MayArrive() bool {
	l, ok := t.Ticket.(backend.LateTicket)
	return ok && l.MayArrive()
}

// Withdraw implements backend.Ticket. A grant beside which the owner has entered
// meanwhile stays for the others. A place that was not granted keeps nobody's turn.
func (t *ticket) Withdraw(ctx context.Context) error {
	if done, err := t.withdrawCounted(ctx); done || err != nil {
		return err
	}
	return t.Ticket.Withdraw(ctx)
}

// withdrawCounted also reports whether that was all that there is to withdraw.
func (t *ticket) withdrawCounted(ctx context.Context) (done bool, err error) {
	r, id := t.r, t.req.ID
	k := ownerKey{t.req.Key, t.req.Owner}
	o, err := r.enter(ctx, k)
	if err != nil {
		return false, err
	}
	defer r.leave(k, o)
	t.withdrawn = true
	r.mu.Lock()
	granted := o.server.ID == id
	if granted {
		delete(o.subs, id)
		o.prune(r.clock.Now())
	}
	others := granted && len(o.subs) > 0
	r.mu.Unlock()
	switch {
	case others:
		return true, nil
	case granted:
		return true, r.end(ctx, o, t.Ticket.Withdraw)
	}
	return false, nil
}
