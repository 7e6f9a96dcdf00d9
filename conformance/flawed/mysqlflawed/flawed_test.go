package mysqlflawed

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

func connect(t *testing.T) *sql.DB {
	t.Helper()
	c, err := mysql.ParseDSN(servertest.MySQLDSN(servertest.SharedMariaDB(t)))
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

// TestFlawed requires that the suite catches every broken lock by the rule that is
// named for it. Only that rule is run: a mistake breaks many, and which of them
// depends on the timing.
func TestFlawed(t *testing.T) {
	t.Parallel()
	db := connect(t)
	var mu sync.Mutex
	var lines []string
	t.Cleanup(func() { t.Log("\n" + strings.Join(lines, "\n")) })
	for i, l := range All() {
		t.Run(l.ID+" "+l.Title, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, l.Summary)
			require.NotEmpty(t, l.Seen)
			require.NotEmpty(t, l.Instead)
			require.FileExists(t, l.File)
			cfg, err := l.Config(t.Context(), db, fmt.Sprintf("flawed_%d_%d", os.Getpid(), i))
			require.NoError(t, err)
			cfg.Budget = 2 * time.Second
			cfg.Only = []string{l.Rule}
			report, err := conformance.Check(t.Context(), cfg)
			require.NoError(t, err)
			res, ok := report.Result(l.Rule)
			require.True(t, ok)
			assert.Equal(t, conformance.Fail, res.Verdict, "%s", report)
			first, _, _ := strings.Cut(res.Evidence, "\n")
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, fmt.Sprintf("%s %-48s %s: %s", l.ID, l.Title, l.Rule, first))
		})
	}
}

// TestHealthy is the control: the lock that the broken ones are made of passes.
func TestHealthy(t *testing.T) {
	t.Parallel()
	db := connect(t)
	cfg, err := Healthy().Config(t.Context(), db, fmt.Sprintf("healthy_%d", os.Getpid()))
	require.NoError(t, err)
	cfg.Budget = 5 * time.Second
	report, err := conformance.Check(context.WithoutCancel(t.Context()), cfg)
	require.NoError(t, err)
	failed := slices.DeleteFunc(slices.Clone(report.Results), func(r conformance.Result) bool { return r.Verdict != conformance.Fail })
	assert.Empty(t, failed, "%s", report)
	t.Log(report.Counts())
}
