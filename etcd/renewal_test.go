package etcdlock

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// received is how many messages of a method the server has got.
func received(t *testing.T, s *servertest.Server, service, method, kind string) int {
	t.Helper()
	name := fmt.Sprintf("grpc_server_msg_received_total{grpc_method=%q,grpc_service=\"etcdserverpb.%s\",grpc_type=%q}", method, service, kind)
	n, err := strconv.Atoi(metric(t, s, name))
	require.NoError(t, err, "%s", name)
	return n
}

// The holds of a Locker live on one etcd lease, and are renewed by a few requests, on a
// stream that was opened once: with a password, each new one costs the server a tenth of a
// second of its processor.
func TestRenewalsShareRequests(t *testing.T) {
	t.Parallel()
	const leases, each = 100, 4
	for _, password := range []bool{false, true} {
		t.Run(fmt.Sprintf("password %t", password), func(t *testing.T) {
			t.Parallel()
			var s *servertest.Server
			at := ""
			if password {
				s = users(t)
				at = "ann:" + url.PathEscape("pass word/@") + "@"
			} else {
				s = servertest.Etcd(t)
			}
			var renewed atomic.Int64
			l, err := lock.Open(t.Context(), "etcd://"+at+s.Addr()+"/locks", &lock.Options{TTL: 12 * time.Second, Observer: func(_ context.Context, e lock.Event) {
				if e.Kind == lock.EventRenewed {
					renewed.Add(1)
				}
			}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			for i := range leases {
				_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i))
				require.NoError(t, err)
			}
			passwords := 0
			if password {
				passwords = received(t, s, "Auth", "Authenticate", "unary")
			}
			require.Eventually(t, func() bool { return renewed.Load() >= leases*each }, 3*time.Minute, 50*time.Millisecond, "they are renewed")
			asked, n := received(t, s, "Lease", "LeaseKeepAlive", "bidi_stream"), renewed.Load()
			t.Logf("%d renewals, %d requests to keep a lease alive", n, asked)
			assert.Less(t, int64(asked)*4, n, "requests to keep the lease alive")
			if password {
				given := received(t, s, "Auth", "Authenticate", "unary") - passwords
				assert.LessOrEqual(t, given, asked/2, "the password was given again for each request")
			}
		})
	}
}

// All who want a session renewed while that is under way wait for the same request.
func TestRenewalUnderWayIsShared(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	b := backendOn(t, clientOf(t, server), nil)
	hold, _ := backendtest.Granted(t, b, request("k"))
	s := b.acquisition(hold.ID, hold.Key).session
	server.Freeze(t)
	before := b.clock.Now()
	r := b.underway(s)
	assert.Same(t, r, b.underway(s))
	require.ErrorIs(t, r.wait(backendtest.Short(t, 50*time.Millisecond)), context.DeadlineExceeded)
	server.Resume(t)
	require.NoError(t, r.wait(t.Context()))
	v, err := b.Renew(t.Context(), hold)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, v.Sent, before)
	assert.LessOrEqual(t, v.Until(), b.clock.Now().Add(ttl), "what a renewal proves is counted from when it was sent")
	require.NoError(t, b.Release(t.Context(), hold))
}

// former answers renewals with the term before that of the cluster, as a leader does that
// stood still while the others elected another one.
type former struct {
	grpc.ClientStream
	answers *atomic.Int32 // how many it still answers
}

func (f former) RecvMsg(m any) error {
	err := f.ClientStream.RecvMsg(m)
	if resp, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil && f.answers.Add(-1) >= 0 {
		resp.Header.RaftTerm--
	}
	return err
}

// What a former leader renews is not renewed: the lease is asked for again, and the hold
// has no more time than before when the answer is the same.
func TestFormerLeaderRenewsNothing(t *testing.T) {
	t.Parallel()
	var answers atomic.Int32
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + servertest.SharedEtcd(t).Addr()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			return former{s, &answers}, err
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	b := backendOn(t, c, nil)
	req := request(backendtest.UniqueKey(t))
	req.Renewed = false
	hold, grant := backendtest.Granted(t, b, req)
	time.Sleep(ttl / 32) // a lease is not renewed again at once

	answers.Store(2)
	_, err = b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "leader")
	s := b.acquisition(hold.ID, hold.Key).session
	assert.Equal(t, grant.Until(), b.validity(s, grant.Sent).Until(), "the hold has no more time")

	answers.Store(1)
	v, err := b.Renew(t.Context(), hold)
	require.NoError(t, err, "the second answer was the leader's")
	assert.Greater(t, v.Until(), grant.Until())
	require.NoError(t, b.Release(t.Context(), hold))
}

