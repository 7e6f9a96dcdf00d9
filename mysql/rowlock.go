package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

const (
	defaultRowTable    = "lock_rows"
	defaultRowPool     = 32
	defaultControlPool = 4

	// controlIdle is how long a connection of the control pool is kept without use.
	controlIdle = time.Minute
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

	lookOnly bool // nothing is made that is missing
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
	var o RowOptions
	if opts != nil {
		o = *opts
	}
	if connector == nil {
		return nil, fmt.Errorf("mysqllock: %w: the connector is nil", backend.ErrInvalid)
	}
	if c, ok := connector.(cuttable); ok && c.readTimeout > 0 && c.readTimeout <= longestSilence {
		return nil, fmt.Errorf("mysqllock: %w: the ReadTimeout of %s would break each wait for a row, during which the server is silent for up to %s; make it longer, or 0: the locks have limits of their own",
			backend.ErrInvalid, c.readTimeout, longestSilence)
	}
	if o.PoolSize < 0 || o.ControlPoolSize < 0 {
		return nil, fmt.Errorf("mysqllock: %w: PoolSize and ControlPoolSize must not be negative", backend.ErrInvalid)
	}
	if o.Table == "" {
		o.Table = defaultRowTable
	}
	if o.PoolSize == 0 {
		o.PoolSize = defaultRowPool
	}
	if o.ControlPoolSize == 0 {
		o.ControlPoolSize = defaultControlPool
	}
	if o.Lock.Logger == nil {
		o.Lock.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Lock.TTL != 0 {
		if err := rowGuarantees().CheckTTL(o.Lock.TTL); err != nil {
			return nil, err
		}
	}
	statements, err := newRowStatements(o.Table)
	if err != nil {
		return nil, err
	}
	b := &rowBackend{
		rowStatements: statements,
		mayCreate:     !o.NoCreate,
		clock:         backend.SystemClock(),
		control:       sql.OpenDB(controlConnector{connector}),
		holds:         map[backend.ID]*rowHold{},
	}
	b.life, b.endLife = context.WithCancel(context.Background())
	b.controlSize = o.ControlPoolSize
	b.control.SetMaxOpenConns(o.ControlPoolSize)
	b.control.SetMaxIdleConns(o.ControlPoolSize)
	b.control.SetConnMaxIdleTime(controlIdle)
	mariaDB, err := b.prepare(ctx, !o.NoCreate, o.lookOnly, o.Lock.Logger)
	if err != nil {
		_ = b.control.Close()
		b.endLife()
		return nil, err
	}
	b.setServer(mariaDB)
	b.sessions = newRowSessions(connector, o.PoolSize, mariaDB, b.clock)
	return b, nil
}

// ownConnector hides the Close that a connector may have: sql.DB would call it.
type ownConnector struct{ driver.Connector }

// controlConnector makes the connections of the control pool. They are set to what
// its statements rely on, whatever the caller's DSN or the server's init_connect says:
// with autocommit off, a token would never be committed. The isolation level makes no
// difference to them.
type controlConnector struct{ driver.Connector }

// Connect is part of driver.Connector.
func (c controlConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	e, ok := conn.(driver.ExecerContext)
	if !ok {
		_ = conn.Close()
		return nil, errNoDriver
	}
	for _, q := range []string{
		// The server ends a connection that was cut off soon after the pool would have.
		"SET SESSION autocommit = 1, completion_type = 0, sql_mode = 'STRICT_TRANS_TABLES', wait_timeout = " + seconds(2*controlIdle),
		"SET SESSION TRANSACTION READ WRITE",
	} {
		if _, err := e.ExecContext(ctx, q, nil); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// rowBackend implements backend.Backend, Queuer, LossNotifier, Inspector,
// ForceReleaser, Revoker and Lister.
type rowBackend struct {
	rowStatements
	mayCreate   bool
	clock       backend.Clock
	control     *sql.DB
	controlSize int
	sessions    *rowSessions
	lost        func(id backend.ID, cause error)
	address     addressWatch
	life        context.Context // ends with Close
	endLife     context.CancelFunc

	mu    sync.Mutex
	holds map[backend.ID]*rowHold
}

var (
	_ backend.Backend       = (*rowBackend)(nil)
	_ backend.Queuer        = (*rowBackend)(nil)
	_ backend.LossNotifier  = (*rowBackend)(nil)
	_ backend.Inspector     = (*rowBackend)(nil)
	_ backend.ForceReleaser = (*rowBackend)(nil)
	_ backend.Revoker       = (*rowBackend)(nil)
	_ backend.Lister        = (*rowBackend)(nil)
)

// Guarantees implements backend.Backend.
func (b *rowBackend) Guarantees() backend.Guarantees { return rowGuarantees() }

// NotifyLoss implements backend.LossNotifier. The death of a connection is noticed
// by the next statement on it: a renewal, or one of the transaction of [InTx].
func (b *rowBackend) NotifyLoss(lost func(id backend.ID, cause error)) { b.lost = lost }

// Close closes all connections. The server rolls back what was open on them.
func (b *rowBackend) Close() error {
	b.address.mu.Lock()
	b.endLife()
	b.address.mu.Unlock()
	b.address.looks.Wait()
	b.mu.Lock()
	left := make([]*rowHold, 0, len(b.holds))
	for _, h := range b.holds {
		left = append(left, h)
	}
	b.mu.Unlock()
	for _, h := range left {
		h.stop() // a statement under way ends with its connection
		h.turn <- struct{}{}
		b.drop(h)
		<-h.turn
	}
	err := b.sessions.close()
	if cerr := b.control.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("mysqllock: close the connections: %w", err)
	}
	return nil
}

// rowGuarantees are those of the row locks.
func rowGuarantees() backend.Guarantees {
	return backend.Guarantees{
		Name:  "mysql row lock",
		Reach: backend.ReachNetwork,
		Assumptions: []string{
			"One MySQL or MariaDB server takes all writes and all locks: no Galera cluster, no group replication with several primaries.",
			"There is no failover while a key is held.",
			"In a planned switchover two can hold a key until the holder is told, for a TTL at the most.",
			"Nothing between client and server spreads the statements of one connection over several, or ends idle connections before the TTL has passed.",
			"The rates of the server's and the holder's clocks differ by less than one percent.",
			"Nobody else locks or deletes rows of the lock tables for long.",
			"A statement inside InTx can be killed when the lease is lost; else the key stays locked for the rest of it.",
			"innodb_flush_log_at_trx_commit is 1, so that tokens rise.",
			"After a loss of data the server's wall clock has not been set back behind the last token; else tokens may fall.",
		},
		Expiry:         backend.ClockConnection,
		MinTTL:         time.Second,
		MaxTTL:         maxRowTTL,
		TTLGrain:       time.Second,
		TakeoverLag:    time.Second, // the thread pool of MariaDB looks at idle connections twice a second
		Token:          backend.TokenCounter,
		TokenSurvives:  []backend.Event{backend.EventClientCrash, backend.EventRecordRemoved, backend.EventRestart, backend.EventDataLoss},
		Reentrancy:     backend.ReentrancyClient,
		Waiting:        backend.WaitQueue,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
		HolderDetails:  true,
		GuardedWrite:   true,
	}
}

// maxRowTTL is below the 24.8 days that wait_timeout can have on Windows.
const maxRowTTL = 24 * 24 * time.Hour
