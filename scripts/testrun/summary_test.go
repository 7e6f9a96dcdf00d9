package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const events = `{"Action":"start","Package":"github.com/mortiselock/lock/redis"}
{"Action":"run","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance"}
{"Action":"run","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair"}
{"Action":"pass","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/Exclusive","Elapsed":1}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/CrashFrees","Output":"    conformance.go:12: inconclusive: a request was held up for 3s\n"}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/CrashFrees","Output":"        at 1.0 s: late\n"}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/CrashFrees","Output":"--- SKIP: TestConformance/fair/CrashFrees (0.1s)\n"}
{"Action":"skip","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/CrashFrees","Elapsed":1}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/PoolClean","Output":"    conformance.go:12: skipped: needs Config.Pool\n"}
{"Action":"skip","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/PoolClean","Elapsed":0}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/FairOrder","Output":"    conformance.go:12: not claimed: the guarantees don't claim Fair\n"}
{"Action":"skip","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair/FairOrder","Elapsed":0}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair","Output":"    conformance.go:12: CrashFrees: inconclusive with a TTL of 1s, trying again with 2s: late\n"}
{"Action":"pass","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance/fair","Elapsed":3}
{"Action":"pass","Package":"github.com/mortiselock/lock/redis","Test":"TestConformance","Elapsed":3}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestOther","Output":"    other_test.go:3: it is broken\n"}
{"Action":"fail","Package":"github.com/mortiselock/lock/redis","Test":"TestOther","Elapsed":0}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"output","Package":"github.com/mortiselock/lock/redis","Output":"FAIL\n"}
{"Action":"fail","Package":"github.com/mortiselock/lock/redis","Elapsed":3.5}
{"Action":"build-output","ImportPath":"github.com/mortiselock/lock/etcd [github.com/mortiselock/lock/etcd.test]","Output":"etcd.go:1: syntax error\n"}
{"Action":"build-fail","ImportPath":"github.com/mortiselock/lock/etcd [github.com/mortiselock/lock/etcd.test]"}
{"Action":"skip","Package":"github.com/mortiselock/lock/internal/none","Elapsed":0}
`

func TestSummary(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newSummary(&out)
	for line := range strings.Lines(events) {
		var ev event
		require.NoError(t, json.Unmarshal([]byte(line), &ev))
		s.add(ev)
		if ev.Action == "start" {
			s.progress()
		}
	}
	s.end()
	for _, want := range []string{
		"     running: redis (0 s)\n", "other_test.go:3: it is broken", "panic: test timed out", "FAIL redis ", "syntax error", "FAIL etcd does not build",
		"2 packages in 0s: 3 tests passed, 2 failed, 2 left out, 1 of them since",
		"    1  needs Config.Pool (redis TestConformance/fair/PoolClean)\n",
		"repeated, since something was held up: redis 1\n",
		"INCONCLUSIVE", "  redis TestConformance/fair/CrashFrees: a request was held up for 3s\n",
		"FAILED: redis TestHangs\n", "FAILED: redis TestOther\n",
	} {
		assert.Contains(t, out.String(), want)
	}
	assert.Greater(t, strings.LastIndex(out.String(), "it is broken"), strings.Index(out.String(), "2 packages in"), "evidence stands at the end once more")
	assert.Equal(t, strings.Join([]string{
		"CrashFrees\tredis TestConformance/fair\tinconclusive", "Exclusive\tredis TestConformance/fair\tpass",
		"FairOrder\tredis TestConformance/fair\tnot claimed", "PoolClean\tredis TestConformance/fair\tskipped", "",
	}, "\n"), s.outcomes())
}

func TestSplit(t *testing.T) {
	t.Parallel()
	assert.Equal(t, [][]string{{"-race", "."}}, split([]string{"-race", "."}, "--"))
	assert.Equal(t, [][]string{{"-race", "."}, {"./flawed"}, {"./more"}}, split([]string{"-race", ".", "--", "./flawed", "--", "./more"}, "--"))
}

func TestRunHasTheStatusOfGoTest(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	status, err := run(&out, [][]string{{"-run", "^TestSummary$", "."}}, 0, "")
	require.NoError(t, err)
	assert.Zero(t, status, out.String())
	assert.Contains(t, out.String(), "ok   scripts/testrun")
	assert.Contains(t, out.String(), "1 packages in")
	out.Reset()
	status, err = run(&out, [][]string{{"./no-such-directory"}, {"-run", "^TestSummary$", "."}}, 0, "")
	require.NoError(t, err)
	assert.NotZero(t, status)
	assert.Contains(t, out.String(), "ok   scripts/testrun", "what is beside one that fails is run")
	status, err = run(&out, [][]string{{"GOFLAGS=-nonsense", "-run", "^TestSummary$", "."}}, 0, "")
	require.NoError(t, err)
	assert.NotZero(t, status, "the environment is passed on")
}

// A package of two runs has its tests in each of them.
func TestPackageIsRunTwice(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newSummary(&out)
	s.labels = []string{"", " ^TestAlso"}
	for run, verdict := range []string{"pass", "fail"} {
		for _, action := range []string{"start", verdict} {
			s.add(event{Action: action, Package: module + "/redis", run: run})
		}
		s.add(event{Action: verdict, Package: module + "/redis", Test: "TestOne", run: run})
	}
	s.end()
	assert.Contains(t, out.String(), "2 packages in")
	assert.Contains(t, out.String(), "1 tests passed, 1 failed")
	assert.Contains(t, out.String(), "FAILED: redis ^TestAlso TestOne")
}
