package etcdlock

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

// session is an etcd lease and what is known of its life. A shared session carries
// every hold of the backend with one TTL that is renewed automatically; another
// session carries one acquisition, and ends by itself when nobody renews it.
//
// Nobody renews a session by a timer of its own: renewals of its holds and waits
// at its places do, so that a session nobody uses ends with its TTL.
type session struct {
	id     clientv3.LeaseID
	ttl    time.Duration // what was asked for, and what its holds may count on
	shared bool
	fence  string        // etcd key whose modification withdraws what was sent before
	ended  chan struct{} // closed when the server has said that it is gone

	// Guarded by the backend's mutex.
	sent  backend.Instant // before the last confirmed renewal was sent
	until backend.Instant // until when the server has certainly kept it
	epoch int64           // mod revision of the fence
	gone  bool
}

// opening is a shared session that is being granted, or was.
type opening struct {
	done chan struct{} // closed when s and err are set
	s    *session      // guarded by the backend's mutex until then
	err  error
}

// grantLimit bounds the request for a lease.
const grantLimit = 5 * time.Second

// sharedSession returns the session for holds with this TTL that are renewed.
// Several callers wait for one grant, which does not depend on their contexts.
func (b *etcdBackend) sharedSession(ctx context.Context, ttl time.Duration) (*session, error) {
	b.mu.Lock()
	o := b.shared[ttl]
	if o == nil || o.s != nil && (o.s.gone || b.clock.Now() >= o.s.until) {
		o = &opening{done: make(chan struct{})}
		b.shared[ttl] = o
		b.mu.Unlock()
		b.detach(grantLimit, func(ctx context.Context) { b.openShared(ctx, o, ttl) })
	} else {
		b.mu.Unlock()
	}
	select {
	case <-o.done:
		return o.s, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: waiting for an etcd lease: %w", backend.ErrUnavailable, ctx.Err())
	case <-b.life.Done():
		return nil, backend.ErrClosed
	}
}

func (b *etcdBackend) openShared(ctx context.Context, o *opening, ttl time.Duration) {
	s, err := b.grant(ctx, ttl, true)
	b.mu.Lock()
	o.s, o.err = s, err
	if err != nil && b.shared[ttl] == o {
		delete(b.shared, ttl)
	}
	b.mu.Unlock()
	close(o.done)
}

// ownSession grants a session for one acquisition. When the caller leaves before
// the answer comes, the lease is revoked.
func (b *etcdBackend) ownSession(ctx context.Context, ttl time.Duration) (*session, error) {
	type answer struct {
		s   *session
		err error
	}
	answers := make(chan answer)
	b.detach(grantLimit, func(detached context.Context) {
		s, err := b.grant(detached, ttl, false)
		select {
		case answers <- answer{s, err}:
			return
		case <-ctx.Done():
		case <-detached.Done():
		}
		if err == nil {
			_, _ = b.client.Revoke(detached, s.id)
		}
	})
	select {
	case a := <-answers:
		return a.s, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: waiting for an etcd lease: %w", backend.ErrUnavailable, ctx.Err())
	case <-b.life.Done():
		return nil, backend.ErrClosed
	}
}

// grant asks the cluster for a lease. Without an answer nothing has been changed
// that anybody could see.
func (b *etcdBackend) grant(ctx context.Context, ttl time.Duration, shared bool) (*session, error) {
	sent := b.clock.Now()
	resp, err := b.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return nil, fmt.Errorf("etcdlock: an etcd lease of %s: %w", ttl, harmless(ctx, err))
	}
	s := &session{id: resp.ID, ttl: ttl, shared: shared, fence: fenceName(b.prefix, resp.ID), ended: make(chan struct{})}
	s.confirm(sent, resp.TTL)
	return s, nil
}

// confirm notes that the server has begun the lease anew, after sent. The TTL that
// counts is the one in its answer; more than was asked for is not relied on, since
// the answer to the next renewal may give less.
func (s *session) confirm(sent backend.Instant, seconds int64) {
	ttl := s.ttl
	if seconds < int64(ttl/time.Second) {
		ttl = time.Duration(seconds) * time.Second
	}
	s.sent = max(s.sent, sent)
	s.until = max(s.until, sent.Add(backend.ValidFor(ttl)))
}

