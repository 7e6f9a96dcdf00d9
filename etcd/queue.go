package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

// Enqueue creates the acquisition's key, in one transaction that also finds the
// place before it. The lock is granted by it when there is none.
func (b *etcdBackend) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n := namesOf(b.prefix, req.Key)
	a, m, err := b.ask(ctx, n, req, true)
	if err != nil {
		return nil, err
	}
	t := &ticket{b: b, n: n, req: req, m: m, s: m.session, own: m.slot.name, rev: a.rev, token: a.token(), seen: a.seen}
	if a.alone {
		t.granted, t.sent = true, a.sent
	}
	t.follow(a.other)
	return t, nil
}

// ticket is a place in the queue. One goroutine waits at it.
type ticket struct {
	b   *etcdBackend
	n   names
	req backend.Request
	m   *acquisition
	s   *session
	own string
	rev int64 // create revision of the place

	token uint64

	granted bool // by Enqueue
	sent    backend.Instant
	before  string           // the place before this one, or "" when it has to be looked up
	seen    int64            // the revision at which it was there
	floor   *mvccpb.KeyValue // that of the tokens, as it was then
	behind  atomic.Bool

	asking atomic.Bool // for a watch, and the server has not answered
}

// follow remembers the place before, if it is one: a key without a lease is not.
func (t *ticket) follow(kv *mvccpb.KeyValue) {
	t.before = ""
	if kv != nil && kv.Lease != 0 {
		t.before = string(kv.Key)
		t.behind.Store(true)
	}
}

// Behind implements backend.Ticket.
func (t *ticket) Behind() bool { return t.behind.Load() }

const (
	// shortPause is how long to wait after an error before asking again.
	shortPause = 100 * time.Millisecond
	mostPause  = 2 * time.Second
)

// Wait watches the place before this one, and asks for the head of the queue when
// it is gone, when the watch breaks, and every third of the TTL of this place, when the session
// is renewed too.
func (t *ticket) Wait(ctx context.Context) (backend.Grant, error) {
	if t.granted && t.b.clock.Now().Sub(t.sent) < t.s.ttl/12 {
		return t.grant(t.sent)
	}
	if t.granted {
		t.before = ""
	}
	pause := shortPause
	for {
		if t.before == "" {
			sent := t.b.clock.Now()
			first, err := t.verify(ctx)
			settled := false
			if err == nil && first {
				settled, err = t.settle(ctx)
			}
			switch {
			case err == nil && settled:
				return t.grant(sent)
			case err == nil && first:
				continue // the floor has moved again
			case err == nil:
				pause = shortPause
			case t.over(ctx, err):
				return backend.Grant{}, err
			default:
				if err := t.sleep(ctx, pause); err != nil {
					return backend.Grant{}, err
				}
				pause = min(2*pause, mostPause)
				continue
			}
		}
		if err := t.watch(ctx); err != nil {
			return backend.Grant{}, err
		}
		t.before = ""
	}
}

func (t *ticket) grant(sent backend.Instant) (backend.Grant, error) {
	if !t.b.grants(t.m) {
		return backend.Grant{}, sessionLost(t.req.Key)
	}
	return backend.Grant{Token: t.token, Holds: 1, Validity: t.b.validity(t.s, sent)}, nil
}

// over reports whether an error ends the wait. The place survives while its
// session may.
func (t *ticket) over(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, backend.ErrNotHeld) || errors.Is(err, backend.ErrPermanent) || errors.Is(err, backend.ErrClosed) {
		return true
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.b.clock.Now() >= t.s.until
}

// settle gives the first in the queue a token that is larger than all before it. The floor
// may have been raised since the place was taken, and a hold that was granted in between has
// a token above it. So the token is counted on from the floor as it is, and from the present
// revision; and as those behind have smaller create revisions than that, the floor is raised
// by the difference, for them to settle in turn. It reports false where the floor has moved
// again.
func (t *ticket) settle(ctx context.Context) (settled bool, err error) {
	if t.floor == nil || t.floor.ModRevision < t.rev {
		return true, nil
	}
	f, err := floorOf(t.floor)
	if err != nil {
		return false, err
	}
	raised := f.add + uint64(t.seen-t.rev)
	value := encodeRecord(t.req.Holder, t.req.TTL, raised, time.Now())
	ctx, cancel := context.WithTimeout(ctx, t.s.ttl/3)
	defer cancel()
	resp, err := t.b.client.Txn(ctx).
		If(append(t.b.holds(t.own, t.rev, t.s), clientv3.Compare(clientv3.ModRevision(f.name), "=", f.rev))...).
		Then(clientv3.OpPut(f.name, strconv.FormatUint(raised, 10)), clientv3.OpPut(t.own, value, clientv3.WithLease(t.s.id))).Commit()
	switch {
	case err != nil:
		return false, keyError(ctx, t.req.Key, err)
	case !resp.Succeeded:
		return false, nil
	}
	t.b.floor.Store(&floor{f.name, resp.Header.Revision, raised})
	t.b.created(t.m, t.rev, raised)
	t.token = raised + uint64(t.rev)
	return true, nil
}

