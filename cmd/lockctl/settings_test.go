//go:build unix

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

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
