package servertest

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childVar names the servers that the test binary starts, to print their
// addresses and wait to be killed, in place of running tests.
const childVar = "SERVERTEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		serveAsChild()
	}
	goleak.VerifyTestMain(StopAfter(m))
}

func serveAsChild() {
	flag.Parse() // as m.Run would: the life of a container follows from -test.timeout
	t := &fakeTB{}
	var addrs []string
	for name := range strings.SplitSeq(os.Getenv(childVar), ",") {
		if name == "Redis" {
			addrs = append(addrs, SharedRedis(t).Addr(), Redis(t, WithControl()).Addr())
		}
		for _, k := range trials() {
			if k.name == name {
				addrs = append(addrs, k.start(t, WithControl()).Addr())
			}
		}
	}
	fmt.Println(strings.Join(addrs, " "))
	select {}
}

// fakeTB records what a test would have been told.
type fakeTB struct {
	skipped, failed string
	logged          []string
	cleanups        []func()
}

func (f *fakeTB) Helper()                   {}
func (f *fakeTB) Name() string              { return "fake" }
func (f *fakeTB) Cleanup(c func())          { f.cleanups = append(f.cleanups, c) }
func (f *fakeTB) Logf(s string, a ...any)   { f.logged = append(f.logged, fmt.Sprintf(s, a...)) }
func (f *fakeTB) Skipf(s string, a ...any)  { f.skipped = fmt.Sprintf(s, a...); runtime.Goexit() }
func (f *fakeTB) Fatalf(s string, a ...any) { f.failed = fmt.Sprintf(s, a...); runtime.Goexit() }

// attempt runs body as a test of its own, with its cleanups, and returns what
// it was told.
func attempt(body func(t TB)) *fakeTB {
	f := &fakeTB{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(f.cleanups) - 1; i >= 0; i-- {
				f.cleanups[i]()
			}
		}()
		body(f)
	}()
	<-done
	return f
}

// with returns a finder that sees the environment changed by pairs of name and
// value.
func with(pairs ...string) *finder {
	f := systemFinder()
	f.getenv = func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return os.Getenv(name)
	}
	return f
}

// binary returns a finder that only starts programs.
func binary(pairs ...string) *finder {
	return with(append(pairs, "LOCK_TEST_SOURCE", sourceBinary)...)
}

// empty returns a finder that finds nothing, on a machine without anything.
func empty(pairs ...string) *finder {
	f := with(append(pairs, "LOCK_TEST_SOURCE", "", "LOCK_TEST_REDIS", "", "LOCK_TEST_REDIS_IMAGE", "", "LOCK_TEST_REQUIRE", "",
		"DOCKER_HOST", "unix:///nonexistent/docker.sock")...)
	f.lookPath = func(string) (string, error) { return "", exec.ErrNotFound }
	return f
}

func client(t testing.TB, s *Server) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(s.URL())
	require.NoError(t, err)
	opts.ContextTimeoutEnabled = true
	opts.MaxRetries = -1
	opts.DialerRetries = 1
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// short is a context for a question that is not going to be answered.
func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// readAddrs starts a child that serves, and returns it with its servers.
func readAddrs(t *testing.T, names ...string) (*exec.Cmd, []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.timeout=1m")
	cmd.Env = append(os.Environ(), childVar+"="+strings.Join(names, ","), "LOCK_TEST_SOURCE="+sourceBinary, "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.Fields(line)
}
