package row

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// free waits until the key can be taken, and gives it back.
func (x rowWire) free(t *testing.T, key string) (token uint64) {
	t.Helper()
	backendtest.Eventually(t, "the key is free", func() bool {
		req := mysqltest.Request(key)
		g, err := x.other.Try(t.Context(), req)
		token = g.Token
		return err == nil && x.other.Release(t.Context(), backend.HoldOf(req)) == nil
	})
	return token
}

// rowWire is a client behind a proxy and another one beside it.
type rowWire struct {
	mysqltest.Wire
	s        *servertest.Server
	b, other *Backend
}

// eachRowFault runs a test with each fault, with both connectors, on both servers. The
// test must lose one request.
func eachRowFault(t *testing.T, f func(t *testing.T, x rowWire)) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		mysqltest.Together(t, mysqltest.WireFaults(), func(t *testing.T, fault mysqltest.WireFault) {
			p, through := mysqltest.BehindProxy(t, s)
			connector := mysqltest.Connector(t, s, through)
			if fault.Own {
				connector = cuttableConnector(t, s, through)
			}
			b, err := New(t.Context(), connector, Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			f(t, rowWire{mysqltest.Wire{Proxy: p, Fault: fault}, s, b, backendOn(t, s, Options{})})
			require.Equal(t, 1, p.Lost())
		})
	})
}

// Whichever answer of an acquisition is lost, the row is locked for nobody afterwards,
// and no token comes twice.
func TestRowLostGrant(t *testing.T) {
	for what, statement := range map[string]string{
		"lock": "FOR UPDATE NOWAIT", "token": "LAST_INSERT_ID", "savepoint": "SAVEPOINT", "new row": "INSERT IGNORE",
	} {
		t.Run(what, func(t *testing.T) {
			eachRowFault(t, func(t *testing.T, x rowWire) {
				key := backendtest.UniqueKey(t)
				var before uint64
				if what != "new row" {
					before = x.free(t, key)
				}
				req := mysqltest.Request(key)
				x.Lose(statement)
				_, err := x.b.Try(x.Until(t), req)
				require.Error(t, err)
				require.NotErrorIs(t, err, backend.ErrHeld)
				assert.ErrorIs(t, x.b.Release(t.Context(), backend.HoldOf(req)), backend.ErrNotHeld)
				assert.Greater(t, x.free(t, key), before)
				hold, _ := backendtest.Granted(t, x.b, mysqltest.Request(key))
				require.NoError(t, x.b.Release(t.Context(), hold))
			})
		})
	}
}

// A heartbeat whose answer was lost with its connection is a loss, and others get the
// key. Nothing goes on with another connection.
func TestRowLostHeartbeat(t *testing.T) {
	eachRowFault(t, func(t *testing.T, x rowWire) {
		l, err := lock.New(x.b, nil)
		require.NoError(t, err)
		defer l.Close()
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		x.Lose("ROLLBACK TO SAVEPOINT")
		_ = lease.Renew(t.Context())
		next, err := x.other.Enqueue(t.Context(), mysqltest.Request(key))
		require.NoError(t, err)
		g, err := next.Wait(backendtest.Short(t, mysqltest.Patience))
		require.NoError(t, err)
		require.Greater(t, g.Token, lease.Token())
		require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrLost)
		require.ErrorIs(t, lease.Renew(t.Context()), lock.ErrNotHeld)
		require.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost)
		require.NoError(t, next.Withdraw(t.Context()))
	})
}

// A release whose answer was lost has released: the connection is closed, and the
// server is asked until it has noticed. When the connection broke, nobody can say that
// it had not been broken before, and so the release says that the hold was lost.
func TestRowLostRelease(t *testing.T) {
	eachRowFault(t, func(t *testing.T, x rowWire) {
		hold, _ := backendtest.Granted(t, x.b, mysqltest.Request(backendtest.UniqueKey(t)))
		x.Lose("ROLLBACK")
		err := x.b.Release(x.Until(t), hold)
		if err != nil && !errors.Is(err, backend.ErrSessionLost) {
			mysqltest.Unknown(t, err)
			if err = x.b.Release(t.Context(), hold); err != nil {
				require.ErrorIs(t, err, backend.ErrNotHeld)
			}
		}
		req := mysqltest.Request(hold.Key)
		_, err = x.other.Try(t.Context(), req)
		require.NoError(t, err, "the key is free when the release is confirmed")
		require.NoError(t, x.other.Release(t.Context(), backend.HoldOf(req)))
	})
}

