package mysqllock

import (
	"context"
	"database/sql/driver"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// Acquire and release of a key that exists take four statements, as bare ones do:
// the row, the token, the savepoint in place of BEGIN, and the rollback. A heartbeat
// takes two, and a try that is refused two more than the lock, for the holder's name
// and the end of the transaction.
func TestRowStatements(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		c := &countingConnector{ownConnector: rowConnector(t, s, nil)}
		l, err := NewRow(t.Context(), c, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		key := uniqueKey(t)
		for i, acquire := range []func(context.Context, string, ...lock.Option) (lock.Lease, error){l.TryAcquire, l.TryAcquire, l.Acquire} {
			before := c.sent.Load()
			lease, err := acquire(t.Context(), key, lock.WithTTL(time.Minute))
			require.NoError(t, err)
			require.NoError(t, lease.Release(t.Context()))
			if i > 0 { // the first one makes the row and the session
				require.EqualValues(t, 4, c.sent.Load()-before)
			}
		}
		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(time.Minute))
		require.NoError(t, err)
		before := c.sent.Load()
		require.NoError(t, lease.Renew(t.Context()))
		require.EqualValues(t, 2, c.sent.Load()-before)
		other := rowLockerOn(t, s, nil)
		next, err := other.TryAcquire(t.Context(), key+"/2", lock.WithTTL(time.Minute))
		require.NoError(t, err)
		warm, err := l.TryAcquire(t.Context(), key+"/3", lock.WithTTL(time.Minute))
		require.NoError(t, err)
		require.NoError(t, warm.Release(t.Context()))
		before = c.sent.Load()
		_, err = l.TryAcquire(t.Context(), key+"/2", lock.WithTTL(time.Minute))
		require.ErrorIs(t, err, lock.ErrHeld)
		require.EqualValues(t, 3, c.sent.Load()-before)
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, lease.Release(t.Context()))
	})
}

// countingConnector counts the statements that its connections send.
type countingConnector struct {
	*ownConnector
	sent atomic.Int64
}

func (c *countingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.ownConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &countingConn{plainConn{conn}, &c.sent}, nil
}

type countingConn struct {
	plainConn
	sent *atomic.Int64
}

func (c *countingConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	c.sent.Add(1)
	return c.plainConn.QueryContext(ctx, q, args)
}

func (c *countingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	c.sent.Add(1)
	return c.plainConn.ExecContext(ctx, q, args)
}
