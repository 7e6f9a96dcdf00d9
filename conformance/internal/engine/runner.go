package engine

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Runner runs cases, as many at a time as the settings allow, in the order in
// which they were queued.
type Runner struct {
	s *Settings

	mu      sync.Mutex
	free    int
	waiting []chan struct{}
	firsts  int           // first attempts that have not ended
	calm    chan struct{} // closed while there are none
	others  int           // cases that have not ended, and have not begun to wait to run alone
	over    chan struct{} // closed while there are none
	repeats chan struct{} // as many tokens as repeats at a time
	alone   chan struct{} // the place of the case that runs alone; a mutex would stop virtual time

	progress sync.Mutex
}

// repeatsAtOnce is how many cases are repeated at a time.
const repeatsAtOnce = 2

// NewRunner makes a runner of the settings.
func NewRunner(s *Settings) *Runner {
	s.stalls = newStallMeter()
	s.lone.turn, s.declining.turn = make(chan struct{}, 1), make(chan struct{}, 1)
	if s.Child != "" {
		s.bystander = s.newBystander()
	}
	if s.Tidy && s.OpenBackend != nil {
		s.used = new(usedKeys)
	}
	r := &Runner{s: s, free: s.Parallel, calm: make(chan struct{}), over: make(chan struct{}), repeats: make(chan struct{}, repeatsAtOnce), alone: make(chan struct{}, 1)}
	close(r.calm)
	close(r.over)
	return r
}

// Close ends what ran beside the cases, and tidies up.
func (r *Runner) Close() {
	r.s.bystander.close()
	r.s.stalls.close()
	r.s.askNoMore()
	r.s.tidy()
	r.s.apart.wait(closeLimit)
}

// Queue takes a place in the order of cases.
func (r *Runner) Queue() <-chan struct{} {
	turn := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.firsts == 0 {
		r.calm = make(chan struct{})
	}
	r.firsts++
	if r.others == 0 {
		r.over = make(chan struct{})
	}
	r.others++
	if r.free > 0 {
		r.free--
		close(turn)
	} else {
		r.waiting = append(r.waiting, turn)
	}
	return turn
}

// leave ends a first attempt.
func (r *Runner) leave() {
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

// Run waits for the turn, runs the case and judges it.
func (r *Runner) Run(ctx context.Context, rule *Rule, turn <-chan struct{}) Result {
	<-turn
	r.breathe(ctx)
	leave := sync.OnceFunc(r.leave)
	defer leave()
	if rule.Alone {
		leave()
		r.end()
		defer r.aloneWith(ctx)()
	} else {
		defer r.end()
	}
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

// A case that begins while this process hardly gets to run could not be judged, and would make
// it worse for those under way.
const (
	breathing   = 250 * time.Millisecond // for how long the process is looked at
	longestRest = 5 * time.Second        // what does not pass is not of our making
)

// breathe waits until this process gets to run again, for a while at most.
func (r *Runner) breathe(ctx context.Context) {
	for end := time.Now().Add(longestRest); r.s.stalls.during(breathing) > breathing/4 && time.Now().Before(end); {
		select {
		case <-time.After(rand.N(breathing)):
		case <-ctx.Done():
			return
		}
	}
}

func (r *Runner) verdict(ctx context.Context, rule *Rule, leave func()) Result {
	missing := rule.missing(r.s)
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx, "not tried")
	case rule.NeedsBackend && r.s.OpenBackend == nil:
		return Result{Verdict: Skipped, Evidence: "needs Config.OpenBackend"}
	}
	reason, deviates := r.s.deviation(rule)
	var res Result
	ttl := r.s.nextTTL(0, 0)
	for n := 1; ; n++ {
		var heldUp time.Duration
		res, heldUp = r.attempt(ctx, rule, n, ttl, missing != nil)
		if res.Verdict == Fail && missing == nil && !deviates {
			r.s.red.Store(true)
		}
		if res.Verdict != Inconclusive || res.early || res.unkept || n >= r.s.attempts() || missing != nil || deviates || ctx.Err() != nil || !r.wanted(rule, res) {
			break
		}
		if n == 1 && !rule.Alone {
			leave()
			r.calmly(ctx)
			defer func() { <-r.repeats }()
			heldUp = r.s.heldUpOfLate() // the first attempts held each other up
		}
		next := ttl
		if (!rule.AtDefault || r.s.Open == nil) && !res.unreliable {
			next = r.s.nextTTL(ttl, heldUp)
		}
		why, _, _ := strings.Cut(res.Evidence, "\n")
		r.s.Logf("%s: inconclusive with a TTL of %s, trying again with %s: %s", rule.Name, ttl, next, why)
		ttl = next
		if rule.AtDefault && r.s.Open != nil { // the Locker's TTL stays, and requests may be faster by now
			ttl = r.s.nextTTL(0, 0)
		}
		if ctx.Err() != nil || n >= r.s.attempts() { // another rule may have failed meanwhile
			break
		}
	}
	if res.Verdict == Inconclusive && ctx.Err() != nil {
		res = interrupted(ctx, notToEnd) // what a calmer machine would have shown stays unknown
	}
	if deviates && res.Verdict != Skipped && !res.overlap {
		return deviating(reason, res)
	}
	if res.unkept && missing == nil {
		return deviating(cmp.Or(r.s.Deviations["renewal"], r.s.Deviations["RenewKeeps"]), res)
	}
	if missing != nil {
		switch res.Verdict {
		case Pass:
			res.Verdict = Unclaimed
		case Fail:
			first, _, _ := strings.Cut(res.Evidence, "\n")
			res = Result{Verdict: NotClaimed, Evidence: fmt.Sprintf("the guarantees don't claim %s; seen when it was tried: %s", missing.Name, first)}
		case Inconclusive:
			first, _, _ := strings.Cut(res.Evidence, "\n")
			res = Result{Verdict: NotClaimed, Evidence: fmt.Sprintf("the guarantees don't claim %s; inconclusive when it was tried: %s", missing.Name, first)}
		case Skipped:
			res = Result{Verdict: NotClaimed, Evidence: fmt.Sprintf("the guarantees don't claim %s; not tried: %s", missing.Name, strings.TrimPrefix(res.Evidence, "not tried: "))}
		}
	}
	return res
}

