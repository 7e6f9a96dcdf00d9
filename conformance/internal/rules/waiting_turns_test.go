package rules_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// tellingMutant says something else about who watches.
type tellingMutant struct {
	backend.Backend
	backend.Watcher
	backend.ReleaseTeller
	says   func(others int) int
	late   bool          // signals of a release
	kept   bool          // a watch on the server, for good
	hint   int           // how many clients more are said to watch
	slow   time.Duration // until a watch is in force
	breaks *sync.Map     // of four watches three break soon, by key
	twice  bool          // each signal comes twice
	after  time.Duration // the release a signal comes
}

func (m tellingMutant) Clock() backend.Clock { return m.Backend.(backend.Clocked).Clock() }

func (m tellingMutant) ReleaseTelling(ctx context.Context, h backend.Hold) (int, error) {
	n, err := m.ReleaseTeller.ReleaseTelling(ctx, h)
	return m.says(n), err
}

// Watch signals after a while, so that who holds the key has taken it again by then.
func (m tellingMutant) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	time.Sleep(m.slow)
	on := ctx
	if m.kept {
		on = context.WithoutCancel(ctx)
	}
	if m.breaks != nil {
		n, _ := m.breaks.LoadOrStore(key, new(atomic.Int64))
		if n.(*atomic.Int64).Add(1)%4 != 0 {
			var cancel context.CancelFunc
			on, cancel = context.WithTimeout(ctx, time.Millisecond/2)
			broken := make(chan backend.Hint)
			_, err := m.Watcher.Watch(on, key)
			context.AfterFunc(on, func() { cancel(); close(broken) })
			return broken, err
		}
	}
	hints, err := m.Watcher.Watch(on, key)
	if err != nil || !m.late && !m.twice && m.hint == 0 && m.after == 0 {
		return hints, err
	}
	later := make(chan backend.Hint, 1)
	go func() {
		defer close(later)
		for {
			select {
			case hint, ok := <-hints:
				if !ok {
					return
				}
				if hint.Watchers += m.hint; m.late {
					time.Sleep(8 * time.Millisecond)
				}
				time.Sleep(m.after)
				select {
				case later <- hint:
				default:
				}
				if m.twice {
					select {
					case later <- hint:
					case <-ctx.Done():
					}
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return later, nil
}

func TestMutantTurns(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		says   func(int) int
		late   bool
		kept   bool
		hint   int
		slow   time.Duration
		breaks bool
		twice  bool
		queue  bool // a signal comes to one client after the other
	}{
		"a release tells of nobody":                    {"ReleaseTells LeavesATurn", func(int) int { return 0 }, true, false, 0, 0, false, false, false},
		"a release counts its client":                  {"ReleaseTells", func(n int) int { return n + 1 }, false, false, 0, 0, false, false, false},
		"a watch is never freed":                       {"ReleaseTells", func(n int) int { return n }, false, true, 0, 0, false, false, false},
		"a signal counts others twice":                 {"ReleaseTells", func(n int) int { return n }, false, false, 1, 0, false, false, false},
		"each signal comes twice":                      {"LeavesATurn", func(n int) int { return n }, false, false, 0, 0, false, true, true},
		"healthy, with signals to one after the other": {"", func(n int) int { return n }, false, false, 0, 0, false, false, true},
		"healthy": {"", func(n int) int { return n }, false, false, 0, 0, false, false, false},
		"healthy, with watches that take their time":             {"", func(n int) int { return n }, false, false, 0, 300 * time.Millisecond, false, false, false},
		"healthy, with watches that take their time and break":   {"", func(n int) int { return n }, false, false, 0, 300700 * time.Microsecond, true, false, false},
		"a release tells of nobody, and watches take their time": {"LeavesATurn", func(int) int { return 0 }, true, false, 0, 300 * time.Millisecond, false, false, false},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			cfg := memory()
			healthy, breaks := cfg.OpenBackend, (*sync.Map)(nil)
			if c.breaks {
				breaks = new(sync.Map)
			}
			var opened atomic.Int64
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := healthy(ctx)
				if err != nil {
					return nil, err
				}
				var after time.Duration
				if c.queue {
					after = time.Duration(opened.Add(1)) * 50 * time.Microsecond
				}
				return tellingMutant{b, b.(backend.Watcher), b.(backend.ReleaseTeller), c.says, c.late, c.kept, c.hint, c.slow, breaks, c.twice, after}, nil
			}
			switch {
			case c.breaks: // no release tells of a watch that broke
				mustPass(t, cfg, "LeavesATurn")
			case c.rules == "":
				mustPass(t, cfg, "ReleaseTells LeavesATurn")
			default:
				mustFail(t, cfg, c.rules)
			}
		})
	}
	all.Wait()
}

func withOnly(cfg conformance.Config, rules ...string) conformance.Config {
	cfg.Only = rules
	return cfg
}

// A Locker that polls is not asked for turns, although its backend could tell of watchers.
func TestTurnsOfALockerThatPolls(t *testing.T) {
	t.Parallel()
	cfg := memory()
	cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
		return lock.New(unwatched{b}, &lock.Options{TTL: ttl})
	}
	rep, err := conformance.Check(t.Context(), withOnly(cfg, "LeavesATurn"))
	if err != nil || len(rep.Results) != 1 {
		t.Fatal(err, rep)
	}
	if r := rep.Results[0]; r.Verdict != conformance.Skipped {
		t.Errorf("%s: %s %s", r.Rule, r.Verdict, r.Evidence)
	}
}

// unwatched is a backend without abilities.
type unwatched struct{ backend.Backend }

func (u unwatched) Clock() backend.Clock {
	c, _ := backend.As[backend.Clocked](u.Backend)
	return c.Clock()
}
