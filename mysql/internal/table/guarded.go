package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Guarded runs fn in a transaction that takes effect only while the lease is held: the
// row of the lease is locked meanwhile.
func Guarded(ctx context.Context, lease lock.Lease, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if lease == nil || fn == nil {
		return fmt.Errorf("mysqllock: %w: Guarded needs a lease and a function", backend.ErrInvalid)
	}
	if lease.Context().Err() != nil {
		return wire.NotHeld(lease.Key())
	}
	held, err := lock.HeldOn[*Backend](lease)
	if err != nil {
		return fmt.Errorf("mysqllock: %w", err)
	}
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(lease.Context(), func() { stop(context.Cause(lease.Context())) })()
	err = held.Backend.guardedWrite(work, lease, held, fn)
	if err != nil && lease.Context().Err() != nil && !errors.Is(err, backend.ErrNotHeld) && !errors.Is(err, backend.ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %w", wire.NotHeld(held.Hold.Key), err)
	}
	return err
}

// guardedWrite renews the lease and runs fn in a transaction, beside which nothing of
// this client waits for the row. work ends with the lease.
func (b *Backend) guardedWrite(work context.Context, lease lock.Lease, held lock.Held[*Backend], fn func(ctx context.Context, tx *sql.Tx) error) error {
	hold := held.Hold
	if err := b.guards.room(work, b.mostGuarded()); err != nil {
		return wire.KeyError(work, hold.Key, wire.Unsent(err))
	}
	defer b.guards.leave()
	if held.Renewed {
		err := lease.Renew(work)
		for try := 1; errors.Is(err, errUnchanged) && wire.Jitter(work, try) == nil; try++ {
			err = lease.Renew(work) // a guarded write of its owner elsewhere has the row locked
		}
		if err != nil {
			return fmt.Errorf("mysqllock: key %q: renewal before a guarded write: %w", hold.Key, err)
		}
	}
	if err := b.guards.begin(work, hold); err != nil {
		return wire.KeyError(work, hold.Key, wire.Unsent(err))
	}
	defer func() {
		if b.guards.end(hold) && lease.Context().Err() == nil {
			makeUp(work, lease)
		}
	}()
	return b.guarded(b.guards.workContext(work, hold.Key), hold, fn)
}

// mostGuarded is how many guarded writes may be open at a time: a quarter of a pool
// with a limit, and one connection at least if it has two, is left to renewals.
func (b *Backend) mostGuarded() int {
	n := b.db.Stats().MaxOpenConnections
	if n <= 0 {
		return math.MaxInt
	}
	return max(1, n-(n+3)/4)
}

// makeUp sends a renewal that was left out while the transaction was open. When the
// work has ended it waits a while for the answer, which the lease does not depend on:
// the lock package soon renews again.
func makeUp(work context.Context, lease lock.Lease) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(work))
	defer cancel()
	defer context.AfterFunc(work, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-ctx.Done():
		}
	})()
	_ = lease.Renew(ctx)
}

// guarded is one transaction. work ends with the lease.
func (b *Backend) guarded(work context.Context, hold backend.Hold, fn func(ctx context.Context, tx *sql.Tx) error) error {
	conn, err := b.db.Conn(work)
	if err != nil {
		return wire.KeyError(work, hold.Key, wire.Unsent(err))
	}
	socket := wire.SocketOf(conn)
	if err := b.limitSilence(work, conn, hold.TTL); err != nil {
		giveBack(work, conn)
		return wire.KeyError(work, hold.Key, wire.Unsent(err))
	}
	// Each statement of fn sees what was committed before it, as it would without us.
	tx, err := conn.BeginTx(work, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		giveBack(work, conn)
		return wire.KeyError(work, hold.Key, wire.Unsent(err))
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
	if _, err := tx.ExecContext(work, "SAVEPOINT "+guardSavepoint); err != nil {
		return wire.KeyError(work, hold.Key, err)
	}
	if err := fn(work, tx); err != nil {
		return err
	}
	if err := work.Err(); err != nil {
		return wire.KeyError(work, hold.Key, fmt.Errorf("%w: the work took longer than it could: %w", context.Cause(work), err))
	}
	if err := checkUnbroken(work, tx); err != nil {
		return wire.KeyError(work, hold.Key, err)
	}
	committed = true
	err = endTransaction(work, conn, socket, tx.Commit)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone), work.Err() != nil && errors.Is(err, work.Err()):
		return wire.KeyError(work, hold.Key, fmt.Errorf("rolled back: %w", err))
	case wire.WorthRepeating(err), errors.Is(wire.Sentinel(err), backend.ErrUnavailable):
		return wire.KeyError(work, hold.Key, err)
	}
	return wire.KeyError(work, hold.Key, fmt.Errorf("%w: commit: %w", backend.ErrOutcomeUnknown, err))
}

