package redlockflawed

import (
	"fmt"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/flawedtest"
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

// collection is what is written about the locks.
var collection = flawedtest.New("redlockflawed", mistakes(All())...)

func mistakes(locks []Lock) []flawedtest.Mistake {
	var all []flawedtest.Mistake
	for _, l := range locks {
		all = append(all, mistake(l))
	}
	return all
}

func mistake(l Lock) flawedtest.Mistake {
	return flawedtest.Mistake{ID: l.ID, Title: l.Title, Summary: l.Summary, Seen: l.Seen, Instead: l.Instead, File: l.File, Rule: l.Rule, Slow: l.Frozen}
}

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func examine(t *testing.T, l Lock, only ...string) *flawedtest.Finding {
	t.Helper()
	cfg := l.Config(nodes(t, l))
	cfg.Budget, cfg.Parallel, cfg.Only = budget, 6, only
	if l.Rule != "" {
		cfg.Budget *= 20 // races are met sooner or later, and the run then ends
	}
	cfg.KeyPrefix = fmt.Sprintf("redlockflawed/%d/", os.Getpid())
	return flawedtest.Examine(t, mistake(l), cfg, 0)
}

// TestFlawed: the suite catches every broken lock by the rule that is named for it.
func TestFlawed(t *testing.T) {
	t.Parallel()
	t.Run("locks", func(t *testing.T) {
		for _, l := range All() {
			t.Run(l.ID+" "+l.Title, func(t *testing.T) {
				t.Parallel()
				// The rule and its neighbours: where nothing is ever granted, the rest of the
				// suite waits for minutes until its cases are cut off.
				examine(t, l, l.Rule, "RenewKeeps").RequireCaught(t)
			})
		}
	})
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
				only = []string{z22.Rule, z23.Rule, z23Minority.Rule, z21Errors.Rule, "RenewKeeps"}
			}
			examine(t, l, only...).RequireHealthy(t)
		})
	}
}