// The answer to the commit of InTx was lost: the outcome is unknown, the lease has
// ended, and the transaction was committed as a whole or not at all.
func TestRowLostCommit(t *testing.T) {
	eachRowFault(t, func(t *testing.T, x rowWire) {
		admin := mysqltest.AdminPool(t, x.s)
		table := mysqltest.WorkTable(t, admin)
		l, err := lock.New(x.b, nil)
		require.NoError(t, err)
		defer l.Close()
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			for _, id := range []int{1, 2} {
				if _, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = 1 WHERE id = ?", id); err != nil {
					return err
				}
			}
			x.Lose("COMMIT")
			return nil
		})
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		x.free(t, key)
		want := 0
		if x.Fault.Applied {
			want = 2
		}
		require.Equal(t, want, mysqltest.Number(t, admin, "SELECT SUM(n) FROM "+table))
		if err := lease.Release(t.Context()); err != nil || !x.Fault.Silent { // one that was not confirmed is repeated
			require.ErrorIs(t, err, lock.ErrNotHeld)
		}
	})
}

// The check before the commit was lost: nothing is committed.
func TestRowLostCheckBeforeCommit(t *testing.T) {
	eachRowFault(t, func(t *testing.T, x rowWire) {
		admin := mysqltest.AdminPool(t, x.s)
		table := mysqltest.WorkTable(t, admin)
		l, err := lock.New(x.b, nil)
		require.NoError(t, err)
		defer l.Close()
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = 1")
			x.Lose("RELEASE SAVEPOINT")
			return err
		})
		require.ErrorIs(t, err, lock.ErrLost)
		x.free(t, key)
		require.Zero(t, mysqltest.Number(t, admin, "SELECT SUM(n) FROM "+table))
	})
}

// A key that this Locker was the last to have is granted without a savepoint, and InTx sets it.
// When that is lost, the work is not begun.
func TestRowLostBeginOfTx(t *testing.T) {
	eachRowFault(t, func(t *testing.T, x rowWire) {
		l, err := lock.New(x.b, nil)
		require.NoError(t, err)
		defer l.Close()
		x.b.atOnce = time.Hour
		key := backendtest.UniqueKey(t)
		first, err := l.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, first.Release(t.Context()))
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		x.Lose("SAVEPOINT")
		err = InTx(t.Context(), lease, func(context.Context, *Tx) error {
			t.Error("the work was begun")
			return nil
		})
		require.ErrorIs(t, err, lock.ErrLost)
		require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrLost)
		require.Greater(t, x.free(t, key), lease.Token())

		// InTx ends the lease too when it was given up before it sent anything.
		for range 2 { // the second hold has no savepoint
			if err = lease.Release(t.Context()); err != nil {
				require.ErrorIs(t, err, lock.ErrLost)
			}
			lease, err = l.Acquire(backendtest.Short(t, mysqltest.Patience), key)
			require.NoError(t, err)
		}
		_, h, err := holdOf(lease)
		require.NoError(t, err)
		require.False(t, h.marked)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		err = InTx(over, lease, func(context.Context, *Tx) error {
			t.Error("the work was begun")
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrReleased)
		x.free(t, key)
	})
}

