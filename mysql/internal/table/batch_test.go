package table

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// manyHolds are holds of a table that has as many keys again for each one that the caller
// wants, in between.
func manyHolds(t *testing.T, b *Backend, n, among int) []backend.Hold {
	t.Helper()
	var holds []backend.Hold
	step := among / n
	for i := range n {
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(fmt.Sprintf("k%04d", i*step)))
		holds = append(holds, hold)
	}
	mysqltest.Numbered(t, b.db, b.table, columns, holds[0].Key, "k", among, fmt.Sprintf("(i %% %d<>0 OR i>=%d)", step, n*step))
	mysqltest.Exec(t, b.db, "ANALYZE TABLE "+b.table)
	return holds
}

// counters are those of the session, of a pool with one connection.
func counters(t *testing.T, db *sql.DB, like string) map[string]int {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE '"+like+"'")
	require.NoError(t, err)
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		require.NoError(t, rows.Scan(&name, &n))
		out[name] = n
	}
	require.NoError(t, rows.Err())
	return out
}

// A batch touches the rows of its holds and no others: the server is not left to read
// the table instead, as it would from a few keys on, and to lock what it reads.
func TestBatchGoesByKey(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(1)
		for _, c := range []struct{ n, among int }{{5, 10}, {30, 30}, {50, 300}, {128, 600}} {
			b := tableOn(t, db, Options{Table: mysqltest.OwnTable(t, db)})
			holds := manyHolds(t, b, c.n, c.among)
			before := counters(t, db, "Handler_%")
			for _, r := range b.RenewBatch(t.Context(), holds) {
				require.NoError(t, r.Err)
				require.NotZero(t, r.Validity.For)
			}
			after := counters(t, db, "Handler_%")
			did := func(name string) int { return after[name] - before[name] }
			assert.Equal(t, c.n, did("Handler_update"))
			for _, scan := range []string{"Handler_read_first", "Handler_read_last", "Handler_read_next", "Handler_read_prev"} {
				assert.Zero(t, did(scan), "%d of %d: %s", c.n, c.among, scan)
			}
			// SHOW STATUS reads a table of its own.
			status := len(after)
			assert.LessOrEqual(t, did("Handler_read_rnd_next"), 2*c.n+2*status, "%d of %d: rows of temporary tables", c.n, c.among)
			assert.LessOrEqual(t, did("Handler_read_key"), 6*c.n+status, "%d of %d", c.n, c.among)
		}
	})
}

// onLockedRow locks the row of a key by hand while f runs.
func onLockedRow(t *testing.T, db *sql.DB, table, key string, f func()) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	var n int
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT 1 FROM "+table+" WHERE lock_key=? FOR UPDATE", []byte(key)).Scan(&n))
	f()
	require.NoError(t, tx.Rollback())
}

// A row that somebody has locked costs its own hold a renewal, and no other hold
// anything. No statement is left waiting on the server.
func TestBatchBesideALockedRow(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		seen := &errorsConnector{PlainConnector: mysqltest.Connector(t, s, nil)}
		noting := sql.OpenDB(seen)
		t.Cleanup(func() { require.NoError(t, noting.Close()) })
		b := tableOn(t, noting, Options{Table: mysqltest.OwnTable(t, db)})
		admin := mysqltest.AdminPool(t, s)
		holds := manyHolds(t, b, 20, 40)
		locked := 7
		pair, _ := backendtest.Granted(t, b, mysqltest.OwnedRequest("pair", "o", mysqltest.TTL))
		backendtest.Granted(t, b, mysqltest.OwnedRequest("pair", "o", mysqltest.TTL))
		onLockedRow(t, db, b.table, holds[locked].Key, func() {
			onLockedRow(t, db, b.table, pair.Key, func() {
				all := append(holds[:len(holds):len(holds)], pair)
				for i, r := range b.RenewBatch(backendtest.Short(t, mysqltest.Patience/2), all) {
					if i == locked || i == len(holds) {
						require.ErrorIs(t, r.Err, backend.ErrUnavailable)
						require.ErrorContains(t, r.Err, "locked")
						continue
					}
					require.NoError(t, r.Err, i)
					require.NotZero(t, r.Validity.For, i)
				}
				for _, hold := range []backend.Hold{holds[locked], pair} {
					_, err := b.Renew(backendtest.Short(t, mysqltest.Patience/2), hold)
					require.ErrorIs(t, err, backend.ErrUnavailable, "it waits for nobody")
					require.NotErrorIs(t, err, context.DeadlineExceeded)
				}
				backendtest.Eventually(t, "no statement waits on the server", func() bool {
					return mysqltest.Number(t, admin, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE ?", "UPDATE%"+b.name+"%") == 0
				})
			})
		})
		for i, r := range b.RenewBatch(t.Context(), append(holds, pair)) {
			require.NoError(t, r.Err, i)
		}
		require.NotContains(t, seen.codes(), uint16(wire.CodeDeadlock))
	})
}

