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
// taken to have deleted it. The key of a hold that is known to be revoked is left
// to its lease: who worked under the hold may still be stopping.
func (b *etcdBackend) Release(ctx context.Context, hold backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := b.acquisition(hold.ID, hold.Key)
	if m == nil {
		return notHeld(hold.Key) // not asked for by this client, refused, or released
	}
	b.mu.Lock()
	s, pending, gone, revoked := m.session, m.pending > 0, m.session.gone && m.next == nil, m.revoked
	b.mu.Unlock()
	if revoked && !(pending && s.shared) {
		b.drop(hold.ID, m)
		if !s.shared {
			b.revoke(s) // with what may still be on its way
		}
		return takenOver(hold.Key)
	}
	if gone {
		b.drop(hold.ID, m)
		return sessionLost(hold.Key)
	}
	if pending && !s.shared {
		// What is on its way cannot create a key on a lease that has ended.
		err := b.attempts(ctx, func(ctx context.Context) error { return b.revokeLease(ctx, s.id) })
		if err != nil && !leaseNotFound(err) {
			return keyError(ctx, hold.Key, err)
		}
		b.drop(hold.ID, m)
		if leaseNotFound(err) {
			return sessionLost(hold.Key)
		}
		return nil
	}
	// Two releases of one acquisition may be under way at the same time.
	ended, still := b.deletes(hold.ID, m)
	if !still {
		return notHeld(hold.Key)
	}
	var err error
	if revoked {
		err = b.withdraw(ctx, hold.Key, m, s)
	} else {
		err = b.deleteKey(ctx, hold.Key, m, s, pending)
	}
	ended()
	if err == nil || isNotHeld(err) {
		b.drop(hold.ID, m)
		if !s.shared {
			b.revoke(s)
		}
	}
	return err
}

// deleteKey deletes the acquisition's key. Its name is the acquisition's alone, and
// is not used again while a request to delete it has no answer; comparing the create
// revision would add nothing but a transaction.
func (b *etcdBackend) deleteKey(ctx context.Context, key string, m *acquisition, s *session, fence bool) error {
	own := m.slot.name
	var deleted, revision int64
	tries := 0
	err := b.attempts(ctx, func(ctx context.Context) error {
		if tries++; tries > 1 {
			b.doubt(m)
		}
		if !fence {
			resp, err := b.client.Delete(ctx, own)
			if err == nil {
				deleted = resp.Deleted
			}
			return err
		}
		resp, err := b.client.Txn(ctx).Then(clientv3.OpDelete(own), clientv3.OpPut(s.fence, "", clientv3.WithLease(s.id))).Commit()
		if err == nil {
			deleted, revision = resp.Responses[0].GetResponseDeleteRange().Deleted, resp.Header.Revision
		}
		return err
	})
	switch {
	case leaseNotFound(err):
		b.sessionGone(s)
		return sessionLost(key)
	case err != nil:
		b.doubt(m)
		return keyError(ctx, key, err)
	}
	if fence {
		b.moveFence(s, revision)
	}
	if deleted == 0 && tries == 1 {
		return notHeld(key)
	}
	return nil
}

// withdraw moves the fence of the session, so that what is on its way has no effect,
// and leaves the key of a hold that was revoked.
func (b *etcdBackend) withdraw(ctx context.Context, key string, m *acquisition, s *session) error {
	var revision int64
	err := b.attempts(ctx, func(ctx context.Context) error {
		resp, err := b.client.Put(ctx, s.fence, "", clientv3.WithLease(s.id))
		if err == nil {
			revision = resp.Header.Revision
		}
		return err
	})
	switch {
	case leaseNotFound(err):
		b.sessionGone(s)
		return sessionLost(key)
	case err != nil:
		b.doubt(m)
		return keyError(ctx, key, err)
	}
	b.moveFence(s, revision)
	return takenOver(key)
}

func (b *etcdBackend) doubt(m *acquisition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.doubtful = true
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
