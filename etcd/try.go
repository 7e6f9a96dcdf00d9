package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

// Try asks once, in one transaction: the acquisition's key is created if no
// acquisition of the lock has one. It leaves nothing behind when it is refused.
func (b *etcdBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	n := namesOf(b.prefix, req.Key)
	if !req.Renewed && b.acquisition(req.ID, req.Key) == nil {
		// A look first, so that a refusal does not cost a lease.
		if err := b.look(ctx, n); err != nil {
			return backend.Grant{}, err
		}
	}
	a, m, err := b.ask(ctx, n, req, false)
	if err != nil {
		return backend.Grant{}, err
	}
	if a.rev == 0 {
		if b.forget(req.ID, m); b.acquisition(req.ID, req.Key) != nil {
			// An earlier attempt has lost its answer, and may still arrive when the key is
			// free. A refusal promises that nothing comes after it.
			if err := b.Release(ctx, backend.HoldOf(req)); err != nil && !isNotHeld(err) {
				return backend.Grant{}, fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, unmark(err))
			}
		}
		return backend.Grant{}, heldBy(req.Key, a.other)
	}
	return backend.Grant{Token: a.token(), Holds: 1, Validity: b.validity(m.session, a.sent)}, nil
}

// look refuses when the lock is held. Otherwise the transaction has the word.
func (b *etcdBackend) look(ctx context.Context, n names) error {
	var resp *clientv3.GetResponse
	err := b.attempts(ctx, func(ctx context.Context) (err error) {
		r, err := b.client.Do(ctx, oldestOf(n))
		resp = r.Get()
		return err
	})
	if err != nil {
		return readError(ctx, n.key, err)
	}
	if len(resp.Kvs) > 0 && resp.Kvs[0].Lease != 0 {
		return heldBy(n.key, resp.Kvs[0])
	}
	return nil
}

// asked is the answer to an attempt to create an acquisition's key.
type asked struct {
	sent  backend.Instant
	rev   int64            // create revision of the acquisition's key; zero: it was refused
	floor uint64           // that its token is counted on from
	alone bool             // no other acquisition has a key: the lock is granted
	other *mvccpb.KeyValue // the holder's key (Try), or the one before (Enqueue)
	own   *mvccpb.KeyValue // the acquisition's key, where it is on another lease (Try)
	seen  int64            // the revision of which all this is true
}

func (a asked) token() uint64 { return a.floor + uint64(a.rev) }

// ask sends the transaction, again when its session has ended or when the fence
// has moved since the session was last used.
func (b *etcdBackend) ask(ctx context.Context, n names, req backend.Request, queue bool) (asked, *acquisition, error) {
	for tries := 1; ; tries++ {
		m, err := b.enlist(ctx, n, req)
		if err != nil {
			return asked{}, nil, err
		}
		var a asked
		err = b.freshly(ctx, m.session, func() error {
			a, err = b.askFenced(ctx, n, req, m, queue)
			return err
		})
		if err == nil && a.alone && !queue && !b.grants(m) {
			err = rpctypes.ErrLeaseNotFound // as somebody else was told meanwhile
		}
		switch {
		case err == nil:
			return a, m, nil
		case leaseNotFound(err) && tries < 3:
			b.sessionGone(m.session)
			continue
		}
		err = keyError(ctx, req.Key, err)
		if errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrPermanent) {
			b.forget(req.ID, m)
			if b.acquisition(req.ID, req.Key) != nil {
				err = unmark(err) // an earlier attempt is still in doubt
			}
		}
		return asked{}, nil, err
	}
}

// askFenced sends the transaction. A release may be called as soon as ctx has ended,
// while this is still under way. It finds the pending request then, or else has
// moved the fence before the epoch is read here, and ctx is seen to have ended.
func (b *etcdBackend) askFenced(ctx context.Context, n names, req backend.Request, m *acquisition, queue bool) (asked, error) {
	s := m.session
	for range fencePatience {
		f, err := b.knownFloor(ctx)
		if err != nil {
			return asked{}, err
		}
		sent := b.clock.Now()
		b.sending(m)
		epoch := b.epochOf(s)
		if err := ctx.Err(); err != nil {
			b.answered(m)
			return asked{}, err
		}
		resp, err := b.commit(ctx, m, b.takeTxn(n, req, m.slot.name, s, epoch, f, queue))
		if err != nil {
			return asked{}, err
		}
		a, valid := readTake(m.slot.name, s, f, resp, queue)
		if !valid {
			if err := b.lookUp(ctx, s, f); err != nil {
				return asked{}, err
			}
			continue
		}
		b.foreign(m, a.own)
		a.sent = sent
		b.created(m, a.rev, a.floor)
		return a, nil
	}
	return asked{}, fmt.Errorf("%w: the fence %q or the floor %q changes all the time", backend.ErrUnavailable, s.fence, floorName(b.prefix))
}

// fencePatience is how often a request may meet a fence that has moved, because the
// contexts of other callers ended, before it is given up. Each of its attempts was
// answered, and has created nothing.
const fencePatience = 200

