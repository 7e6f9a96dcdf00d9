package conformance_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// hook is a field of Config for what only the author of a lock can do.
type hook struct {
	field, does string
	rules       string // what is skipped without it
	parts       string // what is tried in part without it
	without     string // what happens without it, where that is not a list of rules
}

var hooks = []hook{
	{field: "OpenBackend", does: "opens a `backend.Backend`", without: "skipped: rules for backends"},
	{field: "Wrap", does: "makes the Locker under test of a backend", without: "it is `lock.New`"},
	{field: "Guarantees", does: "says what is claimed", without: "the lock says so, or claims WithoutRenewal only, and not even that with `Kill`"},
	{field: "Deviations", does: "declares what the lock is not meant to keep, and why", without: "every rule counts that its claims switch on"},
	{field: "Remove", does: "deletes the record of a key", rules: "LostOnRemoval",
		parts: "TokenSurvivesRelease GuardedWriteWhileHeld", without: "not needed by backends that can inspect and force"},
	{field: "Kill", does: "abandons a Locker as if its process had died",
		without: "leases without renewal are taken; a Locker without those can't be tested, unless there is OpenBackend"},
	{field: "Child", does: "names the Config for processes that the suite starts",
		rules: "ExclusiveAcrossProcesses CrashFreesProcess CrashAtAnyMoment PauseIsNoticed ReleaseAfterPause ShortPauseIsNoLoss LostBeforeTakeoverAcrossProcesses FencedRegister WaiterKilledHarmless HolderAcrossProcesses OwnerAcrossProcesses"},
	{field: "Proxy", does: "opens a Locker that reaches the server at another address",
		rules: "CutWhileAcquiring SilenceWhileAcquiring SilentCallsEnd SilentLeaseIsRead RefusedIsNotUnknown CutIsNoRefusal CutWhileReleasing ReentrantThroughCut CutIsKeptOrTold ShortSilenceIsNoLoss LostWhenUnreachable WaiterSurvivesCut ExclusiveThroughFaults"},
	{field: "Judge", does: "decides whether the calls of a case make sense together", rules: "Linearizable LinearizableUnderFaults"},
	{field: "Guarded", does: "writes a value guarded by a lease", rules: "GuardedWriteWhileHeld GuardedWriteNeverLate GuardedWriteHoldsUpNobody BatchRenewBesideGuardedWrite"},
	{field: "EndSession", does: "ends the session of the last one in the server's queue", rules: "WaiterSessionCheck NextSessionHolds"},
	{field: "Pool", does: "says what is set on the lock's connections", rules: "PoolClean"},
	{field: "Untouched", does: "makes a new store, and tells what it contains", parts: "LookingChangesNothing ForgetLeavesOthers CleanupByAge RaisedFloorCounts"},
	{field: "Tidy", does: "ends leases of dead clients after the run", without: "they end by their TTL"},
	{field: "Progress", does: "is told each result as it comes", without: "results come at the end"},
	{field: "Repeat", does: "decides which inconclusive cases are repeated", without: "all, up to three times"},
}

// settled are the fields of Config that are no hooks.
var settled = []string{"Name", "Open", "TTL", "Budget", "Parallel", "KeyPrefix", "Only", "Seed", "Logf"}

// bySubject puts the name of a subject in place of all of its rules.
func bySubject(rules []string) []string {
	of := map[string][]string{}
	for _, r := range conformance.Rules() {
		of[r.Subject] = append(of[r.Subject], r.Name)
	}
	for subject, all := range of {
		at := slices.Index(rules, all[0])
		if at < 0 || slices.ContainsFunc(all, func(name string) bool { return !slices.Contains(rules, name) }) {
			continue
		}
		rules = slices.Insert(slices.Clone(rules), at, fmt.Sprintf("[%s](#%s)", subject, strings.ReplaceAll(subject, " ", "-")))
		rules = slices.DeleteFunc(rules, func(name string) bool { return slices.Contains(all, name) })
	}
	return rules
}

// hookTable says of each hook what it is for, and what is missing without it.
func hookTable() string {
	var b strings.Builder
	b.WriteString("\n| Field of `Config` | What it does | Without it |\n|---|---|---|\n")
	list := func(rules, what string) string {
		if rules == "" {
			return ""
		}
		return what + strings.Join(bySubject(strings.Fields(rules)), ", ")
	}
	for _, h := range hooks {
		without := slices.DeleteFunc([]string{list(h.rules, "skipped: "), list(h.parts, "tried in part: "), h.without}, func(s string) bool { return s == "" })
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", h.field, h.does, strings.Join(without, "; "))
	}
	return b.String() + "\n"
}

// hooked are the subjects all of whose rules need a hook.
var hooked = map[string]string{"network": "Proxy", "processes": "Child"}

// TestHooks requires that the table has every hook, and that what it says to be skipped
// or tried in part without a hook says so itself, and names the hook. It has every rule of
// the subjects that need one.
func TestHooks(t *testing.T) {
	t.Parallel()
	var fields []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[conformance.Config]()) {
		fields = append(fields, f.Name)
	}
	named := slices.Clone(settled)
	wanted := map[string]string{} // rule -> hook
	for _, h := range hooks {
		named = append(named, h.field)
		for _, rule := range strings.Fields(h.rules + " " + h.parts) {
			if h.field == "Remove" && rule == "GuardedWriteWhileHeld" || h.field == "Untouched" {
				continue // it is skipped without Guarded, or an Inspector, before it can say so
			}
			wanted[rule] = h.field
		}
	}
	assert.ElementsMatch(t, fields, named, "the table of hooks in hooks_test.go has other fields than Config")
	for _, r := range conformance.Rules() {
		if field := hooked[r.Subject]; field != "" {
			assert.Equal(t, field, wanted[r.Name], "%s is skipped without %s: name it in the table of hooks in hooks_test.go", r.Name, field)
		}
	}
	rep, err := conformance.Check(t.Context(), withoutHooks(wanted))
	require.NoError(t, err)
	assert.Len(t, rep.Results, len(wanted))
	for _, r := range rep.Results {
		assert.Contains(t, r.Evidence, "Config."+wanted[r.Rule], "%s: %s", r.Rule, r.Verdict)
		assert.NotEqual(t, conformance.Fail, r.Verdict, r.Rule)
	}
}

// bare hides the abilities of a backend.
type bare struct{ backend.Backend }

type queuing struct {
	bare
	backend.Queuer
}

// withoutHooks claims everything that the rules are about, and has nothing to test it with.
func withoutHooks(rules map[string]string) conformance.Config {
	store := memlock.NewStore(nil)
	cfg := conformance.Config{
		TTL: 300 * time.Millisecond, Budget: time.Second,
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
			if err != nil {
				return nil, err
			}
			return queuing{bare{b}, b.(backend.Queuer)}, nil
		},
	}
	b, err := memlock.NewBackend(context.Background(), &memlock.Options{Store: store, Queue: true})
	if err != nil {
		panic(err)
	}
	g := b.Guarantees()
	g.Reach, g.GuardedWrite = backend.ReachNetwork, true
	cfg.Guarantees = &g
	for rule := range rules {
		cfg.Only = append(cfg.Only, rule)
	}
	return cfg
}
