// Command peers measures Redlock beside redsync on the same servers, in one run, and
// prints ratios: single numbers of a shared machine say little. It is a module of its
// own, so that users of the library don't see what it is compared with.
//
//	make bench-peers
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
	redislock "github.com/mortiselock/lock/redis"
)

const (
	nodes       = 5
	roundLength = 700 * time.Millisecond
)

func main() {
	rounds := flag.Int("rounds", 7, "interleaved rounds of each side")
	flag.Parse()
	h := &host{}
	defer h.cleanUp()
	if err := run(h, *rounds); err != nil {
		h.Fatalf("%v", err)
	}
}

// side is one way to take a lock and give it back.
type side struct {
	name string
	once func() error
	rate []float64 // pairs per second, by round
}

func run(h *host, rounds int) error {
	ctx := context.Background()
	var servers []*servertest.Server
	var clients []goredis.UniversalClient
	var pools []redsyncredis.Pool
	for range nodes {
		s := servertest.Redis(h, servertest.WithControl())
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Password: s.Password()})
		h.Cleanup(func() { _ = c.Close() })
		servers, clients, pools = append(servers, s), append(clients, c), append(pools, redsyncgoredis.NewPool(c))
	}
	peer := redsync.New(pools...)
	sides := []*side{{name: "redsync", once: func() error {
		m := peer.NewMutex("redsync")
		if err := m.TryLockContext(ctx); err != nil {
			return err
		}
		_, err := m.UnlockContext(ctx)
		return err
	}}}
	for _, tokens := range []bool{false, true} {
		l, err := redislock.NewRedlock(ctx, clients, &redislock.RedlockOptions{WithoutTokens: !tokens})
		if err != nil {
			return err
		}
		h.Cleanup(func() { _ = l.Close() })
		name := "redlock, tokens=off"
		if tokens {
			name = "redlock"
		}
		sides = append(sides, &side{name: name, once: func() error { return pair(ctx, l, name) }})
	}
	fmt.Printf("one goroutine, %d nodes, %d rounds\n", nodes, rounds)
	if err := measure(sides, rounds); err != nil {
		return err
	}
	show(sides, sides[0].rate)

	before := map[string][]float64{}
	for _, s := range sides[1:] {
		before[s.name] = s.rate
		s.rate = nil
	}
	servers[0].Freeze(h)
	fmt.Println("with one node frozen; the ratio is to the same without")
	if err := measure(sides[1:], rounds); err != nil {
		return err
	}
	for _, s := range sides[1:] {
		show([]*side{s}, before[s.name])
	}
	servers[0].Resume(h)
	return nil
}

func pair(ctx context.Context, l lock.Locker, key string) error {
	lease, err := l.TryAcquire(ctx, key)
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

func measure(sides []*side, rounds int) error {
	for round := -1; round < rounds; round++ { // the first one warms up
		for _, s := range sides {
			n, start := 0, time.Now()
			for time.Since(start) < roundLength {
				if err := s.once(); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				n++
			}
			if round >= 0 {
				s.rate = append(s.rate, float64(n)/time.Since(start).Seconds())
			}
		}
	}
	return nil
}

func show(sides []*side, to []float64) {
	for _, s := range sides {
		ratios := make([]float64, len(s.rate))
		for i := range s.rate {
			ratios[i] = s.rate[i] / to[i]
		}
		fmt.Printf("  %-22s %7.0f pairs/s   ratio %.2f (%.2f to %.2f)\n", s.name, median(s.rate), median(ratios), slices.Min(ratios), slices.Max(ratios))
	}
}

func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// host stands in for a test towards servertest.
type host struct{ cleanups []func() }

func (h *host) Helper()             {}
func (h *host) Name() string        { return "bench" }
func (h *host) Cleanup(f func())    { h.cleanups = append(h.cleanups, f) }
func (h *host) Logf(string, ...any) {}

func (h *host) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

func (h *host) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
	h.cleanUp()
	os.Exit(1)
}

func (h *host) cleanUp() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
	h.cleanups = nil
}
