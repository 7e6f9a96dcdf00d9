package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// strays is a script whose children have left its process group in all the ways that
// there are, and do not listen to SIGTERM. Each writes its name again and again, as long
// as there is the file.
const strays = `
	export LOG=%s WRITER='trap "" TERM HUP INT; while test -e $LOG; do echo $0 >> $LOG; sleep 0.1; done'
	timeout 1000 sh -c "$WRITER" timeout &
	setsid sh -c "$WRITER" session &
	(setsid sh -c "$WRITER" daemon & exit 0)
	(env -i LOG=$LOG setsid setsid sh -c "$WRITER" bare & exit 0)
	sh -c "$WRITER" group &
	echo ready
	wait`

var strayNames = []string{"timeout", "session", "daemon", "bare", "group"}

// written are the lines of the file so far.
func written(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return strings.Fields(string(text))
}

// childNamed is the child of the process that ps shows under that name, or zero.
func childNamed(pid int, name string) int {
	for _, child := range children(pid) {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child))
		if r, ok := look(child); ok && !r.dead && strings.TrimSpace(string(comm)) == name {
			return child
		}
	}
	return 0
}

func requireChild(t *testing.T, p *proc, name string, not int) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		pid = childNamed(p.cmd.Process.Pid, name)
		return pid != 0 && pid != not
	}, hang, 5*time.Millisecond, name)
	return pid
}

func kill9(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// Whatever ends the hold, and wherever the processes of the command are: the next holder
// writes after the last of them has written.
func TestNothingOfTheCommandOutlivesTheHold(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		act    func(t *testing.T, p *proc)
		status int
		says   string
		later  bool // the next one is started when lockctl has ended
	}{
		"the tool is killed": {func(t *testing.T, p *proc) { kill9(t, p.cmd.Process.Pid) }, -1, "", false},
		"the guard is killed, and then the tool": {func(t *testing.T, p *proc) {
			guard := requireChild(t, p, guardName, 0)
			kill9(t, guard)
			requireChild(t, p, guardName, guard)
			kill9(t, p.cmd.Process.Pid)
		}, -1, "", false},
		"both are killed at once": {func(t *testing.T, p *proc) {
			kill9(t, requireChild(t, p, guardName, 0), p.cmd.Process.Pid)
		}, -1, "", false},
		"the keeper is killed": {func(t *testing.T, p *proc) {
			kill9(t, requireChild(t, p, keeperName, 0))
		}, 128 + 9, "the lock-keeper process of lockctl was killed, and sh with it", false},
		"the keeper is stopped, and the tool killed": {func(t *testing.T, p *proc) {
			keeper := requireChild(t, p, keeperName, 0)
			require.NoError(t, syscall.Kill(keeper, syscall.SIGSTOP))
			kill9(t, p.cmd.Process.Pid)
			t.Cleanup(func() { _ = syscall.Kill(keeper, syscall.SIGCONT) })
		}, -1, "", false},
		"the tool is stopped": {func(t *testing.T, p *proc) {
			p.signal(syscall.SIGSTOP)
			t.Cleanup(func() { p.signal(syscall.SIGCONT) })
		}, 0, "", false},
		// An operator lets others in at once, so the next one comes when lockctl says that
		// the command has ended.
		"the record is removed": {func(t *testing.T, p *proc) {
			removeRecord(t, p.url(), "k", tokenOf(t, p.line()))
			p.requireStatus(exitLost)
		}, exitLost, "sh was killed;", true},
		"a signal": {func(_ *testing.T, p *proc) { p.signal(syscall.SIGTERM) }, 128 + 15, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, log := "file:"+t.TempDir(), filepath.Join(t.TempDir(), "log")
			script := fmt.Sprintf(strays, log)
			require.NoError(t, os.WriteFile(log, nil, 0o600))
			t.Cleanup(func() { _ = os.Remove(log) })
			first := start(t, url, "run", "--ttl", "8s", "--grace", "300ms", "k", "--", "sh", "-c", "echo $LOCK_TOKEN; "+script)
			if !end.later {
				first.line()
			}
			var next *proc
			wait := func() {
				next = start(t, url, "run", "k", "--", "sh", "-c", `for i in $(seq 10); do echo next >> `+log+`; sleep 0.1; done`)
			}
			if !end.later {
				wait()
				require.Eventually(t, func() bool { return waits(next.cmd.Process.Pid) }, hang, 5*time.Millisecond)
			}
			require.Eventually(t, func() bool {
				lines := written(t, log)
				return !slices.ContainsFunc(strayNames, func(s string) bool { return !slices.Contains(lines, s) })
			}, hang, 5*time.Millisecond)
			require.NotContains(t, written(t, log), "next", "the hold was lost before: %s", first.errors())
			end.act(t, first)
			if next == nil {
				wait()
			}
			next.requireStatus(0)
			lines := written(t, log)
			require.GreaterOrEqual(t, slices.Index(lines, "next"), len(strayNames))
			for _, line := range lines[slices.Index(lines, "next"):] {
				require.Equal(t, "next", line, "it still writes beside the next holder")
			}
			if end.status != 0 {
				first.requireStatus(end.status)
				require.Contains(t, first.errors(), end.says)
			}
		})
	}
}

