package table

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// proxiedPool is a pool whose connections go through a proxy of the test's own, made
// with either connector.
func proxiedPool(t testing.TB, s *servertest.Server, own bool) (*servertest.TCPProxy, *sql.DB) {
	t.Helper()
	p, through := mysqltest.BehindProxy(t, s)
	c, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	c.Logger = &mysql.NopLogger{}
	through(c)
	var connector driver.Connector
	if own {
		connector, err = wire.NewConnector(c, 0)
	} else {
		connector, err = mysql.NewConnector(c)
	}
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return p, db
}

// tableWire is a table behind a proxy and the same one beside it.
type tableWire struct {
	mysqltest.Wire
	b, other *Backend
}

// eachWireFault runs a test with each fault, with both connectors, on both servers.
// The test must lose one request.
func eachWireFault(t *testing.T, f func(t *testing.T, w tableWire)) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		mysqltest.Together(t, mysqltest.WireFaults(), func(t *testing.T, fault mysqltest.WireFault) {
			p, db := proxiedPool(t, s, fault.Own)
			other, _ := sharedTable(t, s)
			f(t, tableWire{mysqltest.Wire{Proxy: p, Fault: fault}, tableOn(t, db, Options{}), other})
			require.Equal(t, 1, p.Lost())
		})
	})
}

// A request whose answer was lost is neither a grant nor a refusal. Its repeat finds
// what it has done and counts it once, or does it now.
func TestTableLostGrant(t *testing.T) {
	for what, c := range map[string]struct {
		statement string
		used      bool // the row exists
	}{
		"new key":  {"INSERT INTO", false},
		"free key": {"hold_count=1", true},
	} {
		t.Run(what, func(t *testing.T) {
			eachWireFault(t, func(t *testing.T, w tableWire) {
				req := mysqltest.Request(backendtest.UniqueKey(t))
				if c.used {
					hold, _ := backendtest.Granted(t, w.other, mysqltest.Request(req.Key))
					require.NoError(t, w.other.Release(t.Context(), hold))
				}
				w.Lose(c.statement)
				_, err := w.b.Try(w.Until(t), req)
				mysqltest.Unknown(t, err)
				rec, err := w.other.Inspect(t.Context(), req.Key)
				if !w.Fault.Applied {
					require.ErrorIs(t, err, backend.ErrNotHeld)
				} else {
					require.NoError(t, err)
				}
				hold, g := backendtest.Granted(t, w.b, req)
				require.Equal(t, 1, g.Holds)
				if w.Fault.Applied {
					require.Equal(t, rec.Token, g.Token)
				}
				require.NoError(t, w.b.Release(t.Context(), hold))
				_, err = w.other.Inspect(t.Context(), req.Key)
				require.ErrorIs(t, err, backend.ErrNotHeld)
			})
		})
	}
}

// The second hold of an owner whose answer was lost is counted once.
func TestTableLostSecondHold(t *testing.T) {
	eachWireFault(t, func(t *testing.T, w tableWire) {
		key := backendtest.UniqueKey(t)
		first, _ := backendtest.Granted(t, w.other, mysqltest.OwnedRequest(key, "alice", mysqltest.TTL))
		req := mysqltest.OwnedRequest(key, "alice", mysqltest.TTL)
		w.Lose("hold_count=2")
		_, err := w.b.Try(w.Until(t), req)
		mysqltest.Unknown(t, err)
		second, g := backendtest.Granted(t, w.b, req)
		require.Equal(t, 2, g.Holds)
		require.NoError(t, w.b.Release(t.Context(), second))
		rec, err := w.other.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, 1, rec.Holds)
		require.NoError(t, w.other.Release(t.Context(), first))
	})
}

// A renewal whose answer was lost ends nothing.
func TestTableLostRenewal(t *testing.T) {
	eachWireFault(t, func(t *testing.T, w tableWire) {
		hold, _ := backendtest.Granted(t, w.b, mysqltest.Request(backendtest.UniqueKey(t)))
		w.Lose("expires=GREATEST")
		v, err := w.b.Renew(w.Until(t), hold)
		mysqltest.Unknown(t, err)
		require.Zero(t, v.For, "it is not confirmed")
		_, err = w.b.Renew(t.Context(), hold)
		require.NoError(t, err)
		require.NoError(t, w.b.Release(t.Context(), hold))
	})
}

