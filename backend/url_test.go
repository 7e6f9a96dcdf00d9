package backend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]backend.URL{
		"mem:":                      {Scheme: "mem"},
		"mem:name?mode=queue":       {Scheme: "mem", Path: "name"},
		"MEM:name":                  {Scheme: "mem", Path: "name"},
		"file:/var/lib/locks":       {Scheme: "file", Path: "/var/lib/locks"},
		"file:///var/lib/a%20b":     {Scheme: "file", Path: "/var/lib/a b"},
		"redis://localhost":         {Scheme: "redis", Hosts: []string{"localhost"}},
		"redis://h1:1,h2:2,[::1]:3": {Scheme: "redis", Hosts: []string{"h1:1", "h2:2", "[::1]:3"}},
		"redis://me:p%40ss@h:1/2":   {Scheme: "redis", User: "me", Password: "p@ss", HasPassword: true, Hosts: []string{"h:1"}, Path: "/2"},
		"redis://:secret@h":         {Scheme: "redis", Password: "secret", HasPassword: true, Hosts: []string{"h"}},
		"redis://:a@b@h":            {Scheme: "redis", Password: "a@b", HasPassword: true, Hosts: []string{"h"}},
	} {
		u, err := backend.ParseURL(raw)
		require.NoError(t, err, raw)
		u.Query = nil
		assert.Equal(t, want, *u, raw)
	}
}

func TestParseURLRefusesWithoutTellingSecrets(t *testing.T) {
	for _, raw := range []string{
		"", "nothing", ":x", "1a:x", "re dis://h", "file:/a%zz", "mem:?a=%zz", "mem:?a;b",
		"redis://u:hunter2@h:port", "redis://u:hunter2%zz@h", "redis://u:hunter2/slash@h:1", "redis://u:hunter2@h1,,h2", "redis://h:1:2", "redis://h/0#fragment", "redis://u:hunter2#x@h", "redis://h:", "redis://h:0", "redis://[::1", "redis://[x]:1", "redis://h:70000",
	} {
		_, err := backend.ParseURL(raw)
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestAnEmptyURLIsNamed(t *testing.T) {
	_, err := backend.ParseURL("")
	require.ErrorIs(t, err, backend.ErrInvalid)
	assert.Contains(t, err.Error(), "the URL is empty")
}

func TestAnEmptyHostIsNamed(t *testing.T) {
	for _, raw := range []string{"redlock://h1,,h3", "redlock://me:hunter2@h1,,h3", "redlock://h1,"} {
		_, err := backend.ParseURL(raw)
		require.ErrorIs(t, err, backend.ErrInvalid)
		assert.Contains(t, err.Error(), "number 2 is empty")
	}
}

func TestURLPrintsNoSecret(t *testing.T) {
	u, err := backend.ParseURL("redis://me:hunter2@h1:1,h2/3?sentinel_password=hunter3")
	require.NoError(t, err)
	assert.Equal(t, "redis://me:xxxxx@h1:1,h2/3", u.String())
	assert.Equal(t, []string{"h1:1", "h2:6379"}, u.HostsWithPort("6379"))
}

func TestQueryRefusesWhatNobodyAskedFor(t *testing.T) {
	read := func(raw string) (*backend.Query, error) {
		u, err := backend.ParseURL(raw)
		require.NoError(t, err)
		q := u.Query
		q.String("name", "")
		q.Duration("poll", time.Second)
		q.Int("size", 1)
		q.Bool("tls", false)
		q.OneOf("mode", "a", "b")
		return q, q.Done()
	}
	q, err := read("mem:?name=x&poll=5ms&size=7&tls=true&mode=b")
	require.NoError(t, err)
	assert.Equal(t, "x", q.String("name", ""))
	assert.Equal(t, 5*time.Millisecond, q.Duration("poll", 0))
	assert.Equal(t, 7, q.Int("size", 0))
	assert.True(t, q.Bool("tls", false))
	assert.Equal(t, "b", q.OneOf("mode", "a", "b"))
	_, err = read("mem:")
	require.NoError(t, err)
	for raw, text := range map[string]string{
		"mem:?nam=x":           `unknown parameter "nam" (accepted are mode, name, poll, size, tls, ttl)`,
		"mem:?name=x&name=y":   `parameter "name" is given 2 times`,
		"mem:?poll=5":          `"poll" is not a duration`,
		"mem:?size=many":       `"size" is not an integer`,
		"mem:?tls=maybe":       `"tls" is not true or false`,
		"mem:?mode=c":          `"mode" must be one of a, b`,
		"mem:?poll=&size=1":    `parameter "poll" is empty`,
		"mem:?name=":           `parameter "name" is empty`,
		"mem:?mode=":           `parameter "mode" is empty`,
		"mem:?poll=1s&poll=2s": `"poll" is given 2 times`,
	} {
		_, err := read(raw)
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		assert.Contains(t, err.Error(), text)
	}
}

func TestPasswordWithAQuestionMarkIsNotPrinted(t *testing.T) {
	u, err := backend.ParseURL("redis://me:12?hunter2@h:6379/0")
	if err == nil {
		err = u.Query.Done()
	}
	require.ErrorIs(t, err, backend.ErrInvalid)
	assert.NotContains(t, err.Error(), "hunter2")
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"mem:", "redis://u:p@h1:1,h2/0?a=b", "file:///a%20b", "x://:@:,", "a:?=&;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := backend.ParseURL(raw)
		if err != nil {
			require.ErrorIs(t, err, backend.ErrInvalid)
			return
		}
		if u.HasPassword && u.Password != "" {
			// Only the password may differ, so a print that depends on it tells it.
			v := *u
			v.Password = "other"
			assert.Equal(t, v.String(), u.String())
		}
		u.HostsWithPort("1")
		_ = u.Query.Done()
	})
}

func TestCredentialsOfEachHostAreRefused(t *testing.T) {
	for _, raw := range []string{
		"redlock://:hunter2@h1,:hunter2@h2,:hunter2@h3", "redlock://h1,me:hunter2@h2", "redis://me:hun,ter2@h1",
	} {
		_, err := backend.ParseURL(raw)
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		assert.Contains(t, err.Error(), "once, before the first host, for all of them", raw)
		assert.NotContains(t, err.Error(), "ter2", raw)
	}
	u, err := backend.ParseURL("redis://me:hun%2Cter%40@h1,h2")
	require.NoError(t, err)
	assert.Equal(t, "hun,ter@", u.Password)
	assert.Equal(t, []string{"h1", "h2"}, u.Hosts)
}
