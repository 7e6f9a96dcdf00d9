package servertest

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSharedIsOne(t *testing.T) {
	t.Parallel()
	first := SharedRedis(t)
	require.NotNil(t, first)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			attempt(func(tb TB) {
				if s := SharedRedis(tb); s != first {
					t.Errorf("got %v, want %v", s, first)
				}
			})
		})
	}
	wg.Wait()
	require.NoError(t, client(t, first).Ping(t.Context()).Err())
}

func TestSharedStartsOnceUnderRace(t *testing.T) {
	t.Parallel()
	var ss sharedServers
	defer func() { require.NoError(t, ss.stop()) }()
	got := make(chan *Server, 8)
	var result *fakeTB
	for i := range cap(got) {
		go func() {
			var s *Server
			r := attempt(func(tb TB) { s = ss.get(tb, systemFinder(), redisKind) })
			if i == 0 {
				result = r
			}
			got <- s
		}()
	}
	seen := map[*Server]bool{}
	for range cap(got) {
		seen[<-got] = true
	}
	require.Len(t, seen, 1)
	if result.skipped != "" {
		t.Skip(result.skipped)
	}
	require.Empty(t, result.failed)
}

func TestSharedIsNotDisturbed(t *testing.T) {
	t.Parallel()
	s := SharedRedis(t)
	require.False(t, s.CanControl())
	if s.inst == nil {
		t.Skip("the shared server comes from the environment")
	}
	result := attempt(s.Kill)
	require.Contains(t, result.failed, "share")
	require.NoError(t, client(t, s).Ping(t.Context()).Err())
}

func TestSharedStopsAndStartsAgain(t *testing.T) {
	t.Parallel()
	var ss sharedServers
	f := systemFinder()
	s := ss.get(t, f, redisKind)
	if s.inst == nil {
		t.Skip("the shared server comes from the environment")
	}
	require.NoError(t, ss.stop())
	_, err := net.Dial("tcp", s.Addr())
	require.Error(t, err, "it is still there")
	require.NoError(t, ss.stop())

	again := ss.get(t, f, redisKind)
	require.NotSame(t, s, again)
	require.NoError(t, client(t, again).Ping(t.Context()).Err())
	require.NoError(t, ss.stop())
}

func TestSharedThatDied(t *testing.T) {
	t.Parallel()
	var ss sharedServers
	f := binary()
	s := ss.get(t, f, redisKind)
	defer func() { require.NoError(t, ss.stop()) }()
	require.NoError(t, s.inst.kill())
	result := attempt(func(tb TB) { ss.get(tb, f, redisKind) })
	require.Contains(t, result.failed, "died")
}

type fakeRunner struct {
	code int
	run  func()
}

func (r fakeRunner) Run() int { r.run(); return r.code }

var (
	_ Runner = (*testing.M)(nil)
	_ TB     = (*testing.T)(nil)
	_ TB     = (*testing.B)(nil)
	_ TB     = (*testing.F)(nil)
)

func TestStopAfter(t *testing.T) {
	t.Parallel()
	var ss sharedServers
	var s *Server
	closed := false
	// The engines are those of all tests, some of which are using them now.
	r := stopAfter{fakeRunner{3, func() { s = ss.get(t, binary(), redisKind) }}, &ss, func() error { closed = true; return nil }}
	require.Equal(t, 3, r.Run(), "the exit code of the tests")
	require.True(t, closed, "the engines are closed too")
	require.False(t, s.inst.running())
}
