package config_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/config"
	_ "github.com/mortiselock/lock/file"
)

// ttlOf is the default TTL of a Locker, as a lease has it.
func ttlOf(t *testing.T, l lock.Locker) time.Duration {
	t.Helper()
	lease, err := l.Acquire(t.Context(), "k", lock.WithoutRenewal())
	require.NoError(t, err)
	until, _ := lease.Deadline()
	left := time.Until(until)
	require.NoError(t, lease.Release(t.Context()))
	return left.Round(time.Second)
}

func TestSectionOfAnApplication(t *testing.T) {
	t.Parallel()
	const text = "listen: :8080\nlock:\n  url: \"mem:?mode=queue\"\n  ttl: 3s\nothers:\n  lockers:\n    jobs: {url: \"mem:?ttl=7s\"}\n"
	var app struct {
		Listen string          `yaml:"listen"`
		Lock   config.Section  `yaml:"lock"`
		Others config.Document `yaml:"others"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &app))
	l, err := app.Lock.Open(t.Context(), nil)
	require.NoError(t, err)
	defer l.Close()
	assert.Equal(t, backend.WaitQueue, l.Guarantees().Waiting)
	assert.Equal(t, 3*time.Second, ttlOf(t, l))
	other, err := app.Others.Open(t.Context(), "", nil)
	require.NoError(t, err)
	defer other.Close()
	assert.Equal(t, 7*time.Second, ttlOf(t, other))

	_, err = app.Others.Open(t.Context(), "job", nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.ErrorContains(t, err, `no locker "job"; it has: jobs`)
	_, err = config.Section{}.Open(t.Context(), nil) // what is missing in the file
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.ErrorContains(t, err, "has no url")
	_, err = config.Section{URL: "redis://:hunter2@h", TTL: -1}.Open(t.Context(), nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	_, err = config.Document{}.Open(t.Context(), "", nil)
	require.ErrorIs(t, err, lock.ErrInvalid)

	// With the strictness of the library too, which looks at what is around it.
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	require.NoError(t, d.Decode(&app))
	err = yaml.Unmarshal([]byte("lock:\n  url: redis://:hunter2@h\n  tll: 3s\n"), &app)
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.ErrorContains(t, err, `unknown field "tll"`)
	assert.NotContains(t, err.Error(), "hunter2")
}

func TestSectionShowsNoSecret(t *testing.T) {
	t.Parallel()
	s := config.Section{URL: "redis://:hunter2@h", TTL: time.Second}
	var logged strings.Builder
	l, err := s.Locker()
	require.NoError(t, err)
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "section", s, "locker", l, "in", struct{ S config.Section }{s})
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "section", s, "locker", l)
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%v", &s), logged.String(), fmt.Sprintf("%+v", config.Document{Lockers: map[string]config.Section{"a": s}})} {
		assert.NotContains(t, shown, "hunter2")
	}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.JSONEq(t, `{"url": "redis://:hunter2@h", "ttl": "1s"}`, string(text), "what is written can be read again")
}

// What is nearer to the acquisition wins.
func TestWhichTTLCounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url     string
		section time.Duration
		options *lock.Options
		want    time.Duration
	}{
		{"mem:", 0, nil, lock.DefaultTTL},
		{"mem:?ttl=20s", 0, nil, 20 * time.Second},
		{"mem:?ttl=20s", 30 * time.Second, nil, 30 * time.Second},
		{"mem:?ttl=20s", 30 * time.Second, &lock.Options{TTL: 40 * time.Second}, 40 * time.Second},
		{"mem:?ttl=20s", 0, &lock.Options{TTL: 40 * time.Second}, 40 * time.Second},
	} {
		l, err := config.Section{URL: c.url, TTL: c.section}.Open(t.Context(), c.options)
		require.NoError(t, err)
		assert.Equal(t, c.want, ttlOf(t, l), "%+v", c)
		lease, err := l.Acquire(t.Context(), "nearest", lock.WithTTL(50*time.Second))
		require.NoError(t, err)
		until, _ := lease.Deadline()
		assert.InDelta(t, 50, time.Until(until).Seconds(), 2)
		require.NoError(t, l.Close())
	}
	for _, bad := range []string{"mem:?ttl=", "mem:?ttl=hunter2", "mem:?ttl=-1s", "mem:?ttl=1s&ttl=2s", "mem:?ttl=1ns"} {
		_, err := config.Section{URL: bad}.Open(t.Context(), nil)
		require.ErrorIs(t, err, lock.ErrInvalid, bad)
		assert.NotContains(t, err.Error(), "hunter2")
		_, err = lock.Open(t.Context(), bad, nil)
		require.ErrorIs(t, err, lock.ErrInvalid, bad)
	}
}

// A relative directory is refused wherever the URL stands, with what to write.
func TestRelativeDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("BELOW", "locks")
	write := func(text string) string {
		path := filepath.Join(dir, "locks.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, url := range []string{"file:locks", "file:${BELOW}", "file:./locks?ttl=3s"} {
		f, err := config.Load(write("lockers: {jobs: {url: \"" + url + "\"}}"))
		require.NoError(t, err)
		_, err = f.Open(t.Context(), "", nil)
		require.ErrorIs(t, err, lock.ErrInvalid, url)
		assert.ErrorContains(t, err, "write file:"+filepath.ToSlash(filepath.Join(dir, "locks")), "it is not said what to write")
		_, err = config.Section{URL: url}.Open(t.Context(), nil)
		require.ErrorIs(t, err, lock.ErrInvalid, url)
	}
	f, err := config.Load(write("lockers: {jobs: {url: \"file:" + dir + "\"}}"))
	require.NoError(t, err)
	l, err := f.Open(t.Context(), "", nil)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestEnv(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.yaml")
	require.NoError(t, os.WriteFile(path, []byte("lockers: {jobs: {url: \"mem:\", ttl: 3s}, other: {url: \"mem:\", ttl: 4s}}"), 0o600))
	for _, c := range []struct {
		url, file, name string
		ttl             time.Duration
		want            string // what the error says; empty: none
	}{
		{url: "mem:?ttl=2s", ttl: 2 * time.Second},
		{url: "mem:?ttl=2s", name: "jobs", ttl: 2 * time.Second},
		{file: path, name: "jobs", ttl: 3 * time.Second},
		{file: path, name: "other", ttl: 4 * time.Second},
		{file: path, want: "name one of: jobs, other"},
		{file: path, name: "job", want: "it has: jobs, other"},
		{file: path + "x", want: "LOCK_CONFIG"},
		{url: "mem:", file: path, want: "both LOCK_URL and LOCK_CONFIG are set"},
		{want: "neither LOCK_URL nor LOCK_CONFIG is set"},
		{url: "file:hunter", want: "LOCK_URL: its path is relative"},
		{url: "redis://:hunter2@h", want: "LOCK_URL: "},
	} {
		t.Setenv(config.EnvURL, c.url)
		t.Setenv(config.EnvFile, c.file)
		l, err := config.OpenEnv(t.Context(), c.name, nil)
		if c.want != "" {
			if assert.ErrorContains(t, err, c.want, "%+v", c) {
				assert.NotContains(t, err.Error(), "hunter2")
				if c.file != path+"x" {
					assert.ErrorIs(t, err, lock.ErrInvalid)
				} else {
					assert.ErrorIs(t, err, os.ErrNotExist)
				}
			}
			continue
		}
		require.NoError(t, err, "%+v", c)
		assert.Equal(t, c.ttl, ttlOf(t, l), "%+v", c)
		require.NoError(t, l.Close())
		same, err := config.OpenLockerEnv(t.Context(), c.name, nil)
		require.NoError(t, err)
		assert.IsType(t, l, same)
		require.NoError(t, same.Close())
	}
}

// A program that changes its store takes its Locker from the environment, too.
func TestLockerInTwoStoresFromTheEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.yaml")
	require.NoError(t, os.WriteFile(path, []byte("lockers: {jobs: {url: \"mem:\", also: \"mem:?mode=queue\"}}"), 0o600))
	t.Setenv(config.EnvURL, "")
	t.Setenv(config.EnvFile, path)
	l, err := config.OpenLockerEnv(t.Context(), "jobs", nil)
	require.NoError(t, err)
	assert.IsType(t, &lock.Pair{}, l)
	require.NoError(t, l.Close())
	_, err = config.OpenEnv(t.Context(), "jobs", nil)
	require.ErrorIs(t, err, lock.ErrUnsupported)
	for _, c := range []struct{ url, file, want string }{
		{"", path + "x", "LOCK_CONFIG"}, {"mem:", path, "both"}, {"", "", "neither"},
	} {
		t.Setenv(config.EnvURL, c.url)
		t.Setenv(config.EnvFile, c.file)
		_, err := config.OpenLockerEnv(t.Context(), "jobs", nil)
		require.ErrorContains(t, err, c.want)
	}
}
