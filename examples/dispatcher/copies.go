//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mortiselock/lock"
)

// setup is what a copy has to know. It finds it in its environment.
type setup struct {
	URL   string        `json:"url"`
	Tasks string        `json:"tasks"` // a directory, or what names of tables begin with
	TTL   time.Duration `json:"ttl"`
	Check check         `json:"check"` // what is compared
	Takes time.Duration `json:"takes"` // how long a task takes
}

const setupVariable = "DISPATCHER_COPY"

// inSQL reports whether the tasks are in the database of the locks.
func (s setup) inSQL() bool { return strings.HasPrefix(s.URL, "mysql:") }

func (s setup) open() (store, error) {
	if s.inSQL() {
		return openSQL(s.URL, s.Tasks, s.Check)
	}
	return openFile(s.Tasks, s.Check), nil
}

// runCopy is the whole process of one copy, until a signal. It returns at once where this
// process is none.
func runCopy() {
	text := os.Getenv(setupVariable)
	if text == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() { // it ends with the process that has started it
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	err := beCopy(ctx, text)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dispatcher:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func beCopy(ctx context.Context, text string) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	locker, err := lock.Open(ctx, s.URL, &lock.Options{TTL: s.TTL})
	for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil {
		pause(ctx, 100*time.Millisecond)
		locker, err = lock.Open(ctx, s.URL, &lock.Options{TTL: s.TTL})
	}
	if err != nil {
		return err
	}
	defer locker.Close()
	tasks, err := s.open()
	if err != nil {
		return err
	}
	defer tasks.Close()
	return work(ctx, locker, tasks, func(task int) bool {
		time.Sleep(s.Takes)
		return !bad(task)
	})
}

// bad reports whether a task fails, however often it is tried.
func bad(task int) bool { return task%20 == 0 }

// copies are the processes that run.
type copies struct {
	setup string
	died  context.CancelCauseFunc

	mu      sync.Mutex
	running map[int]*process
}

type process struct {
	*os.Process
	ended chan struct{}
}

// newCopies also returns a context that ends when a copy ends by itself.
func newCopies(ctx context.Context, s setup) (context.Context, *copies, error) {
	text, err := json.Marshal(s)
	ctx, died := context.WithCancelCause(ctx)
	return ctx, &copies{setup: string(text), died: died, running: map[int]*process{}}, err
}

func (c *copies) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), setupVariable+"="+c.setup)
	cmd.Stderr = os.Stderr
	// In a group of its own, so that the system wakes a copy that is stopped, with SIGHUP,
	// when this process dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd.Process, make(chan struct{})}
	c.running[p.Pid] = p
	go func() {
		defer close(p.ended)
		err := cmd.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.running[p.Pid] == p {
			c.died(fmt.Errorf("a copy has ended by itself: %v", err))
		}
	}()
	return nil
}

// find returns a copy that runs. Without stays, it may end from now on.
func (c *copies) find(pid int, stays bool) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.running[pid]
	if p == nil {
		return nil, fmt.Errorf("the process %d is no copy of this trial", pid)
	}
	if !stays {
		delete(c.running, pid)
	}
	return p, nil
}

// runs reports whether the process is a copy that was not killed.
func (c *copies) runs(pid int) bool {
	_, err := c.find(pid, true)
	return err == nil
}

// kill ends a copy as nothing can prevent, and starts another.
func (c *copies) kill(pid int) error {
	p, err := c.find(pid, false)
	if err != nil {
		return err
	}
	err = p.Kill()
	<-p.ended
	return errors.Join(err, c.start())
}

// stop returns when the copy stands still: some of its threads may run for a while after the
// signal was sent.
func (c *copies) stop(pid int) error {
	if err := c.signal(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		_, err := syscall.Wait4(pid, nil, syscall.WUNTRACED, nil)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func (c *copies) signal(pid int, s syscall.Signal) error {
	p, err := c.find(pid, true)
	if err != nil {
		return err
	}
	return p.Signal(s)
}

// end has the copies stop, and waits for them.
func (c *copies) end() {
	c.mu.Lock()
	running := c.running
	c.running = nil
	c.mu.Unlock()
	for _, p := range running {
		_ = p.Signal(syscall.SIGCONT)
		_ = p.Signal(syscall.SIGTERM)
	}
	for _, p := range running {
		<-p.ended
	}
	c.died(nil)
}
