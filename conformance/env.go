package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// env is what a case works with. Its methods may be called from all goroutines
// that the case started with together.
type env struct {
	*settings
	ttl    time.Duration // of the leases that are left to expire; longer when a case is repeated
	long   time.Duration // of the leases that must not expire
	rule   *rule
	ctx    context.Context // ends at the limit of the case, and when a goroutine of it gives up
	cancel context.CancelCauseFunc
	hist   *history
	keys   string // begins every key of the case

	mu       sync.Mutex
	failures []failure
	calls    map[string]string // by key, as they were at the last failure
	notes    []string
	clients  []*client
	seams    []*seam
	records  []*record
	grants   map[backend.ID]*seamHold // at the seam, by acquisition
	removed  map[string][]time.Duration
	secrets  map[string]string // explicit owner -> the name it has in the evidence
	rng      *rand.Rand
	sealed   bool // what follows is no evidence
}

// failure is one broken expectation. A late one may be the fault of a machine
// that stood still.
type failure struct {
	text string
	key  string // whose calls are shown
	// excuse is how long the machine must have stood still for the failure to be
	// its fault, or zero when nothing excuses it.
	excuse time.Duration
	proof  bool // holds whatever else went wrong in the case
}

// excused reports whether the failures may be the fault of a machine that stood
// still for so long: the first one may, and the others followed from it.
func (e *env) excused(stalled time.Duration) bool {
	for i, f := range e.failures {
		if f.proof || i == 0 && (f.excuse == 0 || f.excuse > stalled) {
			return false
		}
	}
	return true
}

// abort ends the goroutines of a case. The reason is in the env.
type abort struct{}

// skipped ends a case that has nothing to test with.
type skipped struct{ reason string }

func newEnv(ctx context.Context, s *settings, r *rule, attempt int) *env {
	ctx, cancel := context.WithCancelCause(ctx)
	// A case that is repeated because the machine stood still gets more time.
	ttl := s.fit(s.ttl << min(attempt-1, 2))
	return &env{
		settings: s, ttl: ttl, long: s.fit(max(longTTL, 4*ttl)), rule: r, ctx: ctx, cancel: cancel,
		hist:    newHistory(time.Now()),
		keys:    fmt.Sprintf("%s%s/%d/", s.keySpace, r.Name, attempt),
		removed: map[string][]time.Duration{},
		grants:  map[backend.ID]*seamHold{},
		calls:   map[string]string{},
		secrets: map[string]string{},
		rng:     rand.New(rand.NewPCG(s.Seed, uint64(attempt)+uint64(len(r.Name))<<32)),
	}
}

// failf records a broken rule and goes on. The key selects the calls that are
// shown; the empty key shows all.
func (e *env) failf(key, format string, args ...any) { e.fail(0, key, format, args...) }

// fatalf is failf, and ends the case.
func (e *env) fatalf(key, format string, args ...any) {
	e.fail(0, key, format, args...)
	panic(abort{})
}

// latef records that something came too late or ended too early, which is a
// broken rule unless the machine stood still: the case is then repeated.
func (e *env) latef(key, format string, args ...any) { e.fail(stallLeast, key, format, args...) }

// lateFatalf is latef, and ends the case.
func (e *env) lateFatalf(key, format string, args ...any) {
	e.fail(stallLeast, key, format, args...)
	panic(abort{})
}

// overduef records that something had not happened when a control timer with
// slack fired. Only a long stall excuses that.
func (e *env) overduef(key, format string, args ...any) { e.fail(stallLong, key, format, args...) }

// overdueFatalf is overduef, and ends the case.
func (e *env) overdueFatalf(key, format string, args ...any) {
	e.fail(stallLong, key, format, args...)
	panic(abort{})
}

// unexpected is failf for an error that should have been another one, or none.
// A server that did not answer in time, and a lease that ran out, may be the
// fault of a machine that stood still.
func (e *env) unexpected(key string, err error, format string, args ...any) {
	e.fail(slow(err), key, format, args...)
}

// unexpectedFatal is unexpected, and ends the case.
func (e *env) unexpectedFatal(key string, err error, format string, args ...any) {
	e.fail(slow(err), key, format, args...)
	panic(abort{})
}

func slow(err error) time.Duration {
	for _, x := range []error{lock.ErrUnavailable, lock.ErrOutcomeUnknown, lock.ErrExpired, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, x) {
			return stallLeast
		}
	}
	return 0
}

func (e *env) fail(excuse time.Duration, key, format string, args ...any) {
	e.addFailure(-1, failure{key: key, excuse: excuse}, format, args...)
}

// proofAt records a broken rule that nothing excuses, not even what went wrong
// before, and shows the calls up to that time.
func (e *env) proofAt(when time.Duration, key, format string, args ...any) {
	e.addFailure(when, failure{key: key, proof: true}, format, args...)
}

