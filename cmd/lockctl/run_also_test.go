//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRunOnTwoBackends moves a job from one backend to another: its tokens rise over the three
// steps, neighbouring steps exclude each other, and the end of either hold ends the command.
func TestRunOnTwoBackends(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		old, next := "file:"+t.TempDir(), p.url(t)
		token := func(url string, flags ...string) uint64 {
			args := append(append([]string{"run"}, flags...), "job", "--", "sh", "-c", "echo $LOCK_TOKEN")
			status, out, errs := run(t, url, args...)
			require.Equal(t, 0, status, errs)
			token, err := strconv.ParseUint(out, 10, 64)
			require.NoError(t, err)
			return token
		}
		var last uint64
		for _, step := range []func() uint64{
			func() uint64 { return token(old) },
			func() uint64 { return token(old, "--also", next) },
			func() uint64 { return token(old) },
			func() uint64 { return token(old, "--also", next) },
			func() uint64 { return token(next) },
		} {
			now := step()
			assert.Greater(t, now, last)
			last = now
		}

		both := start(t, old, "run", "--also", next, "job", "--", "sh", "-c", "echo begun; exec sleep 1000")
		require.Equal(t, "begun", both.line())
		for _, url := range []string{old, next} {
			status, _, errs := run(t, url, "run", "--no-wait", "job", "--", "true")
			assert.Equal(t, exitHeld, status)
			assert.Contains(t, errs, "pid "+strconv.Itoa(both.cmd.Process.Pid))
		}
		status, out, errs := operated(t, "", "migrate", "status", "--from", old, "--to", next, "--key", "job")
		assert.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, "seen: both")
		waits := start(t, old, "run", "--also", next, "job", "--", "echo", "its turn")
		status, out, errs = operated(t, next, "inspect", "--json", "job")
		require.Equal(t, exitOK, status, errs)
		var held struct{ Token uint64 }
		require.NoError(t, json.Unmarshal([]byte(out), &held))
		status, _, errs = operated(t, next, "unlock", "job", "--token", strconv.FormatUint(held.Token, 10), "--now")
		require.Equal(t, exitOK, status, errs)
		both.requireStatus(exitLost)
		assert.Contains(t, both.errors(), "the new store")
		require.Equal(t, "its turn", waits.line())
		waits.requireStatus(exitOK)
	})
}

// TestRunOfALockerWithAlso takes the two backends from a file, which no other command does.
func TestRunOfALockerWithAlso(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, next := "file:"+filepath.Join(dir, "old"), "file:"+filepath.Join(dir, "new")
	path := filepath.Join(dir, "locks.yaml")
	require.NoError(t, os.WriteFile(path, []byte("lockers:\n  jobs:\n    url: "+old+"\n    also: "+next+"\n"), 0o600))
	p := start(t, "", "run", "--config", path, "job", "--", "sh", "-c", "echo begun; read line")
	require.Equal(t, "begun", p.line())
	for _, url := range []string{old, next} {
		status, _, _ := run(t, url, "run", "--no-wait", "job", "--", "true")
		assert.Equal(t, exitHeld, status, url)
	}
	status, out, errs := operated(t, "", "migrate", "status", "--config", path)
	assert.Equal(t, exitOK, status, errs)
	assert.Contains(t, out, "seen: both")
	status, _, errs = operated(t, "", "inspect", "--config", path, "job")
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, errs, "give its url")
	require.NoError(t, p.stdin.Close())
	p.status()
	for args, want := range map[[4]string]string{
		{"--also", next, "--config", path}: "also",
		{"--also", "", "", ""}:             "--also is empty",
		{"--also", old, "--url", old}:      "the URL of the first backend",
		{"--also", "nosuch://h", "", ""}:   "unknown URL scheme",
		{"--also", "mem:", "", ""}:         "excludes nobody",
	} {
		flags := []string{"run"}
		for i := 0; i < len(args) && (i == 0 || i == 1 || args[i] != ""); i++ {
			flags = append(flags, args[i])
		}
		status, _, errs := run(t, old, append(flags, "job", "--", "true")...)
		assert.Equal(t, exitUsage, status, "%v", flags)
		assert.Contains(t, errs, want)
	}
}
