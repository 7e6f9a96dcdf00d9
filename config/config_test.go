package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/config"
	_ "github.com/mortiselock/lock/memory"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"YAML": "lockers:\n  jobs:\n    url: \"mem:?mode=queue\"\n    ttl: 30s\n  other: {url: \"file:/tmp/x\"}\n",
		"JSON": `{"lockers": {"jobs": {"url": "mem:?mode=queue", "ttl": "30s"}, "other": {"url": "file:/tmp/x"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := config.Parse("locks.yaml", []byte(text))
			require.NoError(t, err)
			assert.Equal(t, []string{"jobs", "other"}, f.Names())
			jobs, err := f.Locker("jobs")
			require.NoError(t, err)
			assert.Equal(t, "mem:?mode=queue", jobs.URL())
			assert.Equal(t, 30*time.Second, jobs.TTL)
			other, err := f.Locker("other")
			require.NoError(t, err)
			assert.Zero(t, other.TTL)
		})
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "locks.yaml")
	require.NoError(t, os.WriteFile(path, []byte("lockers:\n  jobs:\n    url: \"mem:?mode=queue\"\n    ttl: 3s\n"), 0o600))
	f, err := config.Load(path)
	require.NoError(t, err)
	l, err := f.Open(t.Context(), "", nil) // the only one
	require.NoError(t, err)
	defer l.Close()
	assert.Equal(t, backend.WaitQueue, l.Guarantees().Waiting)
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	until, _ := lease.Deadline()
	assert.LessOrEqual(t, time.Until(until), 3*time.Second)
	require.NoError(t, lease.Release(t.Context()))

	elsewhere, err := config.Parse("f", []byte("lockers: {jobs: {url: \"redis://:hunter2@h\"}}"))
	require.NoError(t, err, "which schemes there are is known when a locker is opened")
	_, err = elsewhere.Open(t.Context(), "jobs", nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.ErrorContains(t, err, `locker "jobs"`)
	assert.ErrorContains(t, err, "github.com/mortiselock/lock/redis", "the package to import is not named")
	assert.NotContains(t, err.Error(), "hunter2")

	_, err = f.Open(t.Context(), "job", nil)
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.ErrorContains(t, err, `it has no locker "job"; it has: jobs`)
}

func TestLoadMissingFile(t *testing.T) {
	t.Parallel()
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"empty":              {"", "there are no lockers"},
		"no lockers":         {"lockers: {}", "there are no lockers"},
		"unknown field":      {"lockers:\n  jobs:\n    url: \"mem:\"\n    tll: 3s", `f:4: unknown field "tll"`},
		"unknown section":    {"lockers:\n  jobs:\n    url: \"mem:\"\nlocks: {}", `f:4: unknown field "locks"`},
		"tab":                {"lockers:\n\tjobs:\n\t\turl: hunter2", "f:2: the line is indented with a tab"},
		"no url":             {"lockers:\n  jobs:\n    ttl: 3s", `f:3: locker "jobs" has no url`},
		"ttl is not one":     {"lockers:\n  jobs:\n    url: \"mem:\"\n    ttl: hunter2", "f:4: "},
		"ttl is zero":        {"lockers:\n  jobs:\n    url: \"mem:\"\n    ttl: 0s", `f:4: the ttl of locker "jobs" must be a positive duration`},
		"a list":             {"lockers: [hunter2]", "f:1: "},
		"a text":             {"hunter2", "f:1: "},
		"twice":              {"lockers:\n  jobs: {url: \"mem:\"}\n  jobs: {url: hunter2}", `f:3: "jobs" is there twice`},
		"two documents":      {"lockers:\n  jobs: {url: \"mem:\"}\n---\nlockers: {}", "more than one document"},
		"no name":            {"lockers:\n  jobs:\n    url: mem:${}", "is not the name of an environment variable"},
		"unfinished":         {"lockers:\n  jobs:\n    url: mem:${PATH", "without its }"},
		"bad quotes":         {"lockers:\n  jobs:\n    url: \"hunter2", "f:"},
		"a colon at the end": {"lockers:\n  jobs:\n    url: file:", `f:3: put the url into quotes, as in url: "file:"`},
		"a colon inside":     {"lockers:\n  jobs:\n    url: redis://hunter2: x", `f:3: put the url into quotes`},
		"merge of the whole": {"lockers: &a\n  jobs: *a", "f"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse("f", []byte(c.text))
			require.Error(t, err)
			assert.ErrorIs(t, err, lock.ErrInvalid)
			assert.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "hunter2", "a value of the file is shown")
			assert.False(t, strings.HasSuffix(err.Error(), ")"), "something stands behind what to do: %v", err)
		})
	}
}

func TestVariables(t *testing.T) {
	const odd = "p@ss/w:rd?#%+ $x"
	t.Setenv("ODD", odd)
	t.Setenv("PLAIN", "redis.example")
	f, err := config.Parse("f", []byte(`lockers:
  secret: {url: "redis://${ODD}:${ODD}@${PLAIN}:6379/1?sentinel_password=${ODD}&prefix=$${x}"}
  whole: {url: "${PLAIN}"}
