package row

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net"
	"strings"
	"sync"
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

// A hold whose connection was ended by an operator is lost, however many new
// connections the pool makes meanwhile, and the next holder is let in at once.
func TestRowLostWithItsConnection(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		a, b := lockerOn(t, s, Options{}, lock.Options{}), lockerOn(t, s, Options{}, lock.Options{})
		key := backendtest.UniqueKey(t)
		lease, err := a.TryAcquire(t.Context(), key, lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		mysqltest.Exec(t, admin, fmt.Sprintf("KILL CONNECTION %d", connectionOf(t, admin, key)))
		for i := range 5 { // the pool reconnects
			other, err := a.TryAcquire(t.Context(), fmt.Sprintf("%s/%d", key, i), lock.WithTTL(6*time.Second))
			require.NoError(t, err)
			require.NoError(t, other.Release(t.Context()))
		}
		next, err := b.Acquire(backendtest.Short(t, mysqltest.Patience), key)
		require.NoError(t, err)
		assert.Greater(t, next.Token(), lease.Token())
		assert.ErrorIs(t, mysqltest.Ended(t, lease), lock.ErrSessionLost, "a heartbeat has noticed, and not the deadline")
		assert.ErrorIs(t, lease.Renew(t.Context()), lock.ErrNotHeld)
		assert.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost)
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestRowSurvivesKillQuery(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		a, b := lockerOn(t, s, Options{}, lock.Options{}), lockerOn(t, s, Options{}, lock.Options{})
		key := backendtest.UniqueKey(t)
		lease, err := a.TryAcquire(t.Context(), key, lock.WithTTL(time.Minute))
		require.NoError(t, err)
		kill := fmt.Sprintf("KILL QUERY %d", connectionOf(t, admin, key))
		ctx, cancel := context.WithCancel(t.Context())
		var killer sync.WaitGroup
		killer.Go(func() {
			for ctx.Err() == nil {
				_, err := admin.ExecContext(t.Context(), kill)
				assert.NoError(t, err)
			}
		})
		killed := 0
		for range 100 {
			if err := lease.Renew(t.Context()); err != nil {
				assert.ErrorIs(t, err, lock.ErrUnavailable)
				killed++
			}
		}
		cancel()
		killer.Wait()
		t.Logf("%d of 100 heartbeats were killed", killed)
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Renew(t.Context()))
		_, err = b.TryAcquire(t.Context(), key)
		require.ErrorIs(t, err, lock.ErrHeld)
		require.NoError(t, lease.Release(t.Context()))
	})
}

// A wait that is cancelled leaves no thread in the server's queue, and nobody is
// granted the row in its name. Only a server that takes more than a second to confirm
// that is not waited for.
func TestRowCancelledWaitLeavesNothing(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		b := backendOn(t, s, Options{})
		c := &countingConnector{PlainConnector: mysqltest.Connector(t, s, nil)}
		made, err := New(t.Context(), c, Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, made.Close()) })
		other := made
		key := backendtest.UniqueKey(t)
		hold, g := backendtest.Granted(t, b, mysqltest.Request(key))
		confirmed := 0
		for range 5 {
			req := mysqltest.Request(key)
			ticket, err := other.Enqueue(t.Context(), req)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := ticket.Wait(ctx)
				done <- err
			}()
			backendtest.Eventually(t, "the wait is on the server", func() bool { return statementsOn(t, admin, key) == 1 })
			sent := c.during(func() {
				cancel()
				require.ErrorIs(t, <-done, context.Canceled)
			})
			require.NotEmpty(t, sent)
			if strings.HasPrefix(sent[len(sent)-1], "SELECT RELEASE_LOCK") { // the server has confirmed it
				confirmed++
				assert.Zero(t, statementsOn(t, admin, key), "threads that wait for the row when Wait has returned")
			}
			require.NoError(t, ticket.Withdraw(t.Context()))
		}
		require.NotZero(t, confirmed)
		require.NoError(t, b.Release(t.Context(), hold))
		next, ng := backendtest.Granted(t, b, mysqltest.Request(key))
		assert.Greater(t, ng.Token, g.Token)
		require.NoError(t, b.Release(t.Context(), next))
	})
}

