// Command peers measures one Redis and Redlock beside the locks of others on the same
// servers, in one run, and prints ratios: single numbers of a shared machine say little. It is a module of its
// own, so that users of the library don't see what it is compared with.
//
//	make bench-peers
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/redlock"
)

const nodes = 5

func main() {
	rounds := flag.Int("rounds", 7, "interleaved rounds of each side")
	flag.Parse()
	h := &servertest.Program{}
	defer h.CleanUp()
	fmt.Printf("%d goroutines, a key each, one server, %d rounds\n", workers, *rounds)
	if err := keys(h, *rounds); err != nil {
		h.Fatalf("%v", err)
	}
	if err := run(h, *rounds); err != nil {
		h.Fatalf("%v", err)
	}
}

func run(h *servertest.Program, rounds int) error {
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
	theirs := &measure.Side{Name: "redsync", Take: func(ctx context.Context) (func() error, error) {
		m := peer.NewMutex("redsync")
		return func() error { _, err := m.UnlockContext(ctx); return err }, m.TryLockContext(ctx)
	}}
	sides := []*measure.Side{theirs}
	var frozen []*measure.Side
	for _, ours := range []struct {
		name    string
		options redlock.Options
		atLeast float64
	}{
		{"redlock, tokens=off", redlock.Options{NewNodes: true, WithoutTokens: true}, 1.3},
		{"redlock", redlock.Options{NewNodes: true}, 0.9},
	} {
		l, err := redlock.New(ctx, clients, &ours.options)
		if err != nil {
			return err
		}
		h.Cleanup(func() { _ = l.Close() })
		side := &measure.Side{
			Name: ours.name, Take: measure.Taking(l.TryAcquire, ours.name),
			Against: []measure.Comparison{{To: theirs, Goal: measure.Goal{AtLeast: ours.atLeast}}},
		}
		sides, frozen = append(sides, side), append(frozen, measure.Frozen(side))
	}
	fmt.Printf("one goroutine, %d nodes, %d rounds\n", nodes, rounds)
	if err := compare(ctx, rounds, sides...); err != nil {
		return err
	}
	servers[0].Freeze(h)
	defer servers[0].Resume(h)
	return compare(ctx, rounds, frozen...)
}

func compare(ctx context.Context, rounds int, sides ...*measure.Side) error {
	if err := measure.SideBySide(ctx, rounds, measure.Length, sides...); err != nil {
		return err
	}
	measure.Print(os.Stdout, "%7.0f pairs/s", sides...)
	return nil
}
