//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// onEveryBackend runs the test once per backend that several processes share,
// each time with a URL and a key that nobody else uses.
func onEveryBackend(t *testing.T, test func(t *testing.T, url, key string)) {
	t.Parallel()
	key := "lockctl " + t.Name() + " " + strconv.FormatInt(time.Now().UnixNano(), 36)
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		test(t, "file:"+t.TempDir(), key)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, servertest.SharedRedis(t).URL(), key)
	})
}

// removeRecord does what an operator does with a record by force.
func removeRecord(t *testing.T, url, key string, token uint64) {
	t.Helper()
	b, err := backend.DefaultMux.Open(context.Background(), url, backend.OpenConfig{TTL: time.Minute})
	require.NoError(t, err)
	defer b.Close()
	f, ok := b.(backend.ForceReleaser)
	require.True(t, ok)
	require.NoError(t, f.ForceRelease(context.Background(), key, token))
}

func tokenOf(t *testing.T, s string) uint64 {
	t.Helper()
	token, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	require.NoError(t, err)
	return token
}

func TestCommandSeesKeyAndGrowingToken(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		var last uint64
		for range 3 {
			status, out, errs := run(t, url, "run", key, "--", "sh", "-c", `echo "$LOCK_KEY"; echo "$LOCK_TOKEN"`)
			require.Zero(t, status, errs)
			require.Empty(t, errs, "silent on success")
			got := strings.Split(out, "\n")
			require.Len(t, got, 2)
			require.Equal(t, key, got[0])
			token := tokenOf(t, got[1])
			require.Greater(t, token, last)
			last = token
		}
	})
}

func TestHeldKeyIsRefusedWithDetails(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		holder := start(t, url, "run", "--label", "the nightly job", key, "--", "sh", "-c", "echo held; read end")
		require.Equal(t, "held", holder.line())

		status, out, errs := run(t, url, "run", "--no-wait", key, "--", "echo", "started")
		require.Equal(t, exitHeld, status)
		require.Empty(t, out)
		host, err := os.Hostname()
		require.NoError(t, err)
		require.Contains(t, errs, strconv.Quote(key)+` is held by "the nightly job"`)
		require.Contains(t, errs, fmt.Sprintf("pid %d", holder.cmd.Process.Pid))
		require.Contains(t, errs, host)
		require.Regexp(t, ` since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`, errs)
		require.Regexp(t, `for another \d+(\.\d+)?s unless renewed`, errs)
		requireOneLine(t, errs)

		status, _, errs = run(t, url, "run", "--wait", "0", key, "--", "echo", "started")
		require.Equal(t, exitHeld, status, errs)

		status, out, errs = run(t, url, "run", "--wait", "2s", key, "--", "echo", "started")
		require.Equal(t, exitHeld, status, errs)
		require.Empty(t, out)
		require.Contains(t, errs, "the nightly job")
		require.Contains(t, errs, "gave up after 2s")

		require.NoError(t, holder.stdin.Close())
		require.Equal(t, 1, holder.status(), "read at the end of its input")
		status, _, errs = run(t, url, "run", "--no-wait", key, "--", "true")
		require.Zero(t, status, errs)
	})
}

func TestWaitingCommandStartsWhenTheFirstEnds(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		first := start(t, url, "run", key, "--", "sh", "-c", "echo $LOCK_TOKEN; read end; exit 4")
		token := tokenOf(t, first.line())
		var waiting []*proc
		for _, args := range [][]string{{"--wait", hang.String()}, nil} {
			args = append(append([]string{"run"}, args...), key, "--", "sh", "-c", "echo $LOCK_TOKEN")
			waiting = append(waiting, start(t, url, args...))
		}
		_, err := first.stdin.Write([]byte("\n"))
		require.NoError(t, err)
		first.requireStatus(4)
		var tokens []uint64
		for _, p := range waiting {
			tokens = append(tokens, tokenOf(t, p.line()))
			p.requireStatus(0)
			require.Empty(t, p.errors())
		}
		slices.Sort(tokens)
		require.Less(t, token, tokens[0])
		require.Less(t, tokens[0], tokens[1])
	})
}

// A shell that has a child of its own, and says both process ids and the token.
const family = `sleep 1000 & echo $$; echo $!; echo $LOCK_TOKEN; wait`

func TestKilledToolTakesTheCommandWithIt(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		first := start(t, url, "run", "--ttl", "6s", key, "--", "sh", "-c", family)
		command, inner := pidOf(t, first.line()), pidOf(t, first.line())
		token := tokenOf(t, first.line())

		first.signal(syscall.SIGKILL)
		requireGone(t, command)
		requireGone(t, inner)
		first.requireStatus(-1)
		second := start(t, url, "run", "--ttl", "3s", "--wait", hang.String(), key, "--", "sh", "-c", "echo $LOCK_TOKEN")
		require.Greater(t, tokenOf(t, second.line()), token)
		second.requireStatus(0)
	})
}

