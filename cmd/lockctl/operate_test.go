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

	"github.com/mortiselock/lock/backend"
)

func TestConfigFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "locks.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("lockers:\n  jobs:\n    url: file:" + filepath.Join(dir, "jobs") + "\n    ttl: 7s\n  other:\n    url: file:" + filepath.Join(dir, "other") + "\n")
	p := start(t, "file:"+dir, "run", "--config", file, "--locker", "jobs", "k", "--", "cat")
	require.Eventually(t, func() bool {
		status, out, _ := run(t, "file:"+dir, "ls", "--config", file, "--locker", "jobs", "--json")
		if status != exitOK || out == "" {
			return false
		}
		var s shown
		require.NoError(t, json.Unmarshal([]byte(out), &s))
		assert.Greater(t, s.RemainingMS, int64(4000), "the TTL of the file is not used")
		assert.LessOrEqual(t, s.RemainingMS, int64(7000))
		return s.Key == "k"
	}, hang, 50*time.Millisecond)
	_, out, _ := run(t, "file:"+dir, "ls", "--config", file, "--locker", "other", "--json")
	assert.Empty(t, out)
	require.NoError(t, p.stdin.Close())
	p.requireStatus(exitOK)

	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no name":        {[]string{"--config", file}, "name one of: jobs, other"},
		"unknown name":   {[]string{"--config", file, "--locker", "job"}, `it has no locker "job"; it has: jobs, other`},
		"no file":        {[]string{"--config", filepath.Join(dir, "none")}, "cannot be read"},
		"name only":      {[]string{"--locker", "jobs"}, "give the file with --config"},
		"both":           {[]string{"--url", "file:", "--config", file}, "none of the others can be"},
		"empty url flag": {[]string{"--url", ""}, "--url is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, errs := run(t, "file:"+dir, append([]string{"ls"}, c.args...)...)
			assert.Equal(t, exitUsage, status)
			assert.Contains(t, errs, c.want)
			requireOneLine(t, errs)
		})
	}
	write("lockers: {other: {url: \"redis://:${NO_SUCH_VARIABLE_HERE}@h\"}, jobs: {url: \"redis://:s3cret@127.0.0.1:1\"}}")
	for _, args := range [][]string{{"inspect", "k"}, {"run", "--no-wait", "k", "--", "true"}, {"check"}} {
		args = append([]string{args[0], "--config", file, "--locker", "jobs"}, args[1:]...)
		status, _, errs := run(t, "file:"+dir, args...)
		assert.Equal(t, exitUnavailable, status, "%v: the variable of another locker is asked for", args)
		assert.Contains(t, errs, file+`: locker "jobs": the backend is not available`)
		assert.Contains(t, errs, "check its url")
		assert.NotContains(t, errs, "LOCK_URL")
		assert.NotContains(t, errs, "s3cret")
	}
	for name, c := range map[string]struct{ text, want string }{
		"variable": {"lockers: {jobs: {url: \"redis://:${NO_SUCH_VARIABLE_HERE}@h\"}}", "NO_SUCH_VARIABLE_HERE is not set"},
		"tab":      {"lockers:\n\tjobs: {}", ":2: the line is indented with a tab"},
		"scheme":   {"lockers: {jobs: {url: \"redus://h\"}}", `unknown URL scheme "redus"`},
	} {
		t.Run("file with a bad "+name, func(t *testing.T) {
			write(c.text)
			status, _, errs := run(t, "file:"+dir, "inspect", "--config", file, "k")
			assert.Equal(t, exitUsage, status)
			assert.Contains(t, errs, c.want)
			requireOneLine(t, errs)
		})
	}
}

func TestOperatorsErrors(t *testing.T) {
	t.Parallel()
	nowhere := "redis://:hunter2@127.0.0.1:1"
	for name, c := range map[string]struct {
		url  string
		args []string
		want int
		says string
	}{
		"no key":          {"file:", []string{"inspect"}, exitUsage, "the key is missing"},
		"two keys":        {"file:", []string{"wait", "a", "b"}, exitUsage, "one key is expected"},
		"bad key":         {"file:", []string{"inspect", "a\x01"}, exitUsage, ""},
		"no token":        {"file:", []string{"unlock", "a"}, exitUsage, "--token N, which lockctl inspect shows"},
		"bad token":       {"file:" + t.TempDir(), []string{"unlock", "a", "--token=-7"}, exitUsage, `--token "-7" is not the token of a hold`},
		"memory":          {"mem:", []string{"ls"}, exitUsage, "holds nothing outside this process"},
		"no server":       {nowhere, []string{"inspect", "a"}, exitUnavailable, ""},
		"negative":        {"file:" + t.TempDir(), []string{"wait", "--timeout", "-1s", "a"}, exitUsage, "is negative"},
		"no server to ls": {nowhere, []string{"ls"}, exitUnavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, _, errs := run(t, c.url, c.args...)
			assert.Equal(t, c.want, status, errs)
			assert.Contains(t, errs, c.says)
			assert.NotContains(t, errs, "hunter2")
		})
	}
}

func TestRecordsWithoutDetails(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, printRecord(&out, backend.Record{Key: "k", Waiters: -1}, time.Now()))
	assert.Equal(t, 8, strings.Count(out.String(), "-\n"), out.String())
	out.Reset()
	require.NoError(t, printTable(&out, []backend.Record{{Key: "k", Waiters: 3}}, time.Now()))
	assert.Contains(t, out.String(), "3")
	out.Reset()
	require.NoError(t, printRecord(&out, backend.Record{Key: "k", Holder: backend.Holder{Label: "a\x1b[2Jb"}}, time.Now()))
	assert.Contains(t, out.String(), "a?[2Jb", "a terminal would obey what somebody else has stored")
}
