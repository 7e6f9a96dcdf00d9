// Package row keeps holds as row locks of the server: a transaction with SELECT ... FOR
// UPDATE on a connection that belongs to the hold.
package row

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

const (
	defaultTable       = "lock_rows"
	defaultPool        = 32
	defaultControlPool = 4

	// defaultAtOnce is shorter than a wait, and little of the shortest TTL.
	defaultAtOnce = 20 * time.Millisecond

	// controlIdle is how long a connection of the control pool is kept without use.
	controlIdle = time.Minute
)

// Options are the settings of the row locks. The zero value of each field means the
// default.
type Options struct {
	// Table is the table with the rows that are locked, as name or database.name.
	// Default: defaultTable.
	Table string
	// NoCreate: the tables must exist, with the columns of this version.
	NoCreate bool
	// PoolSize is how many keys can be held and waited for at a time. Default:
	// defaultPool.
	PoolSize int
	// ControlPoolSize is how many further connections there are. Default:
	// defaultControlPool.
	ControlPoolSize int
	// TTL is what leases will ask for, if that is known.
	TTL time.Duration
	// Logger receives warnings about the server's settings. Default: none.
	Logger *slog.Logger
	// LookOnly: nothing is made that is missing.
	LookOnly bool
}

// New opens the row locks on pools of its own, whose connections the connector makes.
func New(ctx context.Context, connector driver.Connector, o Options) (*Backend, error) {
	if connector == nil {
		return nil, fmt.Errorf("mysqllock: %w: the connector is nil", backend.ErrInvalid)
	}
	if limit := wire.ReadTimeout(connector); limit > 0 && limit <= longestSilence {
		return nil, fmt.Errorf("mysqllock: %w: the ReadTimeout of %s would break each wait for a row, during which the server is silent for up to %s; make it longer, or 0: the locks have limits of their own",
			backend.ErrInvalid, limit, longestSilence)
	}
	if o.PoolSize < 0 || o.ControlPoolSize < 0 {
		return nil, fmt.Errorf("mysqllock: %w: PoolSize and ControlPoolSize must not be negative", backend.ErrInvalid)
	}
	if o.Table == "" {
		o.Table = defaultTable
	}
	if o.PoolSize == 0 {
		o.PoolSize = defaultPool
	}
	if o.ControlPoolSize == 0 {
		o.ControlPoolSize = defaultControlPool
	}
	o.Logger = construct.Logger(o.Logger)
	if o.TTL != 0 {
		if err := Guarantees().CheckTTL(o.TTL); err != nil {
			return nil, err
		}
	}
	statements, err := newStatements(o.Table)
	if err != nil {
		return nil, err
	}
	b := &Backend{
		statements: statements,
		mayCreate:  !o.NoCreate,
		clock:      backend.SystemClock(),
		control:    sql.OpenDB(controlConnector{connector}),
		holds:      map[backend.ID]*hold{},
		held:       map[string]*hold{},
		tokens:     map[string]uint64{},
		atOnce:     defaultAtOnce,
	}
	b.life, b.endLife = context.WithCancel(context.Background())
	b.controlSize = o.ControlPoolSize
	b.control.SetMaxOpenConns(o.ControlPoolSize)
	b.control.SetMaxIdleConns(o.ControlPoolSize)
	b.control.SetConnMaxIdleTime(controlIdle)
	mariaDB, err := b.prepare(ctx, !o.NoCreate, o.LookOnly, o.Logger)
	if err != nil {
		_ = b.control.Close()
		b.endLife()
		return nil, err
	}
	b.setServer(mariaDB)
	b.sessions = newSessions(connector, o.PoolSize, mariaDB, b.clock)
	return b, nil
}

// Open opens mode=row of a URL.
func Open(ctx context.Context, s wire.Settings) (*Backend, error) {
	if s.TTL != 0 {
		if err := Guarantees().CheckTTL(s.TTL); err != nil {
			return nil, err
		}
	}
	connector, err := wire.NewConnector(s.Config, s.Lifetime)
	if err != nil {
		return nil, err
	}
	return New(ctx, connector, Options{
		Table: s.Table, NoCreate: !s.Create || s.LookOnly, PoolSize: s.Pool, Logger: s.Logger, LookOnly: s.LookOnly,
	})
}

