//go:build unix

package rules_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

// forgetVar makes this program one whose TestMain does not call Child.
const forgetVar = "CONFORMANCE_TEST_FORGET"

func TestMain(m *testing.M) {
	if os.Getenv(forgetVar) == "" {
		conformance.Child(farConfig)
	}
	os.Exit(m.Run())
}

func TestProcessesOfAHealthyLock(t *testing.T) {
	t.Parallel()
	cfg := farConfig("healthy " + t.TempDir())
	cfg.Only = []string{"processes"}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	assert.NotEmpty(t, rep.Results)
	accusesNone(t, rep, conformance.Pass)
}

func TestProcessesOfALockWithoutDeadlines(t *testing.T) {
	t.Parallel()
	cfg := farConfig("no-deadline " + t.TempDir())
	cfg.Only = []string{"processes"}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	assert.NotEmpty(t, rep.Results)
	accusesNone(t, rep, conformance.Pass, conformance.NotClaimed)
}

// accusesNone requires the verdicts. On a machine that stands still a rule may be inconclusive,
// but not most of them.
func accusesNone(t *testing.T, rep conformance.Report, good ...conformance.Verdict) {
	t.Helper()
	decided := 0
	for _, r := range rep.Results {
		assert.Contains(t, append(good, conformance.Inconclusive), r.Verdict, "%s: %s", r.Rule, r.Evidence)
		if r.Verdict != conformance.Inconclusive {
			decided++
		}
		t.Log(r.Rule, r.Verdict, r.Evidence)
	}
	assert.Greater(t, decided, len(rep.Results)/2)
}

func TestForgottenChildIsANamedSkip(t *testing.T) {
	t.Parallel()
	if os.Getenv(forgetVar) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), forgetVar+"=always")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	cfg := farConfig("healthy " + t.TempDir())
	assertSkipped(t, cfg, "call conformance.Child in TestMain")
}

func TestWhatElseLacksProcesses(t *testing.T) {
	t.Parallel()
	assertSkipped(t, memory(), "reaches one process only")
	cfg := farConfig("healthy " + t.TempDir())
	cfg.Child = ""
	assertSkipped(t, cfg, "needs Config.Child")
}

func assertSkipped(t *testing.T, cfg conformance.Config, why string) {
	t.Helper()
	cfg.Only = []string{"processes"}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	for _, r := range rep.Results {
		assert.Equal(t, conformance.Skipped, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		assert.Contains(t, r.Evidence, why)
	}
}