`))
	require.NoError(t, err)
	l, err := f.Locker("secret")
	require.NoError(t, err)
	u, err := backend.ParseURL(l.URL())
	require.NoError(t, err)
	assert.Equal(t, odd, u.User)
	assert.Equal(t, odd, u.Password)
	assert.Equal(t, []string{"redis.example:6379"}, u.Hosts)
	assert.Equal(t, odd, u.Query.String("sentinel_password", ""))
	assert.Equal(t, "${x}", u.Query.String("prefix", ""))
	for _, shown := range []string{fmt.Sprint(l), fmt.Sprintf("%+v", l), fmt.Sprintf("%#v", l)} {
		assert.NotContains(t, shown, "ss/w")
	}
	whole, err := f.Locker("whole")
	require.NoError(t, err)
	assert.Equal(t, "redis.example", whole.URL())
}

// A variable is needed by the locker that has it, when that is opened, and by no other.
func TestVariablesOfOneLocker(t *testing.T) {
	t.Setenv("EMPTY", "")
	f, err := config.Parse("f", []byte(`lockers:
  jobs:
    url: redis://:${NO_SUCH_VARIABLE}@hunter2
  empty:
    url: redis://:${EMPTY}@hunter2
  local:
    url: "mem:"
`))
	require.NoError(t, err)
	l, err := f.Open(t.Context(), "local", nil)
	require.NoError(t, err, "the variable of another locker is asked for")
	require.NoError(t, l.Close())
	for name, want := range map[string]string{
		"jobs":  `f:3: the url of locker "jobs": the environment variable NO_SUCH_VARIABLE is not set`,
		"empty": `f:5: the url of locker "empty": the environment variable EMPTY is empty`,
	} {
		_, asked := f.Locker(name)
		_, opened := f.Open(t.Context(), name, nil)
		for _, err := range []error{asked, opened} {
			require.ErrorIs(t, err, lock.ErrInvalid)
			assert.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), "hunter2", "a value of the file is shown")
		}
	}
	t.Setenv("NO_SUCH_VARIABLE", "s3cret")
	found, err := f.Locker("jobs")
	require.NoError(t, err, "it is looked up when the locker is asked for")
	assert.Equal(t, "redis://:s3cret@hunter2", found.URL())

	only, err := config.Parse("f", []byte("lockers: {jobs: {url: \"paxos://h\"}}"))
	require.NoError(t, err)
	_, err = only.Open(t.Context(), "", nil)
	assert.ErrorContains(t, err, `f: locker "jobs"`, "the only locker is not named")
}

func FuzzParse(f *testing.F) {
	f.Add("lockers:\n  jobs:\n    url: \"mem:\"\n    ttl: 3s\n")
	f.Add(`{"lockers": {"jobs": {"url": "redis://:${X}@h"}}}`)
	f.Add("lockers:\n\tjobs:\n")
	f.Add("lockers: &a\n  jobs: *a")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := config.Parse("f", []byte(text))
		if err != nil {
			assert.ErrorIs(t, err, lock.ErrInvalid)
			return
		}
		for _, name := range file.Names() {
			l, err := file.Locker(name)
			if err != nil {
				assert.ErrorIs(t, err, lock.ErrInvalid) // a variable
				continue
			}
			assert.NotEmpty(t, l.URL())
		}
	})
}