// A wait goes on when the server's own limit for waits has passed.
func TestRowWaitOutlastsLockWaitTimeout(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b := backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		hold, _ := backendtest.Granted(t, b, mysqltest.Request(key))
		req := mysqltest.Request(key)
		ticket, err := b.Enqueue(t.Context(), req)
		require.NoError(t, err)
		type answer struct {
			g   backend.Grant
			err error
		}
		answers := make(chan answer, 1)
		go func() {
			g, err := ticket.Wait(t.Context())
			answers <- answer{g, err}
		}()
		select {
		case a := <-answers:
			require.Fail(t, "the wait ended", "%v", a.err)
		case <-time.After(lockWait + lockWait/2):
		}
		released := b.clock.Now()
		require.NoError(t, b.Release(t.Context(), hold))
		a := <-answers
		require.NoError(t, a.err)
		// The server may have ended one statement for the row just before, so that the next one waited for a moment only.
		assert.GreaterOrEqual(t, a.g.Sent, released.Add(-b.atOnce), "the validity begins when the wait was over")
		require.NoError(t, ticket.Withdraw(t.Context()))
	})
}

// After many acquisitions that fail or are given up, the server has no more threads,
// and the pool no fewer places, than before.
func TestRowFailuresLeaveNothing(t *testing.T) {
	t.Parallel()
	s := servertest.MariaDB(t)
	admin := mysqltest.AdminPool(t, s)
	threads := func() int {
		return mysqltest.Number(t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND USER NOT IN ('root', 'system user', 'event_scheduler')")
	}
	holder := backendOn(t, s, Options{})
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, holder, mysqltest.Request(key))
	before := threads()
	l, err := newLocker(t.Context(), mysqltest.Connector(t, s, nil), Options{PoolSize: 4, ControlPoolSize: 1}, lock.Options{})
	require.NoError(t, err)
	b := l.Backend().(*Backend)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 125 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10)*time.Millisecond)
				if i%2 == 0 {
					_, err := l.Acquire(ctx, key)
					assert.Error(t, err)
				} else {
					_, err := l.TryAcquire(ctx, key)
					assert.Error(t, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	backendtest.Eventually(t, "the places of the pool are free", func() bool { return len(b.sessions.slots) == 0 })
	backendtest.Eventually(t, "no hold is left", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.holds) == 0
	})
	backendtest.Eventually(t, "no thread waits", func() bool { return statementsOn(t, admin, key) == 0 })
	require.NoError(t, l.Close())
	backendtest.Eventually(t, "the threads are gone", func() bool { return threads() <= before })
	require.NoError(t, holder.Release(t.Context(), hold))
}

// Each hold needs a connection. One acquisition more than there are waits for one,
// and ends with its context.
func TestRowPoolTooSmall(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		l := lockerOn(t, s, Options{PoolSize: 2}, lock.Options{})
		key := backendtest.UniqueKey(t)
		first, err := l.Acquire(t.Context(), key+"/1")
		require.NoError(t, err)
		second, err := l.TryAcquire(t.Context(), key+"/2")
		require.NoError(t, err)
		for name, acquire := range map[string]func(context.Context, string, ...lock.Option) (lock.Lease, error){
			"Acquire": l.Acquire, "TryAcquire": l.TryAcquire,
		} {
			_, err = acquire(backendtest.Short(t, 300*time.Millisecond), key+"/3")
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
		}
		got := make(chan error, 1)
		go func() {
			lease, err := l.Acquire(backendtest.Short(t, mysqltest.Patience), key+"/4")
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		b := l.Backend().(*Backend)
		backendtest.Eventually(t, "it has been asked for", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, h := range b.holds {
				if h.key == key+"/4" {
					return true
				}
			}
			return false
		})
		require.Empty(t, got)
		require.NoError(t, first.Release(t.Context()))
		require.NoError(t, <-got)
		require.NoError(t, second.Release(t.Context()))
	})
}

