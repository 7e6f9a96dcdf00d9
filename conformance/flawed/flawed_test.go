package flawed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

const (
	budget   = 2 * time.Second // the suite's least number of rounds
	together = 16              // locks under test at the same time
	// patience is how long the suite may go on with a broken lock. Where nothing
	// is ever granted, cases wait until they are cut off.
	patience = 12 * time.Second
)

// places are those of the locks under test.
var places = make(chan struct{}, together)

// TestFlawed is the suite's own test: it must catch every broken lock, by the rule
// that is named for it, and must not blame it for what it does right.
func TestFlawed(t *testing.T) {
	t.Parallel()
	locks := All()
	findings := examine(t, locks)
	caught := 0
	var table strings.Builder
	for i, l := range locks {
		f := findings[i]
		if f == nil {
			continue // no server; examine has skipped
		}
		by := "NOT CAUGHT"
		if slices.Contains(f.failed, l.Rule) {
			caught++
			by = "caught by " + l.Rule
		}
		if n := len(f.failed) - 1; n > 0 {
			by += fmt.Sprintf(", and %d more", n)
		}
		fmt.Fprintf(&table, "%-4s %-56s %s (%.0f s)\n", l.ID, l.Title, by, f.report.Seconds)
		t.Run(l.ID+" "+l.Title, func(t *testing.T) {
			if !slices.Contains(f.failed, l.Rule) {
				t.Errorf("%s does not catch it; what does: %v\n%s", l.Rule, f.failed, f.report)
			}
			for _, rule := range f.failed {
				res, _ := f.report.Result(rule)
				if !l.mayBreak(res) {
					t.Errorf("%s is broken, and is not among the rules that this mistake may break:\n%s", rule, res.Evidence)
				}
			}
		})
	}
	t.Logf("\n%s%d flawed locks, %d caught by the rule named for them", &table, len(locks), caught)
}

// TestHealthy is the control: the locks that the broken ones are made of pass.
func TestHealthy(t *testing.T) {
	t.Parallel()
	locks := Healthy()
	for i, f := range examine(t, locks) {
		t.Run(locks[i].Title, func(t *testing.T) {
			assert.Empty(t, f.failed, "\n%s", f.report)
			t.Log(f.report.Counts())
		})
	}
}

// mayBreak reports whether the mistake may break the rule of the result.
func (l Lock) mayBreak(r conformance.Result) bool {
	return r.Rule == l.Rule || slices.Contains(l.Also, r.Rule) || slices.Contains(l.Also, r.Subject)
}

// finding is what the suite says about one lock.
type finding struct {
	report conformance.Report
	failed []string
}

// examine runs the suite on the locks, several at a time.
func examine(t *testing.T, locks []Lock) []*finding {
	t.Helper()
	client := connect(t)
	findings := make([]*finding, len(locks))
	var wg sync.WaitGroup
	for i, l := range locks {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			findings[i] = examineOne(t, l, client, i)
		})
	}
	wg.Wait()
	require.NotContains(t, findings, (*finding)(nil))
	return findings
}

func examineOne(t *testing.T, l Lock, client *goredis.Client, i int) *finding {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	f := &finding{}
	var mu sync.Mutex
	seen, late := false, false
	// What follows from cutting the run off is no finding.
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
	cfg := l.Config(client)
	cfg.Budget = budget
	cfg.KeyPrefix = fmt.Sprintf("%s%d/", keysOf(t), i)
	cfg.Progress = func(r conformance.Result) {
		mu.Lock()
		defer mu.Unlock()
		if r.Verdict == conformance.Fail && ctx.Err() == nil {
			f.failed = append(f.failed, r.Rule)
		}
		seen = seen || r.Rule == l.Rule
		enough()
	}
	// What is expected to fail need not be given the benefit of the doubt.
	cfg.Repeat = func(r conformance.Result) bool { return !l.mayBreak(r) }
	var err error
	if f.report, err = conformance.Check(ctx, cfg); !assert.NoError(t, err, l.Title) {
		return nil
	}
	return f
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
		for _, mark := range []string{name(""), counter("")} {
			keys := client.Scan(ctx, 0, mark+keysOf(t)+"*", 1000).Iterator()
			for keys.Next(ctx) {
				client.Del(ctx, keys.Val())
			}
		}
		assert.NoError(t, client.Close())
	})
	return client
}

// TestRegistry checks what is written about the locks.
func TestRegistry(t *testing.T) {
	t.Parallel()
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name], rules[r.Subject] = true, true
	}
	files := map[string]bool{}
	for _, l := range All() {
		for what, text := range map[string]string{
			"ID": l.ID, "Title": l.Title, "Summary": l.Summary, "Seen": l.Seen, "Instead": l.Instead, "Rule": l.Rule,
		} {
			assert.NotEmpty(t, text, "%s of %s", what, l.File)
		}
		assert.FileExists(t, filepath.Join(".", l.File))
		assert.False(t, files[l.File], "%s has two locks", l.File)
		files[l.File] = true
		for _, name := range append([]string{l.Rule}, l.Also...) {
			assert.True(t, rules[name], "%s names the rule %s, which does not exist", l.File, name)
		}
	}
}
