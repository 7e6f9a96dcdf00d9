//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// stores are the backends that operators' commands are tried on here.
func stores(t *testing.T, f func(t *testing.T, url string)) {
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		f(t, "file:"+t.TempDir())
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		f(t, servertest.SharedRedis(t).URL()+"?prefix="+strconv.FormatInt(time.Now().UnixNano(), 36)+":")
	})
}

// taken is a key held in this process.
func taken(t *testing.T, url, key string, opts ...lock.Option) lock.Lease {
	t.Helper()
	l, err := lock.Open(t.Context(), url, lock.WithDefaultTTL(2*time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	lease, err := l.TryAcquire(t.Context(), key, opts...)
	require.NoError(t, err)
	return lease
}

func inspected(t *testing.T, url, key string) shown {
	t.Helper()
	status, out, errs := run(t, url, "inspect", "--json", key)
	require.Equal(t, exitOK, status, errs)
	var s shown
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	return s
}

func TestInspect(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, url string) {
		lease := taken(t, url, "k", lock.WithLabel("a label"))
		s := inspected(t, url, "k")
		assert.True(t, s.Held)
		assert.Equal(t, "k", s.Key)
		assert.Equal(t, lease.Token(), s.Token)
		assert.Equal(t, 1, s.Holds)
		assert.Nil(t, s.Waiters)
		assert.Equal(t, os.Getpid(), s.PID)
		require.NotNil(t, s.Since)
		require.NotNil(t, s.Until)
		assert.True(t, s.Until.After(*s.Since))

		status, out, errs := run(t, url, "inspect", "k")
		require.Equal(t, exitOK, status, errs)
		for _, want := range []string{"token    " + strconv.FormatUint(lease.Token(), 10), "waiters  -", "pid      " + strconv.Itoa(os.Getpid()), "label    a label"} {
			assert.Contains(t, out, want)
		}

		require.NoError(t, lease.Release(t.Context()))
		status, out, errs = run(t, url, "inspect", "k")
		assert.Equal(t, exitFree, status)
		assert.Empty(t, out)
		assert.Equal(t, "lockctl: nobody holds \"k\"\n", errs)
		status, out, _ = run(t, url, "inspect", "--json", "k")
		assert.Equal(t, exitFree, status)
		assert.JSONEq(t, `{"key":"k","held":false,"waiters":null}`, out)
	})
}

func TestList(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, url string) {
		for _, key := range []string{"b/2", "b/1", "c"} {
			taken(t, url, key)
		}
		status, out, errs := run(t, url, "ls", "b/")
		require.Equal(t, exitOK, status, errs)
		rows := strings.Split(out, "\n")
		require.Len(t, rows, 3, out)
		assert.True(t, strings.HasPrefix(rows[0], "KEY "), out)
		assert.True(t, strings.HasPrefix(rows[1], "b/1 "), out)
		assert.True(t, strings.HasPrefix(rows[2], "b/2 "), out)
		_, out, _ = run(t, url, "ls", "--json")
		assert.Equal(t, 2, strings.Count(out, "\n"), out)
		_, out, _ = run(t, url, "ls", "none")
		assert.True(t, strings.HasPrefix(out, "KEY") && !strings.Contains(out, "\n"), out)
	})
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, url string) {
		lease := taken(t, url, "k", lock.WithLabel("the holder"))
		token := strconv.FormatUint(lease.Token(), 10)
		status, _, errs := run(t, url, "unlock", "k", "--token", "7")
		assert.Equal(t, exitHeld, status)
		assert.Contains(t, errs, `now it is held by "the holder"`)
		assert.Contains(t, errs, token)
		require.NoError(t, lease.Renew(t.Context()), "an unlock with another token has hit the holder")

		status, out, errs := run(t, url, "unlock", "--json", "k", "--token", token)
		require.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, `"ended":false,"until":"`)
		status, _, _ = run(t, url, "run", "--no-wait", "k", "--", "true")
		assert.Equal(t, exitHeld, status, "somebody else got the key before the revoked hold had ended")
		select {
		case <-lease.Context().Done():
		case <-time.After(hang):
			t.Fatal("the holder was not told")
		}
		status, _, errs = run(t, url, "wait", "--timeout", "20s", "k")
		require.Equal(t, exitOK, status, errs)

		next := taken(t, url, "k")
		status, _, errs = run(t, url, "unlock", "k", "--token", token)
		assert.Equal(t, exitHeld, status, "an old token has ended a newer hold")
		assert.Contains(t, errs, strconv.FormatUint(next.Token(), 10))
		status, out, errs = run(t, url, "unlock", "k", "--now", "--token", strconv.FormatUint(next.Token(), 10))
		require.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, "others can have the key now")
		status, _, errs = run(t, url, "run", "--no-wait", "k", "--", "true")
		assert.Equal(t, exitOK, status, errs)
		status, _, errs = run(t, url, "unlock", "free", "--token", token)
		assert.Equal(t, exitFree, status, errs)
	})
}

func TestWait(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, url string) {
		status, _, errs := run(t, url, "wait", "k")
		require.Equal(t, exitOK, status, errs)
		lease := taken(t, url, "k", lock.WithLabel("the holder"))
		status, _, errs = run(t, url, "wait", "--timeout", "0", "k")
		assert.Equal(t, exitHeld, status)
		assert.Contains(t, errs, `held by "the holder"`)
		p := start(t, url, "wait", "--json", "k")
		select {
		case <-p.done:
			t.Fatal("wait ended while the key was held: " + p.errors())
		case <-time.After(300 * time.Millisecond):
		}
		require.NoError(t, lease.Release(t.Context()))
		p.requireStatus(exitOK)
		assert.JSONEq(t, `{"key":"k","held":false,"waiters":null}`, p.line())
	})
}

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
		"no token":        {"file:", []string{"unlock", "a"}, exitUsage, "token"},
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