func (e *env) addFailure(when time.Duration, f failure, format string, args ...any) {
	f.text = fmt.Sprintf("at %s: %s", seconds(e.hist.now()), fmt.Sprintf(format, args...))
	calls := e.hist.until(f.key, when)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed || len(e.failures) >= 3 {
		return
	}
	e.failures = append(e.failures, f)
	e.calls[f.key] = calls
}

// evidence is the failures, and after them the calls on the keys that they are
// about. The mutex is held.
func (e *env) evidence() string {
	var parts []string
	for _, f := range e.failures {
		parts = append(parts, f.text)
	}
	shown := map[string]bool{}
	for _, f := range e.failures {
		if !shown[f.key] {
			parts = append(parts, e.calls[f.key])
		}
		shown[f.key] = true
	}
	return strings.Join(parts, "\n")
}

// skipf ends the case without a verdict on the rule.
func (e *env) skipf(format string, args ...any) { panic(skipped{fmt.Sprintf(format, args...)}) }

// notef adds a line that is shown when the rule passes.
func (e *env) notef(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

func (e *env) failed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.failures) > 0
}

// key is a key that only this case uses.
func (e *env) key(format string, args ...any) string { return e.keys + fmt.Sprintf(format, args...) }

// owner makes an explicit owner that only this case uses. The name stands for it
// in the evidence.
func (e *env) owner(name string) string {
	secret := fmt.Sprintf("owner-%s-%016x", name, e.random(1<<62))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.secrets[secret] = name
	return secret
}

func (e *env) ownerName(secret string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name, ok := e.secrets[secret]; ok {
		return name
	}
	return "?"
}

// random is a number below n.
func (e *env) random(n int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rng.Int64N(n)
}

// randomly is a duration below d.
func (e *env) randomly(d time.Duration) time.Duration { return time.Duration(e.random(int64(d))) }

// slack is how much later than promised something may happen before it counts:
// enough for a slow machine, less than what broken locks need.
func (e *env) slack() time.Duration { return 2*time.Second + e.ttl/2 }

// takeover is how long an abandoned lease of the given TTL may keep others out.
func (e *env) takeover(ttl time.Duration) time.Duration { return ttl + e.g.TakeoverLag + e.slack() }

// rounds is how many rounds that take about d each fit into the share of the
// budget that one case has.
func (e *env) rounds(d time.Duration, least, most int) int {
	return min(max(int(e.Budget/5/max(d, 1)), least), most)
}

// window is how long a case that makes contention goes on.
func (e *env) window() time.Duration {
	return min(max(e.Budget/15, 300*time.Millisecond), 20*time.Second)
}

// pause waits, or ends the case with its context.
func (e *env) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.ctx.Done():
		panic(abort{})
	}
}

// within waits for the channel. It reports false when the control timer was
// first, even after the machine stood still.
func (e *env) within(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
	case <-e.ctx.Done():
		panic(abort{})
	}
	// Both may have become ready while this process was not running.
	grace := time.NewTimer(50 * time.Millisecond)
	defer grace.Stop()
	select {
	case <-done:
		return true
	case <-grace.C:
		return false
	}
}

// together runs the functions at the same time and waits for all of them. When
// one of them ends the case, together does.
func (e *env) together(fs ...func()) { e.start(fs...)() }

// each runs n functions together.
func (e *env) each(n int, f func(i int)) {
	fs := make([]func(), n)
	for i := range fs {
		fs[i] = func() { f(i) }
	}
	e.together(fs...)
}

// start runs the functions and returns the function that waits for them.
func (e *env) start(fs ...func()) (wait func()) {
	ended := make(chan any, len(fs))
	for _, f := range fs {
		go func() { ended <- e.guard(f) }()
	}
	return func() {
		var first any
		for range fs {
			if end := <-ended; end != nil && first == nil {
				first = end
			}
		}
		if first != nil {
			panic(first)
		}
	}
}

// guard runs f in a goroutine of its own, waits for it, and returns what ended it
// early: abort, skipped or nil. A panic of the lock under test becomes a failure.
// What ends one goroutine of a case for a reason ends the others too.
func (e *env) guard(f func()) any {
	ended := make(chan any, 1)
	go func() {
		returned := false
		defer func() {
			var end any
			switch p := recover().(type) {
			case nil:
				if !returned {
					e.fail(0, "", "a goroutine of the case ended without returning: something called runtime.Goexit, such as t.FailNow in Config.Open")
					end = abort{}
				}
			case abort, skipped:
				end = p
			default:
				e.fail(0, "", "panic: %v\n%s", p, stack())
				end = abort{}
			}
			if end != nil {
				e.seal()
				e.cancel(errCaseOver)
			}
			ended <- end
		}()
		f()
		returned = true
	}()
	return <-ended
}

var errCaseOver = errors.New("conformance: the case is over")

