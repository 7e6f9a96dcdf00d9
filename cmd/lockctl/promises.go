package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// nothing are the cells that promise nothing, so that there is nothing to prove.
var nothing = []string{"no", "none", unknown, nothingStopped}

const nothingStopped = "nothing that stops the server"

// promise is a line of the comparison: one thing that locks differ in.
type promise struct {
	title string
	// cell says in a few words what these guarantees promise of it.
	cell func(g backend.Guarantees) string
	// subjects, claims and rules name the rules of the suite that prove the cells. tests
	// are those that prove the rest, as package.Name, by the name of the guarantees.
	subjects []string
	claims   []string
	rules    []string
	tests    map[string][]string
}

// survivingHolds are the tests of backends whose servers are killed and start again, or
// fail over, while a key is held.
var survivingHolds = map[string][]string{
	"etcd":        {"etcd.TestRestart", "etcd.TestMemberFaults"},
	"mysql table": {"mysql/internal/table.TestServerDies"},
	"redis":       {"redis.TestBrokenConnectionsOfThePool"},
	"redis fair":  {"redis.TestBrokenConnectionsOfThePool"},
	"redlock":     {"redis/redlock.TestRestartedWithData"},
	"zookeeper":   {"zookeeper.TestRestartKeepsHoldsAndTokens", "zookeeper.TestFailover"},
}

// risingTokens are the tests of backends whose servers are killed, fail over or lose what
// they have, between two grants.
var risingTokens = map[string][]string{
	"etcd":           {"etcd.TestRestart", "etcd.TestMemberFaults"},
	"file":           {"file.TestTokensRise", "file.TestReboot"},
	"mysql row lock": {"mysql/internal/row.TestRowTokensSurvive", "mysql/internal/row.TestRowServerFaults"},
	"mysql table":    {"mysql/internal/table.TestServerDies", "mysql/internal/table.TestServerForgetsCommits", "mysql/internal/table.TestCleanupKeepsTokensRising"},
	"redis":          {"redis.TestTokensRiseOverEverything"},
	"redis fair":     {"redis.TestTokensRiseOverEverything"},
	"redlock":        {"redis/redlock.TestRestartedWithData", "redis/redlock.TestTokensModel"},
	"zookeeper":      {"zookeeper.TestRestartKeepsHoldsAndTokens", "zookeeper.TestFailover"},
}

var promises = []promise{
	{title: "excludes", cell: func(g backend.Guarantees) string { return reaches[g.Reach] }, subjects: []string{"exclusion"}, rules: []string{"ExclusiveAcrossProcesses", "ConcurrentTries", "LinearizableUnderFaults"}},
	{title: "a hold that is not renewed ends by", cell: func(g backend.Guarantees) string { return clocks[g.Expiry] }, rules: []string{"CrashFrees", "ServerOutlivesD", "HoldersTTLCounts", "ExpiryIsPerHold", "WithoutRenewalEnds"}},
	{title: "TTL", cell: ttlRange, rules: []string{"TTLRange", "TTLGrain", "EveryTTLLasts"}},
	{title: "takeover after a crash, at most", cell: func(g backend.Guarantees) string {
		if g.TakeoverLag > 0 {
			return "TTL + " + duration(g.TakeoverLag)
		}
		return "TTL"
	}, rules: []string{"CrashFrees"}, subjects: []string{processes}},
	{title: "loss is signalled", cell: func(g backend.Guarantees) string {
		return yes(g.LossSignal, "by the deadline; within a third of the TTL when removed by force")
	}, claims: []string{"LossSignal", "Deadline"}, subjects: []string{"loss"}},
	{title: "a hold survives", cell: func(g backend.Guarantees) string { return events(g.HoldsSurvive) }, tests: survivingHolds},
	{title: "fencing token", cell: func(g backend.Guarantees) string { return tokens[g.Token] }, claims: []string{"Token"}},
	{title: "tokens still rise after", cell: func(g backend.Guarantees) string {
		if g.Token == backend.TokenNone {
			return unknown
		}
		return events(g.TokenSurvives)
	}, claims: []string{"Token"}, tests: risingTokens},
	{title: "one owner may hold a key several times", cell: func(g backend.Guarantees) string { return reentrancies[g.Reentrancy] }, claims: []string{"Reentrancy"}},
	{title: "first come, first served", cell: func(g backend.Guarantees) string {
		if g.Fair {
			return "across clients"
		}
		return "within a Locker"
	}, rules: []string{"WaiterOrderLocal", "FairOrder", "QueueOrder"}},
	{title: "a waiter learns of a release by", cell: func(g backend.Guarantees) string { return waitings[g.Waiting] }, subjects: []string{"waiting"}},
	{title: "manual renewal", cell: func(g backend.Guarantees) string { return yes(g.ManualRenewal, "yes") }, claims: []string{"ManualRenewal"}, subjects: []string{"renewal"}},
	{title: "a refusal names the holder", cell: func(g backend.Guarantees) string { return yes(g.HolderDetails, "yes") }, claims: []string{"HolderDetails"}},
	{title: "guarded write into the same store", cell: func(g backend.Guarantees) string { return yes(g.GuardedWrite, "yes") }, claims: []string{"GuardedWrite"}},
}

