package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal is the master of a pseudo-terminal with a session on its other side.
type terminal struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	lines  <-chan string
	done   chan struct{}
}

// onTerminal runs a program as the leader of a session on a new terminal.
func onTerminal(t *testing.T, url string, argv ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	// No echo: what the test types does not come back as output.
	mode, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	require.NoError(t, err)
	mode.Lflag &^= unix.ECHO
	require.NoError(t, unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, mode))

	v := &terminal{t: t, master: master, done: make(chan struct{})}
	v.cmd = &exec.Cmd{
		Path: argv[0], Args: argv, Env: append(os.Environ(), "LOCK_URL="+url),
		Stdin: slave, Stdout: slave, Stderr: slave,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	}
	require.NoError(t, v.cmd.Start())
	require.NoError(t, slave.Close())
	v.lines = lines(master)
	go func() {
		defer close(v.done)
		_ = v.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = v.cmd.Process.Kill()
		<-v.done
		_ = master.Close()
	})
	return v
}

func (v *terminal) line() string {
	v.t.Helper()
	return strings.TrimRight(nextLine(v.t, v.lines), "\r")
}

func (v *terminal) press(keys string) {
	v.t.Helper()
	_, err := v.master.WriteString(keys)
	require.NoError(v.t, err)
}

func (v *terminal) requireStatus(want int) {
	v.t.Helper()
	select {
	case <-v.done:
	case <-time.After(hang):
		require.Fail(v.t, "the session does not end")
	}
	require.Equal(v.t, want, v.cmd.ProcessState.ExitCode())
}

func TestCommandReadsTheTerminal(t *testing.T) {
	t.Parallel()
	v := onTerminal(t, "file:"+t.TempDir(), binary, "run", "k", "--",
		"sh", "-c", `read a; read b </dev/tty; echo "got $a and $b"; exit 5`)
	v.press("one\ntwo\n")
	require.Equal(t, "got one and two", v.line())
	v.requireStatus(5)
}

// Whoever waits at a terminal is told for whom, and nobody else is.
func TestWaitOnATerminalSaysForWhom(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		holder := start(t, url, "run", "--quiet", "--label", "nightly report", "k", "--", "sh", "-c", "echo up; exec cat")
		require.Equal(t, "up", holder.line())
		v := onTerminal(t, url, binary, "run", "--quiet", "k", "--", "echo", "got it")
		silent := start(t, url, "run", "--quiet", "k", "--", "true")
		said := v.line()
		for strings.Contains(said, "still trying") {
			said = v.line()
		}
		require.Contains(t, said, `lockctl: waiting for "k", which is held by "nightly report" (host `)
		require.NoError(t, holder.stdin.Close())
		require.Equal(t, "got it", v.line())
		v.requireStatus(exitOK)
		silent.requireStatus(exitOK)
		require.NotContains(t, silent.said(), "waiting for")
	})
}

func TestCheckOnATerminalShowsABar(t *testing.T) {
	t.Parallel()
	v := onTerminal(t, "file:"+t.TempDir(), binary, "check", "--only", "release")
	first := v.line() // the bar is drawn again and again on one line
	require.Regexp(t, `^\[[#.]{20}\] \d+ of (\d+) rules, 0 broken, \d+s`, first)
	n := regexp.MustCompile(`of (\d+) rules`).FindStringSubmatch(first)[1]
	require.Contains(t, first, "[####################] "+n+" of "+n+" rules")
	v.requireStatus(exitOK)

	p := start(t, "file:"+t.TempDir(), "check", "--only", "release")
	p.requireStatus(exitOK)
	require.NotContains(t, p.said(), "[#")
}

func TestInterruptKeyReachesTheCommand(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"before it needs the terminal": `trap "echo int; exit 6" INT; echo ready; while :; do sleep 0.05; done`,
		"when it has the terminal":     `read a; trap "echo int; exit 6" INT; echo ready; while :; do sleep 0.05; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := onTerminal(t, "file:"+t.TempDir(), binary, "run", "k", "--", "sh", "-c", script)
			v.press("\n")
			require.Equal(t, "ready", v.line())
			v.press("\x03")
			require.Equal(t, "int", v.line())
			v.requireStatus(6)
		})
	}
}

func TestTerminalGoesBackToTheShell(t *testing.T) {
	t.Parallel()
	// The shell can read again after a command that had the foreground.
	v := onTerminal(t, "file:"+t.TempDir(), "/bin/sh", "-c",
		binary+` run k -- sh -c 'read a; echo "command $a"'; read b; echo "shell $b"`)
	v.press("one\n")
	require.Equal(t, "command one", v.line())
	v.press("two\n")
	require.Equal(t, "shell two", v.line())
	v.requireStatus(0)
}

func TestSuspendKeyAndResume(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is missing; it is the shell with job control here")
	}
	for name, before := range map[string]string{
		"before it needs the terminal": `echo $$; read go < "$GO"`,
		"when it has the terminal":     `read a; echo $$`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// No loop around sleep: a shell that stops between vfork and exec hangs.
			fifo := filepath.Join(t.TempDir(), "go")
			require.NoError(t, unix.Mkfifo(fifo, 0o600))
			v := onTerminal(t, "file:"+t.TempDir(), bash, "-c", `set -m
				GO=`+fifo+` `+binary+` run k -- sh -c '`+before+`; while read b; do echo "got $b"; done; exit 6'
				echo "stopped $?"
				read c; echo "shell $c"
				fg >/dev/null
				echo "ended $?"`)
			if strings.HasPrefix(before, "read") {
				v.press("\n")
			}
			command := pidOf(t, v.line())
			v.press("\x1a")
			for {
				// bash itself tells of the stopped job in between.
				if line := v.line(); strings.HasPrefix(line, "stopped") {
					require.Equal(t, "stopped "+strconv.Itoa(128+int(unix.SIGSTOP)), line)
					break
				}
			}
			require.True(t, stopped(command))
			v.press("y\n")
			require.Equal(t, "shell y", v.line())
			if strings.Contains(before, "$GO") {
				require.NoError(t, os.WriteFile(fifo, []byte("go\n"), 0))
			}
			v.press("z\n")
			require.Equal(t, "got z", v.line())
			v.press("\x04")
			require.Equal(t, "ended 6", v.line())
		})
	}
}
