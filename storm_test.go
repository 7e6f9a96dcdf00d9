package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// TestOwnersKeepTheirPromisesUnderRandomFaults: three Lockers, two keys, callers with
// an owner and without, every option, calls that are cancelled and calls that cannot
// be, and Lockers that are closed and opened again, all under faults from a seed.
func TestOwnersKeepTheirPromisesUnderRandomFaults(t *testing.T) {
	seeds := uint64(30)
	switch {
	case os.Getenv("LOCK_TEST_LONG") != "":
		seeds = 100
	case testing.Short():
		seeds = 5
	}
	grants := 0
	for _, queue := range []bool{false, true} {
		for seed := range seeds {
			synctest.Test(t, func(t *testing.T) {
				s := &storm{t: t, seed: seed, store: memlock.NewStore(nil), queue: queue, end: time.Now().Add(90 * time.Second), tokens: map[string]uint64{}}
				s.run()
				grants += s.grants
			})
			if t.Failed() {
				return
			}
		}
	}
	assert.Greater(t, grants, 10*int(seeds))
}

// storm is one run.
type storm struct {
	t     *testing.T
	seed  uint64
	store *memlock.Store
	queue bool
	end   time.Time

	mu     sync.Mutex
	faults []*faultlock.Faults
	held   []held
	tokens map[string]uint64 // the largest of each key
	grants int
}

// held is a lease and who has it.
type held struct {
	who   string
	lease lock.Lease
}

func (s *storm) random(n int) *rand.Rand { return rand.New(rand.NewPCG(s.seed, uint64(n))) }

func below(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

func (s *storm) open(n int) lock.Locker {
	inner, err := memlock.NewBackend(s.t.Context(), &memlock.Options{Store: s.store, Queue: s.queue})
	require.NoError(s.t, err)
	f := faultlock.New(inner, &faultlock.Options{Random: &faultlock.Random{
		Seed: 1000*s.seed + uint64(n) + 1, Active: 0.4, Chance: 0.15, MaxDelay: 1500 * time.Millisecond,
	}})
	b := f.Backend()
	if s.seed%4 == 3 {
		b = f.Primitives()
	}
	l, err := lock.New(b, &lock.Options{TTL: 3 * time.Second})
	require.NoError(s.t, err)
	s.mu.Lock()
	s.faults = append(s.faults, f)
	s.mu.Unlock()
	return l
}

func (s *storm) run() {
	var wg sync.WaitGroup
	for i := range 3 {
		var mu sync.Mutex
		current := s.open(i)
		locker := func() lock.Locker {
			mu.Lock()
			defer mu.Unlock()
			return current
		}
		wg.Go(func() {
			rng := s.random(100 + i)
			for n := i; time.Now().Before(s.end); {
				time.Sleep(10*time.Second + below(rng, time.Minute))
				n += 3
				old, next := locker(), s.open(n)
				mu.Lock()
				current = next
				mu.Unlock()
				start := time.Now()
				_ = old.Close() // an error says that some release was not confirmed
				assert.LessOrEqual(s.t, time.Since(start), 5*time.Second)
			}
		})
		for j := range 3 {
			wg.Go(func() {
				rng := s.random(10*i + j)
				for n := 0; time.Now().Before(s.end); n++ {
					s.use(locker(), rng, fmt.Sprintf("owner %d", i), fmt.Sprintf("call %d of %d.%d", n, i, j))
				}
			})
		}
		defer func() { assert.NoError(s.t, locker().Close()) }()
	}
	wg.Wait()
	for _, f := range s.faults {
		f.Heal()
	}
	time.Sleep(15 * time.Second) // more than the longest TTL
	assert.Zero(s.t, s.store.Len(), "something was left behind")
	if s.t.Failed() {
		s.t.Logf("seed %d, queue %t", s.seed, s.queue)
		for _, f := range s.faults {
			s.t.Log(f)
		}
	}
}

// use acquires a key, holds it for a while and releases it.
func (s *storm) use(l lock.Locker, rng *rand.Rand, owner, who string) {
	var opts []lock.Option
	if rng.IntN(2) == 0 {
		who = owner
		opts = append(opts, lock.WithOwner(owner))
	}
	for _, o := range []lock.Option{
		lock.WithoutRenewal(), lock.WithMaxHold(1 + below(rng, 3*time.Second)), lock.WithTTL(10*time.Millisecond + below(rng, 6*time.Second)),
	} {
		if rng.IntN(4) == 0 {
			opts = append(opts, o)
		}
	}
	patience := below(rng, 10*time.Second)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	start := time.Now()
	acquire := l.Acquire
	switch rng.IntN(3) {
	case 0:
		acquire = l.TryAcquire
	case 1:
		acquire, ctx = l.TryAcquire, context.Background()
	}
	lease, err := acquire(ctx, fmt.Sprintf("key %d", rng.IntN(2)), opts...)
	if err != nil {
		assert.NotErrorIs(s.t, err, lock.ErrNotHeld)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			assert.LessOrEqual(s.t, time.Since(start), patience+100*time.Millisecond, "the call outlived its context")
		}
		time.Sleep(time.Millisecond)
		return
	}
	s.enter(held{who, lease})
	select {
	case <-lease.Context().Done():
	case <-time.After(below(rng, 4*time.Second)):
	}
	s.leave(lease)
	ctx, cancel = context.WithTimeout(s.t.Context(), below(rng, 2*time.Second))
	defer cancel()
	err = lease.Release(ctx)
	for _, err := range []error{err, context.Cause(lease.Context())} {
		assert.NotErrorIs(s.t, err, lock.ErrTakenOver, "nobody but its holder ended it")
	}
}

// enter takes note of a grant, and of what is wrong with it.
func (s *storm) enter(h held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants++
	for _, o := range s.held {
		if o.lease.Key() != h.lease.Key() || o.lease.Context().Err() != nil || h.lease.Context().Err() != nil {
			continue
		}
		if assert.Equal(s.t, o.who, h.who, "two holders at a time") {
			assert.Equal(s.t, o.lease.Token(), h.lease.Token(), "one owner has two tokens")
		}
	}
	assert.GreaterOrEqual(s.t, h.lease.Token(), s.tokens[h.lease.Key()])
	s.tokens[h.lease.Key()] = h.lease.Token()
	s.held = append(s.held, h)
}

func (s *storm) leave(l lock.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range s.held {
		if h.lease == l {
			s.held = append(s.held[:i], s.held[i+1:]...)
			return
		}
	}
}
