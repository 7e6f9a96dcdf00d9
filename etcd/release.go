package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

// Release deletes the key of the acquisition. While a request that creates it may
// still be on its way, the fence of the session is moved in the same transaction,
// so that the request has no effect when it arrives; and where the session is the
// acquisition's own, it is revoked.
//
// When an attempt lost its answer and the next one finds no key, the first is
// taken to have deleted it.
func (b *etcdBackend) Release(ctx context.Context, hold backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := b.member(hold.ID)
	if m == nil {
		return b.deleteKey(ctx, hold, nil, int64(hold.Token), false)
	}
	b.mu.Lock()
	s, rev, pending, gone := m.session, m.rev, m.pending > 0, m.session.gone && m.next == nil
	b.mu.Unlock()
	if gone {
		b.drop(hold.ID, m)
		return sessionLost(hold.Key)
	}
	if pending && !s.shared {
		// What is on its way cannot create a key on a lease that has ended.
		err := b.attempts(ctx, func(ctx context.Context) error {
			_, err := b.client.Revoke(ctx, s.id)
			return err
		})
		if err != nil && !leaseNotFound(err) {
			return keyError(ctx, hold.Key, err)
		}
		b.drop(hold.ID, m)
		if leaseNotFound(err) {
			return sessionLost(hold.Key)
		}
		return nil
	}
	err := b.deleteKey(ctx, hold, s, rev, pending)
	if err == nil || isNotHeld(err) {
		b.drop(hold.ID, m)
		if !s.shared {
			b.revoke(s)
		}
	}
	return err
}

func (b *etcdBackend) drop(id backend.ID, m *member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.members[id] == m {
		delete(b.members, id)
	}
}

// deleteKey deletes the acquisition's key, by its create revision where that is
// known. Its name has the acquisition's id, so that it is nobody else's.
func (b *etcdBackend) deleteKey(ctx context.Context, hold backend.Hold, s *session, rev int64, fence bool) error {
	own := namesOf(b.prefix, hold.Key).own(hold.ID)
	var same []clientv3.Cmp
	if rev != 0 {
		same = []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(own), "=", rev)}
	}
	txn := clientv3.OpTxn(same, []clientv3.Op{clientv3.OpDelete(own)}, nil)
	if fence {
		txn = clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete(own), clientv3.OpPut(s.fence, "", clientv3.WithLease(s.id))}, nil)
	}
	var resp *clientv3.TxnResponse
	tries := 0
	err := b.attempts(ctx, func(ctx context.Context) error {
		tries++
		r, err := b.client.Do(ctx, txn)
		resp = r.Txn()
		return err
	})
	switch {
	case leaseNotFound(err):
		b.sessionGone(s)
		return sessionLost(hold.Key)
	case err != nil:
		return keyError(ctx, hold.Key, err)
	}
	if fence {
		b.moveFence(s, resp.Header.Revision)
	}
	if resp.Succeeded && resp.Responses[0].GetResponseDeleteRange().Deleted > 0 || tries > 1 {
		return nil
	}
	return notHeld(hold.Key)
}

// ForceRelease deletes the holder's key if its create revision is the token.
func (b *etcdBackend) ForceRelease(ctx context.Context, key string, token uint64) error {
	kv, err := b.holderWith(ctx, key, token)
	if err != nil {
		return err
	}
	own := string(kv.Key)
	resp, err := b.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(own), "=", kv.CreateRevision)).Then(clientv3.OpDelete(own)).Commit()
	switch {
	case err != nil:
		return keyError(ctx, key, err)
	case !resp.Succeeded:
		return notHeld(key)
	}
	return nil
}
