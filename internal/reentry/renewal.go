package reentry

import (
	"context"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// renewing is a renewal of one hold that waits for the owner's turn, or for another
// renewal that has it.
type renewing struct {
	hold   backend.Hold
	left   bool          // its caller has gone; guarded by Counter.mu
	answer chan struct{} // closed when v and err are set
	v      backend.Validity
	err    error
}

func (w *renewing) answered(v backend.Validity, err error) {
	w.v, w.err = v, err
	close(w.answer)
}

// Renew implements backend.Backend. Whoever gets the turn renews for all who wait then, in
// one request: it is sent after each of them has asked, so its answer is as true for
// them. If each sent its own, those of many holds on a slow server would take so long
// one after the other that the last came too late.
//
// A request for several goes on when its caller has left: it is as good for the others, who
// may have waited as long and have too little time for another. It goes on in its Renew,
// since the calls of a Locker are bounded: their callers return, and Close waits for what is
// left.
func (r *Counter) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if hold.Owner == "" {
		return r.Backend.Renew(ctx, hold)
	}
	k := ownerKey{hold.Key, hold.Owner}
	w := &renewing{hold: hold, answer: make(chan struct{})}
	o := r.refer(k)
	defer r.drop(k, o)
	r.mu.Lock()
	o.renewals = append(o.renewals, w)
	r.mu.Unlock()
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
		if ctx.Err() == nil {
			r.renewFor(ctx, o, w)
			return w.v, w.err
		}
	case <-w.answer:
		return w.v, w.err
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.left = true
	return backend.Validity{}, ctx.Err()
}

// renewFor renews for w and for all that wait beside it. The caller has the turn.
func (r *Counter) renewFor(ctx context.Context, o *ownerHolds, w *renewing) {
	select {
	case <-w.answer:
		return
	default:
	}
	server, others, ok := r.gather(o, w)
	if !ok {
		w.answered(backend.Validity{}, backend.ErrNotHeld)
		return
	}
	ctx, cancel := r.bounded(ctx, o, len(others) > 0)
	defer cancel()
	v, err := r.renewServer(ctx, o, server)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && ctx.Err() != nil {
		// The time of this request is over, and not that of the others.
		o.renewals = append(others, o.renewals...)
		others = nil
	}
	for _, w := range append(others, w) {
		if err != nil {
			w.answered(backend.Validity{}, err)
			continue
		}
		g, err := o.extended(server, v, w.hold)
		w.answered(g.Validity, err)
	}
}

// bounded returns the context of a request. It has the time of a renewal, which begins when
// it is sent: its caller has time to wait for another one before, and one that hangs must
// leave some to the next. Where others wait for it, nobody who leaves ends it, unless the
// Locker closes.
func (r *Counter) bounded(caller context.Context, o *ownerHolds, shared bool) (context.Context, context.CancelFunc) {
	r.mu.Lock()
	limit := call.Limit
	for _, s := range o.subs {
		limit = min(limit, call.RenewalLimit(s.ttl))
	}
	r.mu.Unlock()
	if !shared {
		return context.WithTimeout(caller, limit)
	}
	ctx, end := context.WithTimeout(context.WithoutCancel(caller), limit)
	open, over := context.WithCancel(r.open)
	left := context.AfterFunc(caller, func() { context.AfterFunc(open, end) })
	return ctx, func() {
		left()
		over()
		end()
	}
}

// gather returns the server's hold and the renewals that wait beside w, and answers
// those whose holds have ended. If that of w has, the others wait on.
func (r *Counter) gather(o *ownerHolds, w *renewing) (server backend.Hold, others []*renewing, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.prune(r.clock.Now())
	waiting := o.renewals
	o.renewals = nil
	for _, other := range waiting {
		switch {
		case other == w || other.left:
		case o.lives(other.hold):
			others = append(others, other)
		default:
			other.answered(backend.Validity{}, backend.ErrNotHeld)
		}
	}
	if !o.lives(w.hold) {
		o.renewals = others
		return backend.Hold{}, nil, false
	}
	server = o.server
	server.TTL, _ = o.beside(w.hold)
	return server, others, true
}

// lives reports whether the hold is one of the owner's. The mutex is held.
func (o *ownerHolds) lives(hold backend.Hold) bool {
	_, ok := o.subs[hold.ID]
	return ok && !o.ending
}
