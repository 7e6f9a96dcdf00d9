package mysqlflawed

import (
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

var collection = flawedtest.New("mysqlflawed", 4, All(), Healthy())

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func TestFlawed(t *testing.T) { t.Parallel(); collection.CheckFlawed(t, on(servertest.SharedMariaDB)) }

func TestFlawedOnMySQL(t *testing.T) {
	t.Parallel()
	collection.CheckFlawed(t, on(servertest.SharedMySQL))
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	collection.CheckHealthy(t, on(servertest.SharedMariaDB))
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
		Tune: func(l Lock, cfg *conformance.Config) {
			if l.Rule == "" {
				cfg.Budget = 5 * time.Second
				return
			}
			// A mistake breaks many rules, and which of them depends on the timing.
			cfg.Only = []string{l.Rule}
		},
		Patience: time.Minute,
	}
}

func connect(t *testing.T, s *servertest.Server) *sql.DB {
	t.Helper()
	c, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	c.InterpolateParams = true
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(100)
	db.SetMaxIdleConns(100)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}
