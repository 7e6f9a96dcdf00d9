// Command bench measures the library beside the bare commands it is made of, in
// one run, and prints ratios: single numbers of a shared machine say little.
//
//	go run ./internal/bench                            # everything
//	go run ./internal/bench -only uncontended,leases   # some of it
//	go run ./internal/bench -list                      # what there is
//
// Each comparison takes the median of several rounds that alternate between the
// sides. The servers are found or started when the first measurement asks for them.
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

// measurement is one comparison. Its run prints a table.
type measurement struct {
	name string
	run  func(b *bench) error
}

var measurements = []measurement{
	{"uncontended", (*bench).uncontended},
	{"leases", (*bench).leases},
	{"contended", (*bench).contended},
	{"etcd", (*bench).etcd},
	{"etcd-contended", (*bench).etcdContended},
	{"redlock", (*bench).redlock},
	{"mysql-row", (*bench).mysqlRow},
	{"zookeeper", (*bench).zookeeper},
	{"mysql-table", (*bench).mysqlTable},
}

// bench is what every measurement has.
type bench struct {
	ctx    context.Context
	rounds int
	host   *host
}

// redis is one Redis server for all measurements.
func (b *bench) redis() *servertest.Server { return servertest.SharedRedis(b.host) }

func (b *bench) client() *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: b.redis().Addr(), Password: b.redis().Password()})
}

func main() {
	rounds := flag.Int("rounds", 7, "interleaved rounds of each side")
	only := flag.String("only", "", "which measurements, with commas (default all)")
	list := flag.Bool("list", false, "list the measurements")
	flag.Parse()
	host := &host{}
	host.Cleanup(func() { _ = servertest.StopShared() })
	defer host.cleanUp()
	b := &bench{ctx: context.Background(), rounds: *rounds, host: host}
	wanted := strings.Split(*only, ",")
	for _, name := range wanted {
		known := func(m measurement) bool { return m.name == name }
		if *only != "" && !slices.ContainsFunc(measurements, known) {
			host.Fatalf("no measurement is called %q; see -list", name)
		}
	}
	for _, m := range measurements {
		switch {
		case *list:
			fmt.Println(m.name)
			continue
		case *only != "" && !slices.Contains(wanted, m.name):
			continue
		}
		fmt.Printf("\n%s, %d rounds\n", m.name, b.rounds)
		if err := m.run(b); err != nil {
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
