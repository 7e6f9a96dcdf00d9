package etcdlock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

// floor is what the tokens of a key space are counted on from. The revisions of a cluster
// begin at one, and other stores count from the clock: without it, a program that comes to
// etcd from another store would see its tokens fall.
//
// It is written once, by the first client that asks for a lock, and every grant depends on
// it in its own transaction. So a client that knows another one is not granted anything.
type floor struct {
	name string // its etcd key
	rev  int64  // mod revision of that
	add  uint64
}

func floorName(prefix string) string { return prefix + "floor" }

// maxFloor leaves as much room for tokens that count on.
const maxFloor = 1 << 53

// token is the fencing token of an acquisition whose key has that create revision.
func (f floor) token(rev int64) uint64 { return f.add + uint64(rev) }

// floorOf reads the floor from its etcd key.
func floorOf(kv *mvccpb.KeyValue) (floor, error) {
	add, err := strconv.ParseUint(string(kv.Value), 10, 64)
	if err != nil || add > maxFloor {
		return floor{}, fmt.Errorf("etcdlock: %w: the value of %q is no floor of tokens: it was overwritten by something else; give this key space another prefix", backend.ErrPermanent, kv.Key)
	}
	return floor{string(kv.Key), kv.ModRevision, add}, nil
}

// knownFloor is the floor as this client saw it last. The first time it is read, and
// written where there is none.
func (b *etcdBackend) knownFloor(ctx context.Context) (floor, error) {
	if f := b.floor.Load(); f != nil {
		return *f, nil
	}
	name := floorName(b.prefix)
	var resp *clientv3.TxnResponse
	err := b.attempts(ctx, func(ctx context.Context) error {
		now, err := b.client.Get(ctx, name)
		if err != nil {
			return err
		}
		begin := max(time.Now().UnixMicro()-now.Header.Revision, 0)
		resp, err = b.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(name), "=", 0)).
			Then(clientv3.OpPut(name, strconv.FormatInt(begin, 10)), clientv3.OpGet(name)).
			Else(clientv3.OpGet(name)).Commit()
		return err
	})
	if err != nil {
		return floor{}, err
	}
	f, err := floorOf(oldest(resp.Responses[len(resp.Responses)-1].GetResponseRange()))
	if err != nil {
		return floor{}, err
	}
	b.floor.Store(&f)
	return f, nil
}

// floorMoved takes note of a floor that is another one than was known; kv is nil where it
// was deleted.
func (b *etcdBackend) floorMoved(kv *mvccpb.KeyValue) error {
	if kv == nil {
		b.floor.Store(nil)
		return nil
	}
	f, err := floorOf(kv)
	if err == nil {
		b.floor.Store(&f)
	}
	return err
}

// RaiseFloor makes every token that is granted from now on larger than the given one, also
// to clients that were opened before, and to those who wait already. Leases keep the tokens
// that they have.
func (b *etcdBackend) RaiseFloor(ctx context.Context, above uint64) error {
	if above >= maxFloor {
		return fmt.Errorf("etcdlock: %w: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(maxFloor-1))
	}
	for range fencePatience {
		f, err := b.knownFloor(ctx)
		if err != nil {
			return keyError(ctx, "", err)
		}
		name := floorName(b.prefix)
		resp, err := b.client.Get(ctx, name)
		if err != nil {
			return readError(ctx, "", err)
		}
		if kv := oldest((*pb.RangeResponse)(resp)); revOf(kv) != f.rev {
			if err := b.floorMoved(kv); err != nil {
				return err
			}
			continue
		}
		// Since this floor was written, it has been enough: whatever was granted later has a larger
		// token, and places that were taken before settle on one.
		if f.token(f.rev) >= above {
			return nil
		}
		// The floor is written also where the next revision is larger anyway: places that were
		// taken before settle then.
		raised := f.add
		if f.token(resp.Header.Revision) < above {
			raised = above - uint64(resp.Header.Revision)
		}
		txn, err := b.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(name), "=", f.rev)).
			Then(clientv3.OpPut(name, strconv.FormatUint(raised, 10))).Commit()
		if err != nil {
			return keyError(ctx, "", err)
		}
		if txn.Succeeded {
			b.floor.Store(&floor{name, txn.Header.Revision, raised})
			return nil
		}
	}
	return fmt.Errorf("%w: the floor of the tokens changes all the time", backend.ErrUnavailable)
}

// LastToken is the token that the newest revision would make. It makes no floor where there
// is none: nothing was granted then.
func (b *etcdBackend) LastToken(ctx context.Context) (uint64, error) {
	resp, err := b.client.Get(ctx, floorName(b.prefix))
	if err != nil {
		return 0, readError(ctx, "", err)
	}
	kv := oldest((*pb.RangeResponse)(resp))
	if kv == nil {
		return 0, nil
	}
	f, err := floorOf(kv)
	if err != nil {
		return 0, err
	}
	return f.token(resp.Header.Revision), nil
}
