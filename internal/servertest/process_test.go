package servertest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFailedStartShowsTheLog(t *testing.T) {
	t.Parallel()
	result := attempt(func(tb TB) {
		private(tb, binary(), redisKind, []Option{WithArgs("--no-such-setting", "1")})
	})
	if result.skipped != "" {
		t.Skip(result.skipped)
	}
	require.Contains(t, result.failed, "exited before it answered")
	require.Contains(t, result.failed, "Bad directive", "the server's own words")
}

func TestSilentServerShowsTheLog(t *testing.T) {
	t.Parallel()
	s := private(t, binary(), redisKind, []Option{WithControl()})
	s.Freeze(t)
	err := s.await(short(t))
	require.ErrorContains(t, err, "did not answer")
	require.ErrorContains(t, err, "Ready to accept connections")
}

func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	var dir string
	result := attempt(func(tb TB) {
		s := private(tb, binary(), redisKind, []Option{WithPersistence()})
		dir = s.inst.(*process).temp.path
		if _, err := os.Stat(filepath.Join(dir, "data", "appendonlydir")); err != nil {
			tb.Fatalf("the server does not write where it should: %v", err)
		}
	})
	if result.skipped != "" {
		t.Skip(result.skipped)
	}
	require.Empty(t, result.failed)
	require.NoDirExists(t, dir)
}

// The kernel kills the servers of a test binary that was killed.
func TestServersDieWithTheTestBinary(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the parent-death signal of Linux")
	}
	t.Parallel()
	private(t, binary(), redisKind, nil) // skips without a redis-server
	names := []string{"Redis"}
	for name, k := range map[string]*kind{"MariaDB": mariadbKind, "Etcd": etcdKind, "ZooKeeper": zookeeperKind} {
		if _, err := binary().program(k); err == nil {
			names = append(names, name)
		}
	}
	child, addrs := readAddrs(t, names...)
	require.Len(t, addrs, len(names)+1, "Redis twice: shared and private")
	for _, addr := range addrs {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	require.NoError(t, child.Process.Kill())
	for _, addr := range addrs {
		require.Eventually(t, func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				_ = conn.Close()
			}
			return err != nil
		}, exitBound, 5*time.Millisecond, "%s outlived its test binary", addr)
	}
}

// The parent-death signal belongs to a thread. A server must not die with the
// thread of the goroutine that asked for it.
func TestServerOutlivesTheCallersThread(t *testing.T) {
	t.Parallel()
	private(t, binary(), redisKind, nil) // skips without a redis-server
	server := make(chan *Server)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		s, err := binary().find(redisKind, config{})
		if err != nil {
			t.Error(err)
		}
		server <- s
	}()
	s := <-server
	require.NotNil(t, s)
	t.Cleanup(func() { _ = s.stop() })
	pid := s.Pid()
	for range 20 {
		time.Sleep(5 * time.Millisecond) // nothing tells when a thread is gone
		require.Equal(t, pid, s.Pid(), "the server died")
	}
	require.NoError(t, client(t, s).Ping(t.Context()).Err())
}

func TestLogIsWithoutStacks(t *testing.T) {
	t.Parallel()
	require.Equal(t, "WARN cannot open\njava.net.ConnectException: refused\nINFO leading\n",
		withoutStacks("WARN cannot open\njava.net.ConnectException: refused\n\tat a.b(C.java:1)\n\tat d.e(F.java:2)\nINFO leading\n"))
}

func TestTempDir(t *testing.T) {
	t.Parallel()
	var path string
	attempt(func(rec TB) {
		path = TempDir(rec)
		assert.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
	})
	require.NoDirExists(t, filepath.Dir(path))
}

func TestSweepTempDirs(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	t.Log("old and without an owner")
	dead := filepath.Join(parent, tempPrefix+"dead")
	require.NoError(t, os.MkdirAll(filepath.Join(dead, "data"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600))
	alien := filepath.Join(parent, "somebody-elses")
	require.NoError(t, os.Mkdir(alien, 0o700))

	sweepTempDirs(parent, time.Hour)
	require.DirExists(t, dead, "too young to be judged")

	live, err := makeTempDir(parent, "live")
	require.NoError(t, err)
	defer func() { _ = live.remove() }()

	sweepTempDirs(parent, 0)
	require.NoDirExists(t, dead)
	require.DirExists(t, live.path, "its owner lives")
	require.DirExists(t, alien)
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := &Server{kind: redisKind, addr: "127.0.0.1:1"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, s.await(ctx), "127.0.0.1:1 did not answer")
}