// ownConnector hides the Close that a connector may have: sql.DB would call it.
type ownConnector struct{ driver.Connector }

// controlConnector makes the connections of the control pool. They are set to what
// its statements rely on, whatever the caller's DSN or the server's init_connect says:
// with autocommit off, a token would never be committed.
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
		"SET SESSION autocommit = 1, completion_type = 0, sql_mode = 'STRICT_TRANS_TABLES', wait_timeout = " + seconds(2*controlIdle) +
			", innodb_lock_wait_timeout = " + seconds(lockWait),
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
	} {
		if _, err := e.ExecContext(ctx, q, nil); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// Backend implements backend.Backend, Queuer, LossNotifier, Inspector,
// ForceReleaser, Revoker, Lister, Forgetter, FloorRaiser and TokenTeller.
type Backend struct {
	statements
	mayCreate   bool
	clock       backend.Clock
	control     *sql.DB
	controlSize int
	sessions    *sessions
	lost        func(id backend.ID, cause error)
	address     addressWatch
	life        context.Context // ends with Close
	endLife     context.CancelFunc

	// atOnce is how long after the statement for the row a grant may come whose validity counts
	// from that.
	atOnce time.Duration

	mu    sync.Mutex
	holds map[backend.ID]*hold
	held  map[string]*hold // by key, from the grant to the beginning of the end

	tokens map[string]uint64 // the last one of each key that this backend was granted
}

var (
	_ backend.Backend       = (*Backend)(nil)
	_ backend.Queuer        = (*Backend)(nil)
	_ backend.LossNotifier  = (*Backend)(nil)
	_ backend.Inspector     = (*Backend)(nil)
	_ backend.ForceReleaser = (*Backend)(nil)
	_ backend.Revoker       = (*Backend)(nil)
	_ backend.Lister        = (*Backend)(nil)
)

// Guarantees implements backend.Backend.
func (b *Backend) Guarantees() backend.Guarantees { return Guarantees() }

// NotifyLoss implements backend.LossNotifier. The death of a connection is noticed
// by the next statement on it: a renewal, or one of the transaction of [InTx].
func (b *Backend) NotifyLoss(lost func(id backend.ID, cause error)) { b.lost = lost }

// Close closes all connections. The server rolls back what was open on them.
func (b *Backend) Close() error {
	b.address.mu.Lock()
	b.endLife()
	b.address.mu.Unlock()
	b.address.looks.Wait()
	b.mu.Lock()
	left := make([]*hold, 0, len(b.holds))
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
	if cerr := wire.ClosePool(b.control); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("mysqllock: close the connections: %w", err)
	}
	return nil
}

// Guarantees are those of the row locks.
func Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name:  "mysql row lock",
		Reach: backend.ReachNetwork,
		Assumptions: []string{
			"One server takes all writes and all locks: no Galera cluster, no group replication with several primaries.",
			"There is no failover while a key is held.",
			"In a planned switchover two can hold a key until the holder is told, for at most a TTL.",
			"No proxy spreads the statements of one connection over several, or ends idle connections before the TTL has passed.",
			"The clock rates of server and holder differ by less than one percent.",
			"Nobody else locks or deletes rows of the lock tables for long.",
			"A statement of InTx can be killed when the lease is lost; else the key stays locked until it ends.",
			"innodb_flush_log_at_trx_commit is 1, so that tokens rise.",
			"After a loss of data or counters, the server's wall clock is not behind the last token; else tokens may fall.",
		},
		Expiry:         backend.ClockConnection,
		MinTTL:         time.Second,
		MaxTTL:         maxTTL,
		TTLGrain:       time.Second,
		TakeoverLag:    time.Second, // the thread pool of MariaDB looks at idle connections twice a second
		Token:          backend.TokenCounter,
		TokenSurvives:  []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved, backend.FaultRestart, backend.FaultDataLoss},
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

// maxTTL is below the 24.8 days that wait_timeout can have on Windows.
const maxTTL = 24 * 24 * time.Hour
