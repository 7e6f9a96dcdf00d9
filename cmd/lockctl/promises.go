package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// promise is a line of the comparison: one thing that locks differ in.
type promise struct {
	title string
	// cell says in a few words what these guarantees promise of it.
	cell func(g backend.Guarantees) string
	// subjects and claims name the rules of the suite that prove the cells. Where
	// neither does, elsewhere says what does.
	subjects  []string
	claims    []string
	rules     []string
	elsewhere string
}

var promises = []promise{
	{title: "excludes", cell: func(g backend.Guarantees) string { return reaches[g.Reach] }, subjects: []string{"exclusion"}},
	{title: "a hold that is not renewed ends by", cell: func(g backend.Guarantees) string { return clocks[g.Expiry] }, rules: []string{"CrashFrees", "ServerOutlivesD", "HoldersTTLCounts"}},
	{title: "TTL", cell: ttlRange, rules: []string{"TTLRange", "TTLGrain"}},
	{title: "takeover after a crash, at most", cell: func(g backend.Guarantees) string {
		if g.TakeoverLag > 0 {
			return "TTL + " + duration(g.TakeoverLag)
		}
		return "TTL"
	}, rules: []string{"CrashFrees"}, subjects: []string{"processes"}},
	{title: "loss is signalled", cell: func(g backend.Guarantees) string {
		return yes(g.LossSignal, "by the deadline; within a third of the TTL when removed by force")
	}, claims: []string{"LossSignal", "Deadline"}, subjects: []string{"loss"}},
	{title: "a hold survives", cell: func(g backend.Guarantees) string { return events(g.HoldsSurvive) }, elsewhere: "tests of the backend with servers that are killed"},
	{title: "fencing token", cell: func(g backend.Guarantees) string { return tokens[g.Token] }, claims: []string{"Token"}},
	{title: "tokens still rise after", cell: func(g backend.Guarantees) string {
		if g.Token == backend.TokenNone {
			return unknown
		}
		return events(g.TokenSurvives)
	}, claims: []string{"Token"}, elsewhere: "tests of the backend, for its server"},
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

var clocks = map[backend.Clockwork]string{
	backend.ClockProcess:     "the clock of the process",
	backend.ClockHost:        "the machine's boot clock",
	backend.ClockServerWall:  "the server's wall clock",
	backend.ClockServerSteps: "the server's steady clock",
	backend.ClockMajority:    "the clocks of a majority",
	backend.ClockConnection:  "the server's idle timer of the connection",
	backend.ClockUnknown:     unknown,
}

var tokens = map[backend.TokenSource]string{
	backend.TokenNone:     "none",
	backend.TokenCounter:  "a counter of ours",
	backend.TokenRevision: "the store's revision",
	backend.TokenQuorum:   "accepted by a majority",
}

var reentrancies = map[backend.Reentrancy]string{
	backend.ReentrancyNone:   "no",
	backend.ReentrancyClient: "within a Locker",
	backend.ReentrancyServer: "from any process",
}

var waitings = map[backend.Waiting]string{
	backend.WaitPoll:  "asking again",
	backend.WaitPush:  "a push, and asking now and then",
	backend.WaitQueue: "its turn in the server's queue",
}

func yes(is bool, text string) string {
	if is {
		return text
	}
	return "no"
}

func events(list []backend.Event) string {
	if len(list) == 0 {
		return "nothing that stops the server"
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

// proof names the rules that prove the promise, in the order of the suite, and
// what else does.
func (p promise) proof() string {
	var names []string
	for _, r := range conformance.Rules() {
		claimed := slices.ContainsFunc(p.claims, func(c string) bool { return strings.Contains(r.Claim, c) })
		if claimed || slices.Contains(p.subjects, r.Subject) || slices.Contains(p.rules, r.Name) {
			names = append(names, r.Name)
		}
	}
	if p.elsewhere != "" {
		names = append(names, p.elsewhere)
	}
	return strings.Join(names, ", ")
}

func plural(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return strconv.Itoa(n) + " " + unit + "s"
}
