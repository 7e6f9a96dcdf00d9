package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Guarded runs fn in a transaction that takes effect only while the lease is held:
// it commits if fn returns nil and the lease is still the recorded holder of its key,
// and otherwise changes nothing. It needs no clock and no check of a fencing token by
// the protected side, since both are one database: while the transaction is open, it
// keeps a shared lock on the row of the lease, and nobody can take the key over
// before it has ended.
//
// A lease that renews itself is renewed first, and is not renewed while the
// transaction is open; fn must end before the lease does. The context of fn ends with ctx and with the lease,
// and the transaction is then rolled back. fn uses the transaction with its context,
// and neither commits nor rolls back. The protected tables must be transactional.
//
// The error matches ErrNotHeld when the lease was lost, ErrOutcomeUnknown when the
// answer to the commit did not arrive, which is waited for until a second after ctx or the
// lease has ended, and otherwise that of fn or of the server; in
// these cases nothing was changed, except that an unknown outcome is just that.
// Leases of one Locker can be used at the same time, and so can one lease.
func Guarded(ctx context.Context, lease lock.Lease, fn func(ctx context.Context, tx *sql.Tx) error) error {
	key := lease.Key()
	if lease.Context().Err() != nil {
		return notHeld(key)
	}
	owner, hold, ok := lock.HoldOf(lease)
	b, isTable := owner.(*tableBackend)
	switch {
	case ok && !isTable, !ok && lease.Context().Err() == nil:
		return fmt.Errorf("mysqllock: key %q: %w: the lease is not one of a MySQL table", key, backend.ErrUnsupported)
	case !ok:
		return notHeld(key)
	}
	if lock.RenewsItself(lease) {
		if err := lease.Renew(ctx); err != nil {
			return fmt.Errorf("mysqllock: key %q: renewal before a guarded write: %w", key, err)
		}
	}
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(lease.Context(), func() { stop(context.Cause(lease.Context())) })()
	b.guards.begin(hold.ID)
	defer func() {
		// A renewal that was left out while the transaction was open is made up for.
		if b.guards.end(hold.ID) && lease.Context().Err() == nil {
			_ = lease.Renew(context.WithoutCancel(ctx))
		}
	}()
	err := b.guarded(work, hold, fn)
	if err != nil && lease.Context().Err() != nil && !errors.Is(err, backend.ErrNotHeld) && !errors.Is(err, backend.ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %w", notHeld(key), err)
	}
	return err
}

// guarded is one transaction. work ends with the lease.
func (b *tableBackend) guarded(work context.Context, hold backend.Hold, fn func(ctx context.Context, tx *sql.Tx) error) error {
	conn, err := b.db.Conn(work)
	if err != nil {
		return keyError(work, hold.Key, unsent{err})
	}
	socket := socketOf(conn)
	// Each statement of fn sees what was committed before it, as it would without us.
	tx, err := conn.BeginTx(work, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		_ = conn.Close()
		return keyError(work, hold.Key, unsent{err})
	}
	committed := false
	defer func() {
		if !committed { // also when fn panics
			_ = endTransaction(work, conn, socket, tx.Rollback)
		}
	}()
	if err := b.checkHolder(work, tx, hold); err != nil {
		return err
	}
	if err := fn(work, tx); err != nil {
		return err
	}
	if err := work.Err(); err != nil {
		return keyError(work, hold.Key, fmt.Errorf("%w: the work took longer than it could: %w", context.Cause(work), err))
	}
	committed = true
	err = endTransaction(work, conn, socket, tx.Commit)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone), work.Err() != nil && errors.Is(err, work.Err()):
		return keyError(work, hold.Key, fmt.Errorf("rolled back: %w", err))
	case worthRepeating(err), errors.Is(sentinelFor(err), backend.ErrUnavailable):
		return keyError(work, hold.Key, err)
	}
	return keyError(work, hold.Key, fmt.Errorf("%w: commit: %w", backend.ErrOutcomeUnknown, err))
}

var errNoAnswer = errors.New("no answer came")

// endTransaction commits or rolls back, and gives the connection back. The driver
// sends neither with a context: the answer is waited for until a while after work has
// ended. Then the connection is cut; one that can't be is left to the timeouts of the
// driver and of the network.
func endTransaction(work context.Context, conn *sql.Conn, socket net.Conn, end func() error) error {
	done := make(chan error, 1)
	go func() {
		err := end()
		_ = conn.Close()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-work.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	}
	if socket == nil {
		return errNoAnswer
	}
	_ = socket.Close()
	return <-done
}

// checkHolder locks the row against everybody who would change it, and requires that
// it has the hold.
func (b *tableBackend) checkHolder(ctx context.Context, tx *sql.Tx, hold backend.Hold) error {
	rows, err := scanRows(tx.QueryContext(ctx, string(b.selectRow(hold.Key).text(" LOCK IN SHARE MODE"))))
	if err != nil {
		return keyError(ctx, hold.Key, err)
	}
	if len(rows) == 0 {
		return notHeld(hold.Key)
	}
	holds, err := rows[0].unexpired()
	if err != nil {
		return err
	}
	if _, _, ok := split(holds, hashOf(hold.ID.Hex())); !ok {
		return lost(hold, rows[0])
	}
	return nil
}

// guards are the holds with open guarded writes, which keep their rows locked.
type guards struct {
	mu   sync.Mutex
	list map[backend.ID]*guard
}

type guard struct {
	writes  int
	skipped bool // a renewal came meanwhile
}

func (g *guards) begin(id backend.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.list == nil {
		g.list = map[backend.ID]*guard{}
	}
	if g.list[id] == nil {
		g.list[id] = &guard{}
	}
	g.list[id].writes++
}

// end reports whether a renewal was left out and can be made up for.
func (g *guards) end(id backend.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.list[id]
	one.writes--
	if one.writes > 0 {
		return false
	}
	delete(g.list, id)
	return one.skipped
}

// open reports whether the row of the hold is locked by a guarded write.
func (g *guards) open(id backend.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.list[id]
	if one != nil {
		one.skipped = true
	}
	return one != nil
}
