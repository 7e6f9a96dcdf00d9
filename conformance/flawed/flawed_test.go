package flawed

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

const (
	budget   = 2 * time.Second // the suite's least number of rounds
	together = 16              // locks under test at the same time
	// patience is how long the suite may go on with a broken lock. Where nothing
	// is ever granted, cases wait until they are cut off.
	patience = 12 * time.Second
)

// places are those of the locks under test.
var places = make(chan struct{}, together)

// collection is what is written about the locks.
var collection = flawedtest.New("flawed", mistakes(All())...)

func mistakes(locks []Lock) []flawedtest.Mistake {
	var all []flawedtest.Mistake
	for _, l := range locks {
		all = append(all, flawedtest.Mistake{
			ID: l.ID, Title: l.Title, Summary: l.Summary, Seen: l.Seen, Instead: l.Instead, File: l.File, Rule: l.Rule, Also: l.Also, Slow: l.Slow,
		})
	}
	return all
}

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

// TestFlawed is the suite's own test: it must catch every broken lock, by the rule
// that is named for it, and must not blame it for what it does right.
func TestFlawed(t *testing.T) {
	t.Parallel()
	caught := 0
	var table strings.Builder
	findings := examine(t, All())
	for _, f := range findings {
		by := "NOT CAUGHT"
		if f.Caught() {
			caught++
			by = "caught by " + f.Mistake.Rule
		}
		if n := len(f.Failed) - 1; n > 0 {
			by += fmt.Sprintf(", and %d more", n)
		}
		fmt.Fprintf(&table, "%-4s %-56s %s (%.0f s)\n", f.Mistake.ID, f.Mistake.Title, by, f.Report.Seconds)
		t.Run(f.Mistake.ID+" "+f.Mistake.Title, func(t *testing.T) {
			f.RequireCaught(t)
			f.RequireNothingElse(t)
		})
	}
	t.Logf("\n%s%d flawed locks, %d caught by the rule named for them", &table, len(findings), caught)
}

// TestHealthy is the control: the locks that the broken ones are made of pass.
func TestHealthy(t *testing.T) {
	t.Parallel()
	for _, f := range examine(t, Healthy()) {
		t.Run(f.Mistake.Title, f.RequireHealthy)
	}
}

// examine runs the suite on the locks, several at a time.
func examine(t *testing.T, locks []Lock) []*flawedtest.Finding {
	t.Helper()
	client := connect(t)
	findings := make([]*flawedtest.Finding, len(locks))
	var wg sync.WaitGroup
	for i, m := range mistakes(locks) {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			examine := func(t *testing.T) {
				cfg := locks[i].Config(client)
				cfg.Budget = budget
				cfg.KeyPrefix = fmt.Sprintf("%s%d/", keysOf(t), i)
				findings[i] = flawedtest.Examine(t, m, cfg, patience)
			}
			if locks[i].Rule == "" && locks[i].Over == Memory { // some broken ones never rest
				virtually(t, examine)
			} else {
				examine(t)
			}
		})
	}
	wg.Wait()
	return findings
}

// virtually runs f in a bubble, where waiting takes no time and a busy machine makes
// nothing late. What still waits there in the end is given time to end.
func virtually(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t)
		time.Sleep(time.Hour)
	})
}

// keysOf begins the keys of a test, and of no other.
func keysOf(t *testing.T) string { return fmt.Sprintf("flawed/%d/%s/", os.Getpid(), t.Name()) }

// connect returns a client of a real server. What the broken locks leave there is
// removed at the end.
func connect(t *testing.T) *goredis.Client {
	t.Helper()
	opts, err := goredis.ParseURL(servertest.SharedRedis(t).URL())
	require.NoError(t, err)
	opts.PoolSize = 200
	client := goredis.NewClient(opts)
	t.Cleanup(func() {
		ctx := context.Background()
		for _, mark := range []string{"flawed:*:", "flawed-token:*:"} {
			keys := client.Scan(ctx, 0, mark+keysOf(t)+"*", 1000).Iterator()
			for keys.Next(ctx) {
				client.Del(ctx, keys.Val())
			}
		}
		assert.NoError(t, client.Close())
	})
	return client
}
