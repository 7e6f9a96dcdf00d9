package row

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// InTx runs fn in the transaction that has the lease's row locked, and ends the lease:
// with a commit when fn returns nil, else with a rollback.
func InTx(ctx context.Context, lease lock.Lease, fn func(ctx context.Context, tx *Tx) error) error {
	if lease == nil || fn == nil {
		return fmt.Errorf("mysqllock: %w: InTx needs a lease and a function", backend.ErrInvalid)
	}
	b, h, err := holdOf(lease)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tx := &Tx{b: b, h: h, ctx: work}
	if err := tx.begin(work); err != nil {
		return err
	}
	defer context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })()
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			_ = tx.finish(ctx, lease, false)
		}
	}()
	if err = tx.setSavepoint(); err == nil {
		err = fn(work, tx)
	}
	returned = true
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return tx.finish(ctx, lease, true)
	}
	if ended := tx.finish(ctx, lease, false); errors.Is(ended, backend.ErrLost) && !errors.Is(err, backend.ErrLost) {
		err = fmt.Errorf("%w (and then: %w)", err, ended)
	}
	return err
}

// holdOf finds the hold of a lease in its backend.
func holdOf(lease lock.Lease) (*Backend, *hold, error) {
	key := lease.Key()
	if lease.Context().Err() != nil {
		return nil, nil, fmt.Errorf("mysqllock: key %q: %w: %w", key, backend.ErrNotHeld, context.Cause(lease.Context()))
	}
	held, err := lock.HeldOn[*Backend](lease)
	if err != nil {
		return nil, nil, fmt.Errorf("mysqllock: InTx needs a lease of a MySQL row lock: %w", err)
	}
	b, hold := held.Backend, held.Hold
	if hold.Owner != "" {
		return nil, nil, fmt.Errorf("mysqllock: key %q: %w: InTx ends the hold, and other leases of the owner with it; acquire the lease without WithOwner", key, backend.ErrUnsupported)
	}
	h := b.find(hold)
	if h == nil {
		return nil, nil, wire.NotHeld(key)
	}
	return b, h, nil
}

// Tx is the transaction that has the row of a lease locked. Statements go out one after
// the other.
type Tx struct {
	b   *Backend
	h   *hold
	ctx context.Context // of the work

	open atomic.Pointer[Rows]  // not closed yet; its statement has the turn
	done atomic.Bool           // no statement is sent any more
	end  atomic.Pointer[txEnd] // nil until it is decided; unknown while the commit is under way
}

// txEnd is how the transaction ended.
type txEnd struct {
	outcome txOutcome
	cause   error // why nothing was committed that should have been, or something was that should not
}

type txOutcome uint8

const (
	txRolledBack txOutcome = iota
	txCommitted
	txUnknown
)

// endOf marks the context of the release that is InTx's own.
type endOf struct{ h *hold }

func (t *Tx) begin(ctx context.Context) error {
	h := t.h
	if err := h.take(ctx); err != nil {
		return wire.KeyError(ctx, h.key, err)
	}
	defer h.leave()
	switch {
	case h.phase != phaseHeld:
		return wire.NotHeld(h.key)
	case h.tx != nil:
		return fmt.Errorf("mysqllock: key %q: %w: another InTx of the lease is under way", h.key, backend.ErrInvalid)
	}
	h.tx = t
	h.busy.Store(true)
	return nil
}

// setSavepoint sets the savepoint of a hold that has none yet.
func (t *Tx) setSavepoint() error {
	statement, free, err := t.use(t.ctx, "")
	if err != nil {
		return err
	}
	defer free()
	err = t.b.setSavepoint(statement, t.h)
	if err == nil {
		return nil
	}
	if err = t.failed(err); errors.Is(err, backend.ErrLost) {
		return err
	}
	return wire.KeyError(t.ctx, t.h.key, err)
}

// drainLimit is for how long the end of InTx reads what is left of rows that the work
// has not closed. Then the connection is given up.
const drainLimit = 5 * time.Second

