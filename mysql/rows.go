package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/row"
)

// RowOptions are the settings of the row locks. The zero value of each field, and a
// nil pointer, mean the default.
type RowOptions struct {
	// Lock holds the settings of the Locker. Its Logger also receives the warnings
	// about the server's settings.
	Lock lock.Options

	// Table is the table with the rows that are locked, as name or database.name. A
	// second table, with _holders added to the name, has the fencing tokens and who
	// holds what. Lockers exclude each other only with the same tables. Default:
	// "lock_rows".
	Table string

	// NoCreate: the tables must exist, with the columns of this version. Where they
	// don't, the error has the DDL.
	NoCreate bool

	// PoolSize is how many keys can be held and waited for at a time: each needs a
	// connection of its own. One acquisition more waits for a connection until its
	// context ends. Default: 32.
	PoolSize int

	// ControlPoolSize is how many further connections there are for tokens, for
	// ending waits, and for inspection. Default: 4.
	ControlPoolSize int
}

// NewRow returns a Locker on row locks of the server. It opens two pools of
// connections with the connector, which is the caller's and is not closed: a pinned
// connection for each key that is held or waited for, and a small pool for the
// rest. A *sql.DB would not do: a hold must never be continued on another
// connection. A connector made with [NewConnector] is faster than the driver's own.
//
// TTLs are whole seconds. With a connector of go-sql-driver, ReadTimeout must be 0
// or more than three seconds, because a wait on the server takes two, and the server
// looks once a second, before it is repeated: of a connector made with [NewConnector]
// another one is ErrInvalid, with others the waits fail. WriteTimeout doesn't matter.
//
// NewRow asks the server for its settings and creates the tables where they are
// missing, or adds what those of an earlier version lack, bounded by ctx. A refused password or a missing right is ErrPermanent; a
// server that cannot be reached or is read-only is ErrUnavailable; Galera and servers
// without NOWAIT are ErrUnsupported; a binary log of statements is ErrPermanent. Doubtful settings are logged.
func NewRow(ctx context.Context, connector driver.Connector, opts *RowOptions) (lock.Locker, error) {
	b, err := NewRowBackend(ctx, connector, opts)
	if err != nil {
		return nil, err
	}
	var settings lock.Options
	if opts != nil {
		settings = opts.Lock
	}
	l, err := lock.New(b, &settings)
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return l, nil
}

// NewRowBackend is [NewRow] for those who put something between the Locker and the
// backend. Closing the backend closes its connections, and so ends what it holds.
func NewRowBackend(ctx context.Context, connector driver.Connector, opts *RowOptions) (backend.Backend, error) {
	b, err := row.New(ctx, connector, opts.rows())
	if err != nil {
		return nil, err // not a nil pointer of its type
	}
	return b, nil
}

// rows is what the options say of the rows and their connections.
func (o *RowOptions) rows() row.Options {
	if o == nil {
		return row.Options{}
	}
	return row.Options{
		Table: o.Table, NoCreate: o.NoCreate, PoolSize: o.PoolSize, ControlPoolSize: o.ControlPoolSize,
		TTL: o.Lock.TTL, Logger: o.Lock.Logger,
	}
}

// CleanupRows is [CleanupTable] for the tables of row locks: it removes the keys whose last
// grant was longer than olderThan ago, except those whose rows somebody has locked, and
// returns how many. It creates no tables. A key that comes again has a larger token than before, unless the
// server's clock has been set back by more than olderThan. It can run beside everything
// else: it locks one row at a time, without waiting; a try at that very moment is refused. The user needs
// DELETE on both tables.
func CleanupRows(ctx context.Context, connector driver.Connector, opts *RowOptions, olderThan time.Duration) (removed int, err error) {
	return row.Cleanup(ctx, connector, opts.rows(), olderThan)
}

// InTx runs fn in the transaction that has the lease's row locked, and ends the lease:
// with a commit when fn returns nil, else with a rollback. It rolls back too when fn
// panics, ctx has ended, or the lease was lost. No clock is involved: the work is committed
// by the very transaction beside which the server lets nobody else have the row.
//
//	err = mysqllock.InTx(ctx, lease, func(ctx context.Context, tx mysqllock.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = ? AND n > 0", id)
//		return err
//	})
//
// The lease is released in any case, since a row lock ends with its transaction. A later
// Release returns ErrNotHeld.
//
//   - The context of fn ends with ctx and with the lease. Heartbeats go out between the
//     statements. One that takes longer than the TTL is a loss, and the server is told to
//     end the connection.
//   - Isolation is READ COMMITTED. Don't set session variables that concern transactions,
//     and don't release named locks that you have not taken.
//   - Statements that begin or end a transaction, or commit implicitly, are refused with
//     ErrInvalid. What hides in a stored procedure, in PREPARE or behind a version comment is
//     found by a heartbeat or at the end, as a loss that says so, unless the connection is
//     lost or the server silent. What it has committed stays.
//
// The error is that of fn. It matches ErrLost when the lease was lost, and InTx has committed
// nothing; and ErrOutcomeUnknown when the answer to the commit was lost. The lease must be of
// a Locker of [NewRow] or of a mode=row URL, without lock.WithOwner, since other leases of the
// owner would end with it: otherwise ErrUnsupported.
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