// heldBatch is a batch of holds of which one has its row locked by somebody else: its
// renewals are noted, as the keys that each statement names.
type heldBatch struct {
	*Backend
	holds  []backend.Hold // of a, locked, b, and one of the two of c
	locked backend.Hold
	tx     *sql.Tx // has the lock
	clock  *setClock
	// refused is called when the locked hold could not be renewed.
	refused func()
	mu      sync.Mutex
	events  []string
}

// newHeldBatch has the owner of the locked key hold it so many times.
func newHeldBatch(t *testing.T, s *servertest.Server, times int) *heldBatch {
	t.Helper()
	db := mysqltest.UserPool(t, s, "")
	h := &heldBatch{clock: &setClock{}, refused: func() {}}
	seen := &execConnector{PlainConnector: mysqltest.Connector(t, s, nil)}
	noting := sql.OpenDB(seen)
	t.Cleanup(func() { require.NoError(t, noting.Close()) })
	h.Backend = tableOn(t, noting, Options{Table: mysqltest.OwnTable(t, db)})
	h.Backend.clock = h.clock
	for _, key := range []string{"a", "locked", "b", "c"} {
		var hold backend.Hold
		for range map[string]int{"a": 1, "locked": times, "b": 1, "c": 2}[key] {
			hold, _ = backendtest.Granted(t, h, mysqltest.OwnedRequest(key, "o", mysqltest.TTL))
		}
		h.holds = append(h.holds, hold)
	}
	h.locked = h.holds[1]
	var err error
	h.tx, err = db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.tx.Rollback() })
	var n int
	require.NoError(t, h.tx.QueryRowContext(t.Context(), "SELECT 1 FROM "+h.table+" WHERE lock_key=? FOR UPDATE", []byte(h.locked.Key)).Scan(&n))
	alone := 0
	seen.after = func(q string) {
		var keys []string
		for _, hold := range h.holds {
			if strings.Contains(q, string(statement(nil).bytes(hold.Key))) {
				keys = append(keys, hold.Key)
			}
		}
		h.note(strings.Join(keys, " "))
		if slices.Equal(keys, []string{h.locked.Key}) {
			if alone++; alone == times { // that of a hold that is not the only one comes second
				h.refused()
			}
		}
	}
	return h
}

func (h *heldBatch) note(event string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, event)
}

// setClock stands still until it is set.
type setClock struct{ atomic.Int64 }

func (c *setClock) Now() backend.Instant { return backend.Instant(c.Load()) }

// execConnector tells of each statement that has changed something, or could have.
type execConnector struct {
	*mysqltest.PlainConnector
	after func(q string) // set before it is used at the same time
}

func (c *execConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &execConn{mysqltest.PlainConn{Conn: conn}, c}, nil
}

type execConn struct {
	mysqltest.PlainConn
	c *execConnector
}

func (c *execConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.PlainConn.ExecContext(ctx, q, args)
	if c.c.after != nil {
		c.c.after(q)
	}
	return res, err
}

// A row that is locked for a moment, as by RaiseFloor, costs its hold nothing. It is tried
// again when all the others have been renewed.
func TestBatchTriesALockedRowAgain(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for times, events := range map[int][]string{
			1: {"a locked b c", "locked", "freed", "c", "c", "locked"},
			2: {"a locked b c", "locked", "locked", "freed", "c", "c", "locked", "locked"},
		} {
			h := newHeldBatch(t, s, times)
			h.refused = func() {
				assert.NoError(t, h.tx.Rollback())
				h.note("freed")
			}
			for i, r := range h.RenewBatch(backendtest.Short(t, mysqltest.Patience), h.holds) {
				require.NoError(t, r.Err, i)
				require.NotZero(t, r.Validity.For, i)
			}
			require.Equal(t, events, h.events)
		}
	})
}

// A row that stays locked is left when a part of the TTL has passed: the answers for the
// others must not be late.
func TestBatchLeavesALockedRow(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		h := newHeldBatch(t, s, 1)
		h.refused = func() { h.clock.Add(int64(mysqltest.TTL / patiencePart)) }
		for i, r := range h.RenewBatch(backendtest.Short(t, mysqltest.Patience), h.holds) {
			if h.holds[i] == h.locked {
				require.ErrorIs(t, r.Err, backend.ErrUnavailable)
				continue
			}
			require.NoError(t, r.Err, i)
			require.NotZero(t, r.Validity.For, i)
		}
		require.Equal(t, []string{"a locked b c", "locked", "c", "c"}, h.events)
	})
}

// A guarded write that begins before the next try is not kept waiting, and the hold is still
// held.
func TestBatchLeavesALockedRowToAGuardedWrite(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		h := newHeldBatch(t, s, 1)
		begun := make(chan error, 1)
		h.refused = func() {
			go func() { begun <- h.guards.begin(t.Context(), h.locked) }()
			backendtest.Eventually(t, "it waits for the renewal that is under way", func() bool {
				return h.guards.others(backend.Hold{Key: h.locked.Key})
			})
		}
		for i, r := range h.RenewBatch(backendtest.Short(t, mysqltest.Patience), h.holds) {
			require.NoError(t, r.Err, i)
			require.Equal(t, h.holds[i] == h.locked, r.Validity.For == 0, i)
		}
		require.NoError(t, <-begun)
		require.True(t, h.guards.end(h.locked), "a renewal was left out")
		require.Equal(t, []string{"a locked b c", "locked", "c", "c"}, h.events)
	})
}

