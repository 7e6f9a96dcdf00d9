package rowflawed

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
)

var healthy = Lock{
	ID: "healthy", Title: "SELECT ... FOR UPDATE on a pinned connection, the token committed on its own",
	File: "healthy.go",
	On:   onRows(func(db *sql.DB) backend.Backend { return newRows(db) }),
}

// rows is a correct row lock, small enough to see the mistakes of the others. It
// polls, and needs no more than a pool that is not bounded.
//
//	acquire   SELECT 1 FROM flawed_rows WHERE k = ? FOR UPDATE NOWAIT   on a connection of its own
//	          UPDATE flawed_tokens SET token = token + 1 WHERE k = ?    on another one
//	renew     a statement on the connection; wait_timeout is the TTL
//	release   ROLLBACK, and the connection goes back to the pool as it was
type rows struct {
	db    *sql.DB
	mu    sync.Mutex
	holds map[backend.ID]*rowHold
}

type rowHold struct {
	key   string
	turn  chan struct{} // of the connection
	conn  *sql.Conn
	token uint64
	until backend.Instant
}

func newRows(db *sql.DB) *rows { return &rows{db: db, holds: map[backend.ID]*rowHold{}} }

func prepareRows(ctx context.Context, db *sql.DB) error {
	for _, q := range []string{
		"CREATE TABLE IF NOT EXISTS flawed_rows (k VARBINARY(512) PRIMARY KEY) ENGINE=InnoDB",
		"CREATE TABLE IF NOT EXISTS flawed_tokens (k VARBINARY(512) PRIMARY KEY, token BIGINT UNSIGNED NOT NULL, connection BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
	} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// removeRow ends the connection that holds the key, and waits until the server has undone what it
// did. It does not wait for the row, which somebody may take at once.
func removeRow(ctx context.Context, db *sql.DB, key string) error {
	var id int64
	if err := db.QueryRowContext(ctx, "SELECT connection FROM flawed_tokens WHERE k = ?", key).Scan(&id); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, fmt.Sprintf("KILL CONNECTION %d", id)); err != nil {
		return err
	}
	for there := 1; there > 0; time.Sleep(time.Millisecond) {
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?", id).Scan(&there); err != nil {
			return err
		}
	}
	return nil
}

// making lets one at a time make new rows: inserts that meet lock each other's rows.
var making sync.Mutex

// maker is how long a new row may take. It is not the caller's context that ends an
// insert: the server would carry it out all the same, and whoever inserts the same row
// meanwhile would wait for its next holder, with all who make rows behind it.
const maker = 2 * time.Second

func (r *rows) makeRow(ctx context.Context, key string) error {
	if there, err := r.rowExists(ctx, key); there || err != nil {
		return err
	}
	making.Lock()
	defer making.Unlock()
	if there, err := r.rowExists(ctx, key); there || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maker)
	defer cancel()
	for _, q := range []string{"INSERT IGNORE INTO flawed_tokens VALUES (?, 0, 0)", "INSERT IGNORE INTO flawed_rows VALUES (?)"} {
		if _, err := r.db.ExecContext(ctx, q, key); err != nil {
			return err
		}
	}
	return nil
}

func (r *rows) rowExists(ctx context.Context, key string) (bool, error) {
	err := r.db.QueryRowContext(ctx, "SELECT 1 FROM flawed_rows WHERE k = ?", key).Scan(new(int))
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// The steps of an acquisition, which the mistakes replace.
type rowSteps struct {
	settle func(ctx context.Context, c *sql.Conn, ttl time.Duration) error
	lock   func(ctx context.Context, c *sql.Conn, key string) error
	token  func(ctx context.Context, c *sql.Conn, key string) (uint64, error)
}

func (r *rows) steps() rowSteps {
	return rowSteps{settle: setTimeout, lock: lockNow, token: r.separateToken}
}

func setTimeout(ctx context.Context, c *sql.Conn, ttl time.Duration) error {
	return exec(ctx, c, fmt.Sprintf("SET SESSION wait_timeout = %d", ttl/time.Second))
}

func lockNow(ctx context.Context, c *sql.Conn, key string) error {
	return c.QueryRowContext(ctx, "SELECT 1 FROM flawed_rows WHERE k = ? FOR UPDATE NOWAIT", key).Scan(new(int))
}

const raiseToken = "UPDATE flawed_tokens SET token = LAST_INSERT_ID(token + 1), connection = ? WHERE k = ?"

// separateToken raises the token on another connection, which commits it.
func (r *rows) separateToken(ctx context.Context, c *sql.Conn, key string) (uint64, error) {
	var id int64
	if err := c.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		return 0, err
	}
	res, err := r.db.ExecContext(ctx, raiseToken, id, key)
	if err != nil {
		return 0, err
	}
	token, err := res.LastInsertId()
	return uint64(token), err
}

func exec(ctx context.Context, c *sql.Conn, q string) error {
	_, err := c.ExecContext(ctx, q)
	return err
}

