package rowflawed

import (
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

const (
	budget   = 2 * time.Second // the suite's least number of rounds
	patience = 15 * time.Second
)

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

// collection is what is written about the locks.
var collection = flawedtest.New("rowflawed", mistakes(All())...)

func mistakes(locks []Lock) []flawedtest.Mistake {
	var all []flawedtest.Mistake
	for _, l := range locks {
		all = append(all, mistake(l))
	}
	return all
}

func mistake(l Lock) flawedtest.Mistake {
	return flawedtest.Mistake{ID: l.ID, Title: l.Title, Summary: l.Summary, Seen: l.Seen, Instead: l.Instead, File: l.File, Rule: l.Rule, Also: l.Also}
}

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func examine(t *testing.T, l Lock, s *servertest.Server, only ...string) *flawedtest.Finding {
	t.Helper()
	servertest.LogSlowSQL(t, s)
	cfg, err := l.Config(t.Context(), connect(t, s))
	require.NoError(t, err)
	cfg.Budget, cfg.Only = budget, only
	cfg.KeyPrefix = fmt.Sprintf("flawed/%d/%s/", os.Getpid(), l.ID)
	return flawedtest.Examine(t, mistake(l), cfg, patience)
}

// TestFlawed: the suite catches every broken lock by the rule that is named for it,
// and does not blame it for what it does right.
func TestFlawed(t *testing.T) {
	t.Parallel()
	t.Run("locks", func(t *testing.T) {
		for _, l := range All() {
			t.Run(l.ID+" "+l.Title, func(t *testing.T) {
				t.Parallel()
				f := examine(t, l, servertest.SharedMariaDB(t))
				f.RequireCaught(t)
				f.RequireNothingElse(t)
			})
		}
	})
}

// TestFlawedOnMySQL requires of the other server that the same rules catch the locks.
func TestFlawedOnMySQL(t *testing.T) {
	t.Parallel()
	for _, l := range All() {
		t.Run(l.ID+" "+l.Title, func(t *testing.T) {
			t.Parallel()
			examine(t, l, servertest.SharedMySQL(t), l.Rule).RequireCaught(t)
		})
	}
}

// TestHealthy is the control: the locks that the broken ones are made of pass, on
// MySQL the rules that the broken ones are caught by.
func TestHealthy(t *testing.T) {
	t.Parallel()
	var named []string
	for _, l := range All() {
		named = append(named, l.Rule)
	}
	for _, l := range Healthy() {
		t.Run("MariaDB "+l.Title, func(t *testing.T) {
			t.Parallel()
			examine(t, l, servertest.SharedMariaDB(t)).RequireHealthy(t)
		})
		t.Run("MySQL "+l.Title, func(t *testing.T) {
			t.Parallel()
			examine(t, l, servertest.SharedMySQL(t), named...).RequireHealthy(t)
		})
	}
}
