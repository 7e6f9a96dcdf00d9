// Command bench measures locks as their users call them, side by side on the same servers
// in one run: the bare commands, the libraries that one would pick instead, and this one,
// opened by URL. It is a module of its own, so that nobody else sees what it is compared
// with.
//
//	go run .                                                  # everything, in a quarter of an hour
//	go run . -backend redis,etcd -scenario serial,contended   # some of it
//	go run . -list                                            # what there is
//	go run . -backend redis -scenario serial -contender redis: -cpuprofile cpu.out
//	go run . -update                                          # everything, and write docs/performance.md
//
// What counts are ratios to neighbours in the same round, and the median of the rounds:
// single numbers of a shared machine say little. The servers are found or started as for
// the tests.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9/logging"

	"github.com/mortiselock/lock/internal/servertest"
)

// bench has the results of a run, and how it is made.
type bench struct {
	*results
	host       *servertest.Program
	rounds     int
	length     time.Duration
	background bool
	versions   []string // of the servers
}

func main() {
	b := &bench{results: newResults(), host: &servertest.Program{}}
	flag.IntVar(&b.rounds, "rounds", 3, "`number` of rounds of each contender")
	flag.DurationVar(&b.length, "d", 500*time.Millisecond, "`time` of a contender in each round")
	flag.BoolVar(&b.background, "background", false, "acquire with contexts that can't be cancelled")
	backends := flag.String("backend", "", "`names` of backends, with commas (default all)")
	scenes := flag.String("scenario", "", "`names` of scenarios, with commas (default all)")
	var contenders []string
	flag.Func("contender", "`name` of a contender; may be given several times (default all)", func(name string) error {
		contenders = append(contenders, name)
		return nil
	})
	profile := flag.String("cpuprofile", "", "write a profile of the processor time of the clients to this `file`")
	list := flag.Bool("list", false, "list backends, contenders and scenarios")
	update := flag.Bool("update", false, "write docs/performance.md and its plots")
	flag.Parse()
	defer b.host.CleanUp()
	sts, err := chosen("backend", *backends, stores, func(st *store) string { return st.name })
	if err != nil {
		b.host.Fatalf("%v", err)
	}
	scs, err := chosen("scenario", *scenes, scenarios, func(sc *scenario) string { return sc.name })
	if err != nil {
		b.host.Fatalf("%v", err)
	}
	if *list {
		printList(sts, scs)
		return
	}
	if len(contenders) > 0 {
		if err := keep(sts, contenders); err != nil {
			b.host.Fatalf("%v", err)
		}
	}
	docs, err := docsDir()
	if *update && (err != nil || len(sts) < len(stores) || len(scs) < len(scenarios) || len(contenders) > 0 || b.background) {
		b.host.Fatalf("the page has everything, with contexts that can be cancelled, and is written from within the tree")
	}
	// What the clients say of servers without persistence and of waits that were given up.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	goredis.Disable()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			b.host.Fatalf("%v", err)
		}
		defer pprof.StopCPUProfile()
	}
	for _, st := range sts {
		if err := b.measure(st, scs); err != nil {
			b.host.Fatalf("%s: %v", st.name, err)
		}
	}
	if aims := b.aimsTable(sts, scs); len(aims.rows) > 1 {
		fmt.Print(aims.text())
	}
	if *update {
		if err := b.write(docs); err != nil {
			b.host.Fatalf("%v", err)
		}
	}
}

// measure starts the servers of a store, and prints a table for each scenario.
func (b *bench) measure(st *store, scs []*scenario) error {
	host := &servertest.Program{}
	defer host.CleanUp()
	s := st.start(host)
	if s.version != "" && !slices.Contains(b.versions, s.version) {
		b.versions = append(b.versions, s.version)
	}
	for _, sc := range scs {
		if len(st.in(sc)) == 0 {
			continue
		}
		begun := time.Now()
		if err := sc.run(b, st, s, sc); err != nil {
			return fmt.Errorf("%s: %w", sc.name, err)
		}
		fmt.Printf("%s, %s (%.0f s)\n%s\n", st.title, sc.name, time.Since(begun).Seconds(), b.table(st, sc).text())
	}
	return nil
}

// saw adds a round.
func (b *bench) saw(at cell, f seen) { b.results.rounds[at] = append(b.results.rounds[at], f) }

// fail says why a contender has no figures. The others go on.
func (b *bench) fail(at cell, err error) {
	b.failed[at] = "failed"
	delete(b.results.rounds, at)
	fmt.Fprintf(os.Stderr, "%s, %s, %s: %v\n", at.store, at.scenario, at.contender, err)
}

// chosen are those with the names.
func chosen[T any](what, names string, all []T, name func(T) string) ([]T, error) {
	if names == "" {
		return all, nil
	}
	var some []T
	wanted := strings.Split(names, ",")
	for _, x := range all {
		if slices.Contains(wanted, name(x)) {
			some = append(some, x)
		}
	}
	if len(some) < len(wanted) {
		return nil, fmt.Errorf("a %s of %q is unknown, or twice there; see -list", what, names)
	}
	return some, nil
}

// keep leaves the contenders with the names in the stores.
func keep(sts []*store, names []string) error {
	found := map[string]bool{}
	for _, st := range sts {
		st.contenders = slices.DeleteFunc(st.contenders, func(c contender) bool {
			found[c.name] = true
			return !slices.Contains(names, c.name)
		})
	}
	for _, name := range names {
		if !found[name] {
			return fmt.Errorf("a contender %q is unknown; see -list", name)
		}
	}
	return nil
}

func printList(sts []*store, scs []*scenario) {
	for _, sc := range scs {
		fmt.Printf("%-10s %s\n", sc.name, sc.about)
	}
	for _, st := range sts {
		fmt.Println()
		for _, c := range st.contenders {
			fmt.Printf("%-10s %-26s %s\n", st.name, c.name, c.how)
		}
	}
}

// docsDir is the directory of the pages, from the tree's root or from here.
func docsDir() (string, error) {
	for _, dir := range []string{"../docs", "docs"} {
		if _, err := os.Stat(filepath.Join(dir, "guarantees.md")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("there is no docs/guarantees.md")
}

// made says how the figures were made.
func (b *bench) made() string {
	return fmt.Sprintf("Figures of %d rounds of %d ms, on %d processors of %s/%s, with %s, %s.",
		b.rounds, b.length.Milliseconds(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), strings.Join(b.versions, ", "))
}
