package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
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
// inconclusive: a slow machine fails no test. What a run has left undecided is in its
// last line.
func Run[T TestingT[T]](t T, cfg Config) {
	t.Helper()
	if cfg.Logf == nil {
		cfg.Logf = t.Logf
	}
	s, err := prepare(context.Background(), cfg, allRules)
	if err != nil {
		t.Errorf("%v", err)
		return
	}
	r := newRunner(s)
	defer r.close()
	// Subtests run at the same time without being parallel in the sense of the
	// testing package: those would begin only after the caller's test function
	// has ended, and with it what the caller may have started for them.
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total Report
	)
	for _, rule := range s.rules {
		begun := make(chan struct{})
		wg.Go(func() {
			var once sync.Once
			defer once.Do(func() { close(begun) })
			t.Run(rule.Name, func(t T) {
				t.Helper()
				turn := r.queue()
				once.Do(func() { close(begun) })
				res := r.run(context.Background(), rule, turn)
				mu.Lock()
				total.Results = append(total.Results, res)
				mu.Unlock()
				switch res.Verdict {
				case Fail:
					t.Errorf("%s: %s\n%s\n(seed %d, TTL %s; -run '/%s$' runs this rule alone)", res.Rule, res.Statement, res.Evidence, s.Seed, s.ttl, res.Rule)
				case NotClaimed, Skipped, Inconclusive:
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
	t.Logf("conformance of %s: %s", s.Name, total.Counts())
}

// Check tests the lock without the testing package. The error says what is wrong
// with the Config; broken rules are in the report. When ctx ends, the rules that
// have not begun, and those under way that were not broken before, are skipped, and
// the report is incomplete.
func Check(ctx context.Context, cfg Config) (Report, error) {
	s, err := prepare(ctx, cfg, allRules)
	if err != nil {
		return Report{}, err
	}
	r := newRunner(s)
	defer r.close()
	started := time.Now()
	results := make([]Result, len(s.rules))
	var wg sync.WaitGroup
	for i, rule := range s.rules {
		turn := r.queue()
		wg.Go(func() { results[i] = r.run(ctx, rule, turn) })
	}
	wg.Wait()
	incomplete := ""
	if ctx.Err() != nil {
		incomplete = "the run was cancelled: " + context.Cause(ctx).Error()
	}
	return Report{
		Name: s.Name, Incomplete: incomplete, Guarantees: s.g, TTL: s.ttl, Seed: s.Seed,
		Started: started, Seconds: time.Since(started).Seconds(), Results: results,
	}, nil
}

// runner runs cases, as many at a time as the settings allow, in the order in
// which they were queued.
type runner struct {
	s *settings

	mu      sync.Mutex
	free    int
	waiting []chan struct{}
	firsts  int           // first attempts that have not ended
	calm    chan struct{} // closed while there are none
	repeats chan struct{} // as many tokens as repeats at a time

	progress sync.Mutex
}

func newRunner(s *settings) *runner {
	s.stalls = newStallMeter()
	if s.Child != "" {
		s.bystander = s.newBystander()
	}
	if s.Tidy && s.OpenBackend != nil {
		s.used = new(usedKeys)
	}
	r := &runner{s: s, free: s.Parallel, calm: make(chan struct{}), repeats: make(chan struct{}, 2)}
	close(r.calm)
	return r
}

func (r *runner) close() {
	r.s.bystander.close()
	r.s.stalls.close()
	r.s.tidy()
}

// queue takes a place in the order of cases.
func (r *runner) queue() <-chan struct{} {
	turn := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.firsts == 0 {
		r.calm = make(chan struct{})
	}
	r.firsts++
	if r.free > 0 {
		r.free--
		close(turn)
	} else {
		r.waiting = append(r.waiting, turn)
	}
	return turn
}

// leave ends a first attempt.
func (r *runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.firsts--; r.firsts == 0 {
		close(r.calm)
	}
	if len(r.waiting) == 0 {
		r.free++
		return
	}
	close(r.waiting[0])
	r.waiting = r.waiting[1:]
}

// run waits for the turn, runs the case and judges it.
func (r *runner) run(ctx context.Context, rule *rule, turn <-chan struct{}) Result {
	<-turn
	leave := sync.OnceFunc(r.leave)
	defer leave()
	begun := time.Now()
	res := r.verdict(ctx, rule, leave)
	res.Rule, res.Subject, res.Statement = rule.Name, rule.Subject, rule.Statement
	res.Seconds = time.Since(begun).Seconds()
	if r.s.Progress != nil {
		r.progress.Lock()
		defer r.progress.Unlock()
		r.s.Progress(res)
	}
	return res
}

func (r *runner) verdict(ctx context.Context, rule *rule, leave func()) Result {
	missing := rule.missing(r.s)
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx, "not tried")
	case rule.Seam && r.s.OpenBackend == nil:
		return Result{Verdict: Skipped, Evidence: "needs Config.OpenBackend"}
	}
	var res Result
	ttl := r.s.nextTTL(0, 0)
	for n := 1; ; n++ {
		var heldUp time.Duration
		res, heldUp = r.attempt(ctx, rule, n, ttl, missing != nil)
		if res.Verdict != Inconclusive || n == attempts || ctx.Err() != nil || !r.wanted(rule, res) {
			break
		}
		next := r.s.nextTTL(ttl, heldUp)
		why, _, _ := strings.Cut(res.Evidence, "\n")
		r.s.Logf("%s: inconclusive with a TTL of %s, trying again with %s when it is calmer: %s", rule.Name, ttl, next, why)
		ttl = next
		if n == 1 {
			leave()
			r.calmly(ctx)
			defer func() { <-r.repeats }()
		}
		if ctx.Err() != nil {
			break
		}
	}
	if res.Verdict == Inconclusive && ctx.Err() != nil {
		res = interrupted(ctx, notToEnd) // what a calmer machine would have shown stays unknown
	}
	if missing != nil {
		switch res.Verdict {
		case Pass:
			res.Verdict = Unclaimed
		case Fail:
			first, _, _ := strings.Cut(res.Evidence, "\n")
			res = Result{Verdict: NotClaimed, Evidence: fmt.Sprintf("the guarantees don't claim %s; seen when it was tried: %s", missing.name, first)}
		case Inconclusive:
			first, _, _ := strings.Cut(res.Evidence, "\n")
			res = Result{Verdict: NotClaimed, Evidence: fmt.Sprintf("the guarantees don't claim %s; inconclusive when it was tried: %s", missing.name, first)}
		case Skipped:
			res = Result{Verdict: NotClaimed, Evidence: fmt.Sprintf("the guarantees don't claim %s; not tried: %s", missing.name, strings.TrimPrefix(res.Evidence, "not tried: "))}
		}
	}
	return res
}

// wanted asks the Config whether a case is to be repeated.
func (r *runner) wanted(rule *rule, res Result) bool {
	if r.s.Repeat == nil {
		return true
	}
	res.Rule, res.Subject, res.Statement = rule.Name, rule.Subject, rule.Statement
	r.progress.Lock()
	defer r.progress.Unlock()
	return r.s.Repeat(res)
}

// calmly waits until the first attempts of all cases have ended, which made some
// of the load themselves, and for one of the places for repeats.
func (r *runner) calmly(ctx context.Context) {
	r.mu.Lock()
	calm := r.calm
	r.mu.Unlock()
	select {
	case <-calm:
	case <-ctx.Done():
	}
	r.repeats <- struct{}{}
}

// attempt runs the case once, and says for how long something was held up meanwhile.
func (r *runner) attempt(ctx context.Context, rule *rule, n int, ttl time.Duration, probe bool) (Result, time.Duration) {
	e := newEnv(ctx, r.s, rule, n, ttl)
	limit := r.s.limit(rule, ttl)
	if probe {
		limit = min(limit, 10*time.Second+10*e.ttl)
	}
	ended := make(chan any, 1)
	go func() {
		end := e.guard(func() { rule.run(e) })
		if _, skip := end.(skipped); !skip { // what was seen counts, however slow it was
			if more := e.guard(e.checkOverlap); end == nil {
				end = more
			}
		}
		ended <- end
	}()
	end, inTime := await(ended, limit)
	if !inTime {
		hanging, late := e.hist.hanging(), e.timely()
		if idle := e.hist.idle(); idle >= limit/2 && idle > delaysPerTTL*e.heldUp(anyRequest) {
			late = excuse{} // it hangs
		}
		if hanging == "" {
			hanging = "none; it was waiting for something that did not happen"
		}
		e.fail(late, "", "the case did not end within its limit of %s. Calls that had not returned: %s", limit, hanging)
		e.seal()
		e.cancel(fmt.Errorf("conformance: the limit of %s", limit))
		patience := time.NewTimer(3 * time.Second)
		select {
		case end = <-ended:
		case <-patience.C:
			r.s.Logf("%s: calls hang although their context has ended; the run goes on without them", rule.Name)
		}
		patience.Stop()
	}
	over := e.caller.Err() != nil
	e.cancel(errCaseOver)
	e.closeAll()
	heldUp := e.heldUp(anyRequest) // with what was under way when the case ended
	return e.judge(end, over, heldUp), heldUp
}

// await waits for the end of the case until its limit.
func await(ended <-chan any, limit time.Duration) (end any, inTime bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case end = <-ended:
		return end, true
	case <-timer.C:
		return nil, false
	}
}

const notToEnd = "not tried to its end"

// interrupted is the result of a case that the end of the caller's context has kept
// from its turn or cut short: it says nothing about the lock.
func interrupted(caller context.Context, what string) Result {
	return Result{Verdict: Skipped, Evidence: what + ": the run was cancelled: " + context.Cause(caller).Error()}
}

// judge makes a result of what the case has seen. cut: the caller's context ended
// before the case did. What was broken before that stays broken.
func (e *env) judge(end any, cut bool, heldUp time.Duration) Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.failures) > 0 {
		evidence := e.evidence()
		if why := e.doubtful(); why != "" {
			return Result{Verdict: Inconclusive, Evidence: why + "\n" + evidence}
		}
		if heldUp >= stallNoted {
			evidence += fmt.Sprintf("\n(this process or a request was held up for up to %s during the case)", heldUp.Round(time.Millisecond))
		}
		return Result{Verdict: Fail, Evidence: evidence}
	}
	if cut {
		return interrupted(e.caller, notToEnd)
	}
	switch end := end.(type) {
	case abort:
		return Result{Verdict: Inconclusive, Evidence: "the case was given up"}
	case skipped:
		return Result{Verdict: Skipped, Evidence: end.reason}
	case inconclusive:
		return Result{Verdict: Inconclusive, Evidence: end.reason}
	}
	return Result{Verdict: Pass, Evidence: strings.Join(e.notes, "\n")}
}
