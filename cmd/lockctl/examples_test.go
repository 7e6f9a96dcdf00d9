//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// example is a command of a page, and the output that the page shows.
type example struct {
	command string
	output  []string
}

// examplesOf reads the commands with their outputs: indented lines that begin with a
// dollar, and what follows them.
func examplesOf(t *testing.T, page string) []example {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	require.NoError(t, err)
	var found []example
	open := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		shown, indented := strings.CutPrefix(line, "    ")
		command, begins := strings.CutPrefix(shown, "$ ")
		switch {
		case indented && begins:
			found = append(found, example{command: command})
			open = true
		case indented && open:
			last := &found[len(found)-1]
			last.output = append(last.output, shown)
		default:
			open = false
		}
	}
	return found
}

// shapes are what differs from run to run.
var shapes = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`^lockctl (\(devel\)|v\S+)$`), "lockctl VERSION"},
	{regexp.MustCompile(`^revision .*`), "revision COMMIT"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`\b[0-9.]+ ?(ms|s)\b`), "DURATION"},
	{regexp.MustCompile(`\b\d{2,}(\.\d+)?\b`), "NUMBER"}, // seconds may have no thousandths
	{regexp.MustCompile(`go\d[0-9.]*|\b[a-z]+/(amd64|arm64)\b`), "PLATFORM"},
	{regexp.MustCompile(` +`), " "},
}

func shapeOf(line string) string {
	if host, err := os.Hostname(); err == nil {
		line = strings.ReplaceAll(line, host, "vm")
	}
	for _, s := range shapes {
		line = s.what.ReplaceAllString(line, s.as)
	}
	return strings.TrimSpace(line)
}

// requireExample runs a command as the page shows it, in a shell, and requires that it
// prints what the page shows, up to a line of dots.
func requireExample(t *testing.T, url string, e example, replace ...string) {
	t.Helper()
	to := strings.NewReplacer(replace...)
	var back []string
	for i := 0; i < len(replace); i += 2 {
		back = append(back, replace[i+1], replace[i])
	}
	cmd := exec.Command("sh", "-c", to.Replace(e.command))
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "LOCK_URL="+url, "PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, _ := cmd.CombinedOutput() // a status is part of what an example shows
	said := forgetful.ReplaceAllString(slowness.ReplaceAllString(string(out), ""), "")
	got := strings.Split(strings.TrimRight(strings.NewReplacer(back...).Replace(said), "\n"), "\n")
	for i, want := range e.output {
		if want == "..." {
			return
		}
		require.Greater(t, len(got), i, "%s printed less than the page shows:\n%s", e.command, out)
		assert.Equal(t, shapeOf(want), shapeOf(got[i]), "%s:\n%s", e.command, out)
	}
	assert.Len(t, got, max(len(e.output), 1), "%s printed more than the page shows:\n%s", e.command, out)
}

// holderOf takes a key with lockctl run, as the examples' holders do, until the test
// ends.
func holderOf(t *testing.T, url, key, label string) (p *proc, token string) {
	t.Helper()
	p = start(t, url, "run", "--label", label, key, "--", "sh", "-c", "echo $LOCK_TOKEN; exec sleep 600")
	return p, p.line()
}

// The commands of docs/operating.md, in their order, print what the page shows.
func TestOperatingPage(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	nightly, token := holderOf(t, url, "nightly", "nightly report")
	_, billing := holderOf(t, url, "billing/eu", "root: sleep")
	tokens := regexp.MustCompile(`--token (\d+)`)
	redis := servertest.SharedRedis(t).URL()
	for _, e := range examplesOf(t, "operating.md") {
		command := e.command
		replace := []string{"redis://cache:6379", redis, "file:/tmp/locks", "file:" + t.TempDir()}
		if m := tokens.FindStringSubmatch(command); m != nil && m[1] != "1795000000000000" { // an old one
			now := token
			if strings.Contains(command, "billing") {
				now = billing
			}
			replace = append(replace, m[1], now)
		}
		requireExample(t, url, e, replace...)
		if strings.HasPrefix(command, "lockctl unlock nightly") && len(replace) > 4 {
			nightly.requireStatus(exitLost)
		}
		require.False(t, t.Failed(), command)
	}
}

// Those of docs/lockctl.md too.
func TestToolPage(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	holderOf(t, url, "nightly-report", "root: report.sh")
	for _, e := range examplesOf(t, "lockctl.md") {
		requireExample(t, url, e)
	}
}

// Those of docs/migrating.md too.
func TestMigratingPage(t *testing.T) {
	t.Parallel()
	old, next := "file:"+t.TempDir(), "file:"+t.TempDir()
	open := func(url string) *lock.Client {
		l, err := lock.Open(t.Context(), url, nil)
		require.NoError(t, err)
		return l
	}
	both, err := lock.Both(open(old), open(next))
	require.NoError(t, err)
	defer both.Close()
	first := open(old)
	defer first.Close()
	_, err = first.TryAcquire(t.Context(), "nightly", lock.WithLabel("api 1.4"))
	require.NoError(t, err)
	_, err = both.TryAcquire(t.Context(), "orders", lock.WithLabel("api 1.5"))
	require.NoError(t, err)
	examples := examplesOf(t, "migrating.md")
	require.NotEmpty(t, examples)
	for _, e := range examples {
		requireExample(t, old, e, "file:/tmp/other-locks", next, "file: ", old+" ")
	}
}

// Every command of the tool is shown on a page with what it prints.
func TestPagesShowEveryCommand(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, page := range []string{"lockctl.md", "operating.md", "migrating.md"} {
		for _, e := range examplesOf(t, page) {
			words := strings.Fields(e.command)
			shown[words[1]] = shown[words[1]] || len(e.output) > 0
		}
	}
	for _, c := range newRootCommand(newPrinter(os.Stderr)).Commands() {
		if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			assert.True(t, shown[c.Name()], "lockctl %s is on no page with its output", c.Name())
		}
	}
}