// verify asks, in one linearizable read, whether the place still exists with its
// lease, and which place is before it. Both are read anew each time: the lease may
// have ended while others were waited for (the fault that Jepsen found in etcd
// 3.4.3).
func (t *ticket) verify(ctx context.Context) (first bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.s.ttl/3)
	defer cancel()
	err = t.b.freshly(ctx, t.s, func() error {
		first, err = t.look(ctx, 2)
		return err
	})
	return first, err
}

func (t *ticket) look(ctx context.Context, limit int64) (first bool, err error) {
	both := []clientv3.Op{
		clientv3.OpGet(t.n.dir, clientv3.WithRange(t.n.end), clientv3.WithMaxCreateRev(t.rev), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(limit)),
		clientv3.OpGet(floorName(t.b.prefix)),
	}
	var txn *clientv3.TxnResponse
	err = t.b.attempts(ctx, func(ctx context.Context) error {
		txn, err = t.b.client.Txn(ctx).Then(both...).Commit()
		return err
	})
	if err != nil {
		return false, readError(ctx, t.req.Key, err)
	}
	resp := txn.Responses[0].GetResponseRange()
	t.floor = oldest(txn.Responses[1].GetResponseRange())
	if len(resp.Kvs) == 0 || string(resp.Kvs[0].Key) != t.own || resp.Kvs[0].CreateRevision != t.rev || resp.Kvs[0].Lease != int64(t.s.id) {
		if t.b.isGone(t.s) {
			return false, sessionLost(t.req.Key)
		}
		return false, notHeld(t.req.Key)
	}
	t.seen = txn.Header.Revision
	for _, kv := range resp.Kvs[1:] {
		if t.follow(kv); t.before != "" {
			return false, nil
		}
	}
	if resp.More {
		return t.look(ctx, 0) // only a key that is not ours so far
	}
	return true, nil
}

// holds compares the acquisition's key: its create revision, and that it still
// lives on its session.
func (b *etcdBackend) holds(own string, rev int64, s *session) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(own), "=", rev),
		clientv3.Compare(clientv3.LeaseValue(own), "=", s.id),
	}
}

// watch returns when the place before this one may have gone, or when it is time
// to look at everything.
func (t *ticket) watch(ctx context.Context) error {
	begun := time.Now()
	before := t.before
	opened, end := t.opening(before)
	defer end()
	var events clientv3.WatchChan
	third := t.s.ttl / 3 // the session has the TTL of the place
	timer := time.NewTimer(third - time.Duration(rand.Int64N(int64(third/10))))
	defer timer.Stop()
	for {
		select {
		case events = <-opened:
		case resp, ok := <-events:
			switch {
			case ok && resp.Err() == nil && resp.Created && resp.Header.Revision > t.seen:
				// Something has happened before the watch began.
				if first, err := t.verify(ctx); err != nil || first || t.before != before {
					return ctx.Err() // Wait asks again
				}
				continue
			case ok && resp.Err() == nil && len(resp.Events) == 0:
				continue // a sign of life
			case ok && resp.Err() == nil:
				return nil
			case ctx.Err() != nil:
				return ctx.Err()
			case time.Since(begun) < shortPause:
				return t.sleep(ctx, shortPause) // compacted or cancelled; not again at full speed
			}
			return nil
		case <-timer.C:
			return nil
		case <-t.s.ended:
			return sessionLost(t.req.Key)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// opening asks for a watch of an etcd key, which lasts until end. The client library
// returns from Watch when the server has answered, which a member that stands still does
// not; until then no other watch is asked for at this place, and the waiter looks by time.
// Not before the answer is a watch cancelled: the client library would forget it, and the
// server keep it.
func (t *ticket) opening(name string) (opened <-chan clientv3.WatchChan, end func()) {
	if t.asking.Swap(true) {
		return nil, func() {}
	}
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(t.b.life))
	answer, unwanted := make(chan clientv3.WatchChan), make(chan struct{})
	var given atomic.Bool
	if !t.b.begin(func() {
		// From now on, and not from the revision that was seen: a watch that begins in the
		// past is brought up to date by the server only every 100 ms.
		events := t.b.client.Watch(watching, name, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
		t.asking.Store(false)
		given.Store(true)
		select {
		case answer <- events:
		case <-unwanted:
			cancel()
		}
	}) {
		cancel()
	}
	return answer, func() {
		close(unwanted)
		if given.Load() {
			cancel()
		}
	}
}

func (t *ticket) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d + time.Duration(rand.Int64N(int64(d/4))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-t.s.ended:
		return sessionLost(t.req.Key)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Withdraw deletes the place, granted or not. It reads nothing that Wait writes.
func (t *ticket) Withdraw(ctx context.Context) error {
	err := t.b.Release(ctx, backend.HoldOf(t.req))
	if errors.Is(err, backend.ErrNotHeld) {
		return nil
	}
	return err
}
