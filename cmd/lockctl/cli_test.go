//go:build unix

package main

import (
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	for name, args := range map[string][]string{
		"nothing":                {},
		"unknown command":        {"walk", "k"},
		"unknown flag":           {"run", "--fast", "k", "--", "true"},
		"no key":                 {"run"},
		"no key before --":       {"run", "--", "true"},
		"no command":             {"run", "k"},
		"no command after --":    {"run", "k", "--"},
		"empty command":          {"run", "k", "--", ""},
		"no --":                  {"run", "k", "true"},
		"two keys":               {"run", "k", "l", "--", "true"},
		"empty key":              {"run", "", "--", "true"},
		"control character":      {"run", "a\tb", "--", "true"},
		"long key":               {"run", strings.Repeat("k", 513), "--", "true"},
		"bad TTL":                {"run", "--ttl", "fast", "k", "--", "true"},
		"TTL without unit":       {"run", "--ttl", "15", "k", "--", "true"},
		"zero TTL":               {"run", "--ttl", "0", "k", "--", "true"},
		"negative TTL":           {"run", "--ttl=-1s", "k", "--", "true"},
		"TTL below the range":    {"run", "--ttl", "1ns", "k", "--", "true"},
		"TTL above the range":    {"run", "--ttl", "2000000h", "k", "--", "true"},
		"bad wait":               {"run", "--wait", "soon", "k", "--", "true"},
		"negative wait":          {"run", "--wait=-1s", "k", "--", "true"},
		"wait and no-wait":       {"run", "--wait", "1s", "--no-wait", "k", "--", "true"},
		"negative grace":         {"run", "--grace=-1s", "k", "--", "true"},
		"label with a newline":   {"run", "--label", "a\nb", "k", "--", "true"},
		"long label":             {"run", "--label", strings.Repeat("x", 257), "k", "--", "true"},
		"empty URL":              {"run", "--url", "", "k", "--", "true"},
		"URL without scheme":     {"run", "--url", "localhost", "k", "--", "true"},
		"unknown scheme":         {"run", "--url", "paxos://x", "k", "--", "true"},
		"unknown parameter":      {"run", "--url", url + "?colour=red", "k", "--", "true"},
		"repeated parameter":     {"run", "--url", "redis://localhost?db=1&db=2", "k", "--", "true"},
		"lock in one process":    {"run", "--url", "mem:", "k", "--", "true"},
		"flag of version":        {"version", "now"},
		"URL in the wrong place": {"run", "redis://:hunter2@h", "k", "--", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, out, errs := run(t, url, args...)
			require.Equal(t, exitUsage, status, "%s%s", out, errs)
			require.Empty(t, out)
			requireOneLine(t, errs)
			require.NotContains(t, errs, "hunter2")
		})
	}
}

func TestUnknownSchemeNamesTheKnownOnes(t *testing.T) {
	t.Parallel()
	_, _, errs := run(t, "paxos://h", "run", "k", "--", "true")
	require.Contains(t, errs, `unknown URL scheme "paxos"`)
	require.Contains(t, errs, "file")
	require.Contains(t, errs, "redis")
}

func TestUnreachableBackend(t *testing.T) {
	t.Parallel()
	// A port that was free a moment ago.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	free := l.Addr().String()
	require.NoError(t, l.Close())
	for _, args := range [][]string{{"--no-wait"}, {"--wait", "300ms"}} {
		args = append(append([]string{"run"}, args...), "k", "--", "echo", "started")
		status, out, errs := run(t, "redis://:hunter2@"+free, args...)
		require.Equal(t, exitUnavailable, status, errs)
		require.Empty(t, out)
		requireOneLine(t, errs)
		require.NotContains(t, errs, "hunter2")
	}
	status, _, errs := run(t, "file:/proc/no/such/place", "run", "k", "--", "true")
	require.Equal(t, exitUnavailable, status, errs)
	requireOneLine(t, errs)
}

func TestSilentServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog, never answers
	require.NoError(t, err)
	defer l.Close()
	status, _, errs := run(t, "redis://"+l.Addr().String(), "run", "--wait", "500ms", "k", "--", "true")
	require.Equal(t, exitUnavailable, status, errs)
	requireOneLine(t, errs)
}

func TestWrongPasswordIsNotPrinted(t *testing.T) {
	t.Parallel()
	addr := servertest.SharedRedis(t).Addr()
	started := time.Now()
	status, _, errs := run(t, "redis://somebody:hunter%32@"+addr, "run", "k", "--", "true")
	require.Equal(t, exitUnavailable, status, errs)
	require.Less(t, time.Since(started), hang, "waiting does not help")
	requireOneLine(t, errs)
	require.NotContains(t, errs, "hunter")
	require.Contains(t, errs, "WRONGPASS", "the server's words")
}

