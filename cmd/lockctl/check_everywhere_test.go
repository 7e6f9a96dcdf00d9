//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

// checkLimit is far beyond what a check takes, on a server that answers or one that
// has gone.
const checkLimit = 5 * time.Minute

// checked runs lockctl check to its end.
func checked(t *testing.T, url string, args ...string) *proc {
	t.Helper()
	return ended(t, start(t, url, append([]string{"check"}, args...)...))
}

func ended(t *testing.T, p *proc) *proc {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(checkLimit):
		require.Fail(t, "the check hangs", p.errors())
	}
	return p
}

// green reports whether a check has proved what it tried. Otherwise it requires that this
// machine was too slow for a verdict, which is no fault of lock or tool.
func green(t *testing.T, status int, errs string) bool {
	t.Helper()
	if status == exitHeld && strings.Contains(errs, "too slow for a verdict on:") {
		t.Log(errs)
		return false
	}
	require.Equal(t, exitOK, status, errs)
	return true
}

// writes writes to a file again and again, until the function is called that it returns, which
// tells how long one of the writes took at most.
func writes(t *testing.T, file string) (longest func() time.Duration) {
	t.Helper()
	stop, told := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		defer func() { told <- most }()
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			_ = os.WriteFile(file, []byte("beside"), 0o600)
			most, last = max(most, time.Since(last)), time.Now()
		}
	}()
	return func() time.Duration { close(stop); return <-told }
}

// The whole suite is green through the tool as people run it, every rule is tried that a
// tool can try, and nothing is left behind: on a directory and on a server. The packages of
// the backends run it on all of them. It comes before the tests that run side by side,
// whose load is a slow machine to it.
func TestWholeCheckIsGreen(t *testing.T) {
	formats := map[string]string{"file": "text", "redis": "json"}
	for _, p := range places {
		format, whole := formats[p.name]
		if !whole {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			url := p.url(t)
			file := filepath.Join(t.TempDir(), "report")
			stall := writes(t, file+"-beside")
			done := checked(t, url, "--budget", "20s", "--format", format, "--output", file)
			if stood := stall(); done.status() == exitUnavailable && stood > time.Second {
				t.Skipf("the disk or this process stood still for %s: %s", stood, done.errors())
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			if done.status() != exitOK {
				t.Logf("%s", text) // with the evidence
			}
			if green(t, done.status(), done.errors()) {
				requireReport(t, format, string(text))
			}
			requireNothingLeft(t, url)
		})
	}
}

// requireNothingLeft: nothing is on the server that a check has made.
func requireNothingLeft(t *testing.T, url string) {
	t.Helper()
	_, out, errs := run(t, url, "ls", "--json", checkPrefix)
	assert.Empty(t, out, "the check has left keys behind: %s", errs)
	assert.Empty(t, kept(t, url, checkPrefix), "the check has left something of its keys behind")
	assert.Empty(t, valuesOf(t, url), "the check has left values behind")
}

// smoke are rules of each kind that a check has: with a client, with processes that it
// starts, on a disturbed network, and with guarded writes.
const smoke = "HandsOut,ReleaseOwnOnly,CrashFreesProcess,WaiterSurvivesCut,"

// On every backend a check gets at what it needs: clients, processes and a place for
// guarded writes, where the backend claims them. And it leaves nothing behind.
func TestCheckOnEveryBackend(t *testing.T) {
	memory := place{name: "memory", url: func(*testing.T) string { return "mem:" }}
	for _, p := range append([]place{memory}, places...) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			address, _, _ := strings.Cut(p.url(t), "?node_timeout") // a check's TTLs are shorter
			status, out, errs := operated(t, address, "check", "--only", smoke+guardedWrites, "--budget", "5s", "--format", "json")
			var rep conformance.Report
			require.NoError(t, json.Unmarshal([]byte(out), &rep), errs)
			require.Len(t, rep.Results, 7)
			for _, r := range rep.Results {
				want := conformance.Pass
				switch {
				case r.Rule == "CrashFreesProcess" && p.name == "memory":
					want = conformance.Skipped
				case r.Subject == network && proxyOf(address) == nil:
					want = conformance.Skipped
				case r.Subject != guardedWrites:
				case !rep.Guarantees.GuardedWrite:
					want = conformance.NotClaimed
				case r.Rule == "GuardedWriteHoldsUpNobody" && !strings.HasPrefix(address, "mysql:"):
					want = conformance.Skipped // a guarded write is one request there
				}
				if want != conformance.Pass || r.Verdict != conformance.Inconclusive {
					assert.Equal(t, want, r.Verdict, "%s: %s", r.Rule, r.Evidence)
				}
			}
			green(t, status, errs)
			if p.name != "memory" { // gone with its process
				requireNothingLeft(t, address)
			}
		})
	}
}

