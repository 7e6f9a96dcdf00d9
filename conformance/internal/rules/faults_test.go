package rules_test

import (
	"context"
	"errors"
	"fmt"
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
)

// Mutants of backends whose flaws show when requests and answers are lost or late.
func TestMutantBackendsUnderFaults(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *mutant)
	}{
		"a fresh id for every request": {"OwnGrantRecognised ReentrantFault ProgressUnderFaults CancelMidRequest", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				req.ID = backend.NewID()
				return m.Backend.Try(ctx, req)
			}
			m.release = func(ctx context.Context, h backend.Hold) error {
				last := m.shared.lastOf(h.Key) // found by its token, where the caller knows one
				if h.Token != 0 && last.Key != "" {
					return m.force(ctx, h.Key)
				}
				return backend.ErrNotHeld
			}
		}},
		"releases by key": {"ReleaseDelayed HandOverUnknown ReentrantFault", func(m *mutant) {
			m.release = func(ctx context.Context, h backend.Hold) error { return m.force(ctx, h.Key) }
		}},
		"never expires, and finds late grants by their tokens only": {"LateGrant", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				ttl := req.TTL
				req.TTL = time.Hour
				g, err := m.Backend.Try(ctx, req)
				g.For = backend.ValidFor(ttl)
				return g, err
			}
			m.release = func(ctx context.Context, h backend.Hold) error {
				if h.Token == 0 {
					return backend.ErrNotHeld
				}
				return m.Backend.Release(ctx, h)
			}
		}},
		"what was not granted is not released": {"CancelMidRequest", func(m *mutant) {
			m.release = func(ctx context.Context, h backend.Hold) error {
				if h.Token == 0 {
					return backend.ErrNotHeld
				}
				return m.Backend.Release(ctx, h)
			}
		}},
		"leaves keys behind": {"NoLeak", func(m *mutant) {
			m.release = func(ctx context.Context, h backend.Hold) error {
				if strings.Contains(h.Key, "-left-") { // what Close finds
					return nil
				}
				return m.Backend.Release(ctx, h)
			}
		}},
		"a token that is rounded elsewhere": {"TokenFits", func(m *mutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.Backend.Try(ctx, req)
				g.Token |= 1 << 60
				return g, err
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) { mustFail(t, mutate(c.change), c.rules) })
	}
	all.Wait()
}

// Mutants of the policy over a backend.
func TestMutantPoliciesUnderFaults(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *lockerMutant)
	}{
		"an unanswered renewal is a loss": {"RenewUnknown", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, end := context.WithCancelCause(l.ctx)
				l.ctx = ctx
				l.renew = func(ctx context.Context) error {
					err := l.Lease.Renew(ctx)
					if err != nil {
						end(lock.ErrLost)
					}
					return err
				}
			}
		}},
		"a renewal beside another is left to it": {"RenewUnknown", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				var busy atomic.Bool
				l.renew = func(ctx context.Context) error {
					if busy.Swap(true) {
						return nil
					}
					defer busy.Store(false)
					time.Sleep(5 * time.Millisecond)
					return l.Lease.Renew(ctx)
				}
			}
		}},
		"an unanswered renewal counts": {"RenewUnknown", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				var later atomic.Pointer[time.Time]
				l.deadline = func() (time.Time, bool) {
					if d := later.Load(); d != nil {
						return *d, true
					}
					return l.Lease.Deadline()
				}
				l.renew = func(ctx context.Context) error {
					err := l.Lease.Renew(ctx)
					if errors.Is(err, lock.ErrOutcomeUnknown) {
						d := time.Now().Add(l.set.TTL)
						later.Store(&d)
					}
					return err
				}
			}
		}},
		"an unanswered release did not happen": {"ReleaseUnknown", func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrOutcomeUnknown) {
						return lock.ErrUnavailable
					}
					return err
				}
			}
		}},
		"a grant that came late is told as a refusal": {"GrantWithinValidity", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err != nil {
					err = &lock.HeldError{Key: key}
				}
				return l, err
			}
		}},
		"a grant that came late is told as a server that was not reached": {"GrantWithinValidity", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if errors.Is(err, lock.ErrOutcomeUnknown) {
					err = fmt.Errorf("%w: %v", lock.ErrUnavailable, err)
				}
				return l, err
			}
		}},
		"calls end when the server answers": {"CallsAreBounded", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(context.WithoutCancel(ctx), key, opts...)
				}
			})
		}},
		"one call at a time": {"HungKeyHoldsUpNoOther", func(m *lockerMutant) {
			turn := make(chan struct{}, 1)
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					turn <- struct{}{}
					defer func() { <-turn }()
					return get(ctx, key, opts...)
				}
			})
		}},
		"a lease that ends takes the others along": {"HungKeyHoldsUpNoOther", func(m *lockerMutant) {
			var mu sync.Mutex
			var ends []context.CancelCauseFunc
			m.lease = func(_ context.Context, l *leaseMutant) {
				ctx, end := context.WithCancelCause(l.ctx)
				l.ctx = ctx
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, end)
				context.AfterFunc(l.Lease.Context(), func() {
					if cause := context.Cause(l.Lease.Context()); errors.Is(cause, lock.ErrExpired) {
						mu.Lock()
						defer mu.Unlock()
						for _, end := range ends {
							end(cause)
						}
					}
				})
			}
		}},
		"waits for what will not come": {"PermanentStops", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for {
					l, err := m.Client.Acquire(ctx, key, opts...)
					if err == nil || ctx.Err() != nil {
						return l, err
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
		}},
		"what the server said is hidden": {"UnavailableIsTold PermanentStops", func(m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				for _, kind := range []error{lock.ErrUnavailable, lock.ErrPermanent} {
					if errors.Is(err, kind) {
						return nil, kind
					}
				}
				return l, err
			}
		}},
		"each waiter asks for itself": {"NoHerd", func(m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if !errors.Is(err, lock.ErrHeld) {
						return l, err
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			mustFail(t, wrapped(func(m *lockerMutant, _ backend.Backend) { c.change(m) }), c.rules)
		})
	}
	all.Wait()
}