// Nothing gets through any more when the work of InTx is done: neither does the commit,
// and the caller is told within the limit of a release.
func TestRowSilenceBeforeCommit(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		p, through := mysqltest.BehindProxy(t, s)
		l, err := newLocker(t.Context(), cuttableConnector(t, s, through), Options{}, lock.Options{})
		require.NoError(t, err)
		defer l.Close()
		admin := mysqltest.AdminPool(t, s)
		table := mysqltest.WorkTable(t, admin)
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		finished := make(chan error, 1)
		go func() {
			finished <- InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = 1")
				p.Freeze()
				return err
			})
		}()
		select {
		case err := <-finished:
			require.ErrorIs(t, err, lock.ErrLost)
			require.NotErrorIs(t, err, lock.ErrOutcomeUnknown, "nobody was asked to commit")
		case <-time.After(mysqltest.Patience):
			t.Error("the server was waited for")
		}
		next, err := lockerOn(t, s, Options{}, lock.Options{}).Acquire(backendtest.Short(t, mysqltest.Patience), key)
		require.NoError(t, err)
		p.Resume()
		require.Zero(t, mysqltest.Number(t, admin, "SELECT SUM(n) FROM "+table))
		require.NoError(t, next.Release(t.Context()))
	})
}

// releaseFollowed is a lease whose hold has another user from the moment at which its
// release returns, as a clean-up has it on a server that is silent.
type releaseFollowed struct {
	lock.Lease
	h *hold
}

func (l releaseFollowed) Release(ctx context.Context) error {
	err := l.Lease.Release(ctx)
	l.h.turn <- struct{}{}
	return err
}

// rowTxBegun is a transaction of InTx that has begun, and its lease.
func rowTxBegun(t *testing.T, s *servertest.Server) (lock.Lease, *Tx) {
	t.Helper()
	lease, err := lockerOn(t, s, Options{}, lock.Options{}).TryAcquire(t.Context(), backendtest.UniqueKey(t))
	require.NoError(t, err)
	b, h, err := holdOf(lease)
	require.NoError(t, err)
	tx := &Tx{b: b, h: h, ctx: t.Context()}
	require.NoError(t, tx.begin(t.Context()))
	return lease, tx
}

// What comes after the release does not hold InTx up.
func TestRowTxEndsWithItsRelease(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for _, commit := range []bool{true, false} {
			lease, tx := rowTxBegun(t, s)
			finished := make(chan error, 1)
			go func() { finished <- tx.finish(t.Context(), releaseFollowed{lease, tx.h}, commit) }()
			select {
			case err := <-finished:
				require.NoError(t, err, "commit %v", commit)
			case <-time.After(mysqltest.Patience):
				t.Error("the clean-up was waited for")
			}
			_, err := tx.ExecContext(backendtest.Short(t, mysqltest.Patience), "SELECT 1")
			require.ErrorIs(t, err, sql.ErrTxDone)
			tx.h.leave()
		}
	})
}

// releaseForgiven is a lease whose release succeeds in the end, as one does that is sent
// again after the first had ended the hold.
type releaseForgiven struct{ lock.Lease }

func (l releaseForgiven) Release(ctx context.Context) error {
	_ = l.Lease.Release(ctx)
	return nil
}

// What ended the hold is told whatever the release says.
func TestRowTxTellsOfTheLoss(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		lease, tx := rowTxBegun(t, s)
		_, err := mysqltest.AdminPool(t, s).ExecContext(t.Context(), fmt.Sprintf("KILL CONNECTION %d", tx.h.s.id))
		require.NoError(t, err)
		require.ErrorIs(t, tx.finish(t.Context(), releaseForgiven{lease}, true), lock.ErrLost)
	})
}

// Rows that the work has left unread end with the server's silence too.
func TestRowSilenceInTheMiddleOfRows(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		p, through := mysqltest.BehindProxy(t, s)
		l, err := newLocker(t.Context(), cuttableConnector(t, s, through), Options{}, lock.Options{})
		require.NoError(t, err)
		defer l.Close()
		table := mysqltest.WorkTable(t, mysqltest.AdminPool(t, s))
		lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(time.Minute))
		require.NoError(t, err)
		finished := make(chan error, 1)
		go func() {
			finished <- InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
				if _, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = 1"); err != nil {
					return err
				}
				// More than what fits into the buffers on the way.
				rows, err := tx.QueryContext(ctx, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT REPEAT('x', 60000) FROM n")
				if err != nil {
					return err
				}
				if !rows.Next() {
					return rows.Err()
				}
				p.Freeze()
				return nil
			})
		}()
		select {
		case err := <-finished:
			require.ErrorIs(t, err, lock.ErrLost)
			require.NotErrorIs(t, err, lock.ErrOutcomeUnknown, "nobody was asked to commit")
		case <-time.After(mysqltest.Patience):
			t.Error("the rest of the rows was waited for")
		}
		p.Resume()
		require.Zero(t, mysqltest.Number(t, mysqltest.AdminPool(t, s), "SELECT SUM(n) FROM "+table))
	})
}

