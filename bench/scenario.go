package main

// The scenarios by name.
const (
	serial    = "serial"
	parallel  = "parallel"
	contended = "contended"
	waiters   = "waiters"
	crowd     = "crowd"
	held      = "held"
)

// crowded is how many goroutines compete in a crowd.
const crowded = 200

// onlyContended is for contenders that show what a mechanism buys under contention.
var onlyContended = map[string]string{
	serial: "as with it", parallel: "as with it", waiters: "as contended", crowd: "as contended", held: "as with it",
}

// A scenario is a way to use a lock.
type scenario struct {
	name, title string
	about       string // for the page
	rate        string // unit of the rate
	columns     []figure
	// sizes are what grows: waiters or leases. unit names one and several.
	sizes []int
	unit  [2]string
	// plotted are the sizes that the page has in its plots only.
	plotted []int
	run     func(b *bench, st *store, s *servers, sc *scenario) error
}

var scenarios = []*scenario{
	{
		name: serial, title: "Serial", rate: "pairs/s",
		about:   "One goroutine acquires and releases free keys, 8 in turn.",
		columns: []figure{rate, p50, p99, allocations, processor, commands},
		run:     (*bench).pairs,
	},
	{
		name: parallel, title: "Parallel", rate: "pairs/s",
		about:   "Goroutines with keys of their own share one client: 64 on Redis, 16 elsewhere.",
		columns: []figure{rate, p50, p99, allocations, processor, commands},
		run:     (*bench).pairs,
	},
	{
		name: contended, title: "Contended", rate: "grants/s",
		about:   "4 clients with 8 goroutines each compete for one key, which is held for 1 ms at a time.",
		columns: []figure{rate, p50, p99, longest, processor, commands},
		run:     (*bench).contest,
	},
	{
		name: waiters, title: "Waiters", rate: "grants/s",
		about:   "The same with 1 to 1,500 goroutines that wait, for half of the time.",
		columns: []figure{rate, commands},
		sizes:   []int{1, 10, 100, 1500}, unit: [2]string{"waiter", "waiters"},
		plotted: []int{100},
		run:     (*bench).contest,
	},
	{
		name: crowd, title: "Crowd", rate: "grants/s",
		about:   "The same with 200 goroutines: of one client, and of 200, as in so many programs.",
		columns: []figure{rate, commands},
		sizes:   []int{1, crowded}, unit: [2]string{"client", "clients"},
		run: (*bench).contest,
	},
	{
		name: held, title: "Held",
		about:   "One client holds and renews 1 to 100,000 keys, with a TTL of 4 s; 10,000 with 6 s, 100,000 with 15 s.",
		columns: []figure{goroutines, sockets, memory, keeping, latest},
		sizes:   []int{1, 1000, 10_000, 100_000}, unit: [2]string{"lease", "leases"},
		plotted: []int{1},
		run:     (*bench).hold,
	},
}

// takesPart reports whether the contender is in the scenario, at this size.
func (c *contender) takesPart(sc *scenario, size int) bool {
	most, limited := c.most[sc.name]
	return c.not[sc.name] == "" && !(limited && size > most)
}

// in are the contenders of the store that are in the scenario, at any size.
func (st *store) in(sc *scenario) (all []*contender) {
	for i := range st.contenders {
		if c := &st.contenders[i]; c.not[sc.name] == "" {
			all = append(all, c)
		}
	}
	return all
}

// has reports whether one of the contenders is of the kind.
func (st *store) has(sc *scenario, k kind) bool {
	for _, c := range st.in(sc) {
		if c.kind == k {
			return true
		}
	}
	return false
}

// baseOf is the bare contender that c is compared with; empty, there is none.
func (st *store) baseOf(c *contender) string {
	if c.against != "" {
		return c.against
	}
	for i := range st.contenders {
		if st.contenders[i].kind == bare {
			return st.contenders[i].name
		}
	}
	return ""
}