// The formats for people say of a green check that it is.
func TestCheckFormats(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"markdown", "html"} {
		status, out, errs := run(t, "file:"+t.TempDir(), "check", "--only", "HandsOut,ReleaseOwnOnly", "--budget", "1s", "--format", format)
		if green(t, status, errs) {
			requireReport(t, format, out)
		}
	}
}

// requireTried: every rule about something that the backend claims was tried, but for the
// few that a tool cannot try.
func requireTried(t *testing.T, rep conformance.Report) {
	t.Helper()
	subjects := map[string]string{}
	for _, r := range rep.Results {
		subjects[r.Rule] = r.Subject
	}
	for _, name := range rep.Untried() {
		if subjects[name] != network || !strings.HasPrefix(rep.Name, "file") {
			require.Contains(t, reasons, name, "it was not tried")
		}
	}
	for _, r := range rep.Results {
		require.NotContains(t, r.Evidence, "Config.", "%s: words for those who write tests", r.Rule)
		if r.Subject == guardedWrites && rep.Guarantees.GuardedWrite && !strings.HasPrefix(r.Evidence, "does not apply: a guarded write is one request") {
			require.Equal(t, conformance.Pass, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		}
	}
}

// requireReport reads the report of a check on which every promise was kept.
func requireReport(t *testing.T, format, text string) {
	t.Helper()
	switch format {
	case "json":
		var rep conformance.Report
		require.NoError(t, json.Unmarshal([]byte(text), &rep))
		require.True(t, rep.OK())
		require.Len(t, rep.Results, len(conformance.Rules()))
		require.Greater(t, rep.Counts().Pass, len(rep.Results)/2)
		requireTried(t, rep)
	case "text":
		require.Regexp(t, `(?m)^\d+ pass, 0 fail, `, text)
		require.Regexp(t, `\nEvery claim that could be tried was kept\. Not tried: Linearizable, .*\.\n$`, text)
	case "markdown":
		require.Contains(t, text, "Every claim that could be tried was kept.")
		require.Contains(t, text, "| ReleaseOwnOnly |")
	case "html":
		require.Contains(t, text, "Every claim that could be tried was kept.")
		require.Contains(t, text, "ReleaseOwnOnly")
		require.NotContains(t, text, "src=", "the page loads something")
		require.NotContains(t, text, "href=", "the page points to something")
	}
}

// A server that dies half-way: the check ends, says so, and blames no rule.
func TestCheckOfAServerThatDies(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		if p.own == nil {
			t.Skip("nothing of its own to kill: a file system does not die; what dies is a server, whatever the form")
		}
		url, kill := p.own(t)
		format, says := "text", "Incomplete: the server stopped answering"
		switch p.name {
		case "redis":
			format = "html"
		case "etcd":
			format = "markdown"
		case "zookeeper":
			format, says = "json", `"incomplete":"the server stopped answering"`
		}
		file := filepath.Join(t.TempDir(), "report") // no pipe takes a whole one
		check := start(t, url, "check", "--format", format, "--output", file)
		require.Eventually(t, func() bool { // somewhere in the middle
			_, out, _ := run(t, url, "ls", "--json", checkPrefix)
			return slices.ContainsFunc(conformance.Rules(), func(r conformance.Rule) bool { return strings.Contains(out, "/"+r.Name+"/") })
		}, hang, 100*time.Millisecond, "the check has begun")
		kill()
		done := ended(t, check)
		assert.Equal(t, exitUnavailable, done.status(), done.errors())
		assert.Contains(t, done.errors(), "the backend stopped answering during the check")
		assert.Contains(t, done.errors(), "look at the server and start again")
		assert.NotContains(t, done.errors(), "broken:", "a rule is blamed for the server")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		told := string(text)
		assert.Contains(t, told, says)
		assert.NotContains(t, told, "was kept", "a report of what was not tried is green")
		switch format {
		case "text":
			assert.True(t, strings.HasPrefix(told, says+". "), "it is not on top")
			assert.Contains(t, told, " 0 fail, ")
		case "markdown":
			assert.Contains(t, told, " 0 fail, ")
		}
	})
}
