package mysqllock

import (
	"context"
	"database/sql/driver"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
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

// NewRow returns a [lock.Client] on row locks of the server. It opens two pools of
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
// missing, or adds what those of an earlier version lack, bounded by ctx. A refused
// password, a missing right and a binary log of statements are ErrPermanent. A server that
// cannot be reached or is read-only is ErrUnavailable. Galera and servers without NOWAIT
// are ErrUnsupported. Doubtful settings are logged.
func NewRow(ctx context.Context, connector driver.Connector, opts *RowOptions) (*lock.Client, error) {
	b, err := NewRowBackend(ctx, connector, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
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
	o = construct.Options(o)
	return row.Options{
		Table: o.Table, NoCreate: o.NoCreate, PoolSize: o.PoolSize, ControlPoolSize: o.ControlPoolSize,
		TTL: o.Lock.TTL, Logger: o.Lock.Logger,
	}
}

// CleanupRows is [CleanupTable] for the tables of row locks: it removes the keys whose last
// grant was longer than olderThan ago, or that were never granted, except those whose rows
// somebody has locked, and returns how many. It creates no tables. A key that comes again has a larger token than
// before, unless the server's clock has been set back by more than olderThan. It can run
// beside everything else: it locks one row at a time, without waiting; a try at that very
// moment is refused. The user needs DELETE on both tables.
func CleanupRows(ctx context.Context, connector driver.Connector, opts *RowOptions, olderThan time.Duration) (removed int, err error) {
	return row.Cleanup(ctx, connector, opts.rows(), olderThan)
}
