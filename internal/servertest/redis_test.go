package servertest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestRedisAnswersAndStops(t *testing.T) {
	t.Parallel()
	var addr, version string
	result := attempt(func(tb TB) {
		s := Redis(tb, WithControl())
		addr, version = s.Addr(), s.Version()
		got, err := client(t, s).Info(t.Context(), "server").Result()
		if err != nil {
			tb.Fatalf("%v", err)
		}
		if want := infoField(got, "redis_version"); want != version {
			tb.Fatalf("Version is %q, the server says %q", version, want)
		}
	})
	if result.skipped != "" {
		t.Skip(result.skipped)
	}
	require.Empty(t, result.failed)
	require.NotEmpty(t, version)
	require.Contains(t, result.logged[0], addr)
	_, err := net.Dial("tcp", addr)
	require.Error(t, err, "the server outlived its test")
}

func TestRedisIsPrivate(t *testing.T) {
	t.Parallel()
	a, b := Redis(t, WithControl()), Redis(t, WithControl())
	require.NotEqual(t, a.Addr(), b.Addr())
	require.NoError(t, client(t, a).Set(t.Context(), "k", "v", 0).Err())
	require.ErrorIs(t, client(t, b).Get(t.Context(), "k").Err(), redis.Nil)
}

func TestRedisPassword(t *testing.T) {
	t.Parallel()
	s := Redis(t, WithPassword("p@ss:word/ü"))
	require.Equal(t, "p@ss:word/ü", s.Password())
	require.NoError(t, client(t, s).Ping(t.Context()).Err())
	require.NotContains(t, s.String(), "word")

	bare := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer bare.Close()
	require.True(t, redis.IsAuthError(bare.Ping(t.Context()).Err()))

	s.Restart(t, false)
	require.NoError(t, client(t, s).Ping(t.Context()).Err())
}

func TestRedisArgs(t *testing.T) {
	t.Parallel()
	s := Redis(t, WithArgs("--maxmemory", "3mb"), WithArgs("--maxmemory-policy", "allkeys-lru"))
	got, err := client(t, s).ConfigGet(t.Context(), "maxmemory*").Result()
	require.NoError(t, err)
	require.Equal(t, "3145728", got["maxmemory"])
	require.Equal(t, "allkeys-lru", got["maxmemory-policy"])
}

func TestKill(t *testing.T) {
	t.Parallel()
	s := Redis(t, WithControl())
	c := client(t, s)
	require.NoError(t, c.Ping(t.Context()).Err())
	s.Kill(t)
	require.Error(t, c.Ping(t.Context()).Err())
	_, err := net.Dial("tcp", s.Addr())
	require.Error(t, err)
	require.Zero(t, s.Pid())
	s.Kill(t)

	require.Contains(t, attempt(func(tb TB) { s.Freeze(tb) }).failed, "not running")
	require.Contains(t, attempt(func(tb TB) { s.Resume(tb) }).failed, "not running")
}

func TestRestart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		opts       []Option
		kill, keep bool
		survives   bool
	}{
		{"data kept", []Option{WithPersistence()}, true, true, true},
		{"data kept, running", []Option{WithPersistence()}, false, true, true},
		{"data lost", []Option{WithPersistence()}, true, false, false},
		{"nothing written", []Option{WithControl()}, true, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := Redis(t, test.opts...)
			addr, pid := s.Addr(), s.Pid()
			c := client(t, s)
			require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
			if test.kill {
				s.Kill(t)
			}
			s.Restart(t, test.keep)
			require.Equal(t, addr, s.Addr())
			if pid != 0 {
				require.NotEqual(t, pid, s.Pid())
				require.NotZero(t, s.Pid())
			}
			got, err := client(t, s).Get(t.Context(), "k").Result()
			if test.survives {
				require.NoError(t, err)
				require.Equal(t, "v", got)
			} else {
				require.ErrorIs(t, err, redis.Nil)
			}
		})
	}
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	s := Redis(t, WithControl())
	c := client(t, s)
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())

	for range 2 { // the second freeze needs a stop of its own
		s.Freeze(t)
		s.Freeze(t)
		err := c.Ping(short(t)).Err()
		require.Error(t, err)
		timeout := net.Error(nil)
		require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout(),
			"a frozen server must not answer nor close: %v", err)
		s.Resume(t)
		require.NoError(t, c.Ping(t.Context()).Err())
	}
	s.Resume(t)
	require.Equal(t, "v", c.Get(t.Context(), "k").Val(), "it is the same server as before")
}

func TestKillAndRestartWhileFrozen(t *testing.T) {
	t.Parallel()
	s := Redis(t, WithControl())
	s.Freeze(t)
	s.Kill(t)
	_, err := net.Dial("tcp", s.Addr())
	require.Error(t, err)
	s.Restart(t, true)
	s.Freeze(t)
	require.Error(t, client(t, s).Ping(short(t)).Err(), "a restarted server can be frozen again")
	s.Restart(t, false)
	require.NoError(t, client(t, s).Ping(t.Context()).Err())
}

func TestCleanupOfFrozen(t *testing.T) {
	t.Parallel()
	var addr string
	result := attempt(func(tb TB) {
		s := Redis(tb, WithControl())
		addr = s.Addr()
		s.Freeze(tb)
	})
	if result.skipped != "" {
		t.Skip(result.skipped)
	}
	require.Empty(t, result.failed)
	_, err := net.Dial("tcp", addr)
	require.Error(t, err)
}

// A kind whose data must be prepared is prepared once for each empty directory.
func TestPrepare(t *testing.T) {
	t.Parallel()
	prepared := 0
	k := *redisKind
	k.prepare = func(_ context.Context, l launch) error {
		prepared++
		conf := "port " + strconv.Itoa(l.port) + "\nbind " + l.host + "\nsave \"\"\nmaxclients 123\n"
		return os.WriteFile(filepath.Join(l.dir, "redis.conf"), []byte(conf), 0o600)
	}
	k.command = func(l launch) []string {
		return []string{l.binary, filepath.Join(l.dir, "redis.conf")}
	}
	s := private(t, binary(), &k, nil)
	require.Equal(t, "123", client(t, s).ConfigGet(t.Context(), "maxclients").Val()["maxclients"])
	require.Equal(t, 1, prepared)
	s.Restart(t, true)
	require.Equal(t, 1, prepared)
	s.Restart(t, false)
	require.Equal(t, 2, prepared)
}

// BenchmarkRedisStart measures how long a test waits for a server.
func BenchmarkRedisStart(b *testing.B) {
	for b.Loop() {
		s := Redis(b, WithControl())
		s.Kill(b)
	}
}
