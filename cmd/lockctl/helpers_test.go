//go:build unix

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hang is far beyond anything that a test waits for.
const hang = 2 * time.Minute

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

func pidOf(t *testing.T, line string) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	return pid
}

// running reports whether the process exists and is no zombie.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return !os.IsNotExist(err)
	}
	state := string(stat)[strings.LastIndexByte(string(stat), ')')+2]
	return state != 'Z' && state != 'X'
}

func requireGone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return !running(pid) }, hang, 5*time.Millisecond, "process %d still runs", pid)
}

// lines passes the lines of r on, and ends with it.
func lines(r io.Reader) <-chan string {
	out := make(chan string, 64)
	go func() {
		defer close(out)
		for sc := bufio.NewScanner(r); sc.Scan(); {
			out <- sc.Text()
		}
	}()
	return out
}

func nextLine(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case s, ok := <-from:
		require.True(t, ok, "the output ended")
		return s
	case <-time.After(hang):
		require.Fail(t, "no line of output")
	}
	return ""
}

// proc is a running lockctl.
type proc struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout <-chan string
	done   chan struct{}

	mu     sync.Mutex
	stderr bytes.Buffer
}

func (p *proc) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

// start runs lockctl with LOCK_URL set to url.
func start(t *testing.T, url string, args ...string) *proc {
	t.Helper()
	return startIn(t, nil, url, args...)
}

// startIn is start, in a process group or session of its own.
func startIn(t *testing.T, attr *syscall.SysProcAttr, url string, args ...string) *proc {
	t.Helper()
	r, w := pipe(t)
	p := startWith(t, "", attr, w, url, args...)
	require.NoError(t, w.Close())
	p.stdout = lines(r)
	return p
}

// startTo is start, with the standard output in a file.
func startTo(t *testing.T, stdout *os.File, url string, args ...string) *proc {
	t.Helper()
	return startWith(t, "", nil, stdout, url, args...)
}

// startAt is start in a directory.
func startAt(t *testing.T, dir, url string, args ...string) *proc {
	t.Helper()
	return startWith(t, dir, nil, nil, url, args...)
}

func startWith(t *testing.T, dir string, attr *syscall.SysProcAttr, stdout *os.File, url string, args ...string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "LOCK_URL="+url)
	p.cmd.Dir, p.cmd.SysProcAttr = dir, attr
	p.cmd.Stderr = p
	p.cmd.WaitDelay = time.Second // for what has outlived lockctl with its files
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// url is where the locks are.
func (p *proc) url() string {
	p.t.Helper()
	last := p.cmd.Env[len(p.cmd.Env)-1]
	return strings.TrimPrefix(last, "LOCK_URL=")
}

func (p *proc) line() string {
	p.t.Helper()
	return nextLine(p.t, p.stdout)
}

func (p *proc) signal(sig os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(sig))
}

// ended reports whether the process is gone, without waiting for it.
func (p *proc) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// status waits for the end and returns the exit status.
func (p *proc) status() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(hang):
		require.Fail(p.t, "lockctl does not end", "stderr: %s", p.errors())
	}
	return p.cmd.ProcessState.ExitCode()
}

// said is what lockctl has written to standard error.
func (p *proc) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// errors is the same, without that the machine is slow, and that the server of the test
// keeps nothing.
func (p *proc) errors() string {
	return forgetful.ReplaceAllString(slowness.ReplaceAllString(p.said(), ""), "")
}

var forgetful = regexp.MustCompile(`(?m)^lockctl: warning: redislock: the server keeps no append-only file: .*\n`)

var slowness = regexp.MustCompile(`(?m)^lockctl: (still trying to reach|\d+( of \d+)? rules, \d+ broken,) .*\n`)

// requireStatus waits for the end, and shows stderr when the status is another.
func (p *proc) requireStatus(want int) {
	p.t.Helper()
	status := p.status()
	require.Equal(p.t, want, status, "%s; stderr: %s", p.cmd.ProcessState, p.errors())
}

// run runs lockctl to its end and returns its status, output and messages.
func run(t *testing.T, url string, args ...string) (int, string, string) {
	t.Helper()
	p := start(t, url, args...)
	if err := p.stdin.Close(); !errors.Is(err, os.ErrClosed) { // that is what it says when lockctl has ended
		require.NoError(t, err)
	}
	var out []string
	for line := range p.stdout {
		out = append(out, line)
	}
	return p.status(), strings.Join(out, "\n"), p.errors()
}

// requireOneLine: the tool has said one thing, and nobody else anything.
func requireOneLine(t *testing.T, errs string) {
	t.Helper()
	require.True(t, strings.HasPrefix(errs, "lockctl: "), errs)
	require.Equal(t, 1, strings.Count(errs, "\n"), errs)
}