func now() backend.Instant { return backend.SystemClock().Now() }

func codeOf(err error) uint16 {
	var refusal *mysql.MySQLError
	if errors.As(err, &refusal) {
		return refusal.Number
	}
	return 0
}

func (r *rows) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	return r.try(ctx, req, r.steps())
}

func (r *rows) try(ctx context.Context, req backend.Request, do rowSteps) (backend.Grant, error) {
	if r.find(req.ID) != nil {
		v, err := r.Renew(ctx, backend.HoldOf(req))
		if err != nil {
			return backend.Grant{}, err
		}
		return backend.Grant{Token: r.find(req.ID).token, Holds: 1, Validity: v}, nil
	}
	if err := r.makeRow(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return backend.Grant{}, err
	}
	h := &rowHold{key: req.Key, turn: make(chan struct{}, 1), conn: conn}
	if err = do.settle(ctx, conn, req.TTL); err == nil {
		err = exec(ctx, conn, "START TRANSACTION")
	}
	if err == nil {
		err = do.lock(ctx, conn, req.Key)
	}
	if code := codeOf(err); code == 1205 || code == 3572 {
		r.giveBack(ctx, conn)
		return backend.Grant{}, &backend.HeldError{Key: req.Key}
	}
	if err == nil {
		h.token, err = do.token(ctx, conn, req.Key)
	}
	sent := now()
	if err == nil {
		err = exec(ctx, conn, "SAVEPOINT held")
	}
	if err == nil {
		err = ctx.Err() // that ended with the answer may have closed the connection
	}
	if err != nil {
		discard(conn)
		return backend.Grant{}, err
	}
	v := h.good(sent, req.TTL)
	r.mu.Lock()
	r.holds[req.ID] = h
	r.mu.Unlock()
	return backend.Grant{Token: h.token, Holds: 1, Validity: v}, nil
}

func (h *rowHold) good(sent backend.Instant, ttl time.Duration) backend.Validity {
	v := backend.Validity{Sent: sent, For: backend.ValidFor(ttl)}
	h.until = v.Until()
	return v
}

func (r *rows) find(id backend.ID) *rowHold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds[id]
}

// drop forgets the hold; whoever is first has its connection.
func (r *rows) drop(id backend.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.holds[id]
	delete(r.holds, id)
	return ok
}

func (r *rows) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	h := r.find(hold.ID)
	if h == nil || h.key != hold.Key {
		return backend.Validity{}, backend.ErrNotHeld
	}
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return backend.Validity{}, ctx.Err()
	}
	defer func() { <-h.turn }()
	if r.find(hold.ID) != h {
		return backend.Validity{}, backend.ErrNotHeld
	}
	sent := now()
	if sent < h.until {
		// Not tied to ctx: the driver would close the connection with it.
		life, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.until.Sub(sent))
		err := exec(life, h.conn, "ROLLBACK TO SAVEPOINT held")
		cancel()
		if err == nil {
			return h.good(sent, hold.TTL), nil
		}
	}
	r.drop(hold.ID)
	discard(h.conn)
	return backend.Validity{}, backend.ErrSessionLost
}

func (r *rows) Release(ctx context.Context, hold backend.Hold) error {
	return r.release(ctx, hold, "ROLLBACK", r.giveBack)
}

func (r *rows) release(ctx context.Context, hold backend.Hold, how string, giveBack func(context.Context, *sql.Conn)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h := r.find(hold.ID)
	if h == nil || h.key != hold.Key {
		return backend.ErrNotHeld
	}
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.turn }()
	if !r.drop(hold.ID) {
		return backend.ErrNotHeld
	}
	if err := exec(ctx, h.conn, how); err != nil {
		discard(h.conn)
		return backend.ErrSessionLost
	}
	giveBack(ctx, h.conn)
	return nil
}

// giveBack returns the connection to the pool as it was.
func (r *rows) giveBack(ctx context.Context, c *sql.Conn) {
	err := exec(ctx, c, "ROLLBACK")
	if err == nil {
		err = exec(ctx, c, "SET SESSION wait_timeout = DEFAULT")
	}
	if err != nil {
		discard(c)
		return
	}
	_ = c.Close()
}

// discard closes the connection, and with it whatever it holds.
func discard(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
	_ = c.Close()
}

func (r *rows) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.holds {
		discard(h.conn)
	}
	clear(r.holds)
	return nil
}

func (r *rows) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name: "flawed rows", Reach: backend.ReachNetwork,
		Assumptions: []string{"One server, which is not restarted while a key is held."},
		Expiry:      backend.ClockConnection, MinTTL: time.Second, MaxTTL: 24 * time.Hour, TTLGrain: time.Second, TakeoverLag: time.Second,
		Token: backend.TokenCounter, TokenSurvives: []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved},
		Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll,
		ManualRenewal: true, WithoutRenewal: true, LossSignal: true, Deadline: true,
	}
}
