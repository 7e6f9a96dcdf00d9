package conformance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"
	"github.com/mortiselock/lock/conformance/internal/rules"
)

// TestingT is what Run needs of a test. *testing.T has it; T is the type itself.
type TestingT[T any] interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Skipf(format string, args ...any)
	Run(name string, f func(T)) bool
}

// Run tests the lock and makes one subtest of each rule, named after it, so that
// go test -run selects rules. Cases overlap in time whatever the -parallel flag
// says, and have all ended when Run returns. A rule that is not claimed, or that
// lacks something to test with, is a skipped subtest that says so. So is one that was
// inconclusive: a slow machine fails no test. So is a declared deviation. For each of
// UntriedClaims a skipped subtest, such as "claim Reach", says what is missing. The last two
// lines count the verdicts and say what was left undecided or untried, or which failure to
// look at first.
func Run[T TestingT[T]](t T, cfg Config) {
	t.Helper()
	if cfg.Logf == nil {
		cfg.Logf = t.Logf
	}
	s, err := engine.Prepare(context.Background(), cfg.engine(), rules.All)
	if err != nil {
		t.Errorf("%v", err)
		return
	}
	r := engine.NewRunner(s)
	defer r.Close()
	// Subtests run at the same time without being parallel in the sense of the
	// testing package: those would begin only after the caller's test function
	// has ended, and with it what the caller may have started for them.
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total Report
	)
	for _, rule := range s.Rules {
		begun := make(chan struct{})
		wg.Go(func() {
			var once sync.Once
			defer once.Do(func() { close(begun) })
			t.Run(rule.Name, func(t T) {
				t.Helper()
				turn := r.Queue()
				once.Do(func() { close(begun) })
				res := result(r.Run(context.Background(), rule, turn))
				mu.Lock()
				total.Results = append(total.Results, res)
				mu.Unlock()
				switch res.Verdict {
				case Fail:
					t.Errorf("%s: %s\n%s\n(seed %d, TTL %s; -run '/%s$' runs this rule alone)", res.Rule, res.Statement, res.Evidence, s.Seed, s.TTL, res.Rule)
				case NotClaimed, Skipped, Inconclusive, Deviation:
					t.Skipf("%s: %s", res.Verdict, res.Evidence)
				case Unclaimed:
					t.Logf("%s (%s): the guarantees could claim it", res.Verdict, res.Statement)
				case Pass:
					if res.Evidence != "" {
						t.Logf("%s", res.Evidence)
					}
				}
			})
		})
		<-begun
	}
	wg.Wait()
	total.Guarantees, total.Results = s.Claimed, inOrder(total.Results)
	for _, u := range total.UntriedClaims() {
		t.Run("claim "+u.Claim, func(t T) {
			t.Helper()
			t.Skipf("not tried, which is not a pass: %s", u)
		})
	}
	t.Logf("conformance of %s: %s\n%s", s.Name, total.Counts(), total.Verdict())
}

// inOrder sorts the results as Rules lists their rules.
func inOrder(results []Result) []Result {
	place := map[string]int{}
	for i, r := range rules.All {
		place[r.Name] = i
	}
	slices.SortFunc(results, func(a, b Result) int { return place[a.Rule] - place[b.Rule] })
	return results
}

// Check tests the lock without the testing package. The error says what is wrong
// with the Config; broken rules are in the report. When ctx ends, the rules that
// have not begun, and those under way that were not broken before, are skipped, and
// the report is incomplete.
func Check(ctx context.Context, cfg Config) (Report, error) {
	ctx, stop := withoutDeadline(ctx)
	defer stop()
	s, err := engine.Prepare(ctx, cfg.engine(), rules.All)
	if err != nil {
		return Report{}, err
	}
	r := engine.NewRunner(s)
	defer r.Close()
	started := time.Now()
	results := make([]Result, len(s.Rules))
	var wg sync.WaitGroup
	for i, rule := range s.Rules {
		turn := r.Queue()
		wg.Go(func() { results[i] = result(r.Run(ctx, rule, turn)) })
	}
	wg.Wait()
	incomplete := ""
	if ctx.Err() != nil {
		incomplete = "the run was cancelled: " + context.Cause(ctx).Error()
	}
	return Report{
		Name: s.Name, Incomplete: incomplete, Guarantees: s.Claimed, TTL: s.TTL, Seed: s.Seed,
		Started: started, Seconds: time.Since(started).Seconds(), Results: results,
	}, nil
}

// withoutDeadline ends with ctx and shows no deadline, so that a lock is asked as most callers
// ask it. A lock may do otherwise where a caller's time is bounded.
func withoutDeadline(ctx context.Context) (context.Context, func()) {
	undated, end := context.WithCancelCause(context.WithoutCancel(ctx))
	unfollow := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	if ctx.Err() != nil { // what follows has not run yet
		end(context.Cause(ctx))
	}
	return undated, func() { unfollow(); end(nil) }
}
