//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/report"
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

// The whole suite is green on all eight backends, through the tool as people run it,
// and nothing is left behind. That row locks keep it on MySQL too is tested in package
// mysql. One check after the other, and before the tests that run side by side: each is a
// load of its own, and another one on the same cores is a slow machine to it.
func TestCheckIsGreenEverywhere(t *testing.T) {
	formats := []string{"json", "text", "markdown", "html"}
	memory := place{name: "memory", url: func(*testing.T) string { return "mem:" }}
	for i, p := range append([]place{memory}, places...) {
		if p.name == "mysql row on MySQL" {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			url, format := p.url(t), formats[i%len(formats)]
			file := filepath.Join(t.TempDir(), "report")
			done := checked(t, url, "--format", format, "--output", file)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, exitOK, done.status(), "%s\n%s", done.errors(), text)
			assert.NotContains(t, done.errors(), "broken:")
			requireReport(t, format, string(text))
			if p.name == "memory" {
				return // gone with its process
			}
			_, out, errs := run(t, url, "ls", "--json", checkPrefix)
			assert.Empty(t, out, "the check has left keys behind: %s", errs)
			assert.Empty(t, kept(t, url, checkPrefix), "the check has left something of its keys behind")
		})
	}
}

// requireTried: every rule about something that the backend claims was tried, but for the
// few that a tool cannot try.
func requireTried(t *testing.T, rep conformance.Report) {
	t.Helper()
	for _, name := range report.Untried(rep) {
		require.Contains(t, reasons, name, "it was not tried")
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
			t.Skip("nothing of its own to kill: a file system does not die, and MySQL dies as MariaDB does")
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
		time.Sleep(4 * time.Second) // somewhere in the middle
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
			assert.True(t, strings.HasPrefix(told, says+"\n"), "it is not on top")
			assert.Contains(t, told, " 0 fail, ")
		case "markdown":
			assert.Contains(t, told, " 0 fail, ")
		}
	})
}
