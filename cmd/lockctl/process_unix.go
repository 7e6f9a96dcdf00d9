//go:build unix

package main

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// waitSignals are caught from the start. Those that do not end a wait are
// dropped until the command runs.
var waitSignals = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// runSignals are caught while the command runs, besides waitSignals.
var runSignals = []os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}

// notify catches the signals, except those that whoever started lockctl wants
// ignored, as nohup does with SIGHUP: the command inherits that.
func notify(c chan<- os.Signal, signals []os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	// Without this the runtime ends the process when it writes a message to a
	// broken pipe. To ignore SIGPIPE instead would be inherited by the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// endsWait: the signal asks lockctl to end, as long as there is no command to
// pass it to.
func endsWait(sig os.Signal) bool {
	return sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2 &&
		sig != syscall.SIGWINCH && sig != syscall.SIGTSTP && sig != syscall.SIGCONT
}

func isContinue(sig os.Signal) bool { return sig == syscall.SIGCONT }

func isStop(sig os.Signal) bool { return sig == syscall.SIGTSTP }

func signalNumber(sig os.Signal) int {
	if n, ok := sig.(syscall.Signal); ok {
		return int(n)
	}
	return 0
}

// event is a change of state of the command.
type event struct {
	exited bool
	status int            // when exited: as the shell counts
	killed bool           // when exited: by SIGKILL
	signal syscall.Signal // when stopped
}

// process is the command, the leader of a process group of its own.
type process struct {
	pid    int
	events chan event
	gone   chan struct{} // closed when nobody listens to events any more
	ready  *os.File      // see starter_unix.go
	failed *os.File
}

// startProcess starts the process that proceed turns into the command, and
// reports what happens to it on events, the exit last.
func startProcess(c command) (*process, error) {
	p := &process{events: make(chan event, 1), gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread ends that
		// started the child, so this thread stays until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.fork(c)
		started <- err
		if err == nil {
			p.wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// wait reports until the child has ended and been reaped.
func (p *process) wait() {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(p.pid, &ws, unix.WUNTRACED, nil)
		var e event
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			// Somebody else reaped it; its status is unknown.
			e = event{exited: true, status: exitInternal}
		case ws.Exited():
			e = event{exited: true, status: ws.ExitStatus()}
		case ws.Signaled():
			e = event{exited: true, status: exitSignal + int(ws.Signal()), killed: ws.Signal() == unix.SIGKILL}
		case ws.Stopped():
			e = event{signal: ws.StopSignal()}
		default:
			continue
		}
		select {
		case p.events <- e:
		case <-p.gone:
			return
		}
		if e.exited {
			return
		}
	}
}

// forget ends the reporting.
func (p *process) forget() {
	close(p.gone)
	_ = p.ready.Close()
	_ = p.failed.Close()
}

// forward passes a signal on to the whole process group.
func (p *process) forward(sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok {
		_ = unix.Kill(-p.pid, s)
	}
}

// terminate asks the whole process group to end. Stopped processes are continued,
// since they could not answer.
func (p *process) terminate() {
	p.forward(syscall.SIGTERM)
	p.forward(syscall.SIGCONT)
}

// kill ends the whole process group.
func (p *process) kill() { p.forward(syscall.SIGKILL) }

// groupAlive reports whether a process of the group still runs.
func (p *process) groupAlive() bool {
	return unix.Kill(-p.pid, 0) != unix.ESRCH && !onlyZombies(p.pid)
}