// A commit that InTx did not wait for is never sent: it has said that there was none.
func TestRowTxCommitsNothingAfterItsEnd(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		table := mysqltest.WorkTable(t, mysqltest.AdminPool(t, s))
		lease, tx := rowTxBegun(t, s)
		_, err := tx.ExecContext(t.Context(), "UPDATE "+table+" SET n = 1")
		require.NoError(t, err)
		late := &lateRelease{Lease: lease}
		require.ErrorIs(t, tx.finish(t.Context(), late, true), lock.ErrSessionLost)
		require.NoError(t, lease.Release(late.ctx))
		require.Zero(t, mysqltest.Number(t, mysqltest.AdminPool(t, s), "SELECT SUM(n) FROM "+table))
	})
}

// lateRelease is a lease whose release returns before it has begun.
type lateRelease struct {
	lock.Lease
	ctx context.Context // of the release
}

func (l *lateRelease) Release(ctx context.Context) error {
	l.ctx = ctx
	return context.DeadlineExceeded
}

// Nothing gets through to the server, not even the end of the connection: the lease
// ends by its deadline, and the server ends the session within the TTL, in this order.
func TestRowPartition(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		p, through := mysqltest.BehindProxy(t, s)
		l, err := newLocker(t.Context(), mysqltest.Connector(t, s, through), Options{}, lock.Options{})
		require.NoError(t, err)
		other := lockerOn(t, s, Options{}, lock.Options{})
		key := backendtest.UniqueKey(t)
		// The first time makes the connection and the row, which may take a slow disk
		// longer than an answer under the short TTL may take.
		first, err := l.Acquire(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, first.Release(t.Context()))
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(4*time.Second))
		require.NoError(t, err)
		p.Freeze()
		next, err := other.Acquire(backendtest.Short(t, mysqltest.Patience), key)
		require.NoError(t, err)
		require.Error(t, lease.Context().Err(), "the lease is over before the next one is granted")
		require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrExpired)
		require.Greater(t, next.Token(), lease.Token())
		p.Resume()
		require.ErrorIs(t, lease.Release(t.Context()), lock.ErrNotHeld)
		require.NoError(t, next.Renew(t.Context()))
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, l.Close())
	})
}

// A request for a token that was given up and arrives late, when somebody else holds
// the key, leaves the record of that hold alone, whether the key was new or not.
func TestRowLateToken(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		for _, used := range []bool{false, true} {
			late := &lateConnector{PlainConnector: mysqltest.Connector(t, s, nil), held: make(chan string, 1)}
			a, err := New(t.Context(), late, Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, a.Close()) })
			b := backendOn(t, s, Options{})
			key := backendtest.UniqueKey(t)
			if used {
				hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
				require.NoError(t, b.Release(t.Context(), hold))
			}
			late.armed.Store(true)
			_, err = a.Try(t.Context(), mysqltest.Request(key))
			require.Error(t, err)
			statement := <-late.held
			var hold backend.Hold
			var g backend.Grant
			backendtest.Eventually(t, "the key is free", func() bool {
				req := mysqltest.Request(key)
				g, err = b.Try(t.Context(), req)
				hold = backend.HoldOf(req)
				return err == nil
			})
			mysqltest.Exec(t, admin, statement)
			rec, err := b.Inspect(t.Context(), key)
			require.NoError(t, err)
			assert.Equal(t, g.Token, rec.Token)
			require.NoError(t, b.ForceRelease(t.Context(), key, g.Token))
			assert.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrLost)
		}
	})
}