var reaches = map[backend.Reach]string{
	backend.ReachProcess: "goroutines of one process",
	backend.ReachHost:    "processes of one machine",
	backend.ReachNetwork: "whoever reaches the server",
}

var clocks = map[backend.ExpiryClock]string{
	backend.ClockProcess:      "the clock of the process",
	backend.ClockHost:         "the machine's boot clock",
	backend.ClockServerWall:   "the server's wall clock",
	backend.ClockServerSteady: "the server's steady clock",
	backend.ClockMajority:     "the clocks of a majority",
	backend.ClockConnection:   "the server's idle timer",
	backend.ClockUnknown:      unknown,
}

var tokens = map[backend.TokenSource]string{
	backend.TokenNone:     "none",
	backend.TokenCounter:  "a counter of ours",
	backend.TokenRevision: "the store's revision plus a floor",
	backend.TokenQuorum:   "accepted by a majority",
}

var reentrancies = map[backend.Reentrancy]string{
	backend.ReentrancyNone:   "no",
	backend.ReentrancyClient: "within a Locker",
	backend.ReentrancyServer: "from any process",
}

var waitings = map[backend.Waiting]string{
	backend.WaitPoll:  "polling",
	backend.WaitPush:  "push, and polling",
	backend.WaitQueue: "the server's queue",
}

func yes(is bool, text string) string {
	if is {
		return text
	}
	return "no"
}

func events(list []backend.Fault) string {
	if len(list) == 0 {
		return nothingStopped
	}
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = string(e)
	}
	return strings.Join(out, ", ")
}

func ttlRange(g backend.Guarantees) string {
	if g.MinTTL > 0 && g.MinTTL == g.MaxTTL {
		return "one for the Locker, such as " + duration(g.MinTTL)
	}
	s := duration(max(g.MinTTL, g.TTLGrain))
	if g.MaxTTL > 0 {
		s += " to " + duration(g.MaxTTL)
	} else {
		s += " and more"
	}
	if g.TTLGrain > 1 {
		s += ", in steps of " + duration(g.TTLGrain)
	}
	return s
}

// duration writes days where there are any, which time.Duration does not.
func duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 365*day && d%(365*day) == 0:
		return plural(int(d/(365*day)), "year")
	case d >= day && d%day == 0:
		return plural(int(d/day), "day")
	}
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// processes is the subject of the rules that need several processes, which a lock within
// one of them can't be tried with.
const processes = "processes"

// provenBy names the rules that prove what these guarantees promise of it, in the order
// of the suite, and the tests of the backend that do. It is empty where nothing is promised.
func (p promise) provenBy(g backend.Guarantees) []string {
	if slices.Contains(nothing, p.cell(g)) {
		return nil
	}
	var names []string
	for _, r := range conformance.Rules() {
		if r.Subject == processes && g.Reach == backend.ReachProcess {
			continue
		}
		claims := slices.ContainsFunc(p.claims, func(c string) bool { return strings.Contains(r.Claim, c) })
		if (claims || slices.Contains(p.subjects, r.Subject) || slices.Contains(p.rules, r.Name)) && r.Claimed(g) {
			names = append(names, r.Name)
		}
	}
	return append(names, p.tests[g.Name]...)
}

// proof is what proves some cells of a promise.
type proof struct {
	promise string
	rules   string
}

// proofsOf numbers the different proofs of the cells, from one. A cell that promises
// nothing has the number zero.
func proofsOf(list []promise, found []backend.Declaration) (marks [][]int, proofs []proof) {
	for _, p := range list {
		row := make([]int, len(found))
		for i, d := range found {
			names := p.provenBy(d.Guarantees)
			if len(names) == 0 {
				continue
			}
			this := proof{p.title, strings.Join(names, ", ")}
			at := slices.Index(proofs, this)
			if at < 0 {
				at = len(proofs)
				proofs = append(proofs, this)
			}
			row[i] = at + 1
		}
		marks = append(marks, row)
	}
	return marks, proofs
}

func plural(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return strconv.Itoa(n) + " " + unit + "s"
}
