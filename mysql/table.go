package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// DefaultTable is the name of the lock table when nothing else is said.
const DefaultTable = "locks"

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

// NewTable returns a Locker that keeps its leases in a table, through a pool of the
// caller's, which it neither changes nor closes. Each step takes one connection for
// one statement, two at most, and gives it back; a pool whose connections are all
// busy for long starves renewals, so give the locks a pool of their own where the
// work can fill it. The driver must be github.com/go-sql-driver/mysql; its settings
// don't matter, except that autocommit must be on and completion_type NO_CHAIN, and that
// innodb_lock_wait_timeout=1 is better than its default of 50 seconds: for so long the
// server goes on with a grant or a release whose caller has given up, where somebody has
// the row locked. Renewals never wait. A pool made with [NewConnector] is a little faster.
//
// NewTable creates or checks the table and looks at the settings of the server,
// bounded by ctx. What waiting does not cure is ErrPermanent: a refused password, an
// unknown database, a missing right, a table of another form or engine; the error
// has the DDL to run. A server that cannot be reached or is read-only is
// ErrUnavailable. Doubtful settings are logged.
func NewTable(ctx context.Context, db *sql.DB, opts *Options) (lock.Locker, error) {
	b, err := NewTableBackend(ctx, db, opts)
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

// NewTableBackend is [NewTable] for those who put something between the Locker and
// the backend. Closing the backend leaves the pool open. It has a method Cleanup
// that does what [CleanupTable] does.
func NewTableBackend(ctx context.Context, db *sql.DB, opts *Options) (backend.Backend, error) {
	b, err := newTable(db, opts)
	if err != nil {
		return nil, err
	}
	if opts == nil {
		opts = &Options{}
	}
	logger := opts.Lock.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if err := b.prepare(ctx, logger, !opts.NoCreate); err != nil {
		return nil, err
	}
	return b, nil
}

// readTimeout bounds the answer to one statement on the connections that are opened
// by URL, for callers whose context has no deadline. A statement that waits for a
// guarded write of somebody else takes as long as that.
const readTimeout = 10 * time.Second

// defaultPool is how many connections a URL opens at most. No hold keeps one.
const defaultPool = 10

// openTable opens the table of a URL on a pool of its own.
func openTable(ctx context.Context, s urlSettings) (backend.Backend, error) {
	// The times of the connections come from the TTL, so a TTL that cannot be kept
	// would look like a server that does not answer.
	if s.ttl != 0 {
		if err := tableGuarantees(false).CheckTTL(s.ttl); err != nil {
			return nil, err
		}
	}
	s.config.ReadTimeout, s.config.WriteTimeout = readTimeout, readTimeout
	// The server ends a wait for a row about when its answer is given up: it must not grant
	// a key long after that. MySQL looks for such waits once a second.
	s.config.Params = map[string]string{"innodb_lock_wait_timeout": strconv.Itoa(int(grace / time.Second))}
	connector, err := newCuttable(s.config, s.lifetime)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	size := s.pool
	if size == 0 {
		size = defaultPool
	}
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(5 * time.Minute)
	b, err := newTable(db, &Options{Table: s.table})
	if err == nil {
		b.closesIt = true
		if s.lookOnly {
			err = b.prepareLook(ctx, s.logger)
		} else {
			err = b.prepare(ctx, s.logger, s.create)
		}
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return b, nil
}

// tableBackend implements backend.Backend, BatchRenewer, HandOverer, Inspector,
// ForceReleaser, Revoker and Lister.
type tableBackend struct {
	db         *sql.DB
	closesIt   bool
	table      string // quoted
	name       string
	mayCreate  bool
	clock      backend.Clock
	guarantees backend.Guarantees
	freed      freedKeys
	guards     guards
	lastHolder atomic.Pointer[encodedHolder]
}

var (
	_ backend.Backend       = (*tableBackend)(nil)
	_ backend.BatchRenewer  = (*tableBackend)(nil)
	_ backend.HandOverer    = (*tableBackend)(nil)
	_ backend.Inspector     = (*tableBackend)(nil)
	_ backend.ForceReleaser = (*tableBackend)(nil)
	_ backend.Revoker       = (*tableBackend)(nil)
	_ backend.Lister        = (*tableBackend)(nil)
)

func newTable(db *sql.DB, opts *Options) (*tableBackend, error) {
	if db == nil {
		return nil, fmt.Errorf("mysqllock: %w: the pool is nil", backend.ErrInvalid)
	}
	if _, ok := db.Driver().(*mysql.MySQLDriver); !ok {
		return nil, fmt.Errorf("mysqllock: %w: the pool uses the driver %T; only that of github.com/go-sql-driver/mysql reports its errors as this package reads them", backend.ErrUnsupported, db.Driver())
	}
	name := DefaultTable
	if opts != nil && opts.Table != "" {
		name = opts.Table
	}
	if err := checkTableName(name); err != nil {
		return nil, err
	}
	b := &tableBackend{db: db, table: quoted(name), name: name, clock: backend.SystemClock()}
	b.guarantees = tableGuarantees(false)
	return b, nil
}

// Guarantees says what is promised. Holds survive a restart of the server only if
// it wrote every commit to the disk when the backend was opened.
func (b *tableBackend) Guarantees() backend.Guarantees { return b.guarantees }

// Close closes the pool if it was opened by URL.
func (b *tableBackend) Close() error {
	if b.closesIt {
		if err := b.db.Close(); err != nil {
			return fmt.Errorf("mysqllock: close the pool: %w", err)
		}
	}
	return nil
}

// errUnchanged is for a step that others have made impossible over and over again.
var errUnchanged = errors.New("others have locked its row, or changed it at the same time, every time")
