package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

// Renew renews the etcd lease of the hold, and then looks whether its key is still
// there.
func (b *etcdBackend) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	out := make([]backend.Renewal, 1)
	r := renewing{out: &out[0], hold: hold}
	if r.out.Err = b.findHold(ctx, &r); r.out.Err == nil {
		b.renewOn(ctx, r.s, r.s.ttl/64, []renewing{r})
	}
	return out[0].Validity, clientClosed(out[0].Err)
}

// batchSize is how many keys one request looks at; servers allow 128 unless told
// otherwise (--max-txn-ops).
const batchSize = 64

// renewing is a hold whose session is renewed, and whose key is then to be seen.
type renewing struct {
	out  *backend.Renewal
	hold backend.Hold
	m    *acquisition
	s    *session
}

// RenewBatch renews each etcd lease once, and looks at the keys in one request. A lease
// that was renewed within a twelfth of its TTL is not renewed again: what counts is when
// that was, and more than half of the TTL is left when the next renewal is due.
func (b *etcdBackend) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	on := map[*session][]renewing{}
	for i, hold := range holds {
		r := renewing{out: &out[i], hold: hold}
		if r.out.Err = b.findHold(ctx, &r); r.out.Err == nil {
			on[r.s] = append(on[r.s], r)
		}
	}
	var wg sync.WaitGroup
	for s, some := range on {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.ttl/3) // that of ctx is for the longest TTL
			defer cancel()
			b.renewOn(ctx, s, s.ttl/12, some)
		})
	}
	wg.Wait()
	for i := range out {
		out[i].Err = clientClosed(out[i].Err)
	}
	return out
}

// clientClosed makes it a loss that the client was closed: no renewal can succeed any
// more, and the holder should not learn of it at the deadline only.
func clientClosed(err error) error {
	if errors.Is(err, errClientClosed) {
		return fmt.Errorf("%w: %w", backend.ErrSessionLost, err)
	}
	return err
}

// renewOn renews the session, unless its last renewal was sent no longer ago than enough,
// and looks at the keys of its holds.
func (b *etcdBackend) renewOn(ctx context.Context, s *session, enough time.Duration, holds []renewing) {
	sent := b.clock.Now()
	if !b.renewedWithin(s, enough) {
		if err := b.keepAlive(ctx, s); err != nil {
			for _, r := range holds {
				r.out.Err = keyError(ctx, r.hold.Key, err)
				if leaseNotFound(err) {
					r.out.Err = sessionLost(r.hold.Key)
				}
			}
			return
		}
	}
	for len(holds) > 0 {
		some := holds[:min(len(holds), batchSize)]
		holds = holds[len(some):]
		b.seeKeys(ctx, some, sent)
	}
}

// findHold finds the session that the hold lives on, or has to live on for its TTL.
// Of a hold that this client did not ask for, or has released, there is none.
func (b *etcdBackend) findHold(ctx context.Context, r *renewing) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m := b.acquisition(r.hold.ID, r.hold.Key)
	if m == nil {
		return notHeld(r.hold.Key)
	}
	b.mu.Lock()
	s, gone := m.session, m.session.gone && m.next == nil
	b.mu.Unlock()
	if gone {
		return sessionLost(r.hold.Key)
	}
	r.m, r.s = m, s
	if r.hold.TTL > s.ttl {
		var err error
		if r.s, err = b.move(ctx, r.hold, m); err != nil {
			return err
		}
	}
	return nil
}

// seeKeys looks whether the keys are still there, with their leases. The answer to
// a key that is not is that the hold was removed.
func (b *etcdBackend) seeKeys(ctx context.Context, holds []renewing, sent backend.Instant) {
	gets := make([]clientv3.Op, len(holds))
	for i, r := range holds {
		gets[i] = clientv3.OpGet(r.m.slot.name, clientv3.WithKeysOnly())
	}
	var resp *clientv3.TxnResponse
	err := b.attempts(ctx, func(ctx context.Context) (err error) {
		resp, err = b.client.Txn(ctx).Then(gets...).Commit()
		return err
	})
	for i, r := range holds {
		if err != nil {
			r.out.Err = readError(ctx, r.hold.Key, err)
			continue
		}
		kv := oldest(resp.Responses[i].GetResponseRange())
		b.mu.Lock()
		rev, gone := r.m.rev, r.s.gone
		b.mu.Unlock()
		switch {
		case kv != nil && kv.Lease == int64(r.s.id) && kv.CreateRevision == rev:
			r.out.Validity = b.validity(r.s, sent)
		case gone:
			r.out.Err = sessionLost(r.hold.Key)
		default:
			b.foreign(r.m, kv)
			r.out.Err = takenOver(r.hold.Key)
		}
	}
}

// foreign notes that the key of the acquisition is not on its lease. If it is there, on
// a lease that none of our holds renews, it was revoked.
func (b *etcdBackend) foreign(m *acquisition, kv *mvccpb.KeyValue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if kv == nil || kv.Lease == 0 || kv.CreateRevision != m.rev {
		return
	}
	for _, o := range b.shared {
		if o.s != nil && int64(o.s.id) == kv.Lease {
			return
		}
	}
	m.revoked = true
}

// move puts the key of a hold that is to last longer on a session with the longer
// TTL. The key keeps its create revision, and with it token and place.
func (b *etcdBackend) move(ctx context.Context, hold backend.Hold, m *acquisition) (*session, error) {
	b.mu.Lock()
	from, to := m.session, m.next
	b.mu.Unlock()
	if to == nil || to.ttl < hold.TTL || b.isGone(to) {
		open := b.ownSession
		if from.shared {
			open = b.sharedSession
		}
		var err error
		if to, err = open(ctx, hold.TTL); err != nil {
			return nil, err
		}
		b.mu.Lock()
		m.next = to
		b.mu.Unlock()
	}
	own := m.slot.name
	put := clientv3.OpPut(own, encodeRecord(m.holder, hold.TTL, m.floor, m.holder.Since), clientv3.WithLease(to.id))
	var resp *clientv3.TxnResponse
	err := b.attempts(ctx, func(ctx context.Context) (err error) {
		resp, err = b.client.Txn(ctx).If(b.holds(own, m.rev, from)...).Then(put).Else(clientv3.OpGet(own, clientv3.WithKeysOnly())).Commit()
		return err
	})
	if err != nil {
		return nil, keyError(ctx, hold.Key, err)
	}
	if !resp.Succeeded {
		kv := oldest(resp.Responses[0].GetResponseRange())
		if kv == nil || kv.Lease != int64(to.id) { // neither where it was, nor where an earlier attempt put it
			b.foreign(m, kv)
			return nil, takenOver(hold.Key)
		}
	}
	b.mu.Lock()
	m.session, m.next = to, nil
	b.mu.Unlock()
	if !from.shared {
		b.revoke(from)
	}
	return to, nil
}