func TestFrozenToolLosesTheHoldAndTheCommand(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		first := start(t, url, "run", "--ttl", "6s", key, "--", "sh", "-c", `exec 2>/dev/null; trap "" TERM; `+family)
		command, inner := pidOf(t, first.line()), pidOf(t, first.line())
		token := tokenOf(t, first.line())

		first.signal(syscall.SIGSTOP)
		// Another holder starts after the TTL. The command is gone by then, though
		// lockctl itself cannot do anything about it.
		second := start(t, url, "run", key, "--", "sh", "-c",
			fmt.Sprintf(`case $(sed 's/.*) //' /proc/%d/stat 2>/dev/null) in ""|Z*|X*) ;; *) echo overlap ;; esac; echo $LOCK_TOKEN`, inner))
		require.Greater(t, tokenOf(t, second.line()), token)
		second.requireStatus(0)
		require.False(t, running(command))
		require.False(t, running(inner))

		first.signal(syscall.SIGCONT)
		first.requireStatus(exitLost)
		require.Contains(t, first.errors(), "was lost")
	})
}

func TestRemovedRecordStopsTheCommand(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		p := start(t, url, "run", "--ttl", "6s", key, "--", "sh", "-c",
			`exec 2>/dev/null; trap "echo asked; exit 0" TERM; echo $LOCK_TOKEN; while :; do sleep 0.05; done`)
		removeRecord(t, url, key, tokenOf(t, p.line()))
		require.Equal(t, "asked", p.line())
		p.requireStatus(exitLost)
		requireOneLine(t, p.errors())
		require.Contains(t, p.errors(), "removed or taken over")
	})
}

func TestCommandThatDoesNotListenIsKilledOnLoss(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		p := start(t, url, "run", "--ttl", "15s", "--grace", "3s", key, "--", "sh", "-c",
			`trap "echo asked" TERM; echo $$; echo $LOCK_TOKEN; while :; do sleep 0.05; done`)
		command := pidOf(t, p.line())
		removeRecord(t, url, key, tokenOf(t, p.line()))
		require.Equal(t, "asked", p.line())
		p.requireStatus(exitLost)
		require.False(t, running(command))
		require.Contains(t, p.errors(), "sh was killed")
	})
}

func TestServerThatGoesAwayStopsTheCommand(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	p := start(t, server.URL(), "run", "--ttl", "9s", "k", "--", "sh", "-c",
		`exec 2>/dev/null; trap "echo asked; exit 0" TERM; echo ready; while :; do sleep 0.05; done`)
	require.Equal(t, "ready", p.line())
	server.Freeze(t)
	require.Equal(t, "asked", p.line())
	server.Resume(t) // the release can reach it
	p.requireStatus(exitLost)
	require.Contains(t, p.errors(), "no renewal was confirmed in time; sh was stopped")
	status, _, errs := run(t, server.URL(), "run", "--wait", hang.String(), "k", "--", "true")
	require.Zero(t, status, errs)
}

// A holder of whom the server told once says nothing when the server is away.
func TestWaitWhenTheServerGoesAway(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	taken(t, server.URL(), "k")
	p := start(t, server.URL(), "wait", "--timeout", "6s", "k")
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer client.Close()
	require.Eventually(t, func() bool {
		channels, err := client.PubSubChannels(t.Context(), "*").Result()
		return err == nil && len(channels) > 0 || p.ended()
	}, hang, time.Millisecond)
	server.Kill(t)
	p.requireStatus(exitUnavailable)
	require.Equal(t, 1, strings.Count(p.said(), "does not answer, and is asked again"), p.said())
	require.NotContains(t, p.said(), "held")
}

func TestLossThatOnlyTheReleaseNotices(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		// The TTL is so long that no renewal comes before the end.
		p := start(t, url, "run", "--ttl", "60s", key, "--", "sh", "-c", `echo $LOCK_TOKEN; read end`)
		removeRecord(t, url, key, tokenOf(t, p.line()))
		_, err := p.stdin.Write([]byte("\n"))
		require.NoError(t, err)
		p.requireStatus(exitLost)
		requireOneLine(t, p.errors())
		require.Contains(t, p.errors(), "sh ended successfully")
	})
}

