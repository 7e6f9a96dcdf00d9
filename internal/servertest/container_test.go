package servertest

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inContainer returns a server in a container, where the run asked for
// containers (LOCK_TEST_SOURCE=container).
func inContainer(t *testing.T) (*Server, *container) {
	t.Helper()
	if systemFinder().getenv("LOCK_TEST_SOURCE") != sourceContainer {
		t.Skip("LOCK_TEST_SOURCE is not container")
	}
	s := Redis(t, WithControl())
	return s, s.inst.(*container)
}

func TestContainerExpires(t *testing.T) {
	t.Parallel()
	s, c := inContainer(t)
	expire := func() {
		t.Helper()
		require.True(t, s.inst.running())
		require.NoError(t, c.expire(1))
		require.Eventually(t, func() bool { return !s.inst.running() }, readyBound, 50*time.Millisecond)
	}
	expire()
	s.Restart(t, true)
	s.Freeze(t)
	expire()
}

func TestSweepRemovesExpiredContainers(t *testing.T) {
	t.Parallel()
	s, c := inContainer(t)
	leftover := func(expires time.Time) string {
		run := c.run
		run.Name += "-" + strconv.FormatInt(expires.Unix(), 10)
		run.HostPort = ""
		run.Labels = map[string]string{labelExpires: strconv.FormatInt(expires.Unix(), 10)}
		id, err := ask[string](c.engine, "Run", run)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.engine.tell("Remove", id) })
		return id
	}
	old, young := leftover(time.Now().Add(-time.Minute)), leftover(time.Now().Add(time.Minute))
	c.engine.sweep()
	require.False(t, exists(t, c.engine, old))
	require.True(t, exists(t, c.engine, young))
	require.NoError(t, client(t, s).Ping(t.Context()).Err(), "our own is not expired")
}

func TestContainerIsRemoved(t *testing.T) {
	t.Parallel()
	_, c := inContainer(t)
	var name string
	result := attempt(func(tb TB) {
		s := Redis(tb, WithPersistence())
		name = s.inst.(*container).run.Name
		s.Kill(tb)
	})
	require.Empty(t, result.failed)
	require.False(t, exists(t, c.engine, name))
}

func exists(t *testing.T, e *engine, id string) bool {
	t.Helper()
	there, err := ask[bool](e, "Exists", id)
	require.NoError(t, err)
	return there
}

func TestContainerThatExitsShowsItsLog(t *testing.T) {
	t.Parallel()
	inContainer(t)
	result := attempt(func(tb TB) { Redis(tb, WithArgs("--no-such-setting", "1")) })
	require.Contains(t, result.failed, "exited before it answered")
	require.Contains(t, result.failed, "no-such-setting", "the server's own words: %s", result.failed)
}

func TestLifetimeOutlivesTheTestBinary(t *testing.T) {
	t.Parallel()
	end, ok := t.Deadline()
	if !ok {
		require.GreaterOrEqual(t, lifetime(), 24*time.Hour)
		return
	}
	require.Greater(t, time.Now().Add(lifetime()), end)
}
