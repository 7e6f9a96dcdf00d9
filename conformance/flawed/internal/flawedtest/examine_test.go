package flawedtest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
)

// What any slow machine can bring about is no catch, unless the mistake is slowness.
func TestAccidentsProveNothing(t *testing.T) {
	t.Parallel()
	slow := "at 1.0000 s: a try returned error \"no answer from the server within 666ms\"; expected a grant\ncalls on \"k\"\n  0.1 .. 0.2  client 1  Try: ok"
	assert.False(t, proves(slow, false))
	assert.True(t, proves(slow, true))
	assert.True(t, proves("at 0.5000 s: token 4 was given twice\n"+slow, false))
	assert.False(t, proves("", false))
}

// A lock that may let two in may be seen to do so in the cases of any rule; it may not
// break them otherwise.
func TestOverlapsMayShowAnywhere(t *testing.T) {
	t.Parallel()
	overlap := "at 0.3074 s: two leases of one key were valid at the same time: client 1 was granted it at 0.1842 s\ncalls on \"k\"\n    0.1842 ..   0.1842  client 1   TryAcquire: granted\n"
	other := "at 0.5000 s: token 4 was given twice\n"
	for _, c := range []struct {
		why      string
		lock     flaw.Lock
		evidence string
		want     bool
	}{
		{"it is named for Exclusive", flaw.Lock{Rule: "Exclusive"}, overlap, true},
		{"it may break Exclusive", flaw.Lock{Rule: "CrashFrees", Also: []string{"Exclusive"}}, overlap, true},
		{"so does the grant that made it", flaw.Lock{Rule: "Exclusive"}, overlap + "at 0.3075 s: TryAcquire was granted; expected a refusal, because it is held\n", true},
		{"takeovers may be wrong", flaw.Lock{Rule: "DeadlineFromSend", Also: []string{"ExclusiveAcrossTakeover"}}, overlap, true},
		{"it excludes", flaw.Lock{Rule: "CrashFrees"}, overlap, false},
		{"something else is wrong", flaw.Lock{Rule: "Exclusive"}, other, false},
		{"something else is wrong too", flaw.Lock{Rule: "Exclusive"}, overlap + other, false},
		{"nothing is wrong", flaw.Lock{Rule: "Exclusive"}, "", false},
		{"the rule is named", flaw.Lock{Rule: "NoLeak"}, other, true},
	} {
		assert.Equal(t, c.want, mayBreak(c.lock, conformance.Result{Rule: "NoLeak", Evidence: c.evidence}), c.why)
	}
	assert.True(t, mayBreak(flaw.Lock{Also: []string{"waiting"}}, conformance.Result{Rule: "NoLeak", Subject: "waiting", Evidence: other}))
}
