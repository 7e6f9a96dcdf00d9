package zkflawed

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/mortiselock/lock/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

// patience is how long the suite may go on with a broken lock.
const patience = 25 * time.Second

// collection is what is written about the locks.
var collection = flawedtest.New("zkflawed", mistakes(All())...)

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

func examine(t *testing.T, l Lock) *flawedtest.Finding {
	t.Helper()
	cfg := l.Config(servertest.SharedZooKeeper(t).Addr())
	cfg.Budget = 4 * time.Second
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
				f := examine(t, l)
				f.RequireCaught(t)
				f.RequireNothingElse(t)
			})
		}
	})
}

// TestHealthy: the suite passes on the lock that the broken ones are made of.
func TestHealthy(t *testing.T) {
	t.Parallel()
	examine(t, Healthy()).RequireHealthy(t)
}
