//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runEnv runs lockctl in a directory with these variables alone about where the locks are.
func runEnv(t *testing.T, dir string, env []string, args ...string) (status int, out, errs string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Env = append(environ("LOCK_URL=", "LOCK_CONFIG=", "XDG_STATE_HOME="+filepath.Join(dir, "state")), env...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// shows is a command that prints what lockctl tells of the key that it holds.
func shows(url string) []string {
	return []string{binary, "inspect", "--json", "--url", url, "k"}
}

func TestLockConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "locks.yaml")
	jobs, other := "file:"+filepath.Join(dir, "jobs"), "file:"+filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(file, []byte("lockers:\n  jobs: {url: \""+jobs+"\"}\n  other: {url: \""+other+"\"}\n"), 0o600))
	set := "LOCK_CONFIG=" + file

	status, out, errs := runEnv(t, dir, []string{set}, append([]string{"run", "--locker", "jobs", "k", "--"}, shows(jobs)...)...)
	require.Equal(t, exitOK, status, errs)
	assert.Contains(t, out, `"held":true`)
	status, _, errs = runEnv(t, dir, []string{set}, append([]string{"run", "--url", other, "k", "--"}, shows(other)...)...)
	require.Equal(t, exitOK, status, "--url counts more: %s", errs)
	status, _, errs = runEnv(t, dir, []string{set, "LOCK_URL=" + other}, append([]string{"run", "--config", file, "--locker", "jobs", "k", "--"}, shows(jobs)...)...)
	require.Equal(t, exitOK, status, "--config counts more: %s", errs)

	for _, c := range []struct {
		env  []string
		args []string
		says string
	}{
		{[]string{set}, nil, "name one of: jobs, other"},
		{[]string{set, "LOCK_URL=" + other}, nil, "both LOCK_URL and LOCK_CONFIG are set"},
		{[]string{set, "LOCK_URL=" + other}, []string{"--locker", "jobs"}, "both LOCK_URL and LOCK_CONFIG are set"},
		{[]string{"LOCK_URL=" + other}, []string{"--locker", "jobs"}, "--config or LOCK_CONFIG"},
		{[]string{set + "x"}, nil, "LOCK_CONFIG: " + file + "x cannot be read"},
	} {
		status, _, errs := runEnv(t, dir, c.env, append([]string{"ls"}, c.args...)...)
		assert.Equal(t, exitUsage, status, errs)
		assert.Contains(t, errs, c.says)
		requireOneLine(t, errs)
	}
}

// Two working directories would be two locks.
func TestRelativeDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dir, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	file := filepath.Join(dir, "locks.yaml")
	require.NoError(t, os.WriteFile(file, []byte("lockers: {jobs: {url: \"file:locks\"}}"), 0o600))
	instead := "write file:" + filepath.Join(dir, "locks")
	for _, c := range []struct {
		env, args []string
		says      string
	}{
		{nil, []string{"--url", "file:locks"}, "--url is a file: URL with a relative path"},
		{[]string{"LOCK_URL=file:locks?ttl=20s"}, nil, "LOCK_URL is a file: URL with a relative path"},
		{nil, []string{"--config", file}, `locker "jobs": its path is relative`},
		{[]string{"LOCK_CONFIG=" + file}, nil, `locker "jobs": its path is relative`},
	} {
		for _, command := range [][]string{{"ls"}, {"run", "k", "--", "true"}, {"check"}} {
			args := append([]string{command[0]}, append(c.args, command[1:]...)...)
			status, _, errs := runEnv(t, dir, c.env, args...)
			assert.Equal(t, exitUsage, status, "%v: %s", args, errs)
			assert.Contains(t, errs, c.says, "%v", args)
			assert.Contains(t, errs, instead, "%v", args)
			requireOneLine(t, errs)
		}
	}
	assert.NoDirExists(t, filepath.Join(dir, "locks"))
	_, _, errs := runEnv(t, dir, nil, "ls", "--url", "file:redis://:hunter2@h")
	assert.Contains(t, errs, "relative path")
	assert.NotContains(t, errs, "hunter2")
}

// TestTTLOfTheURL: --ttl counts most, then that of the locker, then that of the URL.
func TestTTLOfTheURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := "file:" + filepath.Join(dir, "locks")
	file := filepath.Join(dir, "locks.yaml")
	require.NoError(t, os.WriteFile(file, []byte("lockers: {both: {url: \""+url+"?ttl=20s\", ttl: 30s}, one: {url: \""+url+"?ttl=20s\"}}"), 0o600))
	for _, c := range []struct {
		args []string
		want time.Duration
	}{
		{[]string{"--url", url}, 15 * time.Second},
		{[]string{"--url", url + "?ttl=20s"}, 20 * time.Second},
		{[]string{"--url", url + "?ttl=20s", "--ttl", "40s"}, 40 * time.Second},
		{[]string{"--config", file, "--locker", "one"}, 20 * time.Second},
		{[]string{"--config", file, "--locker", "both"}, 30 * time.Second},
		{[]string{"--config", file, "--locker", "both", "--ttl", "40s"}, 40 * time.Second},
	} {
		args := append(append([]string{"run"}, c.args...), append([]string{"k", "--"}, shows(url)...)...)
		status, out, errs := runEnv(t, dir, nil, args...)
		require.Equal(t, exitOK, status, errs)
		var s shown
		require.NoError(t, json.Unmarshal([]byte(out), &s))
		assert.LessOrEqual(t, s.Remaining, c.want.Seconds(), "%v", c.args)
		assert.Greater(t, s.Remaining, c.want.Seconds()-5, "%v", c.args)
	}
	for _, command := range [][]string{{"ls"}, {"inspect", "k"}, {"run", "k", "--", "true"}, {"check"}} {
		for _, ttl := range []string{"hunter2", "", "0s", "-1s", "1s&ttl=2s", "1ns", "9000h"} {
			args := append([]string{command[0], "--url", url + "?ttl=" + ttl}, command[1:]...)
			status, _, errs := runEnv(t, dir, nil, args...)
			assert.Equal(t, exitUsage, status, "%v: %s", args, errs)
			assert.Contains(t, strings.ToLower(errs), "ttl", "%v", args)
			assert.NotContains(t, errs, "hunter2")
			requireOneLine(t, errs)
		}
	}
	status, _, errs := runEnv(t, dir, nil, "compare", url+"?ttl=20s", url)
	assert.Equal(t, exitOK, status, errs)
	status, _, errs = runEnv(t, dir, nil, "compare", url+"?ttl=1ns")
	assert.Equal(t, exitUsage, status, errs)
}

// Every backend takes the TTL of its URL, and refuses one that it cannot keep.
func TestTTLOfEveryURL(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		separator := "?"
		if strings.Contains(url, "?") {
			separator = "&"
		}
		with := func(ttl string) []string {
			return append([]string{"run", "--url", url + separator + "ttl=" + ttl, "k", "--"}, shows(url)...)
		}
		status, out, errs := runEnv(t, t.TempDir(), nil, with("9s")...)
		require.Equal(t, exitOK, status, errs)
		var s shown
		require.NoError(t, json.Unmarshal([]byte(out), &s))
		if s.Remaining > 0 { // where the server knows
			assert.InDelta(t, 9, s.Remaining, 4)
		}
		for _, ttl := range []string{"1ns", "hunter2"} {
			status, _, errs = runEnv(t, t.TempDir(), nil, with(ttl)...)
			assert.Equal(t, exitUsage, status, errs)
			assert.NotContains(t, errs, "hunter2")
		}
	})
}
