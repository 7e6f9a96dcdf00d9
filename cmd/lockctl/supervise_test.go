//go:build unix

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
)

// supervised is a command that runs under a supervisor in this process.
type supervised struct {
	t       *testing.T
	s       *supervisor
	lines   <-chan string
	outcome chan outcome
}

// supervise starts a shell script whose lines of output the test can wait for.
func supervise(t *testing.T, s *supervisor, script string) *supervised {
	t.Helper()
	r, w := pipe(t)
	if s.signals == nil {
		s.signals = make(chan os.Signal, 8)
	}
	v := &supervised{t: t, s: s, lines: lines(r), outcome: make(chan outcome, 1)}
	c := command{path: "/bin/sh", argv: []string{"sh", "-c", script}, env: os.Environ(), files: [3]*os.File{1: w}}
	go func() {
		out, err := s.run(c)
		_ = w.Close()
		if err != nil {
			t.Errorf("the command did not start: %v", err)
		}
		v.outcome <- out
	}()
	return v
}

func (v *supervised) line() string {
	v.t.Helper()
	return nextLine(v.t, v.lines)
}

func (v *supervised) end() outcome {
	v.t.Helper()
	select {
	case out := <-v.outcome:
		return out
	case <-time.After(hang):
		require.Fail(v.t, "the supervisor did not return")
	}
	return outcome{}
}

func long() *supervisor {
	return &supervisor{lease: newFakeLease(time.Hour), ttl: time.Hour, grace: 5 * time.Second}
}

func TestStatusIsTheCommandsOwn(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{
		"exit 0": 0, "exit 3": 3, "exit 255": 255,
		"kill -TERM $$": 143, "kill -KILL $$": 137, "kill -INT $$": 130,
	} {
		out := supervise(t, long(), script).end()
		require.Equal(t, outcome{status: want}, out, script)
	}
}

func TestCommandHasAGroupOfItsOwn(t *testing.T) {
	t.Parallel()
	v := supervise(t, long(), "echo $$; read forever < /dev/zero || exec sleep 1000")
	pid := pidOf(t, v.line())
	pgid, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, pgid)
	v.s.signals <- syscall.SIGTERM
	require.Equal(t, 143, v.end().status)
}

func TestSignalsReachTheWholeGroup(t *testing.T) {
	t.Parallel()
	v := supervise(t, long(), `
		trap "echo outer" USR1; trap 'kill -KILL $!; exit 7' TERM
		sh -c 'trap "echo inner" USR1; echo ready; while :; do sleep 0.05; done' &
		while :; do sleep 0.05; done`)
	require.Equal(t, "ready", v.line())
	v.s.signals <- syscall.SIGUSR1
	require.ElementsMatch(t, []string{"inner", "outer"}, []string{v.line(), v.line()})
	v.s.signals <- syscall.SIGTERM
	out := v.end()
	require.NoError(t, out.lost)
	require.Equal(t, 7, out.status)
}

// control looks at the deadline of the lease whether the process still runs. From the moment
// at which the process is to be killed, it has others run, one after the other: a machine that
// needs an eighth of the time that is left for one of them, or comes to none for so long, judges
// nobody. To find all processes and end them takes several times as long.
func control(t *testing.T, s *supervisor, pid int) (ran func() bool) {
	deadline, _ := s.lease.Deadline()
	_, kill := margins(s.ttl, s.ttl, s.grace)
	begin := deadline.Add(-kill)
	slow, looked := make(chan bool, 1), make(chan bool, 1)
	time.AfterFunc(time.Until(begin), func() {
		late := false
		for last := begin; last.Before(deadline); {
			_ = exec.Command("true").Run()
			now := time.Now()
			late = late || now.Sub(last) > kill/8+kill/20
			last = now
			time.Sleep(kill / 20)
		}
		slow <- late
	})
	time.AfterFunc(time.Until(deadline), func() { looked <- running(pid) })
	return func() bool {
		if <-slow {
			t.Log("this machine is too slow for a verdict")
			return false
		}
		return <-looked
	}
}

func TestStoppedBeforeTheDeadlineWhenRenewalsFail(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(8 * time.Second) // three of them for the shell to start, and five to stop
	s := &supervisor{lease: lease, ttl: 15 * time.Second, grace: time.Minute}
	v := supervise(t, s, `trap "echo asked; exit 0" TERM; echo $$; while :; do sleep 0.05; done`)
	ran := control(t, s, pidOf(t, v.line()))
	require.Equal(t, "asked", v.line())
	out := v.end()
	require.False(t, ran(), "it ran on after the deadline")
	require.ErrorIs(t, out.lost, lock.ErrExpired)
	require.True(t, out.stop)
	require.True(t, out.gone)
	require.False(t, out.killed)
}

func TestKilledBeforeTheDeadlineWhenItDoesNotListen(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(5 * time.Second) // three of them for the shell to start
	s := &supervisor{lease: lease, ttl: 6 * time.Second, grace: time.Minute}
	v := supervise(t, s, `trap "" TERM; sleep 1000 & echo $!; wait`)
	inner := pidOf(t, v.line())
	ran := control(t, s, inner)
	out := v.end()
	require.False(t, ran(), "it ran on after the deadline")
	require.ErrorIs(t, out.lost, lock.ErrExpired)
	require.True(t, out.killed)
	require.True(t, out.gone)
	require.False(t, running(inner))
}

