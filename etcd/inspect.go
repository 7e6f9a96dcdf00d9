package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

// Inspect shows who is first in the queue of the key, with one more request for
// the remaining time of its lease.
func (b *etcdBackend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	if err := ctx.Err(); err != nil {
		return backend.Record{}, err
	}
	kvs, err := b.places(ctx, namesOf(b.prefix, key))
	if err != nil {
		return backend.Record{}, err
	}
	if len(kvs) == 0 {
		return backend.Record{}, notHeld(key)
	}
	lease, err := b.client.TimeToLive(ctx, clientv3.LeaseID(kvs[0].Lease))
	switch {
	case leaseNotFound(err), err == nil && lease.TTL < 0:
		return backend.Record{}, notHeld(key)
	case err != nil:
		return backend.Record{}, readError(ctx, key, err)
	}
	return shown(key, kvs, time.Duration(lease.TTL)*time.Second), nil
}

func shown(key string, kvs []*mvccpb.KeyValue, remaining time.Duration) backend.Record {
	r := decodeRecord(kvs[0])
	return backend.Record{
		Key: key, Token: tokenOf(kvs[0]), Holds: 1, Waiters: len(kvs) - 1,
		Remaining: remaining, Holder: r.Holder, Revoked: r.Revoked,
	}
}

// places are the acquisitions of a key in their order, the holder first.
func (b *etcdBackend) places(ctx context.Context, n names) ([]*mvccpb.KeyValue, error) {
	resp, err := b.client.Get(ctx, n.dir, clientv3.WithRange(n.end), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, readError(ctx, n.key, err)
	}
	kvs := resp.Kvs[:0]
	for _, kv := range resp.Kvs {
		if kv.Lease != 0 {
			kvs = append(kvs, kv)
		}
	}
	return kvs, nil
}

// holderWith is the holder's key if it has this token.
func (b *etcdBackend) holderWith(ctx context.Context, key string, token uint64) (*mvccpb.KeyValue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	kvs, err := b.places(ctx, namesOf(b.prefix, key))
	if err != nil {
		return nil, err
	}
	if len(kvs) == 0 || tokenOf(kvs[0]) != token {
		return nil, notHeld(key)
	}
	return kvs[0], nil
}

// Revoke moves the holder's key to a lease that nobody renews, with the TTL of the
// hold. The key keeps its place, the holder finds at its next renewal that it is no
// longer on its lease, and nobody takes it away before that one has ended.
func (b *etcdBackend) Revoke(ctx context.Context, key string, token uint64) error {
	kv, err := b.holderWith(ctx, key, token)
	if err != nil {
		return err
	}
	r := decodeRecord(kv)
	s, err := b.ownSession(ctx, max(r.ttl(), b.guarantees.MinTTL))
	if err != nil {
		return err
	}
	r.Revoked = true
	own := string(kv.Key)
	resp, err := b.client.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(own), "=", kv.CreateRevision),
		clientv3.Compare(clientv3.LeaseValue(own), "=", clientv3.LeaseID(kv.Lease)),
	).Then(clientv3.OpPut(own, r.text(), clientv3.WithLease(s.id))).Commit()
	switch {
	case err != nil:
		return keyError(ctx, key, err)
	case !resp.Succeeded:
		b.revoke(s)
		return notHeld(key)
	}
	return nil
}

// listPage is how many etcd keys one request of List reads.
const listPage = 500

// List reads the range of all acquisitions, page by page. The time that remains is
// the TTL of the hold.
func (b *etcdBackend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	from := b.prefix + "keys/" + escape(prefix)
	end := clientv3.GetPrefixRangeEnd(from)
	var key string
	var holder *mvccpb.KeyValue
	waiters := -1
	flush := func() bool {
		if holder == nil {
			return true
		}
		rec := shown(key, []*mvccpb.KeyValue{holder}, decodeRecord(holder).ttl())
		rec.Waiters = waiters
		holder, waiters = nil, -1
		return visit(rec)
	}
	for {
		resp, err := b.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(listPage))
		if err != nil {
			return fmt.Errorf("etcdlock: listing keys: %w", harmless(ctx, err))
		}
		for _, kv := range resp.Kvs {
			k, ok := keyOf(b.prefix, string(kv.Key))
			if !ok || kv.Lease == 0 || !strings.HasPrefix(k, prefix) {
				continue
			}
			if k != key {
				if !flush() {
					return nil
				}
				key = k
			}
			waiters++
			if holder == nil || kv.CreateRevision < holder.CreateRevision {
				holder = kv
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			flush()
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
