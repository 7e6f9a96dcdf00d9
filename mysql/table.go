package mysqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/mysql/internal/table"
)

// DefaultTable is the name of the lock table when nothing else is said: "locks".
const DefaultTable = table.DefaultName

// Options are the settings of a MySQL backend. The zero value of each field, and a
// nil pointer, mean the default.
type Options struct {
	// Lock holds the settings of the Locker. Its Logger also receives the
	// warnings about the server's settings.
	Lock lock.Options

	// Table is the name of the table, or database.table: letters, digits, _ and $.
	// Lockers exclude each other only in the same table. Default: DefaultTable.
	Table string

	// NoCreate: the table must exist. Without it, a missing table is created if
	// the user may.
	NoCreate bool
}

// NewTable returns a [lock.Client] that keeps its leases in a table, through a pool of the
// caller's, which it neither changes nor closes. Each step takes one connection for
// one statement, two at most, and gives it back; a pool whose connections are all
// busy for long starves renewals, so give the locks a pool of their own where the
// work can fill it. The driver must be github.com/go-sql-driver/mysql; its settings
// don't matter, except that autocommit must be on and completion_type NO_CHAIN, and that
// innodb_lock_wait_timeout=1 is better than its default of 50 seconds: for so long the
// server goes on with a grant or a release whose caller has given up, where somebody has
// the row locked. Renewals never wait. A pool made with [NewConnector] leaves a server that
// has become read-only.
//
// NewTable creates or checks the table and looks at the settings of the server,
// bounded by ctx. What waiting does not cure is ErrPermanent: a refused password, an
// unknown database, a missing right, a table of another form or engine; the error
// has the DDL to run. A server that cannot be reached or is read-only is
// ErrUnavailable. Doubtful settings are logged.
func NewTable(ctx context.Context, db *sql.DB, opts *Options) (*lock.Client, error) {
	b, err := NewTableBackend(ctx, db, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
}

// NewTableBackend is [NewTable] for those who put something between the Locker and
// the backend. Closing the backend leaves the pool open. Its method Cleanup
// (backend.Cleaner) does what [CleanupTable] does.
func NewTableBackend(ctx context.Context, db *sql.DB, opts *Options) (backend.Backend, error) {
	b, err := table.New(ctx, db, opts.table())
	if err != nil {
		return nil, err // not a nil pointer of its type
	}
	return b, nil
}

// table is what the options say of the table.
func (o *Options) table() table.Options {
	o = construct.Options(o)
	return table.Options{Table: o.Table, NoCreate: o.NoCreate, Logger: o.Lock.Logger}
}

// TableDDL returns the statement that creates the lock table, for those whose users
// may not create tables: run it, and grant SELECT, INSERT and UPDATE on the table
// (DELETE for [CleanupTable]).
func TableDDL(opts *Options) (string, error) {
	return table.DDL(opts.table().Table)
}

// CleanupTable removes the rows of keys that nobody has held or used for longer than
// olderThan, measured by the server's clock, and returns how many. No fencing token
// goes back: the largest token that was removed is written down before, as
// the floor for keys that come again. It can run beside everything else, and more
// than once at a time: it has no transaction open between its statements, and rows that
// somebody has locked are left for the next time. The user needs DELETE on the table. When
// it ends with an error, what had been removed until then is counted.
func CleanupTable(ctx context.Context, db *sql.DB, opts *Options, olderThan time.Duration) (removed int, err error) {
	return table.Cleanup(ctx, db, opts.table().Table, olderThan)
}