// keepsLateGrants is a backend that is never told that a grant came too late. Of such
// a grant the lock package knows no token.
type keepsLateGrants struct{ backend.Backend }

func (k keepsLateGrants) Release(ctx context.Context, h backend.Hold) error {
	if h.Token == 0 {
		return nil
	}
	return k.Backend.Release(ctx, h)
}

func TestMutantKeepsLateGrants(t *testing.T) {
	t.Parallel()
	cfg := memory()
	cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
		return lock.New(keepsLateGrants{b}, &lock.Options{TTL: ttl})
	}
	mustFail(t, cfg, "GrantWithinValidity")
}

// TestJudgeDecides: what the judge says is the verdict of the two rules that ask it.
func TestJudgeDecides(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []conformance.History
	for want, judge := range map[conformance.Verdict]func(conformance.History) error{
		conformance.Pass: func(h conformance.History) error {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, h)
			return nil
		},
		conformance.Fail:    func(conformance.History) error { return errors.New("they make no sense") },
		conformance.Skipped: func(conformance.History) error { return conformance.ErrInconclusive },
	} {
		cfg := memory()
		cfg.Only, cfg.Judge = []string{"Linearizable", "LinearizableUnderFaults"}, judge
		rep, err := conformance.Check(t.Context(), cfg)
		require.NoError(t, err)
		for _, r := range rep.Results {
			assert.Equal(t, want, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		}
		if want == conformance.Fail {
			assert.Contains(t, rep.Results[0].Evidence, "they make no sense")
		}
	}
	kinds := map[conformance.OperationKind]int{}
	for _, h := range seen {
		assert.True(t, h.Tokens)
		assert.NotEmpty(t, h.Key)
		last := map[int]time.Duration{}
		for i, op := range h.Operations {
			kinds[op.Kind]++
			assert.LessOrEqual(t, op.Call, op.Return)
			if i > 0 {
				assert.LessOrEqual(t, h.Operations[i-1].Call, op.Call)
			}
			assert.GreaterOrEqual(t, op.Call, last[op.Client], "operations of one client don't overlap")
			last[op.Client] = op.Return
			assert.NotContains(t, op.Owner, "owner-", "owners are named, not told")
		}
	}
	for _, k := range []conformance.OperationKind{conformance.Granted, conformance.Refused, conformance.MayGrant, conformance.Kept, conformance.Released, conformance.MayEnd} {
		assert.Positive(t, kinds[k], "the histories contain %q", k)
	}
}

// TestOneRenewalEachThirdIsEnough: a Locker that sends one renewal each third of the TTL, and none
// besides when that fails, renews as it should.
func TestOneRenewalEachThirdIsEnough(t *testing.T) {
	t.Parallel()
	mustPass(t, wrapped(func(m *lockerMutant, _ backend.Backend) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				l, err := get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.NoRenewal = true })...)
				if s := with(opts); err == nil && !s.NoRenewal {
					renewsEach(l, s.TTL/3)
				}
				return l, err
			}
		})
	}), "RenewTransient")
}

// renewsEach sends a renewal in each of the periods, which may hang until the next.
func renewsEach(l lock.Lease, period time.Duration) {
	go func() {
		for time.Sleep(period); l.Context().Err() == nil; time.Sleep(period) {
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), period)
				defer cancel()
				_ = l.Renew(ctx)
			}()
		}
	}()
}
