package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// plain is a Locker that does not say what it promises, as an adapter over
// somebody else's lock.
type plain struct{ lock.Locker }

func openPlain(store *memlock.Store, o lock.Options) func(context.Context) (lock.Locker, error) {
	return func(ctx context.Context) (lock.Locker, error) {
		l, err := memlock.New(ctx, &memlock.Options{Store: store, Lock: o})
		return plain{l}, err
	}
}

// check runs the suite in a bubble, where waiting takes no time.
func check(t *testing.T, cfg conformance.Config) (rep conformance.Report) {
	t.Helper()
	if cfg.Budget == 0 {
		cfg.Budget = 5 * time.Second
	}
	synctest.Test(t, func(t *testing.T) {
		var err error
		rep, err = conformance.Check(t.Context(), cfg)
		require.NoError(t, err)
		time.Sleep(time.Hour) // until what was killed has closed
	})
	for _, r := range rep.Results {
		assert.NotEqual(t, conformance.Fail, r.Verdict, "%s: %s", r.Rule, r.Evidence)
	}
	return rep
}

func verdicts(rep conformance.Report, want conformance.Verdict) (rules []string) {
	for _, r := range rep.Results {
		if r.Verdict == want {
			rules = append(rules, r.Rule)
		}
	}
	return rules
}

// A Locker that says nothing is held to the rules without a claim, and what else works is
// reported.
func TestLockerWithoutGuarantees(t *testing.T) {
	t.Parallel()
	rep := check(t, conformance.Config{Open: openPlain(memlock.NewStore(nil), lock.Options{}), TTL: 300 * time.Millisecond})
	assert.Equal(t, "unnamed lock", rep.Name)
	works := verdicts(rep, conformance.Unclaimed)
	assert.Subset(t, works, []string{"TokenIncreases", "ReentrantCount", "LostByDeadline", "DeadlineFromSend", "RenewByHand", "HeldDetails", "WaiterOrderLocal"})
	assert.Subset(t, verdicts(rep, conformance.Pass), []string{"Exclusive", "ReleaseOwnOnly", "CrashFrees", "RenewKeeps", "ReleaseReportsLoss"})
	assert.Subset(t, verdicts(rep, conformance.Skipped), []string{"TryIdempotent", "LostWhenCutOff", "UnsupportedIsRefused"})
	res, _ := rep.Result("TryIdempotent")
	assert.Equal(t, "needs Config.OpenBackend", res.Evidence)
}

// deaf is a lock of somebody who does not look at the options.
type deaf struct{ lock.Locker }

func (d deaf) TryAcquire(ctx context.Context, key string, _ ...lock.Option) (lock.Lease, error) {
	return d.Locker.TryAcquire(ctx, key)
}

// The author of a lock that renews whatever it is asked, and says nothing about
// itself, is told what was assumed.
func TestOptionsIgnoredAreExplained(t *testing.T) {
	t.Parallel()
	open := openPlain(memlock.NewStore(nil), lock.Options{})
	cfg := conformance.Config{
		Open: func(ctx context.Context) (lock.Locker, error) {
			l, err := open(ctx)
			return deaf{l}, err
		},
		TTL: 300 * time.Millisecond, Budget: 5 * time.Second, Only: []string{"ReleaseOwnOnly", "CrashFrees", "HoldersTTLCounts"},
	}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	for _, rule := range []string{"ReleaseOwnOnly", "CrashFrees", "HoldersTTLCounts"} {
		res, _ := rep.Result(rule)
		assert.Equal(t, conformance.Fail, res.Verdict, rule)
		assert.Contains(t, res.Evidence, "needs Config.Kill", rule)
	}
}

// A Locker that always renews is abandoned with Kill.
func TestLockerThatAlwaysRenews(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore(nil)
	rep := check(t, conformance.Config{
		Open: func(ctx context.Context) (lock.Locker, error) {
			b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
			if err != nil {
				return nil, err
			}
			k := &killable{Backend: b}
			l, err := lock.New(k, nil)
			return renewing{l, k}, err
		},
		Kill: func(l lock.Locker) {
			l.(renewing).b.kill()
			time.AfterFunc(time.Minute, func() { _ = l.Close() }) // so that its bubble ends
		},
		TTL: 300 * time.Millisecond,
	})
	assert.Subset(t, verdicts(rep, conformance.Pass), []string{"CrashFrees", "RenewKeeps", "HoldOutlivesAcquireCtx", "UnsupportedIsRefused"})
	assert.Subset(t, verdicts(rep, conformance.NotClaimed), []string{"WithoutRenewalEnds", "ReleaseReportsLoss"})
	res, _ := rep.Result("ServerOutlivesD")
	assert.Equal(t, conformance.Skipped, res.Verdict)
	assert.Contains(t, res.Evidence, "needs leases that are not renewed")
}