// A stream of renewals that the server has ended is replaced within the same renewal.
func TestStreamOfRenewalsIsReplaced(t *testing.T) {
	t.Parallel()
	server := servertest.SharedEtcd(t)
	proxy := servertest.Proxy(t, server.Addr())
	b := backendOn(t, clientOf(t, server), nil)
	other, err := adminOf("etcd://" + proxy.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })
	hold, _ := backendtest.Granted(t, other, request(backendtest.UniqueKey(t)))
	s := other.acquisition(hold.ID, hold.Key).session
	require.NoError(t, other.keepAlive(t.Context(), s))
	require.Len(t, other.streams, 1)
	proxy.Cut()
	backendtest.Eventually(t, "the client has connected again", func() bool {
		_, err := other.Inspect(backendtest.Short(t, 5*time.Second), hold.Key)
		return err == nil
	})
	require.NoError(t, other.keepAlive(t.Context(), s))
	require.Len(t, other.streams, 1)
	require.NoError(t, other.Release(t.Context(), hold))
	require.Empty(t, b.streams)
}

// A member that stands still holds up neither the renewals nor a waiter whose watch is
// there, though the client library does not notice: it was not told to look.
func TestFrozenMemberHoldsUpNothing(t *testing.T) {
	t.Parallel()
	members := servertest.EtcdCurrentCluster(t, 3, servertest.WithControl())
	const ttl = 15 * time.Second
	const waits = 3 // whose watches share a stream
	watchers := func(m *servertest.Server) bool {
		return metric(t, m, "etcd_debugging_mvcc_watcher_total") == strconv.Itoa(waits)
	}
	conf := clientv3.Config{Logger: zap.NewNop()} // without keep-alives of the connection
	for _, m := range members {
		conf.Endpoints = append(conf.Endpoints, "http://"+m.Addr())
	}
	c, err := clientv3.New(conf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	holder, waiter := lockerOn(t, clientOf(t, members...), ttl), lockerOn(t, c, ttl)
	kept, err := waiter.Acquire(t.Context(), "kept")
	require.NoError(t, err)
	var held []lock.Lease
	got := make(chan error, waits)
	for i := range waits {
		key := fmt.Sprint("contended", i)
		lease, err := holder.Acquire(t.Context(), key)
		require.NoError(t, err)
		held = append(held, lease)
		go func() {
			_, err := waiter.Acquire(t.Context(), key)
			got <- err
		}()
	}
	backendtest.Eventually(t, "they watch", func() bool { return slices.ContainsFunc(members, watchers) })
	frozen := members[slices.IndexFunc(members, watchers)]
	frozen.Freeze(t)
	defer frozen.Resume(t)
	time.Sleep(ttl) // the waiters have looked again, and asked for other watches
	for _, lease := range held {
		if err := lease.Release(t.Context()); err != nil {
			require.ErrorIs(t, err, lock.ErrOutcomeUnknown) // and repeated, beside an election perhaps
		}
	}
	limit := time.After(2 * time.Minute)
	for range waits {
		select {
		case err := <-got:
			require.NoError(t, err)
		case <-limit:
			t.Fatal("a waiter is held up by the member that its watch was on")
		}
	}
	require.NoError(t, kept.Context().Err())
}

// A member that is removed from the cluster serves nobody any more. Who knows that one
// alone loses the lease by its deadline, before another is granted the key; who knows the
// others too goes on.
func TestMemberIsRemoved(t *testing.T) {
	eachVersion(t, func(t *testing.T, members []*servertest.Server) {
		const ttl = 15 * time.Second
		lead := leader(t, clientOf(t, members...), members)
		admin := clientOf(t, members[(lead+1)%3], members[(lead+2)%3])
		lost, err := lockerOn(t, clientOf(t, members[lead]), ttl).Acquire(t.Context(), "lost")
		require.NoError(t, err)
		kept, err := lockerOn(t, clientOf(t, members...), 4*ttl).Acquire(t.Context(), "kept") // a busy machine needs time
		require.NoError(t, err)
		takenOver := waitsFor(t, lockerOn(t, admin, ttl), lost)
		status, err := admin.Status(t.Context(), "http://"+members[lead].Addr())
		require.NoError(t, err)
		backendtest.Eventually(t, "the cluster is healthy enough to lose a member", func() bool {
			_, err := admin.MemberRemove(backendtest.Short(t, ttl), status.Header.MemberId)
			return err == nil
		})
		takenOver()
		require.ErrorIs(t, context.Cause(lost.Context()), lock.ErrLost)
		backendtest.Eventually(t, "the others renew", func() bool { return kept.Renew(backendtest.Short(t, ttl)) == nil })
		require.NoError(t, kept.Context().Err())
		require.NoError(t, kept.Release(t.Context()))
	}, servertest.WithControl())
}

// That nobody listens is told at once, and not when the time is over.
func TestRefusedConnectionIsToldAtOnce(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"", "ann:hunter2@"} {
		ctx := backendtest.Short(t, time.Minute)
		_, err := lock.Open(ctx, "etcd://"+at+"127.0.0.1:1,127.0.0.1:2", nil)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, ctx.Err())
		require.ErrorContains(t, err, "refused")
		require.NotContains(t, err.Error(), "hunter2")
	}
}
