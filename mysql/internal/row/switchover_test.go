package row

import (
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// asAdmin is the change of a configuration to the account with all rights.
func asAdmin(t testing.TB, s *servertest.Server) func(*mysql.Config) {
	t.Helper()
	admin, err := mysql.ParseDSN(servertest.MySQLAdminDSN(s))
	require.NoError(t, err)
	return func(c *mysql.Config) { c.User, c.Passwd = admin.User, admin.Passwd }
}

// In a planned switchover connections to the old primary stay open. A holder there is
// told, whether the server is made read-only, the address leads elsewhere, or both, and
// the Locker goes on at the new primary.
func testRowSwitchover(t *testing.T, before, after *servertest.Server) {
	old := mysqltest.AdminPool(t, before)
	defer mysqltest.Exec(t, old, "SET GLOBAL read_only = OFF")
	for what, c := range map[string]struct{ readOnly, moves bool }{
		"only the address leads elsewhere": {moves: true},
		"only read-only":                   {readOnly: true},
		"both":                             {true, true},
	} {
		mysqltest.Exec(t, old, "SET GLOBAL read_only = OFF")
		p, through := mysqltest.BehindProxy(t, before)
		l, err := newLocker(t.Context(), cuttableConnector(t, before, through), Options{}, lock.Options{})
		require.NoError(t, err)
		lockerOn(t, after, Options{}, lock.Options{}) // the tables are there too
		key := backendtest.UniqueKey(t)
		var leases []lock.Lease
		for _, k := range []string{key, key + "/2"} {
			lease, err := l.Acquire(t.Context(), k, lock.WithTTL(6*time.Second))
			require.NoError(t, err)
			leases = append(leases, lease)
		}
		idle, err := l.Acquire(t.Context(), key+"/3", lock.WithTTL(6*time.Second))
		require.NoError(t, err)
		require.NoError(t, idle.Release(t.Context()))
		if c.readOnly {
			mysqltest.Exec(t, old, "SET GLOBAL read_only = ON")
		}
		if c.moves {
			p.LeadTo(after.Addr())
		}
		for _, lease := range leases {
			cause := mysqltest.Ended(t, lease) // by a heartbeat: the deadline has another cause
			assert.ErrorIs(t, cause, lock.ErrSessionLost, what)
			assert.ErrorContains(t, cause, "switchover", what)
		}
		if c.moves {
			next, err := l.Acquire(backendtest.Short(t, mysqltest.Patience), key, lock.WithTTL(6*time.Second))
			require.NoError(t, err, "%s: the address leads to a server that takes writes", what)
			require.NoError(t, next.Release(t.Context()))
		}
		require.NoError(t, l.Close())
	}
}

// A Locker whose server stays where it is loses nothing by the looks at its address,
// nor when the address leads nowhere for a while.
func TestRowAddressWithoutAnswer(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		p, through := mysqltest.BehindProxy(t, s)
		l, err := newLocker(t.Context(), mysqltest.Connector(t, s, through), Options{}, lock.Options{})
		require.NoError(t, err)
		defer l.Close()
		lease, err := l.Acquire(t.Context(), backendtest.UniqueKey(t), lock.WithTTL(time.Minute))
		require.NoError(t, err)
		b := l.Backend().(*Backend)
		for _, to := range []string{s.Addr(), "127.0.0.1:1"} {
			p.LeadTo(to)
			before := p.Accepted()
			b.address.mu.Lock()
			b.address.begun = 0 // as if the last look had been long ago
			b.address.mu.Unlock()
			require.NoError(t, lease.Renew(t.Context()))
			b.address.looks.Wait()
			require.Greater(t, p.Accepted(), before, "it has looked")
			require.NoError(t, lease.Context().Err())
			require.NoError(t, lease.Renew(t.Context()))
		}
		require.NoError(t, lease.Release(t.Context()))
	})
}
