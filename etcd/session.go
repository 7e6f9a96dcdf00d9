package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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
	under *renewal // that is under way, or was the last one
}

// opening is a shared session that is being granted, or was.
type opening struct {
	done chan struct{} // closed when s and err are set
	s    *session      // guarded by the backend's mutex until then
	err  error
}

// endLimit bounds the revocation of a lease that nobody needs.
const endLimit = 5 * time.Second

// grantLimit bounds the request for a lease, which later is of no use. All acquisitions of
// a TTL wait for one of them.
func grantLimit(ttl time.Duration) time.Duration { return min(ttl-ttl/3, 5*time.Second) }

// sharedSession returns the session for holds with this TTL that are renewed.
// Several callers wait for one grant, which does not depend on their contexts.
func (b *etcdBackend) sharedSession(ctx context.Context, ttl time.Duration) (*session, error) {
	b.mu.Lock()
	o := b.shared[ttl]
	if o == nil || o.s != nil && (o.s.gone || b.clock.Now() >= o.s.until) {
		o = &opening{done: make(chan struct{})}
		b.shared[ttl] = o
		b.mu.Unlock()
		b.detach(grantLimit(ttl), func(ctx context.Context) { b.openShared(ctx, o, ttl) })
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
	b.detach(grantLimit(ttl), func(detached context.Context) {
		s, err := b.grant(detached, ttl, false)
		select {
		case answers <- answer{s, err}:
			return
		case <-ctx.Done():
		case <-b.life.Done(): // and not when detached ends, of which the caller is still to be told
		}
		if err == nil {
			b.revoke(s)
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

// grant asks the cluster for a lease, under an id of ours: a repeat after a lost answer
// finds what the first has made. Without an answer nothing has been changed that anybody
// could see.
func (b *etcdBackend) grant(ctx context.Context, ttl time.Duration, shared bool) (*session, error) {
	id, seconds := rand.Int64N(math.MaxInt64)+1, int64(ttl/time.Second)
	s := &session{id: clientv3.LeaseID(id), ttl: ttl, shared: shared, fence: fenceName(b.prefix, clientv3.LeaseID(id)), ended: make(chan struct{})}
	tries := 0
	err := b.attempts(ctx, func(ctx context.Context) error {
		if tries++; tries == 1 {
			s.sent = b.clock.Now() // of the one that counts, which may be this
		}
		resp, err := pb.NewLeaseClient(b.client.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds, ID: id})
		err = clientv3.ContextError(ctx, err)
		if tries > 1 && errors.Is(err, rpctypes.ErrLeaseExist) {
			return nil
		}
		if err == nil {
			seconds = resp.TTL
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("etcdlock: an etcd lease of %s: %w", ttl, harmless(ctx, err))
	}
	s.confirm(s.sent, seconds)
	return s, nil
}

func (b *etcdBackend) revokeLease(ctx context.Context, id clientv3.LeaseID) error {
	_, err := b.client.Revoke(ctx, id)
	return err
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

// untold is a context whose deadline gRPC does not send along: with one, both sides
// set a timer for each request. Its end reaches the server as a cancellation.
type untold struct{ context.Context }

// Deadline implements context.Context.
func (untold) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// attempts sends a request that may be repeated. Where there are several members,
// one that does not answer in half of the time, or whose connection breaks, is
// given up and the request goes to the next one.
func (b *etcdBackend) attempts(ctx context.Context, send func(ctx context.Context) error) error {
	half := noLimit
	if deadline, ok := ctx.Deadline(); ok {
		half = time.Until(deadline) / 2
	}
	return b.attemptsOf(ctx, half, 2, send)
}

const noLimit = time.Duration(math.MaxInt64)

// attemptsOf makes so many attempts at most, each of which but the last is given up after
// the limit.
func (b *etcdBackend) attemptsOf(ctx context.Context, limit time.Duration, most int, send func(ctx context.Context) error) error {
	if b.client.Ctx().Err() != nil {
		return errClientClosed // the client library would try again until ctx ends
	}
	if len(b.client.Endpoints()) == 1 {
		most = 1
	}
	for ; most > 1; most-- {
		limited, cancel := ctx, context.CancelFunc(func() {})
		if limit != noLimit {
			limited, cancel = context.WithTimeout(ctx, limit)
		}
		err := send(untold{limited})
		timedOut := limited.Err() != nil
		cancel()
		if err == nil || ctx.Err() != nil || !timedOut && !connectionBroke(err) {
			return err
		}
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
	for id, m := range b.acquisitions {
		if m.session == s && m.next == nil && m.granted {
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
	return !b.renewedWithin(s, s.ttl/6)
}

// renewedWithin reports whether the last confirmed renewal of the session was sent no
// longer ago than that.
func (b *etcdBackend) renewedWithin(s *session, d time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !s.gone && b.clock.Now() < s.sent.Add(d)
}

// freshly runs f, and renews the session beside it when it is stale. It waits for that too, for a
// sixth of the TTL at most: the validity of a grant comes from what was confirmed by then.
func (b *etcdBackend) freshly(ctx context.Context, s *session, f func() error) error {
	if !b.stale(s) {
		return f()
	}
	limited, cancel := context.WithTimeout(ctx, s.ttl/6) // f does not wait for a member that stands still
	defer cancel()
	r := b.underway(s)
	err := f()
	_ = r.wait(limited)
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
	b.detach(endLimit, func(ctx context.Context) {
		_ = b.attempts(ctx, func(ctx context.Context) error { return b.revokeLease(ctx, s.id) })
	})
}
