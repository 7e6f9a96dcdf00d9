package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/mortiselock/lock/internal/measure"
)

const (
	ttl     = 15 * time.Second
	ownKeys = 8 // of each goroutine

	// The setting of contended.
	clients       = 4
	perClient     = 8
	aMoment       = time.Millisecond // for which a key is held under contention
	turnsPerRound = 4
)

// context is that of a caller.
func (b *bench) context(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.background {
		return context.Background(), func() {}
	}
	return context.WithCancel(ctx)
}

// meter is what this process has used so far.
type meter struct {
	processor time.Duration
	mallocs   uint64
}

func spent() meter {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return meter{processor: processorTime(), mallocs: m.Mallocs}
}

func processorTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // it can't fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// sent is how many commands the contender has sent.
func (s *servers) sent(ctx context.Context, c *contender) (float64, error) {
	if s.commands == nil {
		return 0, nil
	}
	return s.commands(ctx, c)
}

// A side is a contender with goroutines that take free keys, and what they have seen in
// this round.
type side struct {
	*contender
	client
	at     cell
	takers []measure.Taker
	waits  [][]float64 // of each goroutine
	cancel []context.CancelFunc

	pairs     int
	took      time.Duration
	commands  float64
	processor time.Duration
	mallocs   uint64
}

// pairs lets goroutines acquire and release free keys. The contenders have their turns
// several times in a round, each time in another order, so that what else the machine does
// meets all of them.
func (b *bench) pairs(st *store, s *servers, sc *scenario) error {
	n := 1
	if sc.name == parallel {
		n = st.parallel
	}
	var sides []*side
	for _, c := range st.in(sc) {
		at := cell{store: st.name, scenario: sc.name, contender: c.name}
		x, err := b.open(s, sc, c, n)
		if err != nil {
			b.fail(at, err)
			continue
		}
		defer x.end()
		if err := within(func(context.Context) error { return x.warmUp() }); err != nil {
			b.fail(at, err)
			continue
		}
		x.at = at
		sides = append(sides, x)
	}
	for range b.rounds {
		for range turnsPerRound {
			for _, i := range rand.Perm(len(sides)) {
				x := sides[i]
				if b.failed[x.at] != "" {
					continue
				}
				if err := within(func(context.Context) error { return x.turn(s, b.length/turnsPerRound) }); err != nil {
					b.fail(x.at, err)
				}
			}
		}
		for _, x := range sides {
			if b.failed[x.at] == "" {
				b.saw(x.at, x.round(s))
			}
		}
	}
	return nil
}

// open makes a client of the contender, and a taker for each of n goroutines.
func (b *bench) open(s *servers, sc *scenario, c *contender, n int) (*side, error) {
	opened, err := c.open(s, purpose{goroutines: n, ttl: ttl})
	if err != nil {
		return nil, err
	}
	x := &side{contender: c, client: opened, waits: make([][]float64, n)}
	for i := range n {
		ctx, cancel := b.context(context.Background())
		keys := make([]string, ownKeys)
		for k := range keys {
			keys[k] = fmt.Sprintf("%s/%s/%d/%d", sc.name, c.name, i, k)
		}
		next := 0
		x.cancel = append(x.cancel, cancel)
		x.takers = append(x.takers, func(context.Context) (func() error, error) {
			key := keys[next%ownKeys]
			next++
			asked := time.Now()
			release, err := opened.acquire(ctx, key)
			if err != nil {
				return nil, err
			}
			return func() error {
				err := release()
				x.waits[i] = append(x.waits[i], time.Since(asked).Seconds())
				return err
			}, nil
		})
	}
	return x, nil
}

func (x *side) end() {
	for _, cancel := range x.cancel {
		cancel()
	}
	x.close()
}

