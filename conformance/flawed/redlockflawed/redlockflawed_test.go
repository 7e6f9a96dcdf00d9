package redlockflawed

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

const budget = 2 * time.Second // the suite's least number of rounds

// nodes starts servers for a lock, the first of which stands still if it asks for that.
func nodes(t *testing.T, l Lock) []*goredis.Client {
	t.Helper()
	var clients []*goredis.Client
	for i := range l.Nodes {
		s := servertest.Redis(t, servertest.WithControl())
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 100})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
		if l.Frozen && i == 0 {
			s.Freeze(t)
		}
	}
	return clients
}

// examine returns the rules that the lock breaks.
func examine(t *testing.T, l Lock, only ...string) (failed []string, report conformance.Report) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cfg := l.Config(nodes(t, l))
	cfg.Budget, cfg.Parallel, cfg.Only = budget, 6, only
	if l.Rule != "" {
		cfg.Budget *= 20 // races are met sooner or later, and the run then ends
	}
	cfg.KeyPrefix = fmt.Sprintf("redlockflawed/%d/", os.Getpid())
	var mu sync.Mutex
	cfg.Progress = func(r conformance.Result) {
		mu.Lock()
		defer mu.Unlock()
		if r.Verdict == conformance.Fail && ctx.Err() == nil {
			failed = append(failed, r.Rule)
		}
		if l.Rule != "" && slices.Contains(failed, l.Rule) {
			stop() // what follows from cutting the run off is no finding
		}
	}
	report, err := conformance.Check(ctx, cfg)
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	return failed, report
}

// TestFlawed: the suite catches every broken lock by the rule that is named for it.
func TestFlawed(t *testing.T) {
	t.Parallel()
	for _, l := range All() {
		t.Run(l.ID+" "+l.Title, func(t *testing.T) {
			t.Parallel()
			// The rule and its neighbours: where nothing is ever granted, the rest of the
			// suite waits for minutes until its cases are cut off.
			failed, report := examine(t, l, l.Rule, "RenewKeeps")
			require.Contains(t, failed, l.Rule, "%s does not catch it; what does: %v\n%s", l.Rule, failed, report)
			t.Logf("caught by %v", failed)
		})
	}
}

// TestHealthy is the control: without a mistake the same code passes.
func TestHealthy(t *testing.T) {
	t.Parallel()
	for _, l := range Healthy() {
		t.Run(l.Title, func(t *testing.T) {
			t.Parallel()
			var only []string
			if l.Frozen {
				// Each release waits for the frozen server, which the rules on times notice.
				only = []string{z22.Rule, z23.Rule, "ConcurrentTries", "RenewKeeps"}
			}
			failed, report := examine(t, l, only...)
			assert.Empty(t, failed, "\n%s", report)
		})
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name] = true
	}
	for _, l := range All() {
		for what, text := range map[string]string{"ID": l.ID, "Title": l.Title, "Summary": l.Summary, "Seen": l.Seen, "Instead": l.Instead} {
			assert.NotEmpty(t, text, "%s of %s", what, l.File)
		}
		assert.FileExists(t, l.File)
		assert.True(t, rules[l.Rule], "%s names the rule %s, which does not exist", l.File, l.Rule)
	}
}
