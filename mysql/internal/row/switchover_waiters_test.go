package row

import (
	"context"
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
)

// Nobody is granted a key on a server that has been left in a switchover: not who waits
// there already, and not with a session that was open before. A look at the address counts
// for a quarter of the TTL.
func testRowSwitchoverOfWaiters(t *testing.T, before, after *servertest.Server) {
	old, there := mysqltest.AdminPool(t, before), mysqltest.AdminPool(t, after)
	defer mysqltest.Exec(t, old, "SET GLOBAL read_only = OFF")
	for what, mighty := range map[string]bool{
		"only the address leads elsewhere":                      false,
		"read-only, for an account that may write all the same": true,
	} {
		mysqltest.Exec(t, old, "SET GLOBAL read_only = OFF")
		p, through := mysqltest.BehindProxy(t, before)
		open := func() lock.Locker {
			l, err := newLocker(t.Context(), cuttableConnector(t, before, func(cfg *mysql.Config) {
				if mighty {
					asAdmin(t, before)(cfg)
				}
				through(cfg)
			}), Options{TTL: 6 * time.Second}, lock.Options{TTL: 6 * time.Second})
			require.NoError(t, err)
			return l
		}
		on := lockerOn(t, after, Options{}, lock.Options{})
		holder, waiter := open(), open()
		key := backendtest.UniqueKey(t)
		// The holder is told by a renewal, after a third of its TTL. The last look of who
		// waits is older than a quarter of its own by then, so that it looks again.
		held, err := holder.Acquire(t.Context(), key, lock.WithTTL(20*time.Second))
		require.NoError(t, err)
		idle, err := waiter.TryAcquire(t.Context(), key+"/idle")
		require.NoError(t, err)
		type result struct {
			lease lock.Lease
			err   error
		}
		results := make(chan result, 1)
		go func() {
			lease, err := waiter.Acquire(t.Context(), key)
			results <- result{lease, err}
		}()
		backendtest.Eventually(t, "it waits", func() bool { return statementsOn(t, old, key) > 0 })
		require.NoError(t, idle.Release(t.Context()))
		first, err := on.TryAcquire(t.Context(), key) // before who waits can be there
		require.NoError(t, err, what)
		if mighty {
			mysqltest.Exec(t, old, "SET GLOBAL read_only = ON")
		}
		p.LeadTo(after.Addr())
		assert.ErrorIs(t, mysqltest.Ended(t, held), lock.ErrSessionLost, what)
		// The row on the old server is free now, or soon.
		backendtest.Eventually(t, "it waits on the new server, behind its holder", func() bool { return statementsOn(t, there, key) > 0 })
		require.Empty(t, results, "granted beside the holder on the new primary: %s", what)
		again, err := waiter.Acquire(backendtest.Short(t, mysqltest.Patience), key+"/idle")
		require.NoError(t, err, what)
		assert.Equal(t, uint64(mysqltest.Number(t, there, "SELECT token FROM lock_rows_holders WHERE k = ?", key+"/idle")), again.Token(), what)
		require.NoError(t, again.Release(t.Context()))
		require.NoError(t, first.Release(t.Context()), what)
		r := <-results
		require.NoError(t, r.err, what)
		assert.Equal(t, uint64(mysqltest.Number(t, there, "SELECT token FROM lock_rows_holders WHERE k = ?", key)), r.lease.Token(), what)
		require.NoError(t, r.lease.Release(t.Context()))
		require.NoError(t, holder.Close())
		require.NoError(t, waiter.Close())
	}

	// Who waits learns that the server takes no writes.
	mysqltest.Exec(t, old, "SET GLOBAL read_only = OFF")
	holder, waiter := backendOn(t, before, Options{}), backendOn(t, before, Options{})
	hold, _ := backendtest.Granted(t, holder, mysqltest.Request(backendtest.UniqueKey(t)))
	ticket, err := waiter.Enqueue(t.Context(), mysqltest.Request(hold.Key))
	require.NoError(t, err)
	refused := make(chan error, 1)
	go func() {
		_, err := ticket.Wait(t.Context())
		refused <- err
	}()
	backendtest.Eventually(t, "it waits", func() bool { return statementsOn(t, old, hold.Key) > 0 })
	mysqltest.Exec(t, old, "SET GLOBAL read_only = ON")
	require.ErrorIs(t, <-refused, backend.ErrUnavailable)
}

// A session that nobody used for a while is not granted a row where the address leads
// elsewhere by now, although no renewal has had a look.
func testRowIdleSessionIsLeft(t *testing.T, before, after *servertest.Server) {
	there := mysqltest.AdminPool(t, after)
	lockerOn(t, after, Options{}, lock.Options{})
	p, through := mysqltest.BehindProxy(t, before)
	l, err := newLocker(t.Context(), cuttableConnector(t, before, through), Options{}, lock.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	const ttl = 4 * time.Second
	key := backendtest.UniqueKey(t)
	lease, err := l.Acquire(t.Context(), key, lock.WithTTL(ttl))
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	p.LeadTo(after.Addr())
	time.Sleep(checkPeriod(ttl) + 100*time.Millisecond)
	lease, err = l.Acquire(backendtest.Short(t, mysqltest.Patience), key, lock.WithTTL(ttl))
	require.NoError(t, err)
	require.Equal(t, uint64(mysqltest.Number(t, there, "SELECT token FROM lock_rows_holders WHERE k = ?", key)), lease.Token())
	require.NoError(t, lease.Release(t.Context()))
}

// A server that becomes read-only in the middle of the work commits nothing of it, and says
// so: the work can be done again on the new primary.
func testInTxOnReadOnlyServer(t *testing.T, s, _ *servertest.Server) {
	admin := mysqltest.AdminPool(t, s)
	defer mysqltest.Exec(t, admin, "SET GLOBAL read_only = OFF")
	table := mysqltest.WorkTable(t, admin)
	l := lockerOn(t, s, Options{}, lock.Options{})
	lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(time.Minute), lock.WithoutRenewal())
	require.NoError(t, err)
	err = InTx(t.Context(), lease, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n = 7 WHERE id = 1")
		mysqltest.Exec(t, admin, "SET GLOBAL read_only = ON")
		return err
	})
	require.ErrorIs(t, err, lock.ErrLost)
	require.ErrorContains(t, err, "read-only")
	require.NotErrorIs(t, err, lock.ErrOutcomeUnknown)
	mysqltest.Exec(t, admin, "SET GLOBAL read_only = OFF")
	require.Zero(t, mysqltest.Number(t, admin, "SELECT n FROM "+table+" WHERE id = 1"))
}
