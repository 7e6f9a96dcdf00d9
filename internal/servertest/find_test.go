package servertest

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMissingIsASkip(t *testing.T) {
	t.Parallel()
	result := attempt(func(tb TB) { private(tb, empty(), redisKind, nil) })
	require.Empty(t, result.failed)
	for _, part := range []string{
		"no Redis server", "LOCK_TEST_REDIS is not set", "no redis-server on PATH", "no Docker engine",
		"apt-get install redis-server", "LOCK_TEST_REDIS=host:port", "redis:7", "LOCK_TEST_REDIS_IMAGE",
	} {
		require.Contains(t, result.skipped, part)
	}
	require.NotContains(t, result.skipped, "\n")

	result = attempt(func(tb TB) { new(sharedServers).get(tb, empty(), redisKind) })
	require.Empty(t, result.failed)
	require.Contains(t, result.skipped, "no Redis server")
}

func TestMissingIsAFailureWhereRequired(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"all", "redis", " redis , all"} {
		f := empty("LOCK_TEST_REQUIRE", list)
		for name, result := range map[string]*fakeTB{
			"private": attempt(func(tb TB) { private(tb, f, redisKind, nil) }),
			"shared":  attempt(func(tb TB) { new(sharedServers).get(tb, f, redisKind) }),
		} {
			require.Empty(t, result.skipped, name)
			require.Contains(t, result.failed, "no Redis server", name)
			require.Contains(t, result.failed, "LOCK_TEST_REQUIRE="+list, name)
		}
	}
}

func TestRequireOfAnotherKind(t *testing.T) {
	t.Parallel()
	other := *redisKind
	other.name = "other"
	must, err := required("redis", &other)
	require.NoError(t, err)
	require.False(t, must)
}

func TestRequireAllButOne(t *testing.T) {
	t.Parallel()
	for list, wanted := range map[string]bool{
		"all,-redis": false, "-redis": false, "all, -mysql": true, "-redis,redis": true, "all,-redis,all": true,
	} {
		must, err := required(list, redisKind)
		require.NoError(t, err, list)
		require.Equal(t, wanted, must, list)
	}
	_, err := required("all,-reddis", redisKind)
	require.ErrorContains(t, err, `"reddis"`)
}

func TestRequireOfAnUnknownKind(t *testing.T) {
	t.Parallel()
	f := empty("LOCK_TEST_REQUIRE", "reddis")
	result := attempt(func(tb TB) { private(tb, f, redisKind, nil) })
	require.Contains(t, result.failed, `"reddis"`)
	require.Contains(t, result.failed, "redis")
}

func TestForcedSource(t *testing.T) {
	t.Parallel()
	for source, reason := range map[string]string{
		sourceEnv:       "LOCK_TEST_REDIS is not set",
		sourceBinary:    "no redis-server on PATH",
		sourceContainer: "no Docker engine",
	} {
		result := attempt(func(tb TB) { private(tb, empty("LOCK_TEST_SOURCE", source), redisKind, nil) })
		require.Contains(t, result.skipped, "LOCK_TEST_SOURCE="+source)
		require.Contains(t, result.skipped, reason)
		require.Equal(t, 1, strings.Count(result.skipped, "not set")+strings.Count(result.skipped, "redis-server on PATH")+
			strings.Count(result.skipped, "no Docker engine"), "only %s was tried", source)
	}
	result := attempt(func(tb TB) { private(tb, empty("LOCK_TEST_SOURCE", "docker"), redisKind, nil) })
	require.Contains(t, result.failed, "env, binary or container")
}

func TestServerFromTheEnvironment(t *testing.T) {
	t.Parallel()
	owner := Redis(t, WithPassword("secret"))
	f := with("LOCK_TEST_SOURCE", "", "LOCK_TEST_REDIS", owner.Addr(), "LOCK_TEST_REDIS_PASSWORD", "secret")

	var s *Server
	result := attempt(func(tb TB) { s = private(tb, f, redisKind, nil) })
	require.Empty(t, result.failed)
	require.Equal(t, owner.Addr(), s.Addr())
	require.Equal(t, owner.URL(), s.URL())
	require.Equal(t, owner.Version(), s.Version())
	require.False(t, s.CanControl())
	require.Zero(t, s.Pid())
	require.NotContains(t, strings.Join(result.logged, "\n"), "secret")

	for name, disturb := range map[string]func(TB){
		"kill": s.Kill, "freeze": s.Freeze, "resume": s.Resume,
		"restart": func(tb TB) { s.Restart(tb, true) },
	} {
		result := attempt(disturb)
		require.Contains(t, result.skipped, name)
		require.Contains(t, result.skipped, "environment")
	}
	require.NoError(t, client(t, owner).Ping(t.Context()).Err(), "it was neither disturbed nor cleaned up")
}