// KeptAllTheSame ends the evidence of a rule that the lock is declared not to keep, and kept.
const KeptAllTheSame = "it was kept when it was tried"

// deviating is the result of a rule that the lock is not meant to keep.
func deviating(reason string, res Result) Result {
	seen := KeptAllTheSame
	switch res.Verdict {
	case Fail:
		seen = "seen when it was tried: " + res.Evidence
	case Inconclusive:
		seen = "inconclusive when it was tried: " + res.Evidence
	}
	return Result{Verdict: Deviation, Evidence: reason + "\n" + seen}
}

// wanted asks the Config whether a case is to be repeated.
func (r *Runner) wanted(rule *Rule, res Result) bool {
	if r.s.Repeat == nil {
		return true
	}
	res.Rule, res.Subject, res.Statement = rule.Name, rule.Subject, rule.Statement
	r.progress.Lock()
	defer r.progress.Unlock()
	return r.s.Repeat(res)
}

// end notes that a case has ended, or waits to run alone.
func (r *Runner) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.others--; r.others == 0 {
		close(r.over)
	}
}

// calmly waits until the first attempts of all cases have ended, which made some
// of the load themselves, and for one of the places for repeats.
func (r *Runner) calmly(ctx context.Context) {
	r.mu.Lock()
	calm := r.calm
	r.mu.Unlock()
	select {
	case <-calm:
	case <-ctx.Done():
	}
	r.repeats <- struct{}{}
	r.breathe(ctx)
}

// aloneWith waits until no other case runs, and has the bystander closed. The function
// that it returns lets others go on.
func (r *Runner) aloneWith(ctx context.Context) (resume func()) {
	r.alone <- struct{}{}
	for quiet := false; !quiet; {
		r.mu.Lock()
		over := r.over
		r.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
		}
		r.mu.Lock()
		quiet = r.others == 0 || ctx.Err() != nil
		r.mu.Unlock()
	}
	watched := r.s.bystander != nil
	r.s.bystander.close()
	return func() {
		if watched {
			r.s.bystander = r.s.newBystander()
		}
		<-r.alone
	}
}