// A deadlock or a lock wait timeout about the rows of the second table, or about a new
// row, is the server's answer to what others did: the statement is sent again, and the
// caller does not notice.
func TestRowDeadlockIsNotSeen(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for _, code := range []uint16{wire.CodeDeadlock, wire.CodeLockWaitTimeout} {
			for _, statement := range []string{"LAST_INSERT_ID", "_holders` (k, token", "(k) SELECT"} {
				refusing := &refusingConnector{PlainConnector: mysqltest.Connector(t, s, nil), code: code, statement: statement}
				b, err := New(t.Context(), refusing, Options{})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, b.Close()) })
				refusing.left.Store(2)
				hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
				require.Zero(t, refusing.left.Load(), "%d to %s", code, statement)
				require.NoError(t, b.Release(t.Context(), hold))
			}
		}
		// And one that is real.
		admin := mysqltest.AdminPool(t, s)
		b, err := New(t.Context(), mysqltest.Connector(t, s, nil), Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
		require.NoError(t, b.Release(t.Context(), hold))
		tx, err := admin.Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("UPDATE lock_rows_holders SET pid = 7 WHERE k = ?", []byte(hold.Key))
		require.NoError(t, err)
		begun := time.Now()
		time.AfterFunc(lockWait+1500*time.Millisecond, func() { _ = tx.Rollback() })
		hold, _ = backendtest.Granted(t, b, mysqltest.Request(hold.Key))
		require.Greater(t, time.Since(begun), lockWait)
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// refusingConnector makes connections that refuse statements with a text, as the
// server does.
type refusingConnector struct {
	*mysqltest.PlainConnector
	code      uint16
	statement string
	left      atomic.Int64
}

func (c *refusingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &refusingConn{mysqltest.PlainConn{Conn: conn}, c}, nil
}

type refusingConn struct {
	mysqltest.PlainConn
	c *refusingConnector
}

func (c *refusingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	if strings.Contains(q, c.c.statement) && c.c.left.Load() > 0 {
		c.c.left.Add(-1)
		return nil, &mysql.MySQLError{Number: c.c.code, Message: "as if"}
	}
	return c.PlainConn.ExecContext(ctx, q, args)
}

// lateConnector makes connections that keep the first request for a token, once
// armed, and say that they have broken.
type lateConnector struct {
	*mysqltest.PlainConnector
	armed atomic.Bool
	held  chan string
}

func (c *lateConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &lateConn{mysqltest.PlainConn{Conn: conn}, c}, nil
}

type lateConn struct {
	mysqltest.PlainConn
	c *lateConnector
}

func (c *lateConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	if strings.Contains(q, "LAST_INSERT_ID") && c.c.armed.Swap(false) {
		c.c.held <- q
		return nil, mysql.ErrInvalidConn
	}
	return c.PlainConn.ExecContext(ctx, q, args)
}

// Something between client and server goes on with another connection, as a proxy
// with multiplexing does, which the guarantees exclude: the next heartbeat finds that
// the transaction is not there.
func TestRowSwappedConnection(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for _, used := range []bool{false, true} { // the key, by this Locker
			for what, uses := range map[string]func(lock.Lease) error{
				"heartbeat": func(l lock.Lease) error { return l.Renew(t.Context()) },
				"InTx":      func(l lock.Lease) error { return InTx(t.Context(), l, func(context.Context, *Tx) error { return nil }) },
			} {
				c := &swappingConnector{PlainConnector: mysqltest.Connector(t, s, nil)}
				l, err := newLocker(t.Context(), c, Options{}, lock.Options{})
				require.NoError(t, err)
				l.Backend().(*Backend).atOnce = time.Hour
				key := backendtest.UniqueKey(t)
				if used {
					lease, err := l.TryAcquire(t.Context(), key)
					require.NoError(t, err)
					require.NoError(t, lease.Release(t.Context()))
				}
				lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(time.Minute))
				require.NoError(t, err)
				c.swap.Store(true)
				require.ErrorIs(t, uses(lease), lock.ErrLost, "%s, %v", what, used)
				cause := mysqltest.Ended(t, lease)
				require.True(t, errors.Is(cause, lock.ErrSessionLost) || what == "InTx" && errors.Is(cause, lock.ErrReleased), "%s, %v: %v", what, used, cause)
				c.swap.Store(false)
				require.NoError(t, l.Close())
			}
		}
	})
}

