package zkflawed

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

// patience is how long the suite may go on with a broken lock.
const patience = 25 * time.Second

// TestFlawed: the suite catches every broken lock by the rule that is named for it.
func TestFlawed(t *testing.T) {
	t.Parallel()
	for _, l := range All() {
		t.Run(l.ID+" "+l.Title, func(t *testing.T) {
			t.Parallel()
			report, failed := examine(t, l)
			res, _ := report.Result(l.Rule)
			require.Contains(t, failed, l.Rule, "%s does not catch it:\n%s", l.Rule, report)
			t.Log(res.Evidence)
			for _, rule := range failed {
				if rule != l.Rule && !slices.Contains(l.Also, "*") {
					res, _ := report.Result(rule)
					assert.Contains(t, l.Also, rule, "is not among the rules that this mistake may break:\n%s", res.Evidence)
				}
			}
		})
	}
}

// TestHealthy: the suite passes on the lock that the broken ones are made of.
func TestHealthy(t *testing.T) {
	t.Parallel()
	report, failed := examine(t, Healthy())
	assert.Empty(t, failed, "\n%s", report)
	t.Log(report.Counts())
}

func examine(t *testing.T, l Lock) (conformance.Report, []string) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var failed []string
	seen, late := false, false
	enough := func() {
		if seen && late {
			stop() // what follows from cutting the run off is no finding
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
	cfg := l.Config(servertest.SharedZooKeeper(t).Addr())
	cfg.Budget = 4 * time.Second
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
	report, err := conformance.Check(ctx, cfg)
	require.NoError(t, err)
	return report, failed
}
