package flawed

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z11 = Lock{
	ID: "Z11", Title: "a grant counts, however late it comes",
	Summary: "An acquisition that took longer than its TTL is a success.",
	Seen:    "mike-marcacci/node-redlock#296 and #369, go-redsync/redsync#71 and #72.",
	Instead: "Count from before the request, and give back what comes too late.",
	File:    "late_acquire.go", Over: Memory,
	Rule: "GrantWithinValidity",
	On: onPolicyOver{
		beneath: func(b backend.Backend) backend.Backend { return &patient{primitives: primitives{b}} },
		policy:  func(l *lock.Client, b backend.Backend) lock.Locker { return lateAcquire{policy{l}, b.(*patient)} },
	},
}

// lateAcquire waits for the answer for as long as it takes, and looks at nothing but
// the answer.
//
//	A: SET job a NX PX 1000   -> the server says OK, and the answer is under way
//	A's record expires
//	B: SET job b NX PX 1000   -> OK, B works
//	A: receives its OK after a second and a half, and works
//
// With a fast network it never happens, and tests don't see it. Caught by
// GrantWithinValidity, which delays answers by four fifths and by three halves of the
// TTL.
//
// Instead: the server may have begun the lease as soon as the request was sent. What
// has little of it left when it arrives is released and not returned, as the lock
// package does, which this lock is built around: it takes the answer after the lock
// package has given up.
type lateAcquire struct {
	policy
	server *patient
}

// TryAcquire implements lock.Locker.
func (l lateAcquire) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	q := &question{answer: make(chan lateAnswer, 1)}
	lease, err := l.policy.TryAcquire(context.WithValue(ctx, questionKey{}, q), key, opts...)
	req := q.req.Load()
	if req == nil { // nothing was sent
		return lease, err
	}
	if ctx.Err() == nil && (errors.Is(err, lock.ErrOutcomeUnknown) || errors.Is(err, lock.ErrUnavailable)) {
		select {
		case a := <-q.answer:
			if a.err == nil {
				return l.server.lease(*req, a.grant), nil // and not a word about how long it took
			}
		case <-ctx.Done():
		}
	}
	l.server.waited.Delete(req.ID)
	if err != nil && !errors.Is(err, lock.ErrHeld) { // what the lock package was kept from
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), req.TTL)
		go func() {
			defer cancel()
			_ = l.server.Release(ctx, backend.HoldOf(*req))
		}()
	}
	return lease, err
}

// patient remembers the answers to questions. What may still be granted to one of
// them is not given back.
type patient struct {
	primitives
	waited sync.Map // the acquisitions that are waited for
}

type questionKey struct{}

// question is what a call of TryAcquire asks.
type question struct {
	req    atomic.Pointer[backend.Request] // once it is sent
	answer chan lateAnswer
}

type lateAnswer struct {
	grant backend.Grant
	err   error
}

// Try implements backend.Backend.
func (p *patient) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	q, ok := ctx.Value(questionKey{}).(*question)
	if !ok {
		return p.primitives.Try(ctx, req)
	}
	p.waited.Store(req.ID, true)
	q.req.Store(&req)
	g, err := p.primitives.Try(ctx, req)
	q.answer <- lateAnswer{g, err}
	return g, err
}

// Release implements backend.Backend.
func (p *patient) Release(ctx context.Context, hold backend.Hold) error {
	if _, waited := p.waited.Load(hold.ID); waited {
		return nil
	}
	return p.primitives.Release(ctx, hold)
}

func (p *patient) lease(req backend.Request, g backend.Grant) lock.Lease {
	l := &lateLease{server: p, hold: backend.HoldOf(req), until: time.Now().Add(g.Until().Sub(p.Clock().Now()))}
	l.hold.Token = g.Token
	life, expire := context.WithDeadlineCause(context.Background(), l.until, lock.ErrExpired)
	l.ctx, l.end = context.WithCancelCause(life)
	context.AfterFunc(l.ctx, expire)
	return l
}

// lateLease is a lease that nobody renews.
type lateLease struct {
	server *patient
	hold   backend.Hold
	until  time.Time
	ctx    context.Context
	end    context.CancelCauseFunc
}

func (l *lateLease) Key() string                 { return l.hold.Key }
func (l *lateLease) Token() uint64               { return l.hold.Token }
func (l *lateLease) Context() context.Context    { return l.ctx }
func (l *lateLease) Deadline() (time.Time, bool) { return l.until, true }
func (l *lateLease) Renew(ctx context.Context) error {
	_, err := l.server.Renew(ctx, l.hold)
	return err
}
func (l *lateLease) Release(ctx context.Context) error {
	l.end(lock.ErrReleased)
	defer l.server.waited.Delete(l.hold.ID)
	return l.server.primitives.Release(context.WithoutCancel(ctx), l.hold)
}
