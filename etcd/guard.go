package etcdlock

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Txn begins a transaction that takes effect only while the lease is held: the
// cluster compares the key of the hold in the same atomic step. It is the only
// protection that depends on no clock; a process that was paused between looking at
// its lease and writing is refused.
//
//	resp, err := etcdlock.Txn(ctx, lease).Then(clientv3.OpPut("report", "done")).Commit()
//
// If, Then, Else and Commit are those of clientv3.Txn, and the conditions of If
// decide between Then and Else as usual. When the lease is not held any more,
// neither is carried out and Commit returns an error matching ErrNotHeld. A lease of
// another backend is ErrUnsupported. ErrUnavailable, ErrPermanent and the refusals of
// the server say that nothing was carried out either; after ErrOutcomeUnknown the
// transaction may have taken effect.
//
// Commit waits for its answer until ctx ends, and for no longer than a second after the
// lease has ended.
//
// The transaction goes through the client of the Locker. It is used by one
// goroutine.
func Txn(ctx context.Context, lease lock.Lease) clientv3.Txn {
	return &transaction{ctx: ctx, lease: lease}
}

type transaction struct {
	ctx       context.Context //nolint:containedctx // as in clientv3.Txn, whose Commit takes none
	lease     lock.Lease
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
}

func (g *transaction) If(cmps ...clientv3.Cmp) clientv3.Txn {
	g.cmps = append(g.cmps, cmps...)
	return g
}
func (g *transaction) Then(ops ...clientv3.Op) clientv3.Txn {
	g.then = append(g.then, ops...)
	return g
}
func (g *transaction) Else(ops ...clientv3.Op) clientv3.Txn { g.els = append(g.els, ops...); return g }
func (g *transaction) Commit() (*clientv3.TxnResponse, error) {
	lease, err := lock.HeldOn[*etcdBackend](g.lease)
	if err != nil {
		return nil, fmt.Errorf("etcdlock: %w", err)
	}
	e, hold := lease.Backend, lease.Hold
	if err := g.ctx.Err(); err != nil {
		return nil, fmt.Errorf("etcdlock: key %q: nothing was sent: %w", hold.Key, err)
	}
	m := e.acquisition(hold.ID, hold.Key)
	if m == nil {
		return nil, notHeld(hold.Key)
	}
	e.mu.Lock()
	s, next, rev := m.session, m.next, int64(hold.Token-m.floor)
	e.mu.Unlock()
	held := e.holds(m.slot.name, rev, s)
	if next != nil {
		held = held[:1] // on its way to another lease
	}
	ctx, done := whileHeld(g.ctx, g.lease)
	defer done()
	resp, err := e.client.Txn(ctx).If(held...).Then(clientv3.OpTxn(g.cmps, g.then, g.els)).Commit()
	switch {
	case err != nil && g.ctx.Err() == nil && ctx.Err() != nil:
		return nil, fmt.Errorf("etcdlock: key %q: %w: a guarded transaction had no answer, and the lease has ended", hold.Key, backend.ErrOutcomeUnknown)
	case err != nil && mayHaveRun(err):
		return nil, fmt.Errorf("etcdlock: key %q: %w: a guarded transaction: %w", hold.Key, backend.ErrOutcomeUnknown, describe(g.ctx, err))
	case err != nil:
		return nil, keyError(g.ctx, hold.Key, err)
	case !resp.Succeeded:
		return nil, notHeld(hold.Key)
	}
	inner := (*clientv3.TxnResponse)(resp.Responses[0].GetResponseTxn())
	inner.Header = resp.Header
	return inner, nil
}

// commitGrace is for how long the answer to a transaction is waited for when its lease
// has ended.
const commitGrace = time.Second

// whileHeld returns a context that ends with ctx, or a moment after the lease. done
// frees what it needs.
func whileHeld(ctx context.Context, lease lock.Lease) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(lease.Context(), func() {
		select {
		case <-time.After(commitGrace):
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); cancel() }
}