// One TTL only, and the shortest of all claims.
func TestFixedTTLAndNoClaims(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore(nil)
	ttl := time.Second
	rep := check(t, conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
			return &killable{Backend: b, change: func(g backend.Guarantees) backend.Guarantees {
				g.MinTTL, g.MaxTTL, g.TTLGrain = ttl, ttl, 0
				g.Waiting, g.ManualRenewal, g.HolderDetails, g.Deadline, g.LossSignal = backend.WaitPoll, false, false, false, false
				return g
			}}, err
		},
	})
	assert.Equal(t, ttl, rep.TTL)
	assert.Contains(t, verdicts(rep, conformance.Skipped), "HoldersTTLCounts")
	assert.Contains(t, verdicts(rep, conformance.Unclaimed), "HeldDetails")
	assert.Contains(t, verdicts(rep, conformance.Pass), "TokenIncreases")
}

// killable is a backend whose client can die, and claims less than it could.
type killable struct {
	backend.Backend
	dead   atomic.Bool
	change func(backend.Guarantees) backend.Guarantees
}

func (k *killable) Guarantees() backend.Guarantees {
	g := k.Backend.Guarantees()
	g.Waiting = backend.WaitPoll
	if k.change != nil {
		g = k.change(g)
	} else {
		g.WithoutRenewal = false
	}
	return g
}

type renewing struct {
	lock.Locker
	b *killable
}

func (r renewing) Guarantees() backend.Guarantees { return r.b.Guarantees() }

func (k *killable) kill() { k.dead.Store(true) }

func (k *killable) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if k.dead.Load() {
		return backend.Validity{}, backend.ErrUnavailable
	}
	return k.Backend.Renew(ctx, h)
}

func (k *killable) Release(ctx context.Context, h backend.Hold) error {
	if k.dead.Load() {
		return backend.ErrUnavailable
	}
	return k.Backend.Release(ctx, h)
}

// counting is an adapter that counts the deadlines of its leases itself, from before
// the request or from the answer. Its server takes a moment.
type counting struct {
	lock.Locker
	fromAnswer bool
}

type counted struct {
	lock.Lease
	deadline time.Time
}

func (c counted) Deadline() (time.Time, bool) { return c.deadline, true }

func (c counting) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	set, err := lock.ResolveOptions(opts...)
	if err != nil {
		return nil, err
	}
	from := time.Now()
	time.Sleep(time.Millisecond)
	l, err := c.Locker.TryAcquire(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	if c.fromAnswer {
		from = time.Now()
	}
	return counted{l, from.Add(set.TTL)}, nil
}

// A deadline that counts from inside the call, before the request, is not too late; one
// that counts from the answer is, also where nobody can delay the answers.
func TestDeadlinesOfAnAdapter(t *testing.T) {
	t.Parallel()
	b, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	g := b.Guarantees()
	require.NoError(t, b.Close())
	for fromAnswer, want := range map[bool]conformance.Verdict{false: conformance.Pass, true: conformance.Fail} {
		open := openPlain(memlock.NewStore(nil), lock.Options{})
		rep, err := conformance.Check(t.Context(), conformance.Config{
			Open: func(ctx context.Context) (lock.Locker, error) {
				l, err := open(ctx)
				return counting{l, fromAnswer}, err
			},
			Guarantees: &g, TTL: 300 * time.Millisecond, Budget: 5 * time.Second, Only: []string{"DeadlineFromSend"},
		})
		require.NoError(t, err)
		res, _ := rep.Result("DeadlineFromSend")
		assert.Equal(t, want, res.Verdict, "from the answer: %t; %s", fromAnswer, res.Evidence)
	}
}

// A call that gets a context of its own is told that this was canceled. Its caller's may have ended in
// another way, and that is what the error says.
func TestDetachedContextTellsHowTheCallersEnded(t *testing.T) {
	t.Parallel()
	call := conformance.DetachedContext(func(life context.Context, _ string, _ time.Duration) (conformance.Handle, error) {
		<-life.Done()
		return conformance.Handle{}, fmt.Errorf("the lock gave up: %w", life.Err())
	})
	gone := errors.New("the user has gone")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, gone)
	defer cancel()
	_, err := call(ctx, "k", time.Second)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, gone)
	require.NotErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "the lock gave up")
}
