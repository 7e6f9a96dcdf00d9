package rowflawed

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
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

const (
	budget   = 2 * time.Second // the suite's least number of rounds
	patience = 15 * time.Second
)

// connect returns a pool as a user has it, who lets connections be idle.
func connect(t *testing.T) *sql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(servertest.SharedMariaDB(t)))
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(100)
	t.Cleanup(func() { _ = db.Close() }) // reports connections that the server has closed
	return db
}

// examine runs the suite on a lock, and returns the rules that it broke. It stops
// early when the rule that is wanted has been broken and enough time has passed.
func examine(t *testing.T, l Lock) (failed []string, report conformance.Report) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	seen, late := false, false
	enough := func() {
		if seen && late {
			stop()
		}
	}
	if l.Rule != "" {
		defer time.AfterFunc(patience, func() {
			mu.Lock()
			defer mu.Unlock()
			late = true
			enough()
		}).Stop()
	}
	cfg, err := l.Config(ctx, connect(t))
	require.NoError(t, err)
	cfg.Budget = budget
	cfg.KeyPrefix = fmt.Sprintf("flawed/%d/%s/", os.Getpid(), l.ID)
	cfg.Progress = func(r conformance.Result) {
		mu.Lock()
		defer mu.Unlock()
		if r.Verdict == conformance.Fail && ctx.Err() == nil {
			failed = append(failed, r.Rule)
		}
		seen = seen || r.Rule == l.Rule
		enough()
	}
	// What is expected to fail need not be given the benefit of the doubt.
	cfg.Repeat = func(r conformance.Result) bool {
		return r.Rule != l.Rule && !slices.Contains(l.Also, r.Rule) && !slices.Contains(l.Also, r.Subject)
	}
	report, err = conformance.Check(ctx, cfg)
	require.NoError(t, err)
	return failed, report
}

// TestFlawed: the suite catches every broken lock by the rule that is named for it,
// and does not blame it for what it does right.
func TestFlawed(t *testing.T) {
	t.Parallel()
	for _, l := range All() {
		t.Run(l.ID+" "+l.Title, func(t *testing.T) {
			t.Parallel()
			failed, report := examine(t, l)
			if !slices.Contains(failed, l.Rule) {
				t.Errorf("%s does not catch it; what does: %v\n%s", l.Rule, failed, report)
			}
			for _, rule := range failed {
				res, _ := report.Result(rule)
				if rule != l.Rule && !slices.Contains(l.Also, rule) && !slices.Contains(l.Also, res.Subject) {
					t.Errorf("%s is broken, and is not among the rules that this mistake may break:\n%s", rule, res.Evidence)
				}
			}
			t.Logf("caught by %v", failed)
		})
	}
}

// TestHealthy is the control: the locks that the broken ones are made of pass.
func TestHealthy(t *testing.T) {
	t.Parallel()
	for _, l := range Healthy() {
		t.Run(l.Title, func(t *testing.T) {
			t.Parallel()
			failed, report := examine(t, l)
			assert.Empty(t, failed, "\n%s", report)
			t.Log(report.Counts())
		})
	}
}

// TestRegistry checks what is written about the locks.
func TestRegistry(t *testing.T) {
	t.Parallel()
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name], rules[r.Subject] = true, true
	}
	for _, l := range All() {
		for what, text := range map[string]string{
			"ID": l.ID, "Title": l.Title, "Summary": l.Summary, "Seen": l.Seen, "Instead": l.Instead, "Rule": l.Rule,
		} {
			assert.NotEmpty(t, text, "%s of %s", what, l.File)
		}
		assert.FileExists(t, l.File)
		for _, name := range append([]string{l.Rule}, l.Also...) {
			assert.True(t, rules[name], "%s names the rule %s, which does not exist", l.File, name)
		}
	}
}