// What is set on the connections stays on them: the caller's own are as they were,
// whatever the caller sets on his.
func TestRowSessionVariables(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := mysqltest.AdminPool(t, s)
		timeout := mysqltest.Number(t, admin, "SELECT @@SESSION.wait_timeout")
		connector := mysqltest.Connector(t, s, func(c *mysql.Config) {
			c.Params = map[string]string{"time_zone": "'+11:00'", "sql_mode": "'ANSI_QUOTES'", "autocommit": "1"}
			c.ParseTime, c.ClientFoundRows, c.InterpolateParams = true, true, true
		})
		b, err := New(t.Context(), connector, Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		key := backendtest.UniqueKey(t)
		for _, ttl := range []time.Duration{2 * time.Minute, 5 * time.Minute, 5 * time.Minute, time.Minute} {
			req := mysqltest.Request(key)
			req.TTL = ttl
			hold, g := backendtest.Granted(t, b, req)
			connection := connectionOf(t, admin, key)
			h := b.find(hold)
			var wait, autocommit int
			require.NoError(t, h.s.conn.QueryRowContext(t.Context(), "SELECT @@SESSION.wait_timeout, @@SESSION.autocommit").Scan(&wait, &autocommit))
			assert.Equal(t, int(ttl/time.Second), wait)
			assert.Zero(t, autocommit)
			assert.NotZero(t, connection)
			assert.InDelta(t, time.Now().UnixMicro(), g.Token, float64(time.Hour/time.Microsecond), "a token is the server's clock in UTC")
			require.NoError(t, b.Release(t.Context(), hold))
		}
		assert.Equal(t, timeout, mysqltest.Number(t, admin, "SELECT @@SESSION.wait_timeout"))
		mine := mysqltest.AdminPool(t, s)
		assert.Equal(t, timeout, mysqltest.Number(t, mine, "SELECT @@SESSION.wait_timeout"))
	})
}

// A session that was idle for longer than its TTL has been closed by the server; the
// next acquisition takes another one.
func TestRowIdleSessionsEnd(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		b := backendOn(t, s, Options{})
		key := backendtest.UniqueKey(t)
		req := func() backend.Request {
			return backend.Request{Key: key, ID: backend.NewID(), TTL: 3 * time.Second}
		}
		hold, _ := backendtest.Granted(t, b, req())
		first := b.find(hold).s
		require.NoError(t, b.Release(t.Context(), hold))
		hold, _ = backendtest.Granted(t, b, req())
		assert.Same(t, first, b.find(hold).s)
		require.NoError(t, b.Release(t.Context(), hold))
		admin := mysqltest.AdminPool(t, s)
		backendtest.Eventually(t, "the server has closed it", func() bool {
			return mysqltest.Number(t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ?", first.id) == 0
		})
		first.used = b.clock.Now() // as if it had been used just now
		hold, _ = backendtest.Granted(t, b, req())
		assert.NotSame(t, first, b.find(hold).s)
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// New keys are made by many at the same time without a deadlock, and each key is
// given to one of those who ask for it. LOCK_TEST_STORM makes it last longer.
func TestRowNewKeys(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		lockers := []lock.Locker{lockerOn(t, s, Options{}, lock.Options{}), lockerOn(t, s, Options{}, lock.Options{})}
		base := backendtest.UniqueKey(t)
		admin := mysqltest.AdminPool(t, s)
		before := mysqltest.Deadlocks(t, admin)
		var grants atomic.Int64
		end := time.Now().Add(mysqltest.Storm())
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					lease, err := lockers[i%2].Acquire(backendtest.Short(t, mysqltest.Patience), fmt.Sprintf("%s/%d/%d", base, i/2, n))
					if !assert.NoError(t, err) {
						return
					}
					grants.Add(1)
					assert.NoError(t, lease.Release(t.Context()))
				}
			})
		}
		wg.Wait()
		t.Logf("%s: %d granted; %d deadlocks seen by the server", mysqltest.Storm(), grants.Load(), mysqltest.Deadlocks(t, admin)-before)
	})
}