func TestEnvironmentIsPassedOverForOptions(t *testing.T) {
	t.Parallel()
	owner := Redis(t, WithControl())
	for name, opt := range map[string]Option{
		"control": WithControl(), "args": WithArgs("--maxclients", "50"),
		"password": WithPassword("x"), "persistence": WithPersistence(),
	} {
		f := with("LOCK_TEST_REDIS", owner.Addr(), "LOCK_TEST_SOURCE", "")
		s := private(t, f, redisKind, []Option{opt})
		require.NotEqual(t, owner.Addr(), s.Addr(), name)
		require.True(t, s.CanControl(), name)

		only := with("LOCK_TEST_REDIS", owner.Addr(), "LOCK_TEST_SOURCE", sourceEnv, "LOCK_TEST_REQUIRE", "")
		result := attempt(func(tb TB) { private(tb, only, redisKind, []Option{opt}) })
		require.Contains(t, result.skipped, "server of its own", name)
	}
}

func TestBadAddressInTheEnvironment(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"localhost", ":6379", "redis://localhost:6379"} {
		f := empty("LOCK_TEST_REDIS", addr)
		result := attempt(func(tb TB) { private(tb, f, redisKind, nil) })
		require.Contains(t, result.failed, "LOCK_TEST_REDIS="+addr)
	}
}

func TestWrongPasswordInTheEnvironment(t *testing.T) {
	t.Parallel()
	locked := Redis(t, WithPassword("secret"))
	for _, password := range []string{"wrongwrong", ""} {
		begin := time.Now()
		f := empty("LOCK_TEST_REDIS", locked.Addr(), "LOCK_TEST_REDIS_PASSWORD", password)
		result := attempt(func(tb TB) { private(tb, f, redisKind, nil) })
		require.Contains(t, result.failed, "refuses")
		require.Contains(t, result.failed, locked.Addr())
		if password != "" {
			require.NotContains(t, result.failed, password)
		}
		require.Less(t, time.Since(begin), readyBound, "a refusal must not be waited out")
	}
}

func TestPortTakenByAListener(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	s := private(t, firstPort(t, l.Addr().String()), redisKind, []Option{WithControl()})
	require.NotEqual(t, l.Addr().String(), s.Addr())
	require.NoError(t, client(t, s).Ping(t.Context()).Err())
}

// A server of somebody else that answers on our port is not taken for ours.
func TestPortTakenByAnotherRedis(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]Option{"open": WithControl(), "locked": WithPassword("theirs")} {
		other := Redis(t, opt)
		s := private(t, firstPort(t, other.Addr()), redisKind, []Option{WithPassword("ours")})
		require.NotEqual(t, other.Addr(), s.Addr(), name)
		require.NoError(t, client(t, other).Ping(t.Context()).Err(), name)
	}
}

func TestNoFreePort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	f := systemFinder()
	f.freePort = func() (int, error) { return l.Addr().(*net.TCPAddr).Port, nil }
	result := attempt(func(tb TB) { private(tb, f, redisKind, []Option{WithControl()}) })
	if result.skipped != "" {
		t.Skip(result.skipped)
	}
	require.Contains(t, result.failed, "no free port in 10 attempts")
}

// firstPort returns a finder whose first port is the one of addr.
func firstPort(t *testing.T, addr string) *finder {
	_, text, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	first, err := strconv.Atoi(text)
	require.NoError(t, err)
	f := systemFinder()
	f.freePort = func() (int, error) {
		if port := first; port != 0 {
			first = 0
			return port, nil
		}
		return freePort()
	}
	return f
}

func TestSplitImage(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]image{
		"redis:7":                  {"redis", "7"},
		"redis":                    {"redis", "latest"},
		"host:5000/team/redis":     {"host:5000/team/redis", "latest"},
		"host:5000/team/redis:7.2": {"host:5000/team/redis", "7.2"},
		"redis@sha256:abc":         {"redis@sha256", "abc"},
	} {
		require.Equal(t, want, splitImage(name), name)
	}
}
