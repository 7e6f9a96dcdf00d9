// Command bench measures the library beside the bare commands it is made of, in
// one run, and prints ratios: single numbers of a shared machine say little.
//
//	go run ./bench                            # everything
//	go run ./bench -only uncontended,leases   # some of it
//	go run ./bench -list                      # what there is
//
// Each comparison takes the median of several rounds that alternate between the
// sides; what was aimed at stands beside it, with "ok", "below" or "above". The
// servers are found or started when the first measurement asks for them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/measure"
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
	host   *servertest.Program
}

// redis is one Redis server for all measurements.
func (b *bench) redis() *servertest.Server { return servertest.SharedRedis(b.host) }

// pairs compares the sides, one goroutine on a free key, and prints a table.
func (b *bench) pairs(sides ...*measure.Side) error {
	if err := measure.SideBySide(b.ctx, b.rounds, measure.Length, sides...); err != nil {
		return err
	}
	measure.Print(os.Stdout, "%8.0f pairs/s", sides...)
	return nil
}

// diskLength is how much of a round each side gets whose server writes to a disk.
const diskLength = 1500 * time.Millisecond

// diskPairs is pairs for servers that write to a disk at each step.
func (b *bench) diskPairs(sides ...*measure.Side) error {
	if err := measure.PairByPair(b.ctx, b.rounds, diskLength, sides...); err != nil {
		return err
	}
	measure.Print(os.Stdout, "%8.0f pairs/s", sides...)
	return nil
}

// to compares with a side, and aims at a ratio.
func to(base *measure.Side, atLeast float64) []measure.Comparison {
	return []measure.Comparison{{To: base, By: "the first", Goal: measure.Goal{AtLeast: atLeast}}}
}

// compete lets the contenders compete for a key and prints a table. The last one is
// ours, and aims at a ratio to the first.
func (b *bench) compete(contest measure.Contest, format string, figure func(measure.Contention) float64, atLeast float64, contenders ...*measure.Contender) error {
	if err := contest.SideBySide(b.ctx, b.rounds, contenders...); err != nil {
		return err
	}
	var sides []*measure.Side
	for _, c := range contenders {
		sides = append(sides, c.Side(figure))
	}
	sides[len(sides)-1].Against = to(sides[0], atLeast)
	fmt.Printf("  %s:\n", contest)
	measure.Print(os.Stdout, format, sides...)
	return nil
}

func (b *bench) client() *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: b.redis().Addr(), Password: b.redis().Password()})
}

func main() {
	rounds := flag.Int("rounds", 7, "interleaved rounds of each side")
	only := flag.String("only", "", "which measurements, with commas (default all)")
	list := flag.Bool("list", false, "list the measurements")
	flag.Parse()
	host := &servertest.Program{}
	host.Cleanup(func() { _ = servertest.StopShared() })
	defer host.CleanUp()
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