// attempt runs the case once, and says for how long something was held up meanwhile.
func (r *Runner) attempt(ctx context.Context, rule *Rule, n int, ttl time.Duration, probe bool) (Result, time.Duration) {
	e := newEnv(ctx, r.s, rule, n, ttl)
	ended := make(chan any, 1)
	go func() {
		end := e.Guard(func() { rule.Run(e) })
		if _, skip := end.(skipped); !skip { // what was seen counts, however slow it was
			if more := e.Guard(e.checkOverlap); end == nil {
				end = more
			}
		}
		ended <- end
	}()
	end, limit, inTime, early := e.await(ended, probe)
	if !inTime {
		hanging, late := e.Log.hanging(), e.Timely()
		idle := e.Log.idle()
		moves := !early && (idle < limit/50 || e.Log.takesTurns(limit/10)) // every call returns, and there are too many for a slow lock
		if idle >= limit/2 && idle > delaysPerTTL*e.heldUp(AnyRequest) {
			late = Excuse{} // it hangs
		}
		if hanging == "" {
			hanging = "none; it was waiting for something that did not happen"
		}
		if !early && !moves {
			e.Fail(late, "", "the case did not end within its limit of %s. Calls that had not returned: %s", limit, hanging)
		}
		e.seal()
		e.cancel(fmt.Errorf("conformance: the limit of %s", limit))
		patience := time.NewTimer(3 * time.Second)
		select {
		case end = <-ended:
		case <-patience.C:
			r.s.Logf("%s: calls hang although their context has ended; the run goes on without them", rule.Name)
		}
		patience.Stop()
		if moves {
			end = inconclusive{fmt.Sprintf("it was not over after %s, in which calls were answered and waits served all the time", limit)}
		}
		if early {
			end = inconclusive{fmt.Sprintf("given up after %s, %s. Calls that had not returned: %s", limit, SinceAnotherFailed, hanging)}
		}
	}
	over := e.caller.Err() != nil
	e.cancel(errCaseOver)
	e.closeAll()
	heldUp := e.heldUp(AnyRequest) // with what was under way when the case ended
	res := e.judge(end, over, heldUp)
	res.early = early
	if res.Verdict == Fail && !res.proven && !probe && !over {
		if why := r.s.declinedWhy(ctx, res); why != "" {
			return Result{Verdict: Skipped, Evidence: why}, heldUp
		}
		if why := r.s.unreliable(ctx, e.Log.Base); why != "" {
			return Result{Verdict: Inconclusive, Evidence: why + "\n" + res.Evidence, unreliable: true}, heldUp
		}
	}
	return res, heldUp
}

// SinceAnotherFailed is in the first line of the evidence of a case that was given up because another
// rule had failed: it says nothing about its own.
const SinceAnotherFailed = "since another rule had failed"

// stuckWhenRed and five TTLs are for how long nothing but refusals may come back in a case,
// once a rule has failed for sure, before the case is given up. A case that waits for longer says so.
const stuckWhenRed = 10 * time.Second

// await waits for the end of the case until its limit. What requests take may become
// known only meanwhile. A case that is given up early might still have ended well.
func (e *Env) await(ended <-chan any, probe bool) (end any, limit time.Duration, inTime, early bool) {
	for {
		still, most := e.limits(e.rule, e.TTL)
		if probe {
			still = min(still, e.Work(10*time.Second+10*e.TTL))
			most = still
		}
		now := e.Log.Now()
		quiet, refusals := e.Log.quiet()
		if e.red.Load() && now < still { // another look at a lock that is broken is not worth a long wait
			if stuck := stuckWhenRed + 5*e.TTL + 2*e.Claimed.TakeoverLag; refusals >= stuck {
				return nil, stuck, false, true
			}
		}
		wait := min(still-now, time.Second)
		if wait <= 0 { // it goes on as long as calls return
			if wait = min(still/4-quiet, most-now); wait <= 0 {
				return nil, max(still, now.Truncate(time.Second)), false, false
			}
		}
		timer := time.NewTimer(wait)
		select {
		case end = <-ended:
			timer.Stop()
			return end, 0, true, false
		case <-timer.C:
		}
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
func (e *Env) judge(end any, cut bool, heldUp time.Duration) Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.failures) > 0 {
		evidence := e.evidence()
		if why := e.doubtful(); why != "" {
			unkept := slices.ContainsFunc(e.failures, func(f failure) bool { return f.unkept })
			return Result{Verdict: Inconclusive, Evidence: why + "\n" + evidence, unkept: unkept}
		}
		if heldUp >= stallNoted {
			evidence += fmt.Sprintf("\n(this process or a request was held up for up to %s during the case)", heldUp.Round(time.Millisecond))
		}
		unsupported := !slices.ContainsFunc(e.failures, func(f failure) bool { return !f.unsupported() })
		proven := slices.ContainsFunc(e.failures, func(f failure) bool { return f.proof })
		return Result{Verdict: Fail, Evidence: evidence, overlap: e.overlaps, proven: proven, unsupported: unsupported}
	}
	if cut {
		return interrupted(e.caller, notToEnd)
	}
	if _, aborted := end.(Abort); aborted && e.reason != nil {
		end = e.reason // of a goroutine that nobody waited for any more
	}
	switch end := end.(type) {
	case Abort:
		return Result{Verdict: Inconclusive, Evidence: "the case was given up"}
	case skipped:
		return Result{Verdict: Skipped, Evidence: end.reason}
	case inconclusive:
		return Result{Verdict: Inconclusive, Evidence: end.reason}
	}
	return Result{Verdict: Pass, Evidence: strings.Join(e.notes, "\n")}
}