// swappingConnector makes connections that send their statements on another one once
// swap is set.
type swappingConnector struct {
	*mysqltest.PlainConnector
	swap atomic.Bool
}

func (c *swappingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	first, err := c.PlainConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	second, err := c.PlainConnector.Connect(ctx)
	if err != nil {
		_ = first.Close()
		return nil, err
	}
	// As on the sessions of row locks: else each statement is a transaction, without the savepoint.
	if _, err := second.(driver.ExecerContext).ExecContext(ctx, "SET SESSION autocommit = 0", nil); err != nil {
		_ = first.Close()
		_ = second.Close()
		return nil, err
	}
	return &swappingConn{mysqltest.PlainConn{Conn: first}, second, c}, nil
}

type swappingConn struct {
	mysqltest.PlainConn
	second driver.Conn
	c      *swappingConnector
}

func (c *swappingConn) Close() error {
	_ = c.second.Close()
	return c.PlainConn.Close()
}

func (c *swappingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	if c.c.swap.Load() {
		return c.second.(driver.ExecerContext).ExecContext(ctx, q, args)
	}
	return c.PlainConn.ExecContext(ctx, q, args)
}

func (c *swappingConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	if c.c.swap.Load() {
		return c.second.(driver.QueryerContext).QueryContext(ctx, q, args)
	}
	return c.PlainConn.QueryContext(ctx, q, args)
}

// The sessions that a program asks for with its DSN make no difference: what the
// locks rely on is set on each connection.
func TestRowSessionsOfUsers(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		sessions := mysqltest.StrangeSessions(t, s)
		sessions["autocommit off"] = "autocommit=0"
		sessions["chain"] = "completion_type=1"
		readOnly := "transaction_read_only"
		if mysqltest.IsMariaDB(t, s) {
			readOnly = "tx_read_only"
		}
		sessions["read only"] = readOnly + "=1"
		plain := backendOn(t, s, Options{})
		admin := mysqltest.AdminPool(t, s)
		for name, params := range sessions {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b, err := New(t.Context(), mysqltest.ConnectorWith(t, s, params), Options{})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, b.Close()) })
				strange := b
				key := backendtest.UniqueKey(t) + "/äöü 漢字 \\ ' \" ` % "
				var last uint64
				for i, c := range []*Backend{strange, plain, strange} {
					other := []*Backend{plain, strange, plain}[i]
					req := mysqltest.Request(key)
					req.Holder = backend.Holder{Label: `ü 漢 \ ' "`, Host: "h", PID: 1}
					hold, g := backendtest.Granted(t, c, req)
					require.Greater(t, g.Token, last)
					last = g.Token
					require.EqualValues(t, last, mysqltest.Number(t, admin, "SELECT token FROM lock_rows_holders WHERE k = x'"+strings.Trim(literal(key), "x'")+"'"), "the token is committed")
					_, err := other.Try(t.Context(), mysqltest.Request(key))
					var held *backend.HeldError
					require.ErrorAs(t, err, &held)
					require.Equal(t, req.Holder.Label, held.Holder.Label)
					rec, err := other.Inspect(t.Context(), key)
					require.NoError(t, err)
					require.Equal(t, last, rec.Token)
					_, err = c.Renew(t.Context(), hold)
					require.NoError(t, err)
					require.NoError(t, c.Release(t.Context(), hold))
					hold, g = backendtest.Granted(t, c, mysqltest.Request(key))
					require.Greater(t, g.Token, last)
					last = g.Token
					require.NoError(t, other.ForceRelease(t.Context(), key, last))
					require.ErrorIs(t, c.Release(t.Context(), hold), backend.ErrLost)
				}
			})
		}
	})
}
