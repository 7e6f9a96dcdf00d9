//go:build unix

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

// A server with which locks can be lost is told of, once for each command that takes a key,
// and not with --quiet. What goes wrong is said all the same.
func TestSettingsAreToldOfUnlessQuiet(t *testing.T) {
	t.Parallel()
	url := servertest.Redis(t).URL()
	const warning = "lockctl: warning: redislock: the server keeps no append-only file"
	said := func(args ...string) string {
		status, _, errs := runEnv(t, t.TempDir(), []string{"LOCK_URL=" + url}, args...)
		assert.Equal(t, exitOK, status, errs)
		return slowness.ReplaceAllString(errs, "")
	}
	assert.Equal(t, 1, strings.Count(said("run", "k", "--", "true"), warning))
	assert.Empty(t, said("run", "--quiet", "k", "--", "true"))
	assert.Empty(t, said("-q", "run", "k", "--", "true"))
	assert.Empty(t, said("ls"), "it matters to nobody who only looks")
	status, _, errs := runEnv(t, t.TempDir(), []string{"LOCK_URL=redis://127.0.0.1:1"}, "run", "-q", "k", "--", "true")
	assert.Equal(t, exitUnavailable, status)
	assert.Contains(t, errs, "is not available")

	stays := start(t, url, "run", "k", "--", "sh", "-c", "echo up; exec cat")
	require.Equal(t, "up", stays.line())
	status, _, errs = runEnv(t, t.TempDir(), []string{"LOCK_URL=" + url}, "run", "--quiet", "--no-wait", "k", "--", "true")
	assert.Equal(t, exitHeld, status)
	requireOneLine(t, slowness.ReplaceAllString(errs, ""))
	require.NoError(t, stays.stdin.Close())
	stays.requireStatus(exitOK)
}

// TestQuietWaiters: how something is set up is no matter with --quiet when it is noticed
// later, either.
func TestQuietWaiters(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", "mute", "on", ">pass", "~*", "resetchannels", "+@all", "&*:k:").Err())
	mute := "redis://mute:pass@" + server.Addr()
	for _, c := range []struct {
		args []string
		said int
	}{{[]string{"run"}, 1}, {[]string{"run", "--quiet"}, 0}} {
		require.NoError(t, rdb.Do(t.Context(), "acl", "log", "reset").Err())
		stays := start(t, server.URL(), "run", "k", "--", "sh", "-c", "echo up; exec cat")
		require.Equal(t, "up", stays.line())
		waits := start(t, mute, append(c.args, "k", "--", "true")...)
		require.Eventually(t, func() bool {
			denied, err := rdb.Do(t.Context(), "acl", "log").Slice()
			return err == nil && strings.Contains(fmt.Sprint(denied), "cmd=subscribe") || waits.ended()
		}, hang, time.Millisecond)
		require.NoError(t, stays.stdin.Close())
		stays.requireStatus(exitOK)
		waits.requireStatus(exitOK)
		assert.Equal(t, c.said, strings.Count(waits.said(), "may not subscribe"), "%v: %s", c.args, waits.said())
	}
}

// TestWarningsOfSetUp has a list of all warnings that --quiet leaves out. A new one belongs
// here, or has one of the attributes in seen.
func TestWarningsOfSetUp(t *testing.T) {
	t.Parallel()
	want := []string{
		"the client ignores the deadlines of contexts", "may not subscribe", "may not publish", "does not allow INFO",
		"redlock: the user may not subscribe",
		"may evict locks", "text", "text", // no append-only file
		"has a restart delay of", "an even number of nodes", `"redlock: "+text`, // TTLs and settings of nodes
		"this release of etcd", "does not write its log to the disk", `"mysqllock: "+doubt`,
	}
	var found []string
	root := filepath.Join("..", "..")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && slices.Contains([]string{"conformance", "cmd", "examples", "bench", "scripts"}, d.Name()) {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		file, err := parser.ParseFile(gotoken.NewFileSet(), path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			warn, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || warn.Sel.Name != "Warn" && warn.Sel.Name != "WarnContext" {
				return true
			}
			args := string(text[call.Lparen : call.Rparen-1]) // positions begin at 1
			if !slices.ContainsFunc(seen, func(key string) bool { return strings.Contains(args, `"`+key+`"`) }) {
				found = append(found, args)
			}
			return true
		})
		return nil
	}))
	assert.Len(t, found, len(want), "%q", found)
	for _, w := range want {
		assert.True(t, slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, w) }), w)
	}
}

// TestMessagesChangeNoStatus: whoever reads them has gone, or cannot take them.
func TestMessagesChangeNoStatus(t *testing.T) {
	t.Parallel()
	url := servertest.Redis(t).URL() // which is warned of
	for name, open := range map[string]func(t *testing.T) *os.File{
		"nobody reads": func(t *testing.T) *os.File {
			r, w := pipe(t)
			require.NoError(t, r.Close())
			return w
		},
		"full": func(t *testing.T) *os.File {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Skip("no /dev/full")
			}
			t.Cleanup(func() { _ = full.Close() })
			return full
		},
		"only readable": func(t *testing.T) *os.File {
			null, err := os.Open(os.DevNull)
			require.NoError(t, err)
			t.Cleanup(func() { _ = null.Close() })
			return null
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stderr := open(t)
			key := "messages " + name
			for _, c := range []struct {
				args []string
				want int
			}{
				{[]string{"run", key, "--", "sh", "-c", "exit 3"}, 3},
				{[]string{"run", key, "--", "true"}, exitOK},
				{[]string{"inspect", key}, exitFree},
				{[]string{"wait", key}, exitOK},
				{[]string{"compare", url}, exitOK},
				{[]string{"ls", "--locker", "x"}, exitUsage},
				{[]string{"check", "--only", "ReleaseFrees"}, exitOK},
			} {
				cmd := exec.Command(binary, c.args...)
				cmd.Env = environ("LOCK_URL="+url, "LOCK_CONFIG=")
				cmd.Stderr = stderr
				_ = cmd.Run()
				assert.Equal(t, c.want, cmd.ProcessState.ExitCode(), "%v: %s", c.args, cmd.ProcessState)
			}
		})
	}
}