func TestWhatFollowsTheDashesIsVerbatim(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	status, out, errs := run(t, url, "run", "k", "--no-wait", "--ttl=30s", "--", "echo", "--ttl", "x", "--", "-h")
	require.Zero(t, status, errs)
	require.Equal(t, "--ttl x -- -h", out)
}

func TestStandardStreamsPassThrough(t *testing.T) {
	t.Parallel()
	p := start(t, "file:"+t.TempDir(), "run", "k", "--", "sh", "-c", "cat; echo problem >&2; exit 3")
	_, err := p.stdin.Write([]byte("one\ntwo"))
	require.NoError(t, err)
	require.NoError(t, p.stdin.Close())
	require.Equal(t, []string{"one", "two"}, []string{p.line(), p.line()})
	p.requireStatus(3)
	require.Equal(t, "problem\n", p.errors())
}

func TestURLComesFromFlagThenEnvironmentThenDefault(t *testing.T) {
	state, named, given := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	filesIn := func(dir string) int {
		n := 0
		require.NoError(t, filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			return err
		}))
		return n
	}
	status, _, errs := run(t, "", "run", "k", "--", "true") // LOCK_URL is set and empty
	require.Zero(t, status, errs)
	require.NotZero(t, filesIn(state))

	status, _, errs = run(t, "file:"+named, "run", "k", "--", "true")
	require.Zero(t, status, errs)
	require.NotZero(t, filesIn(named))

	before := filesIn(named)
	status, _, errs = run(t, "file:"+named, "run", "--url", "file:"+given, "k2", "--", "true")
	require.Zero(t, status, errs)
	require.NotZero(t, filesIn(given))
	require.Equal(t, before, filesIn(named))
}

func TestBackgroundProcessOfAnEndedCommandLivesOn(t *testing.T) {
	t.Parallel()
	p := start(t, "file:"+t.TempDir(), "run", "k", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 <&1 & echo $!")
	left := pidOf(t, p.line())
	defer func() { _ = syscall.Kill(left, syscall.SIGKILL) }()
	p.requireStatus(0)
	require.True(t, running(left))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	status, out, errs := run(t, "file:", "version")
	require.Zero(t, status, errs)
	require.Regexp(t, `^lockctl \S+\ngo +go1\.\S+ \w+/\w+\nrevision \S+`, out)
	first, _, _ := strings.Cut(out, "\n")
	status, out, errs = run(t, "file:", "--version")
	require.Zero(t, status, errs)
	require.Equal(t, first, strings.TrimSpace(out))
	require.Equal(t, "(devel)", versionOf(&debug.BuildInfo{}))
	require.Equal(t, "v1.2.3", versionOf(&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}))
	status, _, _ = run(t, "file:", "run", "--version")
	require.Equal(t, exitUsage, status)
}

func TestHelpShowsExamplesAndStatuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"help", "run"}} {
		status, out, errs := run(t, "file:", args...)
		require.Zero(t, status, errs)
		for _, part := range []string{"lockctl run nightly -- ", "Exit status", "  64 ", "  75 ", "  76 ", " 127 "} {
			require.Contains(t, out, part)
		}
	}
}

// Every command's help shows its own exit statuses.
func TestHelpShowsTheCommandsStatuses(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"inspect": "    1    nobody holds the key\n", "check": "    1    a rule was broken", "wait": "   75    --timeout", "ls": "    0    the keys",
		"unlock": "   75    somebody else", "compare": "   64    ",
		"cleanup": "    0    it was done",
	} {
		status, out, errs := run(t, "file:", command, "--help")
		require.Zero(t, status, errs)
		require.Contains(t, out+"\n", want)
		require.Contains(t, out, "   69    ")
		require.NotContains(t, out, "the command's own", command)
	}
	_, _, errs := run(t, "file:", "run", "--wait", "1s", "--no-wait", "k", "--", "true")
	require.Contains(t, errs, "--wait and --no-wait exclude each other")
}

func TestDefaultLabelHasNoArguments(t *testing.T) {
	t.Parallel()
	require.True(t, strings.HasSuffix(defaultLabel("/usr/bin/pg_dump"), "pg_dump"))
	require.LessOrEqual(t, len(defaultLabel(strings.Repeat("é", 300))), 256)
	require.NotContains(t, defaultLabel("a\nb\xff"), "\n")
}
