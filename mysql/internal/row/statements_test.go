package row

import (
	"context"
	"database/sql/driver"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// Acquire and release of a key that exists take three statements: the row, the token and the
// rollback. After somebody else's grant the savepoint is a fourth: it is what keeps tokens in the
// order of the holds. A heartbeat takes two, and the first one of a hold without the savepoint
// two more. A try that is refused takes two more than the lock, for the holder's name and the
// end of the transaction.
func TestRowStatements(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		c := &countingConnector{PlainConnector: mysqltest.Connector(t, s, nil)}
		l, err := newLocker(t.Context(), c, Options{}, lock.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		b := l.Backend().(*Backend)
		b.atOnce = time.Hour
		key := backendtest.UniqueKey(t)
		pair := func(acquire func(context.Context, string, ...lock.Option) (lock.Lease, error), key string) []string {
			return c.during(func() {
				lease, err := acquire(t.Context(), key, lock.WithTTL(mysqltest.TTL))
				require.NoError(t, err)
				require.NoError(t, lease.Release(t.Context()))
			})
		}
		pair(l.TryAcquire, key) // makes the connections too
		require.Len(t, pair(l.TryAcquire, key+"/new"), 6, "the try, the row, the lock, the token with its record, the savepoint, the rollback")
		require.Len(t, pair(l.TryAcquire, key), 3)
		require.Len(t, pair(l.Acquire, key), 3)

		other := lockerOn(t, s, Options{}, lock.Options{})
		held, err := other.TryAcquire(t.Context(), key, lock.WithTTL(mysqltest.TTL))
		require.NoError(t, err)
		refusal := func() {
			_, err := l.TryAcquire(t.Context(), key, lock.WithTTL(mysqltest.TTL))
			require.ErrorIs(t, err, lock.ErrHeld)
		}
		require.Len(t, c.during(refusal), 4, "the try, a look whether it met one that only looks, its end, and who has the key")
		require.NoError(t, held.Release(t.Context()))
		require.Len(t, pair(l.TryAcquire, key), 4, "somebody else was granted the key")

		lease, err := l.TryAcquire(t.Context(), key, lock.WithTTL(mysqltest.TTL))
		require.NoError(t, err)
		renew := func() {
			require.NoError(t, lease.Renew(t.Context()))
			b.address.looks.Wait()
		}
		require.Len(t, c.during(renew), 5, "the first one sets the savepoint and looks at the address")
		require.Len(t, c.during(renew), 2)
		require.NoError(t, lease.Release(t.Context()))
	})
}

// Who queues while this backend has just been granted the row knows that it is held: no statement
// asks for that. Later, and when the holder has given the row back, one does.
func TestRowPlaceBesideAGrantOfItsOwn(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		c := &countingConnector{PlainConnector: mysqltest.Connector(t, s, nil)}
		b, err := New(t.Context(), c, Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		first := backend.Request{Key: backendtest.UniqueKey(t), ID: backend.NewID(), TTL: mysqltest.TTL}
		next := func() backend.Request {
			r := first
			r.ID = backend.NewID()
			return r
		}
		place := func(r backend.Request) (ticket backend.Ticket, statements int) {
			statements = len(c.during(func() { ticket, err = b.Enqueue(t.Context(), r) }))
			require.NoError(t, err)
			return ticket, statements
		}
		age := func() time.Duration {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.clock.Now().Sub(b.held[first.Key].since)
		}
		_, err = b.Try(t.Context(), first)
		require.NoError(t, err)
		r := next()
		ticket, statements := place(r)
		if age() < justGranted {
			require.Zero(t, statements)
		}
		require.True(t, ticket.Behind())
		require.NoError(t, ticket.Withdraw(t.Context()), "nothing was asked yet")

		require.Eventually(t, func() bool { return age() >= justGranted }, time.Minute, time.Millisecond)
		asked, statements := place(next())
		require.NotZero(t, statements)
		require.True(t, asked.Behind())
		require.NoError(t, asked.Withdraw(t.Context()))

		require.NoError(t, b.Release(t.Context(), backend.HoldOf(first)))
		second := next()
		ticket, _ = place(second)
		require.False(t, ticket.Behind(), "the row is free")
		_, err = ticket.Wait(t.Context())
		require.NoError(t, err)
		third := next()
		waiting, _ := place(third)
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(second)))
		_, err = waiting.Wait(t.Context())
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(third)))
	})
}

// countingConnector notes the statements that its connections send.
type countingConnector struct {
	*mysqltest.PlainConnector
	mu   sync.Mutex
	sent []string
}

func (c *countingConnector) note(q string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, q)
}

// during returns the statements of f.
func (c *countingConnector) during(f func()) []string {
	c.mu.Lock()
	c.sent = nil
	c.mu.Unlock()
	f()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

func (c *countingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &countingConn{mysqltest.PlainConn{Conn: conn}, c}, nil
}

type countingConn struct {
	mysqltest.PlainConn
	c *countingConnector
}

func (c *countingConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	c.c.note(q)
	return c.PlainConn.QueryContext(ctx, q, args)
}

func (c *countingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	c.c.note(q)
	return c.PlainConn.ExecContext(ctx, q, args)
}
