package rules

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// lockerSaysTheSame is GuaranteesAreStable where only a Locker is given.
func lockerSaysTheSame(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	tells, ok := a.Locker.(teller)
	other, both := b.Locker.(teller)
	if !ok || !both {
		e.Skipf("needs Config.OpenBackend, or a Locker with the method Guarantees")
	}
	first := tells.Guarantees()
	ownLists(e, "Guarantees of a Locker", first, tells.Guarantees(), other.Guarantees())
	same := func(when string) {
		for _, again := range []backend.Guarantees{other.Guarantees(), tells.Guarantees()} {
			if !reflect.DeepEqual(first, again) {
				e.Fatalf("", "Guarantees of a Locker returned two different values, the second one %s: %+v and %+v", when, first, again)
			}
		}
	}
	same("at once")
	key := e.Key("a")
	h := a.MustTry(key)
	b.MustRefuse(key, "another client holds it")
	same("after a refusal")
	h.MustRelease()
	same("after a release")
	guaranteesAskNobody(e)
	knownWords(e, first)
}

// teller says what its locks promise.
type teller interface{ Guarantees() backend.Guarantees }

// ownLists fails the case if two answers have a list in common: who writes into the one changes
// the other.
func ownLists(e *engine.Env, what string, first backend.Guarantees, others ...backend.Guarantees) {
	for _, g := range others {
		if shared(first.Assumptions, g.Assumptions) || shared(first.TokenSurvives, g.TokenSurvives) || shared(first.HoldsSurvive, g.HoldsSurvive) {
			e.Failf("", "%s returned the same list twice; expected a list of its own for each caller, who may change it", what)
			return
		}
	}
}

func shared[T any](a, b []T) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// guaranteesAskNobody asks for the guarantees while no server answers, and counts the requests
// where they are seen.
func guaranteesAskNobody(e *engine.Env) {
	if e.OpenBackend != nil {
		l, f := e.FaultyWhole()
		if tells, ok := l.Locker.(teller); ok {
			first, before := tells.Guarantees(), len(f.Injected())
			for _, fault := range []faultlock.Fault{faultlock.HangBefore(), faultlock.FailBefore()} {
				f.All(fault)
				wait := saysAtOnce(e, tells, first, "while requests meet "+fault.String())
				e.Settle() // for what is sent in the background
				f.Heal()
				wait()
			}
			if n := len(f.Injected()) - before; n > 0 {
				e.Failf("", "Guarantees of a Locker that holds nothing sent %d requests; expected none", n)
			}
		}
	}
	if e.Proxy == nil {
		return
	}
	l, n := e.Behind(e.Key("guarantees"))
	tell := []any{l.Locker}
	if on, ok := l.Locker.(interface{ Backend() backend.Backend }); ok { // a Locker may ask only once
		tell = append(tell, on.Backend())
	}
	for _, of := range tell {
		if tells, ok := of.(teller); ok {
			first := tells.Guarantees()
			n.Silent()
			wait := saysAtOnce(e, tells, first, "while the network is silent")
			n.Heal()
			wait()
		}
	}
}

// saysAtOnce demands the same guarantees, from memory.
func saysAtOnce(e *engine.Env, tells teller, first backend.Guarantees, when string) (wait func()) {
	said := make(chan struct{})
	wait = e.Start(func() {
		defer close(said)
		if again := tells.Guarantees(); !reflect.DeepEqual(first, again) {
			e.Fatalf("", "Guarantees returned two different values, the second one %s: %+v and %+v", when, first, again)
		}
	})
	if !e.Within(e.Slack(), said) {
		e.Overduef("", "Guarantees had not returned after %s, %s; expected it to ask no server", e.Slack(), when)
	}
	return wait
}

// knownWords looks for words that nobody who reads the guarantees can know, and for advice on
// nothing.
func knownWords(e *engine.Env, g backend.Guarantees) {
	wrong := func(field string, value any) {
		e.Failf("", "%s is %q; expected one of the constants of its type in package backend", field, value)
	}
	if !slices.Contains([]backend.Reach{"", backend.ReachProcess, backend.ReachHost, backend.ReachNetwork}, g.Reach) {
		wrong("Reach", g.Reach)
	}
	if !slices.Contains([]backend.ExpiryClock{"", backend.ClockProcess, backend.ClockHost, backend.ClockServerWall, backend.ClockServerSteady,
		backend.ClockMajority, backend.ClockConnection, backend.ClockUnknown}, g.Expiry) {
		wrong("Expiry", g.Expiry)
	}
	if !slices.Contains([]backend.TokenSource{"", backend.TokenNone, backend.TokenCounter, backend.TokenRevision, backend.TokenQuorum}, g.Token) {
		wrong("Token", g.Token)
	}
	if !slices.Contains([]backend.Reentrancy{"", backend.ReentrancyNone, backend.ReentrancyClient, backend.ReentrancyServer}, g.Reentrancy) {
		wrong("Reentrancy", g.Reentrancy)
	}
	if !slices.Contains([]backend.Waiting{"", backend.WaitPoll, backend.WaitPush, backend.WaitQueue}, g.Waiting) {
		wrong("Waiting", g.Waiting)
	}
	for field, events := range map[string][]backend.Fault{"TokenSurvives": g.TokenSurvives, "HoldsSurvive": g.HoldsSurvive} {
		for i, event := range events {
			if !slices.Contains([]backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved, backend.FaultRestart,
				backend.FaultFailover, backend.FaultDataLoss}, event) || slices.Contains(events[:i], event) {
				e.Failf("", "%s has %q; expected the constants of package backend, each once", field, event)
			}
		}
	}
	if g.LongerTTL != "" && g.MaxTTL <= 0 {
		e.Failf("", "LongerTTL is %q, and MaxTTL %s; expected no advice for a longer TTL where no TTL is too long", g.LongerTTL, g.MaxTTL)
	}
	for _, sentence := range g.Assumptions {
		if strings.TrimSpace(sentence) == "" {
			e.Failf("", "Assumptions has an empty one: %q; expected sentences", g.Assumptions)
		}
	}
}

// fixedAnswers asks a backend what it says of all its requests.
func fixedAnswers(b backend.Backend) func() [2]bool {
	return func() (says [2]bool) {
		if x, ok := b.(backend.Interruptible); ok {
			says[0] = x.Interruptible()
		}
		if x, ok := b.(backend.Immediate); ok {
			says[1] = x.Immediate()
		}
		return says
	}
}

// fewPartitions asks for the servers of more keys than any store has servers, from many
// goroutines.
func fewPartitions(e *engine.Env, b backend.Backend) {
	p, ok := backend.As[backend.Partitioner](b)
	if !ok {
		return
	}
	const askers, keys = 4, 1000
	named := make([]map[string]bool, askers)
	e.Each(askers, func(i int) {
		named[i] = map[string]bool{}
		for n := range keys {
			named[i][p.Partition(fmt.Sprintf("%s%d/%d", e.Stem, i, n))] = true
		}
	})
	for _, servers := range named {
		if len(servers) == keys {
			e.Failf("", "Partition names a server of its own for each of %d keys; expected few different answers, since each is a batch of its own", keys)
			return
		}
	}
}
