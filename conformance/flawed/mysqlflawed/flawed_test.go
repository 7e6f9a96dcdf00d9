package mysqlflawed

import (
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

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

// collection is what is written about the locks.
var collection = flawedtest.New("mysqlflawed", mistakes(All())...)

func mistakes(locks []Lock) []flawedtest.Mistake {
	var all []flawedtest.Mistake
	for _, l := range locks {
		all = append(all, mistake(l))
	}
	return all
}

func mistake(l Lock) flawedtest.Mistake {
	return flawedtest.Mistake{ID: l.ID, Title: l.Title, Summary: l.Summary, Seen: l.Seen, Instead: l.Instead, File: l.File, Rule: l.Rule}
}

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func examine(t *testing.T, db *sql.DB, l Lock, table string, budget time.Duration, only ...string) *flawedtest.Finding {
	t.Helper()
	cfg, err := l.Config(t.Context(), db, fmt.Sprintf("%s_%d", table, os.Getpid()))
	require.NoError(t, err)
	cfg.Budget, cfg.Only = budget, only
	return flawedtest.Examine(t, mistake(l), cfg, time.Minute)
}

// TestFlawed requires that the suite catches every broken lock by the rule that is
// named for it. Only that rule is run: a mistake breaks many, and which of them
// depends on the timing.
func TestFlawed(t *testing.T) {
	t.Parallel()
	db := connect(t, servertest.SharedMariaDB(t))
	t.Run("locks", func(t *testing.T) {
		for i, l := range All() {
			t.Run(l.ID+" "+l.Title, func(t *testing.T) {
				t.Parallel()
				examine(t, db, l, fmt.Sprintf("flawed_%d", i), 2*time.Second, l.Rule).RequireCaught(t)
			})
		}
	})
}

// TestFlawedOnMySQL requires the same on the other server.
func TestFlawedOnMySQL(t *testing.T) {
	t.Parallel()
	db := connect(t, servertest.SharedMySQL(t))
	t.Run("locks", func(t *testing.T) {
		for i, l := range All() {
			t.Run(l.ID+" "+l.Title, func(t *testing.T) {
				t.Parallel()
				examine(t, db, l, fmt.Sprintf("flawed_%d", i), 2*time.Second, l.Rule).RequireCaught(t)
			})
		}
	})
}

// TestHealthy is the control: the lock that the broken ones are made of passes.
func TestHealthy(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]func(servertest.TB) *servertest.Server{
		"MariaDB": servertest.SharedMariaDB, "MySQL": servertest.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shared(t)
			servertest.LogSlowSQL(t, s)
			examine(t, connect(t, s), Healthy(), "healthy", 5*time.Second).RequireHealthy(t)
		})
	}
}
