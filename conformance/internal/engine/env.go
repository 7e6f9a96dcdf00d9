package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Env is what a case works with. Its methods may be called from all goroutines
// that the case started with together.
type Env struct {
	*Settings
	TTL    time.Duration // of the leases that are left to expire; longer on a slow server and when a case is repeated
	Long   time.Duration // of the leases that must not expire
	rule   *Rule
	caller context.Context // of the run
	Ctx    context.Context // ends at the limit of the case, and when a goroutine of it gives up
	cancel context.CancelCauseFunc
	Log    *CallLog
	Stem   string // begins every key of the case

	mu       sync.Mutex
	failures []failure
	calls    map[string]snapshot // by key, as they were at the last failure
	notes    []string
	clients  []*Client
	backends []*BackendClient
	networks []*Network
	records  []*Record
	grants   map[backend.ID]*Grant // at the backends, by acquisition
	removed  map[string][]time.Duration
	secrets  map[string]string // explicit owner -> the name it has in the evidence
	rng      *rand.Rand
	sealed   bool // what follows is no evidence
	over     bool // what is opened from now on is closed at once
	reason   any  // what has ended a goroutine of the case, first
	overlaps bool // two leases of a key were valid at the same time
}

// CallersValue is the key of a value that the contexts of all calls carry.
type CallersValue struct{}

func newEnv(caller context.Context, s *Settings, r *Rule, attempt int, ttl time.Duration) *Env {
	ctx, cancel := context.WithCancelCause(context.WithValue(caller, CallersValue{}, r.Name))
	e := &Env{
		Settings: s, TTL: ttl, Long: s.Fit(max(longTTL, 4*ttl)), rule: r, caller: caller, Ctx: ctx, cancel: cancel,
		Log:     newCallLog(time.Now()),
		Stem:    fmt.Sprintf("%s%s/%d/", s.KeySpace, r.Name, attempt),
		removed: map[string][]time.Duration{},
		grants:  map[backend.ID]*Grant{},
		calls:   map[string]snapshot{},
		secrets: map[string]string{},
		rng:     rand.New(rand.NewPCG(s.Seed, uint64(attempt)+uint64(len(r.Name))<<32)),
	}
	e.Log.used, e.Log.keys, e.Log.pace, e.Log.suspect = s.used, e.Stem, &s.pace, s.suspect
	return e
}

// Skipf ends the case without a verdict on the rule.
func (e *Env) Skipf(format string, args ...any) { panic(skipped{fmt.Sprintf(format, args...)}) }

// Notef adds a line that is shown when the rule passes.
func (e *Env) Notef(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

// Failed reports whether a failure was recorded.
func (e *Env) Failed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.failures) > 0
}

// Key is a key that only this case uses.
func (e *Env) Key(format string, args ...any) string { return e.Stem + fmt.Sprintf(format, args...) }

// Owner makes an explicit owner that only this case uses. The name stands for it
// in the evidence.
func (e *Env) Owner(name string) string {
	secret := fmt.Sprintf("owner-%s-%016x", name, e.Random(1<<62))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.secrets[secret] = name
	return secret
}

// OwnerName is the name that an explicit owner has in the evidence.
func (e *Env) OwnerName(secret string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name, ok := e.secrets[secret]; ok {
		return name
	}
	return "?"
}

// Random is a number below n.
func (e *Env) Random(n int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rng.Int64N(n)
}

// Randomly is a duration below d.
func (e *Env) Randomly(d time.Duration) time.Duration { return time.Duration(e.Random(int64(d))) }

// Slack is how much later than promised something may happen before it counts:
// enough for a slow machine, less than what broken locks need.
func (e *Env) Slack() time.Duration { return 2*time.Second + e.TTL/2 }

// TakeoverLimit is how long an abandoned lease of the given TTL may keep others out.
func (e *Env) TakeoverLimit(ttl time.Duration) time.Duration {
	return ttl + e.Claimed.TakeoverLag + e.Slack()
}

// Rounds is how many rounds that take about d each fit into the share of the
// budget that one case has.
func (e *Env) Rounds(d time.Duration, least, most int) int {
	return min(max(int(e.Budget/5/max(d, 1)), least), most)
}

// Work is how long requests take on this server that take d on a swift one.
func (e *Env) Work(d time.Duration) time.Duration {
	return time.Duration(float64(d) * max(1, float64(e.pace.of(0.5))/float64(swift)))
}

// Window is how long a case that makes contention goes on.
func (e *Env) Window() time.Duration {
	return min(max(e.Budget/15, 300*time.Millisecond), 20*time.Second)
}

// unhurried is the budget from which on a case may take more than a minute.
const unhurried = 5 * time.Minute

// Declared reports whether a deviation from one of these rules or subjects was declared.
func (e *Env) Declared(names ...string) bool {
	for _, name := range names {
		if _, declared := e.Deviations[name]; declared {
			return true
		}
	}
	return false
}

// Virtual reports whether time passes only where everything waits.
func (e *Env) Virtual() bool { return virtual() }

// Unhurried reports whether a case may take more than a minute: where that costs no time, or
// where the caller has given so much.
func (e *Env) Unhurried() bool { return virtual() || e.Budget >= unhurried }