func TestSignalsAreForwarded(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		p := start(t, url, "run", key, "--", "sh", "-c",
			`trap "echo hup" HUP; trap "echo usr1" USR1; trap "echo usr2" USR2; trap "echo quit" QUIT; trap "echo int" INT; trap "exit 9" TERM
			echo ready; while :; do sleep 0.05; done`)
		require.Equal(t, "ready", p.line())
		for name, sig := range map[string]os.Signal{
			"hup": syscall.SIGHUP, "usr1": syscall.SIGUSR1, "usr2": syscall.SIGUSR2, "quit": syscall.SIGQUIT, "int": syscall.SIGINT,
		} {
			p.signal(sig)
			require.Equal(t, name, p.line())
		}
		p.signal(syscall.SIGTERM)
		p.requireStatus(9)

		p = start(t, url, "run", "--no-wait", key, "--", "sh", "-c", "echo ready; exec sleep 1000")
		require.Equal(t, "ready", p.line())
		p.signal(syscall.SIGTERM)
		p.requireStatus(128 + 15)
		require.Empty(t, p.errors())

		p = start(t, url, "run", "--no-wait", key, "--", "sh", "-c", "kill -KILL $$")
		p.requireStatus(128 + 9)
	})
}

func TestSuspendedCommandGoesOn(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		p := start(t, url, "run", "--ttl", "60s", key, "--", "sh", "-c",
			`echo $$; exec sleep 1000`)
		command := pidOf(t, p.line())
		p.signal(syscall.SIGTSTP)
		require.Eventually(t, func() bool { return stopped(command) && stopped(p.cmd.Process.Pid) }, hang, 5*time.Millisecond)
		p.signal(syscall.SIGCONT)
		require.Eventually(t, func() bool { return !stopped(command) && !stopped(p.cmd.Process.Pid) }, hang, 5*time.Millisecond)
		p.signal(syscall.SIGTERM)
		p.requireStatus(128 + 15)
	})
}

func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && stat[strings.LastIndexByte(string(stat), ')')+2] == 'T'
}

func TestInterruptedWaitLeavesNothing(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		holder := start(t, url, "run", key, "--", "sh", "-c", "echo held; read end")
		require.Equal(t, "held", holder.line())
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			waiter := start(t, url, "run", key, "--", "echo", "started")
			require.Eventually(t, func() bool { return waits(waiter.cmd.Process.Pid) }, hang, 5*time.Millisecond)
			waiter.signal(syscall.SIGUSR1) // meant for the command: dropped
			waiter.signal(sig)
			waiter.requireStatus(128 + int(sig))
			requireOneLine(t, waiter.errors())
			_, more := <-waiter.stdout
			require.False(t, more, "the command was started")
		}
		require.NoError(t, holder.stdin.Close())
		holder.status()
		status, _, errs := run(t, url, "run", "--no-wait", key, "--", "true")
		require.Zero(t, status, errs)
	})
}

// waits reports whether the process has begun to talk to the server or to watch
// the directory, which it does after it has set up its signals. Other sockets are the C
// library's, which looks for somebody who knows the user's name.
func waits(pid int) bool {
	// The command line is the last thing that execve changes: before, the files of
	// the old program may still be there.
	proc := "/proc/" + strconv.Itoa(pid)
	cmdline, err := os.ReadFile(proc + "/cmdline")
	if err != nil || !strings.HasPrefix(string(cmdline), binary) {
		return false
	}
	entries, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return false
	}
	four, _ := os.ReadFile(proc + "/net/tcp")
	six, _ := os.ReadFile(proc + "/net/tcp6")
	connections := strings.Fields(string(four) + string(six))
	for _, e := range entries {
		to, _ := os.Readlink(proc + "/fd/" + e.Name())
		inode, isSocket := strings.CutPrefix(strings.TrimSuffix(to, "]"), "socket:[")
		if isSocket && slices.Contains(connections, inode) || strings.Contains(to, "inotify") {
			return true
		}
	}
	return false
}

func TestCommandThatDoesNotExistLeavesTheKeyFree(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url, key string) {
		dir := t.TempDir()
		plain := filepath.Join(dir, "plain")
		require.NoError(t, os.WriteFile(plain, []byte("text"), 0o600))
		orphan := filepath.Join(dir, "orphan")
		require.NoError(t, os.WriteFile(orphan, []byte("#!/no/such/interpreter\n"), 0o700))
		garbage := filepath.Join(dir, "garbage")
		require.NoError(t, os.WriteFile(garbage, []byte("\x00\x01\x02"), 0o700))
		for command, want := range map[string]int{
			"no-such-command-anywhere":   exitNotFound,
			filepath.Join(dir, "absent"): exitNotFound,
			orphan:                       exitNotFound,
			plain:                        exitNotExec,
			dir:                          exitNotExec,
			garbage:                      exitNotExec,
		} {
			status, _, errs := run(t, url, "run", "--no-wait", key, "--", command, "argument")
			require.Equal(t, want, status, "%s: %s", command, errs)
			requireOneLine(t, errs)
			status, _, errs = run(t, url, "run", "--no-wait", key, "--", "true")
			require.Zero(t, status, "after %s: %s", command, errs)
		}
	})
}
