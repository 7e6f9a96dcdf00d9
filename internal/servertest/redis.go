package servertest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Redis returns a Redis server for this test only, which is stopped at the
// test's cleanup. Without options it keeps nothing on disk. A server from the
// environment is not private: other tests may be using it, so keys must be
// unique, and tests that disturb the server ask for WithControl. If there is no
// server the test is skipped, or fails under LOCK_TEST_REQUIRE.
func Redis(t TB, opts ...Option) *Server {
	t.Helper()
	return private(t, systemFinder(), redisKind, opts)
}

// SharedRedis returns the Redis server that all tests of this test binary
// share. It starts on first use and runs until Main returns or StopShared is
// called. Tests on it use unique keys and leave the server's settings alone;
// they can't kill, freeze or restart it. Safe for parallel tests. If there is no
// server the test is skipped, or fails under LOCK_TEST_REQUIRE.
func SharedRedis(t TB) *Server {
	t.Helper()
	return shared.get(t, systemFinder(), redisKind)
}

var redisKind = register(&kind{
	name:          "redis",
	title:         "Redis",
	env:           "LOCK_TEST_REDIS",
	binaries:      []string{"redis-server"},
	install:       "apt-get install redis-server",
	image:         "redis:7",
	ownImage:      "mortise-test/redis:8",
	containerPort: 6379,
	command:       redisCommand,
	probe:         probeRedis,
	url:           redisURL,
})

func redisCommand(l launch) []string {
	args := []string{
		cmp.Or(l.binary, "redis-server"),
		"--port", strconv.Itoa(l.port),
		"--bind", l.host,
		"--dir", l.dir,
		"--daemonize", "no",
		"--save", "",
	}
	if l.persistence {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	} else {
		args = append(args, "--appendonly", "no")
	}
	if l.binary == "" {
		// The published port makes every client a remote one, which protected
		// mode would refuse.
		args = append(args, "--protected-mode", "no")
	}
	if l.password != "" {
		args = append(args, "--requirepass", l.password)
	}
	return append(args, l.args...)
}

func probeRedis(ctx context.Context, to target) (string, error) {
	// Dialled here, since the client's pool prints each refused connection to
	// stderr, of which there are some while a server starts.
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	client := redis.NewClient(&redis.Options{
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Addr:                     to.addr,
		Password:                 to.password,
		Protocol:                 2, // known to every version
		PoolSize:                 1,
		MaxRetries:               -1,
		DialerRetries:            1,
		ContextTimeoutEnabled:    true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return "", redisRefusal(err)
	}
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return "", redisRefusal(err)
	}
	if pid := infoField(info, "process_id"); to.pid != 0 && pid != strconv.Itoa(to.pid) {
		return "", fmt.Errorf("%s is served by process %s, which is not ours (%d)", to.addr, pid, to.pid)
	}
	return infoField(info, "redis_version"), nil
}

// redisRefusal marks a refused password as permanent.
func redisRefusal(err error) error {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) {
		return permanent(err)
	}
	return err
}

// infoField returns a field of the INFO command's reply.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func redisURL(to target) string {
	u := url.URL{Scheme: "redis", Host: to.addr}
	if to.password != "" {
		u.User = url.UserPassword("", to.password)
	}
	return u.String()
}

// MissingRedis ends a test that needs something of Redis that is not to be had,
// such as a program beside the server: it is skipped, or fails where Redis is
// required.
func MissingRedis(t TB, format string, args ...any) {
	t.Helper()
	systemFinder().report(t, redisKind, missing(format, args...))
}