// keepAlive renews the session once. The stream of the client library hides when a
// request was sent, and its KeepAliveOnce goes on at full speed while no server
// can be reached.
func (b *etcdBackend) keepAlive(ctx context.Context, s *session) error {
	return b.attempts(ctx, func(ctx context.Context) error {
		sent := b.clock.Now()
		seconds, err := b.askKeepAlive(ctx, s.id)
		switch {
		case leaseNotFound(err):
			b.sessionGone(s)
			return err
		case err != nil:
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		s.confirm(sent, seconds)
		return nil
	})
}

func (b *etcdBackend) askKeepAlive(ctx context.Context, id clientv3.LeaseID) (seconds int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(b.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	// The answer to a request that could not be sent tells why.
	_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	resp, err := stream.Recv()
	switch {
	case err != nil:
		return 0, clientv3.ContextError(ctx, err)
	case resp.TTL <= 0:
		return 0, rpctypes.ErrLeaseNotFound
	}
	return resp.TTL, nil
}

// untold is a context whose deadline gRPC does not send along: with one, both sides
// set a timer for each request. Its end reaches the server as a cancellation.
type untold struct{ context.Context }

// Deadline implements context.Context.
func (untold) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// attempts sends a request that may be repeated. Where there are several members,
// one that does not answer in half of the time, or whose connection breaks, is
// given up and the request goes to the next one.
func (b *etcdBackend) attempts(ctx context.Context, send func(ctx context.Context) error) error {
	if b.client.Ctx().Err() != nil {
		return errClientClosed // the client library would try again until ctx ends
	}
	if len(b.client.Endpoints()) == 1 {
		return send(untold{ctx})
	}
	first, cancel := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		first, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	err := send(untold{first})
	timedOut := first.Err() != nil
	cancel()
	if err == nil || ctx.Err() != nil || !timedOut && !connectionBroke(err) {
		return err
	}
	return send(untold{ctx})
}

// sessionGone notes that the server has no such lease any more, and tells the
// holds that lived on it.
func (b *etcdBackend) sessionGone(s *session) {
	b.mu.Lock()
	if s.gone {
		b.mu.Unlock()
		return
	}
	s.gone = true
	close(s.ended)
	var ids []backend.ID
	for id, m := range b.members {
		if m.session == s && m.next == nil {
			ids = append(ids, id)
		}
	}
	lost := b.lost
	b.mu.Unlock()
	if lost == nil {
		return
	}
	for _, id := range ids {
		lost(id, backend.ErrSessionLost)
	}
}

func (b *etcdBackend) isGone(s *session) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.gone
}

// stale reports that the session should be renewed beside the next request, so
// that a grant has most of its TTL before it.
func (b *etcdBackend) stale(s *session) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock.Now() >= s.sent.Add(s.ttl/6)
}

// freshly runs f, and renews the session beside it when it is stale. The validity
// of a grant comes from what was confirmed, so that the outcome of the renewal
// decides nothing here.
func (b *etcdBackend) freshly(ctx context.Context, s *session, f func() error) error {
	if !b.stale(s) {
		return f()
	}
	renewal, cancel := context.WithTimeout(ctx, s.ttl/6) // f does not wait for a member that stands still
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.keepAlive(renewal, s)
	}()
	err := f()
	<-done
	return err
}

// validity is that of a hold which the server has confirmed by a request sent at
// this instant: it ends with its session.
func (b *etcdBackend) validity(s *session, sent backend.Instant) backend.Validity {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := s.until.Sub(sent)
	return backend.Validity{Sent: sent, For: max(0, min(left, backend.ValidFor(s.ttl)))}
}

// revoke ends a session in the background. It ends by itself otherwise.
func (b *etcdBackend) revoke(s *session) {
	b.detach(grantLimit, func(ctx context.Context) { _, _ = b.client.Revoke(ctx, s.id) })
}