// OpenLocker opens a new client of the store, whose TTL is that of the attempt.
func (e *Env) OpenLocker(ctx context.Context) (lock.Locker, error) {
	return e.openLockerFor(ctx, e.TTL)
}

// Locker opens a new client of the store.
func (e *Env) Locker() *Client { return e.LockerFrom(e.OpenLocker) }

// Lockers opens n new clients of the store.
func (e *Env) Lockers(n int) []*Client {
	out := make([]*Client, n)
	for i := range out {
		out[i] = e.Locker()
	}
	return out
}

// LockerFrom is Locker with another way to open.
func (e *Env) LockerFrom(open func(context.Context) (lock.Locker, error)) *Client {
	c, err := e.open(open)
	if err != nil {
		e.UnexpectedFatal("", err, "a client could not be opened: %v", err)
	}
	return c
}

// awayFor is how long a server may be away when a client is opened, as one is that elects
// a leader.
const awayFor = 10 * time.Second

// opened opens a client, and tries again while the server is away.
func opened[T any](ctx context.Context, open func(context.Context) (T, error)) (T, error) {
	for last := time.Now().Add(awayFor); ; {
		l, err := open(ctx)
		if !errors.Is(err, lock.ErrUnavailable) || time.Now().After(last) {
			return l, err
		}
		select {
		case <-time.After(awayFor / 100):
		case <-ctx.Done():
			return l, err
		}
	}
}

// openedBy is opened, with an event for each attempt.
func openedBy[T any](e *Env, what string, open func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(e.Ctx, OpenLimit)
	defer cancel()
	return opened(ctx, func(ctx context.Context) (T, error) {
		ev := e.Log.Begin("suite", what, "")
		c, err := open(ctx)
		e.Log.End(ev, Outcome(err))
		e.Log.failed(ev, err)
		return c, err
	})
}

func (e *Env) open(open func(context.Context) (lock.Locker, error)) (*Client, error) {
	l, err := openedBy(e, "Open", open)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mustGoOn(l.Close)
	c := &Client{Env: e, Locker: l, Who: fmt.Sprintf("client %d", len(e.clients)+1), closed: -1}
	e.clients = append(e.clients, c)
	return c, nil
}

// Backend opens a new backend on the store, below any Locker.
func (e *Env) Backend() *BackendClient {
	return e.BackendFrom(e.openBackend, "a backend")
}

// BackendFrom is Backend with another way to open. what names it where it can't be opened.
func (e *Env) BackendFrom(open func(context.Context) (backend.Backend, error), what string) *BackendClient {
	b, err := openedBy(e, "OpenBackend", open)
	if err != nil {
		e.UnexpectedFatal("", err, "%s could not be opened: %v", what, err)
	}
	s := &BackendClient{Env: e, Backend: b, Clock: backend.SystemClock()}
	if c, ok := backend.As[backend.Clocked](b); ok {
		s.Clock = c.Clock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mustGoOn(b.Close)
	s.Who = fmt.Sprintf("backend %d", len(e.backends)+1)
	e.backends = append(e.backends, s)
	return s
}

// NeedsRemove skips the case where no record can be deleted by force.
func (e *Env) NeedsRemove() {
	if e.Remove == nil {
		e.Skipf("needs Config.Remove, to delete a record by force")
	}
}

// RemoveByForce deletes the record of the key by force, or skips the case.
func (e *Env) RemoveByForce(key string) {
	e.NeedsRemove()
	e.mu.Lock()
	e.removed[key] = append(e.removed[key], e.Log.Now())
	e.mu.Unlock()
	e.lapsing(key)
	ev := e.Log.Begin("operator", "Remove", key)
	err := e.Remove(e.Ctx, key)
	e.Log.End(ev, Outcome(err))
	if errors.Is(err, lock.ErrUnsupported) {
		e.Skipf("needs Config.Remove, to delete a record by force; it returned %s", Outcome(err))
	}
	if err != nil {
		excuse := e.Timely()
		if noAnswer(err) {
			excuse = e.excuseFor(err)
		}
		e.Fail(excuse, key, "Config.Remove failed: %v", err)
		panic(Abort{})
	}
}

// closeAll closes every client, without waiting for ever.
func (e *Env) closeAll() {
	e.mu.Lock()
	e.over = true
	clients, backends, networks := e.clients, e.backends, e.networks
	e.mu.Unlock()
	for _, n := range networks {
		for _, p := range n.proxies {
			heal(p)
		}
		defer n.close()
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		if !c.killed.Load() {
			wg.Go(func() { e.guardClose(c.Locker.Close) })
		}
	}
	for _, s := range backends {
		wg.Go(func() { e.guardClose(s.Close) })
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

// mustGoOn closes what a goroutine of the case has opened when the case was over, and ends the
// goroutine. e.mu is held.
func (e *Env) mustGoOn(closes func() error) {
	if e.over {
		go e.guardClose(closes)
		panic(Abort{})
	}
}

func (e *Env) guardClose(f func() error) {
	defer func() { _ = recover() }() // a case about Close reports it
	_ = f()
}