// A context that ends together with the last answer can have the driver close the
// connection and report success. That is no grant.
func TestRowGrantBesideCancel(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		b, err := New(t.Context(), &closingConnector{mysqltest.Connector(t, s, nil), cancel}, Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		req := mysqltest.Request(backendtest.UniqueKey(t))
		_, err = b.Try(ctx, req)
		require.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, b.Release(t.Context(), backend.HoldOf(req)), backend.ErrNotHeld)
		other := backendOn(t, s, Options{})
		backendtest.Eventually(t, "the key is free", func() bool {
			again := mysqltest.Request(req.Key)
			_, err := other.Try(t.Context(), again)
			return err == nil && other.Release(t.Context(), backend.HoldOf(again)) == nil
		})
	})
}

// A connector that gives an answer up sooner than the server gives a wait up is refused
// if it is ours. Another one cannot be told from one whose connections break; the error
// of the wait says what to look at.
func TestRowReadTimeoutTooShort(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		holder := backendOn(t, s, Options{})
		hold, _ := backendtest.Granted(t, holder, mysqltest.Request(backendtest.UniqueKey(t)))
		var armed atomic.Bool
		b, err := New(t.Context(), mysqltest.Connector(t, s, func(c *mysql.Config) {
			c.ReadTimeout = 300 * time.Millisecond
			c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return patientConn{conn, &armed}, err
			}
		}), Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		for timeout, want := range map[time.Duration]error{300 * time.Millisecond: backend.ErrInvalid, longestSilence: backend.ErrInvalid, longestSilence + 1: nil} {
			cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
			require.NoError(t, err)
			cfg.ReadTimeout = timeout
			own, err := wire.NewConnector(cfg, 0)
			require.NoError(t, err)
			one, err := New(t.Context(), own, Options{})
			require.ErrorIs(t, err, want)
			if err == nil {
				require.NoError(t, one.Close())
			} else {
				require.ErrorContains(t, err, "ReadTimeout")
			}
		}
		ticket, err := b.Enqueue(t.Context(), mysqltest.Request(hold.Key))
		require.NoError(t, err)
		armed.Store(true)
		_, err = ticket.Wait(t.Context())
		armed.Store(false)
		require.ErrorContains(t, err, "ReadTimeout")
		require.NotErrorIs(t, err, backend.ErrHeld)
		require.NoError(t, ticket.Withdraw(t.Context()))
		require.NoError(t, holder.Release(t.Context(), hold))
	})
}

// patientConn is a connection whose reads have no limit before it is armed.
type patientConn struct {
	net.Conn
	armed *atomic.Bool
}

func (c patientConn) SetReadDeadline(at time.Time) error {
	if !c.armed.Load() {
		at = time.Time{}
	}
	return c.Conn.SetReadDeadline(at)
}

// closingConnector makes connections that close, and end a context, when the
// savepoint of a grant has succeeded.
type closingConnector struct {
	*mysqltest.PlainConnector
	cancel func()
}

func (c *closingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.PlainConnector.Connect(ctx)
	return &closingConn{mysqltest.PlainConn{Conn: conn}, c.cancel}, err
}

type closingConn struct {
	mysqltest.PlainConn
	cancel func()
}

func (c *closingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.PlainConn.ExecContext(ctx, q, args)
	if err == nil && strings.HasPrefix(q, "SAVEPOINT") {
		_ = c.Close()
		c.cancel()
	}
	return res, err
}