// seal keeps what follows from the end of the context out of the evidence.
func (e *env) seal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sealed = true
}

// locker opens a new client of the store.
func (e *env) locker() *client { return e.lockerFrom(e.openLocker) }

func (e *env) lockers(n int) []*client {
	out := make([]*client, n)
	for i := range out {
		out[i] = e.locker()
	}
	return out
}

func (e *env) lockerFrom(open func(context.Context) (lock.Locker, error)) *client {
	ctx, cancel := context.WithTimeout(e.ctx, openLimit)
	defer cancel()
	ev := e.hist.begin("suite", "Open", "")
	l, err := open(ctx)
	e.hist.end(ev, outcome(err))
	if err != nil {
		e.fatalf("", "a client could not be opened: %v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &client{e: e, l: l, who: fmt.Sprintf("client %d", len(e.clients)+1), closed: -1}
	e.clients = append(e.clients, c)
	return c
}

// backend opens a new client of the store at the seam.
func (e *env) backend() *seam {
	ctx, cancel := context.WithTimeout(e.ctx, openLimit)
	defer cancel()
	ev := e.hist.begin("suite", "OpenBackend", "")
	b, err := e.openBackend(ctx)
	e.hist.end(ev, outcome(err))
	if err != nil {
		e.fatalf("", "a backend could not be opened: %v", err)
	}
	s := &seam{e: e, b: b, clock: backend.SystemClock()}
	if c, ok := b.(backend.Clocked); ok {
		s.clock = c.Clock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.who = fmt.Sprintf("backend %d", len(e.seams)+1)
	e.seams = append(e.seams, s)
	return s
}

// remove deletes the record of the key by force, or skips the case.
func (e *env) remove(key string) {
	if e.Remove == nil {
		e.skipf("needs Config.Remove, to delete a record by force")
	}
	e.mu.Lock()
	e.removed[key] = append(e.removed[key], e.hist.now())
	e.mu.Unlock()
	ev := e.hist.begin("operator", "Remove", key)
	err := e.Remove(e.ctx, key)
	e.hist.end(ev, outcome(err))
	if err != nil {
		e.lateFatalf(key, "Config.Remove failed: %v", err)
	}
}

// closeAll closes every client, without waiting for ever.
func (e *env) closeAll() {
	e.mu.Lock()
	clients, seams := e.clients, e.seams
	e.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range clients {
		if !c.killed.Load() {
			wg.Go(func() { e.guardClose(c.l.Close) })
		}
	}
	for _, s := range seams {
		wg.Go(func() { e.guardClose(s.close) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	t := time.NewTimer(closeLimit)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		e.Logf("%s: clients were still closing after %s; they are left to it", e.rule.Name, closeLimit)
	}
}

func (e *env) guardClose(f func() error) {
	defer func() { _ = recover() }() // a case about Close reports it
	_ = f()
}

// is fails the case unless the error matches all of the targets.
func (e *env) is(key string, err error, what string, targets ...error) {
	for _, t := range targets {
		if !errors.Is(err, t) {
			e.unexpected(key, err, "%s returned %s; expected an error that matches %s", what, outcome(err), errorName(t))
			return
		}
	}
}

var errorNames = []struct {
	err  error
	name string
}{
	{lock.ErrExpired, "ErrExpired"}, {lock.ErrTakenOver, "ErrTakenOver"}, {lock.ErrSessionLost, "ErrSessionLost"},
	{lock.ErrMaxHold, "ErrMaxHold"}, {lock.ErrLost, "ErrLost"}, {lock.ErrHeld, "ErrHeld"}, {lock.ErrNotHeld, "ErrNotHeld"},
	{lock.ErrOutcomeUnknown, "ErrOutcomeUnknown"}, {lock.ErrUnavailable, "ErrUnavailable"}, {lock.ErrPermanent, "ErrPermanent"},
	{lock.ErrInvalid, "ErrInvalid"}, {lock.ErrUnsupported, "ErrUnsupported"}, {lock.ErrClosed, "ErrClosed"},
	{lock.ErrReleased, "ErrReleased"}, {lock.ErrTooManyHolds, "ErrTooManyHolds"}, {context.Canceled, "context.Canceled"}, {context.DeadlineExceeded, "context.DeadlineExceeded"},
}

func errorName(err error) string {
	for _, n := range errorNames {
		if err == n.err {
			return n.name
		}
	}
	return fmt.Sprintf("%q", err)
}

// outcome describes an error with the sentinels that it matches.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	var matched []string
	for _, n := range errorNames {
		if errors.Is(err, n.err) {
			matched = append(matched, n.name)
		}
	}
	if len(matched) == 0 {
		return fmt.Sprintf("error %q (matches no error of package lock)", err)
	}
	return fmt.Sprintf("error %q (matches %s)", err, strings.Join(matched, ", "))
}