// A guard that is killed is replaced, and the command does not notice.
func TestKilledGuardIsReplaced(t *testing.T) {
	t.Parallel()
	p := start(t, "file:"+t.TempDir(), "run", "k", "--", "sh", "-c", "read end; exit 4")
	guard := 0
	for range 3 {
		last := guard
		guard = requireChild(t, p, guardName, last)
		kill9(t, guard)
	}
	requireChild(t, p, guardName, guard)
	require.NoError(t, p.stdin.Close())
	p.requireStatus(4)
	require.Empty(t, p.errors())
}

// What a command has left behind that has ended by itself is nobody's to kill.
func TestWhatIsLeftBehindStays(t *testing.T) {
	t.Parallel()
	p := start(t, "file:"+t.TempDir(), "run", "k", "--", "sh", "-c",
		"sleep 1000 >/dev/null 2>&1 & echo $!; setsid sleep 1000 >/dev/null 2>&1 & echo $!")
	for range 2 {
		pid := pidOf(t, p.line())
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		defer func() { require.True(t, running(pid)) }()
	}
	p.requireStatus(0)
	require.Empty(t, p.errors())
}

// A process id that has become another's is no reason to kill that one.
func TestOnlyTheProcessThatWasMeantIsKilled(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "sleep 1000 & wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	meant := identOf(cmd.Process.Pid)
	require.Eventually(t, func() bool { return anyLeft(meant) }, hang, time.Millisecond)
	earlier := ident{meant.pid, meant.start - 1}
	require.Zero(t, killTree(earlier, earlier))
	askTree(earlier, earlier)
	askTree(ident{}, earlier)
	r := relative{ident: earlier}
	_, ok := r.hold()
	require.False(t, ok)
	require.True(t, running(cmd.Process.Pid))
	require.True(t, anyLeft(meant))
	require.Equal(t, 1, killTree(meant, ident{}), "the child, and not the process itself")
	_ = cmd.Wait()
}

// As the first process of a container lockctl reaps what nobody else does.
func TestFirstProcessReaps(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"unshare", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil || os.Getuid() != 0 {
			t.Skip("needs root, and unshare and nsenter of util-linux")
		}
	}
	url := "file:" + t.TempDir()
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", binary, "run", "--url", url, "k", "--", "sh", "-c",
		`(sh -c "sleep 0.1 & exit 0"); (setsid sleep 0.1 &); echo ready; read go; ps -eo stat=,comm= | grep ^Z; echo end`)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	r, w := pipe(t)
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
	require.NoError(t, w.Close())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	out := lines(r)
	require.Equal(t, "ready", nextLine(t, out))
	// What somebody else has started in the container, as docker exec does, and left behind.
	first := children(cmd.Process.Pid)
	require.Len(t, first, 1)
	exec1 := exec.Command("nsenter", "-t", fmt.Sprint(first[0]), "-p", "sh", "-c", "sleep 0.1 >/dev/null & exit 0")
	require.NoError(t, exec1.Run())
	require.Eventually(t, func() bool {
		zombies := 0
		for _, r := range descendants(identOf(first[0])) {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", r.pid))
			if r.dead || strings.TrimSpace(string(comm)) == "sleep" {
				zombies++
			}
		}
		return zombies == 0
	}, hang, 10*time.Millisecond)
	_, err = in.Write([]byte("go\n"))
	require.NoError(t, err)
	require.Equal(t, "end", nextLine(t, out), "a zombie")
	require.NoError(t, cmd.Wait())
}