// A release whose answer was lost can be repeated, and its repeat does not touch the
// next holder.
func TestTableLostRelease(t *testing.T) {
	eachWireFault(t, func(t *testing.T, w tableWire) {
		hold, _ := backendtest.Granted(t, w.b, mysqltest.Request(backendtest.UniqueKey(t)))
		w.Lose("hold_count=0")
		mysqltest.Unknown(t, w.b.Release(w.Until(t), hold))
		if !w.Fault.Applied {
			require.NoError(t, w.b.Release(t.Context(), hold))
			return
		}
		next, _ := backendtest.Granted(t, w.other, mysqltest.Request(hold.Key))
		require.ErrorIs(t, w.b.Release(t.Context(), hold), backend.ErrNotHeld)
		_, err := w.other.Renew(t.Context(), next)
		require.NoError(t, err)
		require.NoError(t, w.other.Release(t.Context(), next))
	})
}

// A hand-over whose answer was lost has either happened or not; its repeat says which,
// and grants once.
func TestTableLostHandOver(t *testing.T) {
	eachWireFault(t, func(t *testing.T, w tableWire) {
		from, _ := backendtest.Granted(t, w.b, mysqltest.Request(backendtest.UniqueKey(t)))
		to := mysqltest.Request(from.Key)
		w.Lose("hold_count=1")
		_, err := w.b.HandOver(w.Until(t), from, to)
		mysqltest.Unknown(t, err)
		g, err := w.b.HandOver(t.Context(), from, to)
		require.NoError(t, err)
		rec, err := w.other.Inspect(t.Context(), from.Key)
		require.NoError(t, err)
		require.Equal(t, rec.Token, g.Token)
		require.Equal(t, 1, rec.Holds)
		require.ErrorIs(t, w.b.Release(t.Context(), from), backend.ErrNotHeld)
		require.NoError(t, w.b.Release(t.Context(), backend.HoldOf(to)))
	})
}

// The answer to the commit of a guarded write was lost: the outcome is unknown, and
// the lease goes on.
func TestTableLostCommit(t *testing.T) {
	eachWireFault(t, func(t *testing.T, w tableWire) {
		l, err := lock.New(w.b, nil)
		require.NoError(t, err)
		defer l.Close()
		table, n := counter(t, w.other.db)
		lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(time.Minute))
		require.NoError(t, err)
		err = Guarded(w.Until(t), lease, func(ctx context.Context, tx *sql.Tx) error {
			w.Lose("COMMIT")
			return add(table)(ctx, tx)
		})
		require.ErrorIs(t, err, lock.ErrOutcomeUnknown)
		want := 0
		if w.Fault.Applied {
			want = 1
		}
		backendtest.Eventually(t, "the server has ended the transaction", func() bool { return n() == want })
		require.NoError(t, lease.Renew(t.Context()))
		require.NoError(t, Guarded(t.Context(), lease, add(table)))
		require.Equal(t, want+1, n())
		require.NoError(t, lease.Release(t.Context()))
	})
}

// A Locker that gets no answer to its grant leaves the key to the others at once, and
// not after the TTL.
func TestTableLostGrantIsRemoved(t *testing.T) {
	eachWireFault(t, func(t *testing.T, w tableWire) {
		l, err := lock.New(w.b, nil)
		require.NoError(t, err)
		defer l.Close()
		key := backendtest.UniqueKey(t)
		w.Lose("INSERT INTO")
		lease, err := l.TryAcquire(w.Until(t), key, lock.WithTTL(10*time.Minute))
		if err == nil {
			require.NoError(t, lease.Release(t.Context()))
		} else {
			require.NotErrorIs(t, err, lock.ErrHeld)
		}
		backendtest.Eventually(t, "the key is free", func() bool {
			req := mysqltest.Request(key)
			_, err := w.other.Try(t.Context(), req)
			return err == nil && w.other.Release(t.Context(), backend.HoldOf(req)) == nil
		})
	})
}

// Nothing gets through to the server: the lease ends by its deadline, before others
// are granted the key.
func TestTablePartition(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		p, db := proxiedPool(t, s, true)
		l := lockerOn(t, db, lock.Options{})
		other := lockerOn(t, mysqltest.UserPool(t, s, ""), lock.Options{})
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(3*time.Second))
		require.NoError(t, err)
		p.Freeze()
		next, err := other.Acquire(backendtest.Short(t, mysqltest.Patience), key)
		require.NoError(t, err)
		require.Error(t, lease.Context().Err(), "the lease is over before the next one is granted")
		require.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrExpired)
		require.Greater(t, next.Token(), lease.Token())
		p.Resume()
		require.ErrorIs(t, lease.Release(t.Context()), lock.ErrNotHeld)
		require.NoError(t, next.Renew(t.Context()), "what was held back has changed nothing")
		require.NoError(t, next.Release(t.Context()))
	})
}
