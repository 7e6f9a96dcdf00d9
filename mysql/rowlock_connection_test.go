package mysqllock

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
	"github.com/mortiselock/lock/internal/servertest"
)

// A hold whose connection was ended by an operator is lost, however many new
// connections the pool makes meanwhile, and the next holder is let in at once.
func TestRowLostWithItsConnection(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		a, b := rowLockerOn(t, s, nil), rowLockerOn(t, s, nil)
		key := uniqueKey(t)
		lease, err := a.TryAcquire(t.Context(), key, lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		run(t, admin, fmt.Sprintf("KILL CONNECTION %d", connectionOf(t, admin, key)))
		for i := range 5 { // the pool reconnects
			other, err := a.TryAcquire(t.Context(), fmt.Sprintf("%s/%d", key, i), lock.WithTTL(6*time.Second))
			require.NoError(t, err)
			require.NoError(t, other.Release(t.Context()))
		}
		next, err := b.Acquire(short(t, patience), key)
		require.NoError(t, err)
		assert.Greater(t, next.Token(), lease.Token())
		assert.ErrorIs(t, ended(t, lease), lock.ErrSessionLost, "a heartbeat has noticed, and not the deadline")
		assert.ErrorIs(t, lease.Renew(t.Context()), lock.ErrNotHeld)
		assert.ErrorIs(t, lease.Release(t.Context()), lock.ErrLost)
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestRowSurvivesKillQuery(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		a, b := rowLockerOn(t, s, nil), rowLockerOn(t, s, nil)
		key := uniqueKey(t)
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
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		b := rowBackendOn(t, s, nil)
		c := &countingConnector{ownConnector: rowConnector(t, s, nil)}
		made, err := NewRowBackend(t.Context(), c, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, made.Close()) })
		other := made.(*rowBackend)
		key := uniqueKey(t)
		hold, g := granted(t, b, request(key))
		confirmed := 0
		for range 5 {
			req := request(key)
			ticket, err := other.Enqueue(t.Context(), req)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := ticket.Wait(ctx)
				done <- err
			}()
			eventually(t, "the wait is on the server", func() bool { return statementsOn(t, admin, key) == 1 })
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
		next, ng := granted(t, b, request(key))
		assert.Greater(t, ng.Token, g.Token)
		require.NoError(t, b.Release(t.Context(), next))
	})
}

// A wait goes on when the server's own limit for waits has passed.
func TestRowWaitOutlastsLockWaitTimeout(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b := rowBackendOn(t, s, nil)
		key := uniqueKey(t)
		hold, _ := granted(t, b, request(key))
		req := request(key)
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
		assert.GreaterOrEqual(t, a.g.Sent, released, "the validity begins when the wait was over")
		require.NoError(t, ticket.Withdraw(t.Context()))
	})
}

// After many acquisitions that fail or are given up, the server has no more threads,
// and the pool no fewer places, than before.
func TestRowFailuresLeaveNothing(t *testing.T) {
	t.Parallel()
	s := servertest.MariaDB(t)
	admin := adminOf(t, s)
	threads := func() int {
		return number(t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND USER NOT IN ('root', 'system user', 'event_scheduler')")
	}
	holder := rowBackendOn(t, s, nil)
	key := uniqueKey(t)
	hold, _ := granted(t, holder, request(key))
	before := threads()
	l, err := NewRow(t.Context(), rowConnector(t, s, nil), &RowOptions{PoolSize: 4, ControlPoolSize: 1})
	require.NoError(t, err)
	b := l.(interface{ Backend() backend.Backend }).Backend().(*rowBackend)
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
	eventually(t, "the places of the pool are free", func() bool { return len(b.sessions.slots) == 0 })
	eventually(t, "no hold is left", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.holds) == 0
	})
	eventually(t, "no thread waits", func() bool { return statementsOn(t, admin, key) == 0 })
	require.NoError(t, l.Close())
	eventually(t, "the threads are gone", func() bool { return threads() <= before })
	require.NoError(t, holder.Release(t.Context(), hold))
}