// commit sends a transaction that creates the key of the acquisition, which the caller has
// noted as pending. A repeat after a lost answer finds its own key; but what was
// lost may still arrive later.
func (b *etcdBackend) commit(ctx context.Context, m *acquisition, t clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	again := false
	err = b.attempts(ctx, func(ctx context.Context) error {
		if again {
			b.sending(m)
		}
		again = true
		r, err := b.client.Do(ctx, t)
		if err == nil || leaseNotFound(err) || sentinelFor(err) != nil {
			b.answered(m)
		}
		resp = r.Txn()
		return err
	})
	if !again {
		b.answered(m) // it was not sent
	}
	return resp, err
}

// lookUp reads where the floor and the fence have moved to. Who has moved the fence has
// withdrawn another request of the same session.
func (b *etcdBackend) lookUp(ctx context.Context, s *session, f floor) error {
	premise := []clientv3.Op{clientv3.OpGet(f.name)}
	if s.shared {
		premise = append(premise, clientv3.OpGet(s.fence))
	}
	var resp *clientv3.TxnResponse
	err := b.attempts(ctx, func(ctx context.Context) (err error) {
		resp, err = b.client.Txn(ctx).Then(premise...).Commit()
		return err
	})
	if err != nil {
		return err
	}
	if s.shared {
		b.moveFence(s, revisionOf(resp.Responses[1]))
	}
	return b.floorMoved(oldest(resp.Responses[0].GetResponseRange()))
}

// takeTxn creates the acquisition's key: if no acquisition has a key with a lease,
// or in any case when a place in the queue is wanted. Keys without a lease are not
// ours and don't count. What is sent under an older epoch of a shared session, or
// another floor, has no effect. A refusal tells who holds, or takes the place.
func (b *etcdBackend) takeTxn(n names, req backend.Request, own string, s *session, epoch int64, f floor, queue bool) clientv3.Op {
	granted := encodeRecord(req.Holder, req.TTL, f.add, time.Now())
	refused := []clientv3.Op{clientv3.OpGet(own), oldestOf(n)}
	if queue {
		waiting := encodeRecord(req.Holder, req.TTL, f.add, time.Time{})
		refused = []clientv3.Op{clientv3.OpPut(own, waiting, clientv3.WithPrevKV(), clientv3.WithLease(s.id)), clientv3.OpGet(n.dir, clientv3.WithRange(n.end),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2))}
	}
	valid := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(f.name), "=", f.rev)}
	if s.shared {
		valid = append(valid, clientv3.Compare(clientv3.ModRevision(s.fence), "=", epoch))
	}
	free := clientv3.Compare(clientv3.LeaseValue(n.dir).WithRange(n.end), "=", clientv3.NoLease)
	// A server that is full refuses what puts a key, and sees only what is in the outer transaction.
	return clientv3.OpTxn(append(valid, free), []clientv3.Op{clientv3.OpPut(own, granted, clientv3.WithLease(s.id))},
		[]clientv3.Op{clientv3.OpTxn(valid, refused, nil)})
}

// oldestOf gets the holder's key, unless there is an older one of somebody else.
func oldestOf(n names) clientv3.Op {
	return clientv3.OpGet(n.dir, clientv3.WithRange(n.end), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(1))
}

// readTake reads the answer to takeTxn. It is not valid when the fence or the floor has moved.
func readTake(name string, s *session, f floor, resp *clientv3.TxnResponse, queue bool) (a asked, valid bool) {
	a.seen, a.floor = resp.Header.Revision, f.add
	if resp.Succeeded {
		a.rev, a.alone = resp.Header.Revision, true
		return a, true
	}
	refused := resp.Responses[0].GetResponseTxn()
	switch {
	case !refused.Succeeded:
		return a, false
	case queue:
		return readPlace(name, a, refused), true
	}
	// The key of an earlier attempt holds: the range was empty when it was created.
	own := oldest(refused.Responses[0].GetResponseRange())
	if own != nil && own.Lease == int64(s.id) {
		a.rev, a.floor, a.alone = own.CreateRevision, decodeRecord(own).Floor, true
		return a, true
	}
	a.own = own
	a.other = oldest(refused.Responses[1].GetResponseRange())
	return a, true
}

func readPlace(name string, a asked, place *pb.TxnResponse) asked {
	a.rev = a.seen
	newest := place.Responses[1].GetResponseRange().Kvs
	if before := place.Responses[0].GetResponsePut().PrevKv; before != nil {
		a.rev = before.CreateRevision // the place of an earlier attempt; Wait finds out where it is
	} else if len(newest) == 2 && string(newest[0].Key) == name {
		a.other = newest[1] // a new place is the last one
	}
	return a
}

func oldest(r *pb.RangeResponse) *mvccpb.KeyValue {
	if len(r.GetKvs()) == 0 {
		return nil
	}
	return r.Kvs[0]
}

// revisionOf is the mod revision of the key that was read, or zero when it does not
// exist.
func revisionOf(r *pb.ResponseOp) int64 { return revOf(oldest(r.GetResponseRange())) }

func revOf(kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}

func (b *etcdBackend) epochOf(s *session) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.epoch
}

func (b *etcdBackend) moveFence(s *session, rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.epoch = rev
}