// warmUp has each goroutine take each of its keys.
func (x *side) warmUp() error {
	var all sync.WaitGroup
	errs := make([]error, len(x.takers))
	for i, take := range x.takers {
		all.Go(func() {
			for range ownKeys {
				giveBack, err := take(context.Background())
				if err == nil {
					err = giveBack()
				}
				errs[i] = errors.Join(errs[i], err)
			}
			x.waits[i] = x.waits[i][:0]
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// turn lets the goroutines of the side take and give back for a time.
func (x *side) turn(s *servers, length time.Duration) error {
	ctx := context.Background()
	sent, err := s.sent(ctx, x.contender)
	if err != nil {
		return err
	}
	before := spent()
	pairs, took, err := measure.Together(ctx, measure.During(length), x.takers...)
	after := spent()
	if err != nil {
		return err
	}
	now, err := s.sent(ctx, x.contender)
	x.pairs += pairs
	x.took += took
	x.commands += now - sent
	x.processor += after.processor - before.processor
	x.mallocs += after.mallocs - before.mallocs
	return err
}

// round ends a round and returns its figures.
func (x *side) round(s *servers) seen {
	var waits []float64
	for i := range x.waits {
		waits = append(waits, x.waits[i]...)
		x.waits[i] = x.waits[i][:0]
	}
	pairs := float64(x.pairs)
	f := unseen()
	f[rate] = pairs / x.took.Seconds()
	f[p50], f[p99] = measure.Quantile(waits, 0.5), measure.Quantile(waits, 0.99)
	f[allocations] = float64(x.mallocs) / pairs
	f[processor] = float64(x.processor.Microseconds()) / pairs
	if s.commands != nil {
		f[commands] = x.commands / pairs
	}
	x.pairs, x.took, x.commands, x.processor, x.mallocs = 0, 0, 0, 0, 0
	return f
}

// contest lets goroutines of several clients compete for a key, with clients that are new
// in each round.
func (b *bench) contest(st *store, s *servers, sc *scenario) error {
	sizes := sc.sizes
	if sizes == nil {
		sizes = []int{0}
	}
	for _, size := range sizes {
		for round := range b.rounds {
			all := st.in(sc)
			for _, i := range rand.Perm(len(all)) {
				c := all[i]
				at := cell{store: st.name, scenario: sc.name, size: size, contender: c.name}
				if !c.takesPart(sc, size) || b.failed[at] != "" {
					continue
				}
				n, of, length := clients*perClient, clients, b.length
				if st.together {
					of = 1
				}
				switch sc.name {
				case waiters:
					n, length = size+1, length/2
				case crowd:
					n, of, length = crowded, size, 2*length // the beginning says little
				}
				b.attempt(at, func(context.Context) (seen, error) {
					return b.compete(s, c, n, of, length, st.heldFor, fmt.Sprintf("%s/%s/%d/%d", sc.name, c.name, size, round))
				})
			}
		}
	}
	return nil
}

// attempt makes a round of one contender.
func (b *bench) attempt(at cell, f func(ctx context.Context) (seen, error)) {
	round := make(chan seen, 1)
	err := within(func(ctx context.Context) error {
		x, err := f(ctx)
		round <- x
		return err
	})
	if err != nil {
		b.fail(at, err)
		return
	}
	b.saw(at, <-round)
}

// within gives up what hangs, so that the others have their turns, and on a machine that
// it leaves alone where it obeys its context.
func within(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
	}
	cancel()
	hangs := errors.New("it hangs")
	select {
	case err := <-done:
		return errors.Join(hangs, err)
	case <-time.After(10 * time.Second):
		return hangs
	}
}

// compete lets n goroutines compete for a key, through so many clients.
func (b *bench) compete(s *servers, c *contender, n, clients int, length, heldFor time.Duration, key string) (seen, error) {
	opened := make([]client, min(n, clients))
	for i := range opened {
		var err error
		if opened[i], err = c.open(s, purpose{goroutines: (n + len(opened) - 1) / len(opened), ttl: ttl}); err != nil {
			return seen{}, err
		}
		defer opened[i].close()
		release, err := opened[i].acquire(context.Background(), fmt.Sprintf("warm-%d/%s", i, key))
		if err != nil {
			return seen{}, err
		}
		if err := release(); err != nil {
			return seen{}, err
		}
	}
	takers := make([]measure.Taker, n)
	for i := range takers {
		acquire := opened[i%len(opened)].acquire
		takers[i] = func(ctx context.Context) (func() error, error) {
			if b.background {
				ctx = context.Background()
			}
			return acquire(ctx, key)
		}
	}
	var used []time.Duration // before and after
	contest := measure.Contest{
		HeldFor: heldFor, Length: length, CutOff: !b.background,
		Gather: 100*time.Millisecond + time.Duration(n)*time.Millisecond,
		Commands: func(ctx context.Context) (float64, error) {
			used = append(used, processorTime())
			return s.sent(ctx, c)
		},
	}
	r, err := contest.Run(context.Background(), takers)
	if err != nil {
		return seen{}, err
	}
	f := unseen()
	f[rate] = r.GrantsPerSecond()
	if r.Grants == 0 {
		return f, nil
	}
	f[p50], f[p99] = measure.Quantile(r.Waits, 0.5), measure.Quantile(r.Waits, 0.99)
	f[longest] = r.Longest / r.FairShare(n)
	f[processor] = float64((used[1] - used[0]).Microseconds()) / float64(r.Grants)
	if s.commands != nil {
		f[commands] = r.CommandsPerGrant()
	}
	return f, nil
}
