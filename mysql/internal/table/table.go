// Package table keeps leases in a table. Each step is one statement by primary key, which
// decides by itself; no connection is held between the steps.
package table

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

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// DefaultName is the name of the table when nothing else is said.
const DefaultName = "locks"

// Options say where the table is and what may be done about it.
type Options struct {
	// Table is the name of the table, or database.table. Default: DefaultName.
	Table string
	// NoCreate: the table must exist.
	NoCreate bool
	// Logger receives warnings about the server's settings. Default: none.
	Logger *slog.Logger
}

// New opens the table with a pool of the caller's.
func New(ctx context.Context, db *sql.DB, o Options) (*Backend, error) {
	b, err := newBackend(db, o.Table)
	if err != nil {
		return nil, err
	}
	o.Logger = construct.Logger(o.Logger)
	if err := b.prepare(ctx, o.Logger, !o.NoCreate); err != nil {
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

// Open opens the table of a URL on a pool of its own.
func Open(ctx context.Context, s wire.Settings) (*Backend, error) {
	// The times of the connections come from the TTL, so a TTL that cannot be kept
	// would look like a server that does not answer.
	if s.TTL != 0 {
		if err := Guarantees(false).CheckTTL(s.TTL); err != nil {
			return nil, err
		}
	}
	s.Config.ReadTimeout, s.Config.WriteTimeout = readTimeout, readTimeout
	// The server ends a wait for a row about when its answer is given up: it must not grant
	// a key long after that. MySQL looks for such waits once a second.
	s.Config.Params = map[string]string{"innodb_lock_wait_timeout": strconv.Itoa(int(grace / time.Second))}
	connector, err := wire.NewConnector(s.Config, s.Lifetime)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	size := s.Pool
	if size == 0 {
		size = defaultPool
	}
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(5 * time.Minute)
	b, err := newBackend(db, s.Table)
	if err == nil {
		b.closesIt = true
		if s.LookOnly {
			err = b.prepareLook(ctx, s.Logger)
		} else {
			err = b.prepare(ctx, s.Logger, s.Create)
		}
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return b, nil
}

// Backend implements backend.Backend, BatchRenewer, HandOverer, Inspector,
// ForceReleaser, Revoker, Lister, Forgetter, FloorRaiser and TokenTeller. No other
// client is told of a release: it is no Watcher, Queuer or ReleaseTeller, and its waiters poll,
// but for those that a HandOver serves.
type Backend struct {
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
	_ backend.Backend       = (*Backend)(nil)
	_ backend.BatchRenewer  = (*Backend)(nil)
	_ backend.HandOverer    = (*Backend)(nil)
	_ backend.Inspector     = (*Backend)(nil)
	_ backend.ForceReleaser = (*Backend)(nil)
	_ backend.Revoker       = (*Backend)(nil)
	_ backend.Lister        = (*Backend)(nil)
)

func newBackend(db *sql.DB, name string) (*Backend, error) {
	if db == nil {
		return nil, fmt.Errorf("mysqllock: %w: the pool is nil", backend.ErrInvalid)
	}
	if _, ok := db.Driver().(*mysql.MySQLDriver); !ok {
		return nil, fmt.Errorf("mysqllock: %w: the pool uses the driver %T; only that of github.com/go-sql-driver/mysql reports its errors as this package reads them", backend.ErrUnsupported, db.Driver())
	}
	if name == "" {
		name = DefaultName
	}
	if err := wire.CheckTable(name); err != nil {
		return nil, err
	}
	b := &Backend{db: db, table: wire.Quote(name), name: name, clock: backend.SystemClock()}
	b.guarantees = Guarantees(false)
	return b, nil
}

// Guarantees says what is promised. Holds survive a restart of the server only if
// it wrote every commit to the disk when the backend was opened.
func (b *Backend) Guarantees() backend.Guarantees { return b.guarantees.Clone() }

// Close closes the pool if it was opened by URL.
func (b *Backend) Close() error {
	if b.closesIt {
		if err := wire.ClosePool(b.db); err != nil {
			return fmt.Errorf("mysqllock: close the pool: %w", err)
		}
	}
	return nil
}

// errUnchanged is for a step that others have made impossible over and over again.
var errUnchanged = errors.New("others have locked its row, or changed it at the same time, every time")
