//go:build unix

package rules_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/internal/engine"
	filelock "github.com/mortiselock/lock/file"
)

// farMutants are locks over files, each with one flaw that only several processes
// bring to light.
var farMutants = map[string]struct {
	rules    string // that must fail
	ownStore bool   // each process has a store of its own
	change   func(m *lockerMutant, dir string)
}{
	"healthy": {},
	// It always renews, and tells no deadline.
	"no-deadline": {change: func(m *lockerMutant, _ string) { alwaysRenews(m) }},
	// The same, and its waiters take by force what they have waited for a while.
	"no-deadline-takes-by-force": {rules: "ExclusiveAcrossProcesses", change: func(m *lockerMutant, dir string) {
		alwaysRenews(m)
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			soon, cancel := context.WithTimeout(ctx, 3*time.Millisecond)
			defer cancel()
			l, err := m.Client.Acquire(soon, key, opts...)
			if !errors.Is(err, lock.ErrHeld) || ctx.Err() != nil {
				return l, err
			}
			if err := takeByForce(ctx, dir, key); err != nil {
				return nil, err
			}
			return m.Client.Acquire(ctx, key, opts...)
		}
	}},
	"no-deadline-never-lost": {rules: "PauseIsNoticed FencedRegister", change: func(m *lockerMutant, _ string) {
		alwaysRenews(m)
		healthy := m.lease
		m.lease = func(ctx context.Context, l *leaseMutant) {
			healthy(ctx, l)
			l.ctx, l.Lease = context.Background(), retokened{l.Lease, 1<<62 - l.Lease.Token()}
		}
	}},
	"local": {rules: "ExclusiveAcrossProcesses", ownStore: true},
	"never-lost": {rules: "PauseIsNoticed LostBeforeTakeoverAcrossProcesses", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			ctx, end := context.WithCancelCause(context.Background())
			l.ctx = ctx
			l.release = func(ctx context.Context) error {
				end(lock.ErrReleased)
				return l.Lease.Release(ctx)
			}
		}
	}},
	// The context ends by a timer, and Err does not look at the clock.
	"timer-only": {rules: "PauseIsNoticed", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) { l.ctx, _ = follow(l.Lease.Context(), 0) }
	}},
	"lost-late": {rules: "LostBeforeTakeoverAcrossProcesses", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			ctx, end := follow(l.Lease.Context(), 150*time.Millisecond)
			l.ctx = ctx
			l.release = func(ctx context.Context) error {
				end(lock.ErrReleased)
				return l.Lease.Release(ctx)
			}
		}
	}},
	"one-token": {rules: "FencedRegister CrashFreesProcess CrashAtAnyMoment ExclusiveAcrossProcesses", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) { l.Lease = retokened{l.Lease, 7} }
	}},
	"no-token": {rules: "FencedRegister", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) { l.Lease = retokened{l.Lease, 0} }
	}},
	"falling-tokens": {rules: "FencedRegister", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) { l.Lease = retokened{l.Lease, 1<<62 - l.Lease.Token()} }
	}},
	// Each process counts by itself, as with a counter in the client's memory.
	"tokens-per-process": {rules: "FencedRegister CrashAtAnyMoment", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) { l.Lease = retokened{l.Lease, ownTokens.Add(1)} }
	}},
	"outlives-its-process": {rules: "CrashFreesProcess CrashAtAnyMoment", change: func(m *lockerMutant, _ string) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.TTL = time.Hour })...)
			}
		})
	}},
	"never-renews": {rules: "CrashFreesProcess ShortPauseIsNoLoss", change: func(m *lockerMutant, _ string) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = true })...)
			}
		})
	}},
	"any-pause-is-a-loss": {rules: "ShortPauseIsNoLoss", change: func(m *lockerMutant, _ string) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			ctx, end := context.WithCancelCause(l.Lease.Context())
			l.ctx = ctx
			go func() {
				for last := time.Now(); ctx.Err() == nil; last = time.Now() {
					time.Sleep(5 * time.Millisecond)
					if time.Since(last) > 100*time.Millisecond {
						end(lock.ErrLost)
					}
				}
			}()
		}
	}},
	// It renews all leases, so that no other rule has it release a lease that has run out.
	"releases-by-key": {rules: "ReleaseAfterPause", change: func(m *lockerMutant, dir string) {
		alwaysRenews(m)
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.deadline = func() (time.Time, bool) { return time.Time{}, false }
			l.release = func(ctx context.Context) error {
				err := l.Lease.Release(ctx)
				if errors.Is(err, lock.ErrLost) {
					return takeByForce(ctx, dir, l.Key())
				}
				return err
			}
		}
	}},
	"shows-who-reads": {rules: "HolderAcrossProcesses", change: func(m *lockerMutant, _ string) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := get(ctx, key, opts...)
				if held := (*lock.HeldError)(nil); errors.As(err, &held) {
					held.Holder.PID = os.Getpid()
				}
				return l, err
			}
		})
	}},
	// The owner is made one of this process, as where a thread's number is its owner.
	"owners-of-a-process": {rules: "OwnerAcrossProcesses", change: func(m *lockerMutant, _ string) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
					if s.Owner != "" {
						s.Owner += "/" + strconv.Itoa(os.Getpid())
					}
				})...)
			}
		})
	}},
	"dead-waiters-keep-their-place": {rules: "WaiterKilledHarmless", change: func(m *lockerMutant, dir string) {
		queue := filepath.Join(dir, "queue")
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			mine, err := takePlace(queue, filepath.Base(key))
			if err != nil {
				return nil, err
			}
			defer os.Remove(mine)
			for {
				if first, err := os.ReadDir(filepath.Dir(mine)); err == nil && first[0].Name() == filepath.Base(mine) {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if !errors.Is(err, lock.ErrHeld) {
						return l, err
					}
				}
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(5 * time.Millisecond):
				}
			}
		}
	}},
}

