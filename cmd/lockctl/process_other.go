//go:build !unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// Without process groups and Unix signals lockctl passes an interrupt on by its
// console, ends a command that lost its hold without asking it first, and cannot
// end it when lockctl itself is killed.

var waitSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

var runSignals []os.Signal

func notify(c chan<- os.Signal, signals []os.Signal) {
	if len(signals) > 0 {
		signal.Notify(c, signals...)
	}
}

func endsWait(os.Signal) bool   { return true }
func isContinue(os.Signal) bool { return false }
func isStop(os.Signal) bool     { return false }

func signalNumber(sig os.Signal) int {
	if n, ok := sig.(syscall.Signal); ok {
		return int(n)
	}
	return 0
}

type event struct {
	exited bool
	status int
	killed bool
	died   bool
	keeper bool
	signal syscall.Signal
}

type process struct {
	pid    int
	handle *os.Process
	events chan event
	empty  chan struct{} // nil
}

func startProcess(c command) (*process, error) {
	cmd := &exec.Cmd{Path: c.path, Args: c.argv, Env: c.env}
	// A nil *os.File in an interface would not be nil.
	if c.files[0] != nil {
		cmd.Stdin = c.files[0]
	}
	if c.files[1] != nil {
		cmd.Stdout = c.files[1]
	}
	if c.files[2] != nil {
		cmd.Stderr = c.files[2]
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, handle: cmd.Process, events: make(chan event, 1)}
	go func() {
		status := exitInternal
		_ = cmd.Wait()
		if cmd.ProcessState != nil {
			status = cmd.ProcessState.ExitCode()
		}
		p.events <- event{exited: true, status: status}
	}()
	return p, nil
}

// seesAll: lockctl knows nothing of what the command has started.
const seesAll = false

func (p *process) proceed() error           { return nil }
func (p *process) forget()                  {}
func (p *process) join()                    {}
func (p *process) dismiss()                 {}
func (p *process) killIn(time.Duration)     {}
func (p *process) forward(os.Signal)        {} // the console has already told every process
func (p *process) terminate()               { _ = p.handle.Kill() }
func (p *process) kill()                    { _ = p.handle.Kill() }
func (p *process) left() (left, known bool) { return false, true }

type guard struct{ ended chan struct{} }

func startGuard() (*guard, error)   { return &guard{}, nil }
func (*guard) watch(*process)       {}
func (*guard) killIn(time.Duration) {}
func (*guard) join()                {}
func (*guard) dismiss()             {}
func runHelper()                    {}

// messages is the standard error.
func messages() *os.File { return os.Stderr }

type relatives struct{}

var kin relatives

func (*relatives) adopt() {}

type jobControl struct{}

func newJobControl(*process, chan<- os.Signal) *jobControl { return &jobControl{} }

func (*jobControl) signal(os.Signal) bool  { return false }
func (*jobControl) stopped(syscall.Signal) {}
func (*jobControl) close()                 {}