// errorsConnector notes the errors of the server that its connections meet.
type errorsConnector struct {
	*mysqltest.PlainConnector
	mu   sync.Mutex
	seen []uint16
}

func (c *errorsConnector) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, wire.CodeOf(err))
}

func (c *errorsConnector) codes() []uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

func (c *errorsConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &errorsConn{mysqltest.PlainConn{Conn: conn}, c}, nil
}

type errorsConn struct {
	mysqltest.PlainConn
	c *errorsConnector
}

func (c *errorsConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.PlainConn.ExecContext(ctx, q, args)
	c.c.note(err)
	return res, err
}

func (c *errorsConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.PlainConn.QueryContext(ctx, q, args)
	c.c.note(err)
	return rows, err
}

// A guarded write of one client, on a key that lies among those of another, keeps none of
// the other's renewals waiting, and a key that nobody has used can be taken.
func TestBatchBesideAGuardedWriteElsewhere(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		opts := Options{Table: mysqltest.OwnTable(t, db)}
		b := tableOn(t, mysqltest.UserPool(t, s, ""), opts)
		holds := manyHolds(t, b, 30, 60)
		lease, err := lockerOf(t, tableOn(t, db, opts), lock.Options{}).Acquire(t.Context(), "k0030-written", lock.WithTTL(time.Minute))
		require.NoError(t, err)
		require.NoError(t, Guarded(t.Context(), lease, func(context.Context, *sql.Tx) error {
			for i, r := range b.RenewBatch(backendtest.Short(t, mysqltest.Patience/2), holds) {
				assert.NoError(t, r.Err, i)
			}
			_, err := b.Try(backendtest.Short(t, mysqltest.Patience/2), mysqltest.Request("k0030-new"))
			assert.NoError(t, err)
			return nil
		}))
		require.NoError(t, lease.Release(t.Context()))
	})
}

// Two processes with the same owner: the guarded write of one waits until that of the
// other has ended, as a renewal cannot.
func TestGuardedWaitsForItsOwnerElsewhere(t *testing.T) {
	onBothGuarded(t, func(t *testing.T, g *guardedWrite) {
		ctx := backendtest.Short(t, mysqltest.Patience)
		own := []lock.Option{lock.WithOwner("o"), lock.WithTTL(time.Minute)}
		first, err := g.l.Acquire(ctx, g.key, own...)
		require.NoError(t, err)
		second, err := lockerOn(t, mysqltest.UserPool(t, g.s, ""), lock.Options{}).Acquire(ctx, g.key, own...)
		require.NoError(t, err)
		done := make(chan error, 1)
		var ended atomic.Bool
		require.NoError(t, Guarded(ctx, first, func(context.Context, *sql.Tx) error {
			go func() {
				done <- Guarded(ctx, second, func(ctx context.Context, tx *sql.Tx) error {
					assert.True(t, ended.Load())
					return add(g.table)(ctx, tx)
				})
			}()
			assert.ErrorIs(t, second.Renew(ctx), lock.ErrUnavailable)
			time.Sleep(400 * time.Millisecond) // longer than a renewal tries
			assert.Empty(t, done)
			ended.Store(true)
			return nil
		}))
		require.NoError(t, <-done)
		require.Equal(t, 1, g.n())
		require.NoError(t, first.Release(ctx))
		require.NoError(t, second.Release(ctx))
	})
}

// Leases are renewed in as many commits as there are batches.
func TestBatchesCommitOnce(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		db.SetMaxOpenConns(1)
		b := tableOn(t, db, Options{Table: mysqltest.OwnTable(t, db)})
		const n = 400
		var holds []backend.Hold
		var values []string
		for i := range n {
			hold := backend.HoldOf(mysqltest.OwnedRequest(fmt.Sprintf("k%04d", i), "", time.Minute))
			holds = append(holds, hold)
			values = append(values, fmt.Sprintf("('%s','-',1,1,'%s','{}',%s,%s,%s+INTERVAL 1 MINUTE)", hold.Key, hashOf(hold.ID.Hex()), now, now, now))
		}
		mysqltest.Exec(t, db, "INSERT INTO "+b.table+" ("+columns+") VALUES "+strings.Join(values, ","))
		before := counters(t, db, "Com_update%")
		for chunk := range slices.Chunk(holds, 128) {
			for i, r := range b.RenewBatch(t.Context(), chunk) {
				require.NoError(t, r.Err, i)
			}
		}
		after := counters(t, db, "Com_update%")
		require.Equal(t, 4, after["Com_update"]+after["Com_update_multi"]-before["Com_update"]-before["Com_update_multi"])
	})
}