// alwaysRenews makes it a lock that renews all its leases, and tells no deadline.
func alwaysRenews(m *lockerMutant) {
	m.says = func(g backend.Guarantees) backend.Guarantees {
		g.WithoutRenewal, g.Deadline = false, false
		return g
	}
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if s, _ := lock.ResolveOptions(opts...); s.NoRenewal {
				return nil, lock.ErrUnsupported
			}
			return get(ctx, key, opts...)
		}
	})
	m.lease = func(_ context.Context, l *leaseMutant) {
		l.deadline = func() (time.Time, bool) { return time.Time{}, false }
	}
}

// takeByForce ends whoever holds the key.
func takeByForce(ctx context.Context, dir, key string) error {
	b, err := filelock.NewBackend(ctx, dir, nil)
	if err != nil {
		return err
	}
	defer b.Close()
	inspector, _ := backend.As[backend.Inspector](b)
	forcer, _ := backend.As[backend.ForceReleaser](b)
	rec, err := inspector.Inspect(ctx, key)
	if err == nil {
		err = forcer.ForceRelease(ctx, key, rec.Token)
	}
	if errors.Is(err, lock.ErrNotHeld) {
		return nil
	}
	return err
}

var ownTokens atomic.Uint64

// follow is a context that ends by itself some time after the other one.
func follow(parent context.Context, late time.Duration) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(context.Background())
	context.AfterFunc(parent, func() {
		time.Sleep(late)
		end(context.Cause(parent))
	})
	return ctx, end
}

type retokened struct {
	lock.Lease
	token uint64
}

func (r retokened) Token() uint64 { return r.token }

// takePlace makes a file that names the place behind all others.
func takePlace(queue, key string) (string, error) {
	dir := filepath.Join(queue, key)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%020d-%d", time.Now().UnixNano(), os.Getpid()))
	return path, os.WriteFile(path, nil, 0o600)
}

// Processes take real time, and a busy machine can hide a race once. So what a rule has
// missed it tries again, when the first runs on all mutants are over.
// sharedDir is a directory in which a process may still write when the test has ended.
func sharedDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "mortise-processes-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestMutantsInProcesses(t *testing.T) {
	t.Parallel()
	var all, firsts sync.WaitGroup
	for name, c := range farMutants {
		if c.rules == "" {
			continue
		}
		firsts.Add(1)
		atOnce(t, &all, name, func(t *testing.T) {
			cfg := farConfig(name + " " + sharedDir(t))
			cfg.Only = strings.Fields(c.rules)
			rep, err := conformance.Check(t.Context(), cfg)
			firsts.Done()
			require.NoError(t, err)
			cfg.Only = nil
			for _, r := range rep.Results {
				if r.Verdict != conformance.Fail {
					cfg.Only = append(cfg.Only, r.Rule)
				}
			}
			if cfg.Only == nil {
				return
			}
			firsts.Wait()
			rep, err = conformance.Check(t.Context(), cfg)
			require.NoError(t, err)
			for _, r := range rep.Results {
				if r.Verdict == conformance.Inconclusive {
					t.Skipf("inconclusive: %s: %s", r.Rule, r.Evidence)
				}
				assert.Equal(t, conformance.Fail, r.Verdict, "%s: %s", r.Rule, r.Evidence)
			}
		})
	}
	all.Wait()
}

// farConfig is a lock over files that several processes share, with the change
// that the argument names before the directory.
func farConfig(child string) conformance.Config {
	name, dir, _ := strings.Cut(child, " ")
	flaw := farMutants[name]
	return conformance.Config{
		Name: "file", Child: child,
		Open: func(ctx context.Context) (lock.Locker, error) {
			if os.Stdout == os.Stderr { // in a child
				fmt.Println(`{"id":1,"err":"a lock that prints is nothing special"}`)
			}
			dir := dir
			if flaw.ownStore {
				dir = filepath.Join(dir, strconv.Itoa(os.Getpid()))
			}
			l, err := filelock.New(ctx, dir, nil)
			if err != nil {
				return nil, err
			}
			m := &lockerMutant{Client: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
			if flaw.change != nil {
				flaw.change(m, dir)
			}
			return m, nil
		},
		Kill: func(l lock.Locker) {},
		TTL:  time.Second, Budget: 5 * time.Second,
	}
}