// finish releases the lease, which commits or rolls back. Release keeps the order
// that every lease has: its context ends first.
func (t *Tx) finish(ctx context.Context, lease lock.Lease, commit bool) error {
	mark := any(txRolledBack)
	if commit {
		mark = txCommitted
	}
	if r := t.open.Load(); r != nil {
		limit := time.AfterFunc(drainLimit, r.cut)
		_ = r.Close()
		limit.Stop()
	}
	err := lease.Release(context.WithValue(context.WithoutCancel(ctx), endOf{t.h}, mark))
	t.done.Store(true)
	// The turn is not waited for: on a server that is silent, the clean-up after the
	// release has it for long. What is not decided by now is never committed.
	t.end.CompareAndSwap(nil, &txEnd{})
	end := t.end.Load()
	cause := end.cause
	switch {
	case end.outcome == txCommitted:
		return nil
	case end.outcome == txUnknown:
		return fmt.Errorf("mysqllock: key %q: %w: the answer to the commit was lost; the transaction may have been committed, and the lease has ended", t.h.key, backend.ErrOutcomeUnknown)
	case errors.Is(cause, errEndedByWork):
		return cause
	case commit && err == nil && cause == nil: // a release of somebody else's was under way
		return fmt.Errorf("mysqllock: key %q: %w: the transaction was rolled back", t.h.key, backend.ErrNotHeld)
	case commit && errors.Is(err, backend.ErrLost):
		return fmt.Errorf("mysqllock: key %q: the transaction was rolled back: %w", t.h.key, err)
	case commit && cause != nil:
		return fmt.Errorf("mysqllock: key %q: the transaction was rolled back: %w", t.h.key, cause)
	case commit:
		// The release was not confirmed; that it did not commit is certain all the same.
		return fmt.Errorf("mysqllock: key %q: the transaction was rolled back: %w: the server could not be asked to commit: %s", t.h.key, backend.ErrSessionLost, err.Error())
	}
	return err
}

// endTx ends the transaction of InTx: with a commit if the release is InTx's own and
// says so, if nothing has ended the transaction before. The connection is closed: who
// knows what the work has set on it. The turn is taken.
func (b *Backend) endTx(ctx context.Context, h *hold) error {
	t := h.tx
	t.done.Store(true)
	outcome, own := ctx.Value(endOf{h}).(txOutcome)
	unknown := false
	var err error
	if own && outcome == txCommitted && t.end.CompareAndSwap(nil, &txEnd{outcome: txUnknown}) {
		if err = h.s.exec(ctx, "RELEASE SAVEPOINT "+savepoint); err == nil {
			if err = h.s.exec(ctx, "COMMIT"); err == nil {
				t.end.Store(&txEnd{outcome: txCommitted})
			} else if transactionEnded(err) || wire.IsReadOnly(err) { // refused, and rolled back
				t.end.Store(&txEnd{cause: b.lossOf(ctx, h, err)})
			} else {
				unknown = true
			}
		} else {
			err = b.lossOf(ctx, h, err)
			t.end.Store(&txEnd{cause: err})
		}
	} else if h.life.Err() == nil {
		if h.marked { // a rollback succeeds after an implicit commit too, and would hide it
			err = h.s.exec(ctx, "RELEASE SAVEPOINT "+savepoint)
		}
		if wire.CodeOf(err) == wire.CodeNoSavepoint {
			err = b.lossOf(ctx, h, err)
			t.end.Store(&txEnd{cause: err})
		} else {
			err = h.s.exec(ctx, "ROLLBACK")
		}
	}
	b.closing(h)
	if unknown {
		return wire.KeyError(ctx, h.key, err)
	}
	if err != nil && !errors.Is(err, backend.ErrLost) {
		err = b.lossOf(ctx, h, err)
	}
	return err
}

// use takes the turn for a statement and returns the context to send it with, which
// also ends with the lease. Without an error the caller owes a free.
func (t *Tx) use(ctx context.Context, query string) (statement context.Context, free func(), err error) {
	if word := transactionWord(query); word != "" {
		return nil, nil, fmt.Errorf("mysqllock: key %q: %w: %s begins or ends a transaction, or commits implicitly, which would give up the lock; leave that to InTx", t.h.key, backend.ErrInvalid, word)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if t.done.Load() {
		return nil, nil, sql.ErrTxDone
	}
	if t.open.Load() != nil {
		return nil, nil, fmt.Errorf("mysqllock: key %q: %w: the rows of the last query are open; close them first", t.h.key, backend.ErrInvalid)
	}
	if err := t.h.take(ctx); err != nil {
		return nil, nil, wire.KeyError(ctx, t.h.key, err)
	}
	switch {
	case t.done.Load():
		err = sql.ErrTxDone
	case t.h.cause != nil:
		err = t.h.cause
	case t.h.phase != phaseHeld:
		err = fmt.Errorf("mysqllock: key %q: %w", t.h.key, backend.ErrSessionLost)
	}
	if err != nil {
		t.h.leave()
		return nil, nil, err
	}
	statement, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.h.life, cancel)
	stop2 := context.AfterFunc(t.ctx, cancel)
	return statement, func() {
		stop()
		stop2()
		cancel()
		t.h.leave()
	}, nil
}
