package rowflawed

import (
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance/flawed/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

var collection = flawedtest.New("rowflawed", 4, All(), Healthy())

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func TestFlawed(t *testing.T) { t.Parallel(); collection.CheckFlawed(t, on(servertest.SharedMariaDB)) }

func TestHealthy(t *testing.T) {
	t.Parallel()
	collection.CheckHealthy(t, on(servertest.SharedMariaDB))
}

func TestFlawedOnMySQL(t *testing.T) {
	t.Parallel()
	collection.CheckFlawed(t, on(servertest.SharedMySQL))
}

func TestHealthyOnMySQL(t *testing.T) {
	t.Parallel()
	collection.CheckHealthy(t, on(servertest.SharedMySQL))
}

func on(shared func(servertest.TB) *servertest.Server) flawedtest.Run {
	return flawedtest.Run{
		Server: func(t *testing.T, _ Lock) any {
			s := shared(t)
			servertest.LogSlowSQL(t, s)
			return connect(t, s)
		},
		Patience: 15 * time.Second,
	}
}

// connect returns a pool as a user has it, who lets connections be idle.
func connect(t *testing.T, s *servertest.Server) *sql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(100)
	t.Cleanup(func() { _ = db.Close() }) // reports connections that the server has closed
	return db
}
