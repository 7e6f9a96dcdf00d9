package flawedtest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/conformance"
)

// What any slow machine can bring about is no catch, unless the mistake is slowness.
func TestAccidentsProveNothing(t *testing.T) {
	t.Parallel()
	slow := "at 1.0000 s: a try returned error \"no answer from the server within 666ms\"; expected a grant\ncalls on \"k\"\n  0.1 .. 0.2  client 1  Try: ok"
	assert.False(t, Mistake{}.proves(slow))
	assert.True(t, Mistake{Slow: true}.proves(slow))
	assert.True(t, Mistake{}.proves("at 0.5000 s: token 4 was given twice\n"+slow))
	assert.False(t, Mistake{}.proves(""))
}

// A lock that may let two in may be seen to do so in the cases of any rule; it may not
// break them otherwise.
func TestOverlapsMayShowAnywhere(t *testing.T) {
	t.Parallel()
	overlap := "at 0.3074 s: two leases of one key were valid at the same time: client 1 was granted it at 0.1842 s\ncalls on \"k\"\n    0.1842 ..   0.1842  client 1   TryAcquire: granted\n"
	other := "at 0.5000 s: token 4 was given twice\n"
	for _, c := range []struct {
		why      string
		mistake  Mistake
		evidence string
		want     bool
	}{
		{"it is named for Exclusive", Mistake{Rule: "Exclusive"}, overlap, true},
		{"it may break Exclusive", Mistake{Rule: "CrashFrees", Also: []string{"Exclusive"}}, overlap, true},
		{"so does the grant that made it", Mistake{Rule: "Exclusive"}, overlap + "at 0.3075 s: TryAcquire was granted; expected a refusal, because it is held\n", true},
		{"takeovers may be wrong", Mistake{Rule: "DeadlineFromSend", Also: []string{"ExclusiveAcrossTakeover"}}, overlap, true},
		{"it excludes", Mistake{Rule: "CrashFrees"}, overlap, false},
		{"something else is wrong", Mistake{Rule: "Exclusive"}, other, false},
		{"something else is wrong too", Mistake{Rule: "Exclusive"}, overlap + other, false},
		{"nothing is wrong", Mistake{Rule: "Exclusive"}, "", false},
		{"the rule is named", Mistake{Rule: "NoLeak"}, other, true},
	} {
		assert.Equal(t, c.want, c.mistake.MayBreak(conformance.Result{Rule: "NoLeak", Evidence: c.evidence}), c.why)
	}
	assert.True(t, Mistake{Also: []string{"waiting"}}.MayBreak(conformance.Result{Rule: "NoLeak", Subject: "waiting", Evidence: other}))
}
