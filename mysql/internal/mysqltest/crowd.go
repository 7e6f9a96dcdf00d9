package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// Crowded has the server take no more connections while f runs. The pools, and they alone,
// have connections to it.
func Crowded(t *testing.T, s *servertest.Server, admin *sql.DB, pools []*sql.DB, f func(others *sql.DB)) {
	t.Helper()
	others := UserPool(t, s, "")
	pools = append(pools, admin, others)
	var taken []*sql.Conn
	backendtest.Eventually(t, "all places are taken, none of them by a connection that was closed just now", func() bool {
		c, err := others.Conn(t.Context())
		if err == nil {
			taken = append(taken, c)
			return false
		}
		var refusal *mysql.MySQLError
		require.ErrorAs(t, err, &refusal)
		require.EqualValues(t, 1040, refusal.Number)
		open := 0
		for _, db := range pools {
			open += db.Stats().OpenConnections
		}
		return open == places
	})
	f(others)
	for _, c := range taken {
		require.NoError(t, c.Close())
	}
}

// places is how many connections a crowded server takes.
const places = 12

// MakeSmall has the server take as many connections, until the test ends.
func MakeSmall(t *testing.T, admin *sql.DB) {
	t.Helper()
	most := Number(t, admin, "SELECT @@max_connections")
	Exec(t, admin, fmt.Sprint("SET GLOBAL max_connections = ", places))
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.Background(), fmt.Sprint("SET GLOBAL max_connections = ", most))
		require.NoError(t, err)
	})
}
