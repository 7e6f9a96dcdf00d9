package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortiselock/lock/backend"
)

// renewal is a renewal of a session, whose outcome all share who want one while it is
// under way. What it proves is counted from when it was sent, so that it does not
// matter when they came.
type renewal struct {
	since backend.Instant
	done  chan struct{} // closed when err is set
	err   error
}

// wait returns how the renewal ended, or that ctx did.
func (r *renewal) wait(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keepAlive renews the session once, or waits for the renewal that is under way.
func (b *etcdBackend) keepAlive(ctx context.Context, s *session) error {
	return b.underway(s).wait(ctx)
}

// underway returns the renewal of the session that is under way, or begins one. It
// does not end with the context of a caller. One that has had no answer for a sixth of
// the TTL is not joined any more: the next may meet another member.
func (b *etcdBackend) underway(s *session) *renewal {
	now := b.clock.Now()
	b.mu.Lock()
	if r := s.under; r != nil && now.Sub(r.since) < s.ttl/6 {
		select {
		case <-r.done:
		default:
			b.mu.Unlock()
			return r
		}
	}
	r := &renewal{since: now, done: make(chan struct{})}
	s.under = r
	b.mu.Unlock()
	if !b.detach(min(s.ttl, time.Minute), func(ctx context.Context) {
		defer close(r.done)
		r.err = b.renewNow(ctx, s)
	}) {
		r.err = backend.ErrClosed
		close(r.done)
	}
	return r
}

// renewAttempts bounds the members that one renewal asks: the client library chooses which
// one is next, and it may be the one that does not answer again.
const renewAttempts = 5

func (b *etcdBackend) renewNow(ctx context.Context, s *session) error {
	tries := 0
	return b.attemptsOf(ctx, s.ttl/6, renewAttempts, func(ctx context.Context) error {
		tries++
		seconds, sent, err := b.renewByLeader(ctx, s, tries == 1)
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

var errFormerLeader = fmt.Errorf("%w: the leader that renewed the lease was replaced meanwhile", backend.ErrUnavailable)

// renewByLeader renews the session, and makes sure that it was the leader who did. Only the
// memory of the leader knows of a renewal. One that stood still and goes on may renew a lease
// whose time runs out at its successor. So a quorum is asked afterwards: if it is in the term
// of the member that renewed, it has elected nobody else.
func (b *etcdBackend) renewByLeader(ctx context.Context, s *session, open bool) (seconds int64, sent backend.Instant, err error) {
	for range 2 {
		sent = b.clock.Now()
		renewed, err := b.askKeepAlive(ctx, s.id, open)
		if err != nil {
			return 0, 0, err
		}
		resp, err := b.client.Get(ctx, s.fence, clientv3.WithKeysOnly())
		if err != nil {
			return 0, 0, err
		}
		term := renewed.GetHeader().GetRaftTerm()
		if term == 0 || term == resp.Header.RaftTerm { // a proxy may leave the term out
			return renewed.TTL, sent, nil
		}
	}
	return 0, 0, errFormerLeader
}

// askKeepAlive sends one request on an open stream, if there is one and it may be used,
// or else on a new one. The stream of the client library hides when a request was sent,
// and its KeepAliveOnce opens one each time, for which it gives the password again: etcd
// makes that slow on purpose.
func (b *etcdBackend) askKeepAlive(ctx context.Context, id clientv3.LeaseID, open bool) (resp *pb.LeaseKeepAliveResponse, err error) {
	if st := b.streams.take(); st != nil {
		if !open {
			st.end() // it may lead to the member that does not answer
		} else if resp, err = b.askOn(ctx, st, id); err == nil || ctx.Err() != nil || leaseNotFound(err) {
			return resp, err
		} // else it has ended since it was last used
	}
	life, end := context.WithCancel(b.life)
	stop := context.AfterFunc(ctx, end)
	calls, err := pb.NewLeaseClient(b.client.ActiveConnection()).LeaseKeepAlive(life)
	if err != nil || !stop() {
		end()
		if err == nil {
			err = ctx.Err()
		}
		return nil, clientv3.ContextError(ctx, err)
	}
	return b.askOn(ctx, &stream{calls, end}, id)
}

// askOn sends one request on a stream, which is kept for the next one if it was
// answered.
func (b *etcdBackend) askOn(ctx context.Context, st *stream, id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	stop := context.AfterFunc(ctx, st.end)
	// The answer to a request that could not be sent tells why.
	_ = st.calls.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	resp, err := st.calls.Recv()
	if !stop() || err != nil {
		st.end()
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil, status.Error(codes.Unavailable, "the server has ended the stream of renewals")
	case err != nil:
		return nil, clientv3.ContextError(ctx, err)
	}
	b.streams.keep(st)
	if resp.TTL <= 0 {
		return nil, rpctypes.ErrLeaseNotFound
	}
	return resp, nil
}

// stream carries renewals, one at a time, over one member.
type stream struct {
	calls pb.Lease_LeaseKeepAliveClient
	end   context.CancelFunc
}

// streams are those that nobody uses. They end with the backend.
type streams chan *stream

// mostStreams bounds the streams that are kept. The shared sessions need one; more are
// used when several sessions are renewed at the same time.
const mostStreams = 4

func (s streams) take() *stream {
	select {
	case st := <-s:
		return st
	default:
		return nil
	}
}

func (s streams) keep(st *stream) {
	if st.calls.Context().Err() != nil {
		return
	}
	select {
	case s <- st:
	default:
		st.end()
	}
}