// limitSilence has the server end the connection, and with it the transaction, when it
// has heard nothing for a TTL. Otherwise a process that is stopped, or cut off, in the
// middle of a guarded write would keep the row, and so the key. It would keep it for as long
// as the server lets connections be idle: eight hours by default. The statements of the work wait for
// rows as long as the server lets others wait, also on connections of a URL.
func (b *Backend) limitSilence(ctx context.Context, conn *sql.Conn, ttl time.Duration) error {
	rows := "SESSION"
	if b.closesIt {
		rows = "GLOBAL"
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf(
		"SET @mortise_wait = @@SESSION.wait_timeout, @mortise_rows = @@SESSION.innodb_lock_wait_timeout,"+
			" SESSION wait_timeout = CAST(LEAST(@@SESSION.wait_timeout, %d) AS SIGNED), SESSION innodb_lock_wait_timeout = @@%s.innodb_lock_wait_timeout",
		(ttl+time.Second-1)/time.Second, rows))
	return err
}

// giveBack returns a connection to its pool as it was, or has the pool drop it.
func giveBack(work context.Context, conn *sql.Conn) {
	_, err := conn.ExecContext(context.WithoutCancel(work), "SET SESSION wait_timeout = @mortise_wait, SESSION innodb_lock_wait_timeout = @mortise_rows, @mortise_wait = NULL, @mortise_rows = NULL")
	if err != nil {
		wire.Discard(conn)
		return
	}
	_ = conn.Close()
}

// guardSavepoint is set when the row is locked, and gone when the transaction that
// has the lock was ended, whatever has ended it.
const guardSavepoint = "mortise_guard"

// checkUnbroken requires that the transaction is the one that has the row locked: the
// work may have committed it with a statement that commits implicitly, or have
// overlooked that the server rolled it back because of a deadlock. What came after
// that was guarded by nothing.
func checkUnbroken(work context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(work, "RELEASE SAVEPOINT "+guardSavepoint)
	switch {
	case wire.CodeOf(err) == wire.CodeNoSavepoint:
		return fmt.Errorf("%w: the work has ended the transaction, with a statement that commits implicitly, as DDL does, or by an error of the server that it passed over: what it did was not guarded to its end, and some of it may have taken effect", backend.ErrOutcomeUnknown)
	case errors.Is(err, sql.ErrTxDone) && work.Err() == nil:
		return fmt.Errorf("%w: the work has committed the transaction itself, or rolled it back", backend.ErrOutcomeUnknown)
	}
	return err
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
		giveBack(work, conn)
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
func (b *Backend) checkHolder(ctx context.Context, tx *sql.Tx, hold backend.Hold) error {
	rows, err := scanRows(tx.QueryContext(ctx, string(b.selectRow(hold.Key).text(" LOCK IN SHARE MODE"))))
	if err != nil {
		return wire.KeyError(ctx, hold.Key, err)
	}
	switch {
	case len(rows) == 0:
		return wire.NotHeld(hold.Key)
	case !rows[0].writable:
		return wire.KeyError(ctx, hold.Key, wire.ErrReadOnly)
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
