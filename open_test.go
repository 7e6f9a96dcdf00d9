package lock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// TestNoClientWithAnError: whoever puts the result into a Locker finds it nil only if the
// Client is.
func TestNoClientWithAnError(t *testing.T) {
	t.Parallel()
	wrong := &lock.Options{TTL: -1}
	for name, open := range map[string]func() (*lock.Client, error){
		"Open":                func() (*lock.Client, error) { return lock.Open(t.Context(), "mem:", wrong) },
		"a scheme of nobody":  func() (*lock.Client, error) { return lock.Open(t.Context(), "paxos:", nil) },
		"New":                 func() (*lock.Client, error) { return lock.New(nil, nil) },
		"that of the backend": func() (*lock.Client, error) { return memlock.New(t.Context(), &memlock.Options{Lock: *wrong}) },
	} {
		c, err := open()
		require.ErrorIs(t, err, lock.ErrInvalid, name)
		assert.Nil(t, c, name)
	}
}

// TestNewClosesWhatItCannotUse: a backend belongs to New, so that no caller has to think of it
// when New fails.
func TestNewClosesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	inner, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	b := &closes{Backend: inner}
	_, err = lock.New(b, &lock.Options{TTL: -1})
	require.ErrorIs(t, err, lock.ErrInvalid)
	assert.Equal(t, 1, b.closed)
}

// closes counts the calls of Close.
type closes struct {
	backend.Backend
	closed int
}

func (c *closes) Close() error {
	c.closed++
	return c.Backend.Close()
}

// TestTTLOfAURL: the parameter ttl is Options.TTL for who swaps backends by URL alone.
func TestTTLOfAURL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url  string
		opts *lock.Options
		want time.Duration
	}{
		{"mem:", nil, lock.DefaultTTL},
		{"mem:?ttl=30s", nil, 30 * time.Second},
		{"mem:?mode=queue&ttl=30s", &lock.Options{}, 30 * time.Second},
		{"mem:?ttl=30s", &lock.Options{TTL: 40 * time.Second}, 40 * time.Second},
	} {
		l, err := lock.Open(t.Context(), c.url, c.opts)
		require.NoError(t, err)
		lease, err := l.Acquire(t.Context(), "ttl of a URL")
		require.NoError(t, err)
		until, _ := lease.Deadline()
		assert.InDelta(t, c.want.Seconds(), time.Until(until).Seconds(), 2, "%+v", c)
		require.NoError(t, l.Close())
	}
	for _, bad := range []string{"mem:?ttl=", "mem:?ttl=30", "mem:?ttl=-1s", "mem:?ttl=1s&ttl=2s", "mem:?ttl=1ns"} {
		c, err := lock.Open(t.Context(), bad, nil)
		require.ErrorIs(t, err, lock.ErrInvalid, bad)
		assert.Nil(t, c)
	}
}
