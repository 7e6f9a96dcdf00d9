package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// env is what a case works with. Its methods may be called from all goroutines
// that the case started with together.
type env struct {
	*settings
	ttl    time.Duration // of the leases that are left to expire; longer on a slow server and when a case is repeated
	long   time.Duration // of the leases that must not expire
	rule   *rule
	caller context.Context // of the run
	ctx    context.Context // ends at the limit of the case, and when a goroutine of it gives up
	cancel context.CancelCauseFunc
	hist   *history
	keys   string // begins every key of the case

	mu       sync.Mutex
	failures []failure
	calls    map[string]snapshot // by key, as they were at the last failure
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

func newEnv(caller context.Context, s *settings, r *rule, attempt int, ttl time.Duration) *env {
	ctx, cancel := context.WithCancelCause(caller)
	e := &env{
		settings: s, ttl: ttl, long: s.fit(max(longTTL, 4*ttl)), rule: r, caller: caller, ctx: ctx, cancel: cancel,
		hist:    newHistory(time.Now()),
		keys:    fmt.Sprintf("%s%s/%d/", s.keySpace, r.Name, attempt),
		removed: map[string][]time.Duration{},
		grants:  map[backend.ID]*seamHold{},
		calls:   map[string]snapshot{},
		secrets: map[string]string{},
		rng:     rand.New(rand.NewPCG(s.Seed, uint64(attempt)+uint64(len(r.Name))<<32)),
	}
	e.hist.used, e.hist.keys, e.hist.pace = s.used, e.keys, &s.pace
	return e
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
	c, err := e.open(open)
	if err != nil {
		e.unexpectedFatal("", err, "a client could not be opened: %v", err)
	}
	return c
}

func (e *env) open(open func(context.Context) (lock.Locker, error)) (*client, error) {
	ctx, cancel := context.WithTimeout(e.ctx, openLimit)
	defer cancel()
	ev := e.hist.begin("suite", "Open", "")
	l, err := open(ctx)
	e.hist.end(ev, outcome(err))
	e.hist.failed(ev, err)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &client{e: e, l: l, who: fmt.Sprintf("client %d", len(e.clients)+1), closed: -1}
	e.clients = append(e.clients, c)
	return c, nil
}

// backend opens a new client of the store at the seam.
func (e *env) backend() *seam {
	ctx, cancel := context.WithTimeout(e.ctx, openLimit)
	defer cancel()
	ev := e.hist.begin("suite", "OpenBackend", "")
	b, err := e.openBackend(ctx)
	e.hist.end(ev, outcome(err))
	e.hist.failed(ev, err)
	if err != nil {
		e.unexpectedFatal("", err, "a backend could not be opened: %v", err)
	}
	s := &seam{e: e, b: b, clock: backend.SystemClock()}
	if c, ok := backend.As[backend.Clocked](b); ok {
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
	e.lapsing(key)
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
