//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

func TestConfigFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "locks.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("lockers:\n  jobs:\n    url: file:" + filepath.Join(dir, "jobs") + "\n    ttl: 1m\n  other:\n    url: file:" + filepath.Join(dir, "other") + "\n")
	p := start(t, "file:"+dir, "run", "--config", file, "--locker", "jobs", "k", "--", "cat")
	require.Eventually(t, func() bool {
		status, out, _ := run(t, "file:"+dir, "ls", "--config", file, "--locker", "jobs", "--json")
		if status != exitOK || out == "" {
			return false
		}
		var s shown
		require.NoError(t, json.Unmarshal([]byte(out), &s))
		assert.Greater(t, s.Remaining, lock.DefaultTTL.Seconds(), "the TTL of the file is not used")
		assert.LessOrEqual(t, s.Remaining, 60.0)
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
		"no hold's token": {"file:" + t.TempDir(), []string{"unlock", "a", "--token=0"}, exitUsage, `--token "0" is not the token of a hold`},
		"memory":          {"mem:", []string{"ls"}, exitUsage, "holds nothing outside this process"},
		"no server":       {nowhere, []string{"inspect", "a"}, exitUnavailable, ""},
		"negative":        {"file:" + t.TempDir(), []string{"wait", "--timeout", "-1s", "a"}, exitUsage, "is negative"},
		"no server to ls": {nowhere, []string{"ls"}, exitUnavailable, ""},

		"clean up what":      {"file:", []string{"cleanup"}, exitUsage, "--older-than 24h"},
		"clean up a key":     {"file:", []string{"cleanup", "k"}, exitUsage, `"k" is one argument too many`},
		"clean up all":       {"file:", []string{"cleanup", "--older-than", "0s"}, exitUsage, "it must be positive"},
		"clean up days":      {"file:", []string{"cleanup", "--older-than", "7d"}, exitUsage, `unknown unit "d"`},
		"age and prefix":     {"file:", []string{"cleanup", "--older-than", "1h", "--forget", "a/"}, exitUsage, "exclude each other"},
		"forget dryly":       {"file:", []string{"cleanup", "--dry-run", "--forget", "a/"}, exitUsage, "lockctl ls PREFIX"},
		"forget all":         {"file:", []string{"cleanup", "--forget", ""}, exitUsage, "which would be every key"},
		"forget nothing":     {"file:" + t.TempDir(), []string{"cleanup", "--forget", "a/"}, exitUsage, "keeps no tokens of single keys"},
		"no server to clean": {nowhere, []string{"cleanup", "--older-than", "1h"}, exitUnavailable, ""},
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

// An operator who has forgotten the URL is told where the tool has looked.
func TestOperatorsWithoutURL(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	const here = "; this is about file:, the locks of this user on this machine, since neither --url nor LOCK_URL nor LOCK_CONFIG says otherwise\n"
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"inspect", "k"}, exitFree, `lockctl: nobody holds "k"` + here},
		{[]string{"inspect", "--json", "k"}, exitFree, "lockctl: warning: nothing was found" + here},
		{[]string{"ls"}, exitOK, "lockctl: warning: nothing was found" + here},
		{[]string{"wait", "k"}, exitOK, "lockctl: warning: nothing was found" + here},
		{[]string{"unlock", "k", "--token", "7"}, exitFree, `lockctl: nobody holds "k"; nothing was changed` + here},
	} {
		status, _, errs := run(t, "", c.args...)
		assert.Equal(t, c.status, status, "%v: %s", c.args, errs)
		assert.Equal(t, c.says, errs, "%v", c.args)
		status, _, errs = run(t, "", append(c.args, "--url", "file:")...)
		assert.Equal(t, c.status, status, "%v: %s", c.args, errs)
		assert.NotContains(t, errs, "this is about", "%v: it was asked for", c.args)
	}
	p := start(t, "", "run", "k", "--", "sh", "-c", "echo up; exec sleep 600")
	require.Equal(t, "up", p.line())
	for _, args := range [][]string{{"inspect", "k"}, {"ls"}} {
		status, out, errs := run(t, "", args...)
		assert.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, "k")
		assert.Empty(t, errs, "something was found")
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

// An operator who has ended a hold is not told that it may be renewed.
func TestRevokedRecords(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 23, 0, 0, 0, time.UTC)
	for revoked, want := range map[bool]string{
		false: "until    2026-11-20T23:00:12Z (in 12s, unless renewed)\n",
		true:  "until    2026-11-20T23:00:12Z (in 12s at the latest: it was revoked)\n",
	} {
		rec := backend.Record{Key: "k", Token: 7, Remaining: 12 * time.Second, Revoked: revoked}
		var out strings.Builder
		require.NoError(t, printRecord(&out, rec, now))
		assert.Contains(t, out.String(), want)
		out.Reset()
		require.NoError(t, printTable(&out, []backend.Record{rec}, now))
		assert.Equal(t, revoked, strings.Contains(out.String(), " 12s, revoked "), out.String())
		assert.Equal(t, revoked, show(rec, now).Revoked)
	}
}

// What programs read: instants are RFC 3339 in UTC, durations are seconds and say so, and
// what the server cannot know is missing, or null where a number is expected.
func TestRecordsAsJSON(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 23, 0, 0, 0, time.UTC)
	for want, rec := range map[string]backend.Record{
		`{"key":"k","held":true,"token":7,"holds":2,"waiters":3,"label":"l","host":"h","pid":9,
		  "since":"2026-11-20T22:59:00Z","until":"2026-11-20T23:00:12.5Z","remaining_seconds":12.5,"revoked":true}`: {
			Key: "k", Token: 7, Holds: 2, Waiters: 3, Remaining: 12*time.Second + 500*time.Millisecond + time.Microsecond, Revoked: true,
			Holder: backend.Holder{Label: "l", Host: "h", PID: 9, Since: now.Add(-time.Minute).Local()},
		},
		`{"key":"k","held":true,"waiters":null}`: {Key: "k", Waiters: -1},
	} {
		var out strings.Builder
		require.NoError(t, printJSON(&out, show(rec, now)))
		assert.JSONEq(t, want, out.String())
	}
}

// Every field that the tool prints as JSON is on its page.
func TestPageHasTheFieldsOfJSON(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/lockctl.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## JSON\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for _, of := range []reflect.Type{reflect.TypeFor[shown](), reflect.TypeFor[unlocked](), reflect.TypeFor[cleaned](), reflect.TypeFor[forgotten](), reflect.TypeFor[comparedPromise](), reflect.TypeFor[conformance.Report](), reflect.TypeFor[conformance.Result]()} {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name != "-" {
				assert.Contains(t, section, "`"+name+"`", "a field of %s", of)
			}
		}
	}
	for _, v := range []any{backend.Guarantees{}, conformance.Report{}} {
		printed, err := json.Marshal(v)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`"([a-z_]+_seconds|ok|counts)"`).FindAllStringSubmatch(string(printed), -1) {
			assert.Contains(t, section, "`"+name[1]+"`")
		}
	}
}
