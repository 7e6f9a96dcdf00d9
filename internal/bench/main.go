// Command bench measures the library beside the bare commands it is made of, in
// one run, and prints ratios: single numbers of a shared machine say little.
//
//	go run ./internal/bench            # everything, on a Redis that it finds or starts
//	go run ./internal/bench -only uncontended,leases,contended
//
// Each comparison takes the median of several rounds that alternate between the
// sides.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/servertest"
)

type bench struct {
	ctx    context.Context
	rounds int
	redis  *servertest.Server
}

func (b *bench) client() *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: b.redis.Addr(), Password: b.redis.Password()})
}

func main() {
	rounds := flag.Int("rounds", 7, "interleaved rounds of each side")
	only := flag.String("only", "uncontended,leases,contended", "which measurements, with commas")
	flag.Parse()
	host := &host{}
	defer host.cleanUp()
	b := &bench{ctx: context.Background(), rounds: *rounds, redis: servertest.Redis(host)}
	fmt.Printf("server: %s, rounds: %d\n", b.redis, b.rounds)
	wanted := strings.Split(*only, ",")
	for _, m := range []struct {
		name string
		run  func() error
	}{
		{"uncontended", b.uncontended},
		{"leases", b.leases},
		{"contended", b.contended},
	} {
		if !slices.Contains(wanted, m.name) {
			continue
		}
		fmt.Printf("\n%s\n", m.name)
		if err := m.run(); err != nil {
			host.Fatalf("%s: %v", m.name, err)
		}
	}
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

// median of an odd or even number of figures.
func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// spread is the smallest and the largest figure.
func spread(xs []float64) (lo, hi float64) { return slices.Min(xs), slices.Max(xs) }
