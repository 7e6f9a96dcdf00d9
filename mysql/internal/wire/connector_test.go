package wire

import (
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// A connection that is given back at an age is not used again.
func TestConnectionsGetOld(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
		require.NoError(t, err)
		connector, err := NewConnector(cfg, time.Millisecond)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		id := func() int { return mysqltest.Number(t, db, "SELECT CONNECTION_ID()+SLEEP(0.01)") }
		first := id()
		require.NotEqual(t, first, id())
	})
}
