package mysqllock

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/mysql/internal/row"
)

// InTx runs fn in the transaction that has the lease's row locked, and ends the lease: with a
// commit when fn returns nil, else with a rollback. It rolls back too when fn panics, ctx has
// ended, or the lease was lost. No clock is involved: the server lets nobody else have the row
// before that very transaction has ended.
//
// The context of fn ends with ctx and with the lease. Heartbeats go out between the
// statements: one that takes longer than the TTL is a loss. Isolation is READ COMMITTED.
// Statements that begin or end a transaction, or commit implicitly, are refused with
// ErrInvalid. What hides one from that is found afterwards, as a loss that says so.
//
// The error is that of fn. It matches ErrLost when the lease was lost, and InTx has committed
// nothing; and ErrOutcomeUnknown when the answer to the commit was lost. A later Release
// returns ErrNotHeld. The lease must be of a row lock, without lock.WithOwner, since other
// leases of the owner would end with it: otherwise ErrUnsupported.
func InTx(ctx context.Context, lease lock.Lease, fn func(ctx context.Context, tx Tx) error) error {
	if fn == nil {
		return row.InTx(ctx, lease, nil)
	}
	return row.InTx(ctx, lease, func(ctx context.Context, tx *row.Tx) error { return fn(ctx, transaction{tx}) })
}

// Tx is the transaction that has the row of a lease locked. Its methods are safe for
// concurrent use; statements go out one after the other.
//
// A statement whose context ends takes the connection with it, and so the lease:
// that is how the driver cancels.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	// QueryContext returns rows that must be closed before the next statement. While
	// they are open no heartbeat can be sent, so don't work between the rows.
	QueryContext(ctx context.Context, query string, args ...any) (*Rows, error)
	// QueryRowContext returns a row that must be scanned before the next statement.
	QueryRowContext(ctx context.Context, query string, args ...any) *Row
}

// transaction implements Tx.
type transaction struct{ tx *row.Tx }

func (t transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, query, args...)
}

func (t transaction) QueryContext(ctx context.Context, query string, args ...any) (*Rows, error) {
	rows, err := t.tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return &Rows{rows}, nil
}

func (t transaction) QueryRowContext(ctx context.Context, query string, args ...any) *Row {
	rows, err := t.QueryContext(ctx, query, args...)
	return &Row{rows, err}
}

// Rows is what [Tx] returns in place of *sql.Rows, with the same meaning: a heartbeat
// has to know when they are closed.
type Rows struct{ rows *row.Rows }

// Next prepares the next row for Scan, and closes the rows after the last.
func (r *Rows) Next() bool { return r.rows.Next() }

// Scan is that of *sql.Rows.
func (r *Rows) Scan(dest ...any) error { return r.rows.Scan(dest...) }

// Columns are the names of the columns.
func (r *Rows) Columns() ([]string, error) { return r.rows.Columns() }

// Err is the error that ended the rows early, if there was one.
func (r *Rows) Err() error { return r.rows.Err() }

// Close ends the query. It is safe to call it again.
func (r *Rows) Close() error { return r.rows.Close() }

// Row is what [Tx] returns in place of *sql.Row, with the same meaning.
type Row struct {
	rows *Rows
	err  error
}

// Scan reads the first row, or returns sql.ErrNoRows.
func (r *Row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return sql.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	return r.rows.Close()
}