// Each hold needs a connection. One acquisition more than there are waits for one,
// and ends with its context.
func TestRowPoolTooSmall(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		l := rowLockerOn(t, s, &RowOptions{PoolSize: 2})
		key := uniqueKey(t)
		first, err := l.Acquire(t.Context(), key+"/1")
		require.NoError(t, err)
		second, err := l.TryAcquire(t.Context(), key+"/2")
		require.NoError(t, err)
		for name, acquire := range map[string]func(context.Context, string, ...lock.Option) (lock.Lease, error){
			"Acquire": l.Acquire, "TryAcquire": l.TryAcquire,
		} {
			_, err = acquire(short(t, 300*time.Millisecond), key+"/3")
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
		}
		got := make(chan error, 1)
		go func() {
			lease, err := l.Acquire(short(t, patience), key+"/4")
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		b := l.(interface{ Backend() backend.Backend }).Backend().(*rowBackend)
		eventually(t, "it has been asked for", func() bool {
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
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		admin := adminOf(t, s)
		timeout := number(t, admin, "SELECT @@SESSION.wait_timeout")
		connector := rowConnector(t, s, func(c *mysql.Config) {
			c.Params = map[string]string{"time_zone": "'+11:00'", "sql_mode": "'ANSI_QUOTES'", "autocommit": "1"}
			c.ParseTime, c.ClientFoundRows, c.InterpolateParams = true, true, true
		})
		b, err := NewRowBackend(t.Context(), connector, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		key := uniqueKey(t)
		for _, ttl := range []time.Duration{2 * time.Minute, 5 * time.Minute, 5 * time.Minute, time.Minute} {
			req := request(key)
			req.TTL = ttl
			hold, g := granted(t, b, req)
			connection := connectionOf(t, admin, key)
			h := b.(*rowBackend).find(hold)
			var wait, autocommit int
			require.NoError(t, h.s.conn.QueryRowContext(t.Context(), "SELECT @@SESSION.wait_timeout, @@SESSION.autocommit").Scan(&wait, &autocommit))
			assert.Equal(t, int(ttl/time.Second), wait)
			assert.Zero(t, autocommit)
			assert.NotZero(t, connection)
			assert.InDelta(t, time.Now().UnixMicro(), g.Token, float64(time.Hour/time.Microsecond), "a token is the server's clock in UTC")
			require.NoError(t, b.Release(t.Context(), hold))
		}
		assert.Equal(t, timeout, number(t, admin, "SELECT @@SESSION.wait_timeout"))
		mine := adminOf(t, s)
		assert.Equal(t, timeout, number(t, mine, "SELECT @@SESSION.wait_timeout"))
	})
}

// A session that was idle for longer than its TTL has been closed by the server; the
// next acquisition takes another one.
func TestRowIdleSessionsEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		b := rowBackendOn(t, s, nil)
		key := uniqueKey(t)
		req := func() backend.Request {
			return backend.Request{Key: key, ID: backend.NewID(), TTL: 3 * time.Second}
		}
		hold, _ := granted(t, b, req())
		first := b.find(hold).s
		require.NoError(t, b.Release(t.Context(), hold))
		hold, _ = granted(t, b, req())
		assert.Same(t, first, b.find(hold).s)
		require.NoError(t, b.Release(t.Context(), hold))
		admin := adminOf(t, s)
		eventually(t, "the server has closed it", func() bool {
			return number(t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ?", first.id) == 0
		})
		first.used = b.clock.Now() // as if it had been used just now
		hold, _ = granted(t, b, req())
		assert.NotSame(t, first, b.find(hold).s)
		require.NoError(t, b.Release(t.Context(), hold))
	})
}

// New keys are made by many at the same time without a deadlock, and each key is
// given to one of those who ask for it. LOCK_TEST_STORM makes it last longer.
func TestRowNewKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		lockers := []lock.Locker{rowLockerOn(t, s, nil), rowLockerOn(t, s, nil)}
		base := uniqueKey(t)
		admin := adminOf(t, s)
		before := deadlocks(t, admin)
		var grants atomic.Int64
		end := time.Now().Add(storm())
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					lease, err := lockers[i%2].Acquire(short(t, patience), fmt.Sprintf("%s/%d/%d", base, i/2, n))
					if !assert.NoError(t, err) {
						return
					}
					grants.Add(1)
					assert.NoError(t, lease.Release(t.Context()))
				}
			})
		}
		wg.Wait()
		t.Logf("%s: %d granted; %d deadlocks seen by the server", storm(), grants.Load(), deadlocks(t, admin)-before)
	})
}

// A context that ends together with the last answer can have the driver close the
// connection and report success. That is no grant.
func TestRowGrantBesideCancel(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		b, err := NewRowBackend(t.Context(), &closingConnector{rowConnector(t, s, nil), cancel}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		req := request(uniqueKey(t))
		_, err = b.Try(ctx, req)
		require.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, b.Release(t.Context(), backend.HoldOf(req)), backend.ErrNotHeld)
		other := rowBackendOn(t, s, nil)
		eventually(t, "the key is free", func() bool {
			again := request(req.Key)
			_, err := other.Try(t.Context(), again)
			return err == nil && other.Release(t.Context(), backend.HoldOf(again)) == nil
		})
	})
}

// A connector that gives an answer up sooner than the server gives a wait up is refused
// if it is ours. Another one cannot be told from one whose connections break; the error
// of the wait says what to look at.
func TestRowReadTimeoutTooShort(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		holder := rowBackendOn(t, s, nil)
		hold, _ := granted(t, holder, request(uniqueKey(t)))
		var armed atomic.Bool
		b, err := NewRowBackend(t.Context(), rowConnector(t, s, func(c *mysql.Config) {
			c.ReadTimeout = 300 * time.Millisecond
			c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return patientConn{conn, &armed}, err
			}
		}), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		for timeout, want := range map[time.Duration]error{300 * time.Millisecond: backend.ErrInvalid, longestSilence: backend.ErrInvalid, longestSilence + 1: nil} {
			cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
			require.NoError(t, err)
			cfg.ReadTimeout = timeout
			own, err := NewConnector(cfg)
			require.NoError(t, err)
			one, err := NewRowBackend(t.Context(), own, nil)
			require.ErrorIs(t, err, want)
			if err == nil {
				require.NoError(t, one.Close())
			} else {
				require.ErrorContains(t, err, "ReadTimeout")
			}
		}
		ticket, err := b.(*rowBackend).Enqueue(t.Context(), request(hold.Key))
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
	*ownConnector
	cancel func()
}

func (c *closingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.ownConnector.Connect(ctx)
	return &closingConn{plainConn{conn}, c.cancel}, err
}

type closingConn struct {
	plainConn
	cancel func()
}

func (c *closingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.plainConn.ExecContext(ctx, q, args)
	if err == nil && strings.HasPrefix(q, "SAVEPOINT") {
		_ = c.Close()
		c.cancel()
	}
	return res, err
}
