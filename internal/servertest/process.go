package servertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// exitBound is how long a killed process may take to be gone, and a stopped one
// to stand still.
const exitBound = 10 * time.Second

// process is a server that runs as a child of this process.
type process struct {
	kind    *kind
	launch  launch
	temp    *tempDir
	logPath string
	fresh   bool // the data directory is empty

	mu       sync.Mutex
	cmd      *exec.Cmd
	exited   chan struct{} // closed when cmd was waited for; nil before the first start
	logStart int64         // where the log of this run begins
}

func newProcess(k *kind, l launch) (*process, error) {
	temp, err := newTempDir(k.name, l.disk)
	if err != nil {
		return nil, err
	}
	l.dir = filepath.Join(temp.path, "data")
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		return nil, errors.Join(err, temp.remove())
	}
	return &process{kind: k, launch: l, temp: temp, logPath: filepath.Join(temp.path, "log"), fresh: true}, nil
}

func (p *process) start() error {
	if p.fresh && p.kind.prepare != nil {
		ctx, cancel := context.WithTimeout(context.Background(), p.kind.bound())
		defer cancel()
		if err := p.kind.prepare(ctx, p.launch); err != nil {
			return fmt.Errorf("cannot prepare its data: %w", err)
		}
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := log.Stat()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	line := p.kind.command(p.launch)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = p.launch.dir
	cmd.Stdout, cmd.Stderr = log, log
	ownGroup(cmd)

	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		// The parent-death signal is sent when the thread that started the child
		// ends, not when the process does (prctl(2)). So one thread stays with the
		// child for its whole life.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- errors.Join(err, log.Close())
		if err == nil {
			_ = cmd.Wait() // its log tells why it ended
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.fresh = false
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.exited, p.logStart = cmd, exited, info.Size()
	return nil
}

func (p *process) running() bool { return p.pid() != 0 }

func (p *process) pid() int {
	cmd := p.child()
	if cmd == nil {
		return 0
	}
	return cmd.Process.Pid
}

// child returns the command if it was started and has not been waited for.
func (p *process) child() *exec.Cmd {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited == nil {
		return nil
	}
	select {
	case <-p.exited:
		return nil
	default:
		return p.cmd
	}
}

func (p *process) kill() error {
	cmd := p.child()
	if cmd == nil {
		return nil
	}
	if err := killGroup(cmd); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(exitBound):
		return fmt.Errorf("process %d is still there %v after it was killed", cmd.Process.Pid, exitBound)
	}
}

func (p *process) freeze() error {
	cmd := p.child()
	if cmd == nil {
		return os.ErrProcessDone
	}
	return freezeGroup(cmd)
}

func (p *process) resume() error {
	cmd := p.child()
	if cmd == nil {
		return os.ErrProcessDone
	}
	return resumeGroup(cmd)
}

func (p *process) wipe() error {
	if err := os.RemoveAll(p.launch.dir); err != nil {
		return err
	}
	p.fresh = true
	return os.Mkdir(p.launch.dir, 0o700)
}

func (p *process) remove() error {
	return errors.Join(p.kill(), p.temp.remove())
}

// log returns the end of what the server wrote since its last start.
func (p *process) log() string {
	const most, read = 4 << 10, 64 << 10
	f, err := os.Open(p.logPath)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	p.mu.Lock()
	from := max(p.logStart, info.Size()-read)
	p.mu.Unlock()
	text := make([]byte, max(0, info.Size()-from))
	n, err := f.ReadAt(text, from)
	if n == 0 {
		return fmt.Sprintf("(it wrote nothing: %v)", err)
	}
	kept := withoutStacks(string(text[:n]))
	return kept[max(0, len(kept)-most):]
}

// withoutStacks leaves out the frames of Java's stack traces, of which one about a
// member that is down is as long as everything else.
func withoutStacks(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "\tat ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (p *process) String() string {
	return fmt.Sprintf("%s (pid %d)", p.launch.binary, p.pid())
}