func TestChildrenOfTheCommandGetTheGraceToo(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	s := &supervisor{lease: lease, ttl: time.Hour, grace: hang}
	file := filepath.Join(t.TempDir(), "saved")
	v := supervise(t, s, `
		sh -c 'trap "sleep 0.3; echo > `+file+`; exit" TERM; echo ready; while :; do sleep 0.05; done' &
		wait`)
	require.Equal(t, "ready", v.line())
	lease.end(lock.ErrTakenOver)
	out := v.end()
	require.ErrorIs(t, out.lost, lock.ErrTakenOver)
	require.True(t, out.gone)
	require.False(t, out.killed)
	require.FileExists(t, file)
}

func TestRemovedRecordStopsTheCommandAtOnce(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	s := &supervisor{lease: lease, ttl: time.Hour, grace: 3 * time.Second}
	v := supervise(t, s, `trap "echo asked" TERM; echo ready; while :; do sleep 0.05; done`)
	require.Equal(t, "ready", v.line())
	lease.end(lock.ErrTakenOver)
	require.Equal(t, "asked", v.line())
	out := v.end()
	require.ErrorIs(t, out.lost, lock.ErrTakenOver)
	require.True(t, out.killed)
}

func TestZeroGraceKillsAtOnce(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	s := &supervisor{lease: lease, ttl: time.Hour}
	v := supervise(t, s, `trap "echo asked" TERM; echo ready; while :; do sleep 0.05; done`)
	require.Equal(t, "ready", v.line())
	lease.end(lock.ErrSessionLost)
	out := v.end()
	require.True(t, out.killed)
	_, more := <-v.lines
	require.False(t, more, "the command was asked first")
}

func TestExpiredHoldKillsWithoutGrace(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	s := &supervisor{lease: lease, ttl: time.Hour, grace: time.Minute, renewed: make(chan struct{}), signals: make(chan os.Signal, 8)}
	v := supervise(t, s, `trap "echo asked" TERM; echo ready; while :; do sleep 0.05; done`)
	require.Equal(t, "ready", v.line())
	lease.move(time.Now().Add(-time.Second)) // as after a pause
	s.signals <- syscall.SIGCONT
	out := v.end()
	require.ErrorIs(t, out.lost, lock.ErrExpired)
	require.True(t, out.killed)
	_, more := <-v.lines
	require.False(t, more, "the command was asked first")
}

func TestRenewalsKeepTheCommandRunning(t *testing.T) {
	t.Parallel()
	for _, hinted := range []bool{true, false} {
		lease := newFakeLease(3 * time.Second)
		first := lease.deadline
		renewed := make(chan struct{}, 1)
		s := &supervisor{lease: lease, ttl: 3 * time.Second, grace: time.Second, renewed: renewed}
		file := filepath.Join(t.TempDir(), "go")
		v := supervise(t, s, `echo ready; while ! test -e `+file+`; do sleep 0.05; done; exit 5`)
		lease.move(time.Now().Add(time.Hour))
		if hinted {
			renewed <- struct{}{}
		}
		require.Equal(t, "ready", v.line())
		time.Sleep(time.Until(first) + 100*time.Millisecond)
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.Equal(t, outcome{status: 5}, v.end(), "hinted: %v", hinted)
	}
}

func TestCommandThatOutlivesTheHoldUnnoticed(t *testing.T) {
	t.Parallel()
	// The hold is over at the moment the command ends: the status does not count.
	lease := newFakeLease(time.Hour)
	s := &supervisor{lease: lease, ttl: time.Hour, grace: time.Minute}
	s.timer = time.NewTimer(time.Hour)
	s.guard, s.process = &guard{}, &process{empty: make(chan struct{})}
	close(s.process.empty) // it has left nothing behind
	lease.end(lock.ErrExpired)
	r, w := pipe(t)
	s.guard.pipe, s.process.pipe = w, w
	out := s.end(event{exited: true})
	require.ErrorIs(t, out.lost, lock.ErrExpired)
	require.False(t, out.stop)
	said, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "dismiss\n", string(said), "to one of them: the pipe is closed then")
}

func TestMarginsLeaveTimeBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ttl, worth, grace, term, kill time.Duration }{
		{15 * time.Second, 14 * time.Second, 5 * time.Second, 5 * time.Second, 200 * time.Millisecond},
		{15 * time.Second, 14 * time.Second, time.Minute, 5 * time.Second, 200 * time.Millisecond},
		{15 * time.Second, 14 * time.Second, time.Second, time.Second, 200 * time.Millisecond},
		{15 * time.Second, 14 * time.Second, 0, 200 * time.Millisecond, 200 * time.Millisecond},
		{3 * time.Second, 2900 * time.Millisecond, 5 * time.Second, time.Second, 150 * time.Millisecond},
		{300 * time.Millisecond, 290 * time.Millisecond, 5 * time.Second, 100 * time.Millisecond, 15 * time.Millisecond},
		// A renewal is worth two thirds of the TTL, and is due at half of that: the
		// command is asked to stop after it, and after another one.
		{15 * time.Second, 10 * time.Second, 5 * time.Second, 2500 * time.Millisecond, 200 * time.Millisecond},
		{15 * time.Second, 10 * time.Second, time.Second, time.Second, 200 * time.Millisecond},
		{15 * time.Second, 6 * time.Second, 5 * time.Second, 1500 * time.Millisecond, 200 * time.Millisecond},
		{15 * time.Second, 0, 5 * time.Second, 200 * time.Millisecond, 200 * time.Millisecond},
	} {
		term, kill := margins(c.ttl, c.worth, c.grace)
		require.Equal(t, c.term, term, "%v", c)
		require.Equal(t, c.kill, kill, "%v", c)
	}
}

func TestNothingIsStartedWhenTheCommandCannot(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(file, []byte("#!/no/such/interpreter\n"), 0o700))
	s := long()
	s.signals = make(chan os.Signal)
	_, err := s.run(command{path: file, argv: []string{file}})
	require.ErrorIs(t, err, os.ErrNotExist)
}
