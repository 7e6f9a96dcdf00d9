//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waitSignals are caught from the start. Those that do not end a wait are
// dropped until the command runs.
var waitSignals = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// runSignals are caught while the command runs, besides waitSignals.
var runSignals = []os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}

// messages is the standard error, as another file: the runtime ends a process that writes
// to a standard error which nobody reads any more, and a message must not change what
// becomes of a command. A standard output that nobody reads ends lockctl, as it should.
func messages() *os.File {
	fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.Stderr // closed; what is written to it is lost
	}
	return os.NewFile(uintptr(fd), os.Stderr.Name())
}

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
	died   bool           // when exited: by any signal
	keeper bool           // when exited: because its keeper was killed
	signal syscall.Signal // when stopped
}

// process is the command, the leader of a process group of its own, and its keeper.
type process struct {
	orders
	keeper  ident
	command ident // once it runs
	pid     int   // its id
	events  chan event
	started chan error
	empty   chan struct{} // closed when the keeper has nothing left to wait for
	ended   chan struct{} // closed when the keeper has been reaped
	quit    chan struct{} // closed when nobody listens to events any more
}

// startProcess starts the keeper, which starts the command when proceed is called, and
// reports what happens to it on events, the exit last.
func startProcess(c command) (*process, error) {
	p := &process{
		events: make(chan event, 1), started: make(chan error, 1),
		empty: make(chan struct{}), ended: make(chan struct{}), quit: make(chan struct{}),
	}
	self, err := ownExecutable()
	if err != nil {
		return nil, err
	}
	ordersR, ordersW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ordersR.Close()
	eventsR, eventsW, err := os.Pipe()
	if err != nil {
		_ = ordersW.Close()
		return nil, err
	}
	defer eventsW.Close()
	give := func() { _ = ordersW.Close(); _ = eventsR.Close() }
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		give()
		return nil, err
	}
	defer null.Close()
	var files []uintptr
	for _, f := range c.files {
		if f == nil {
			f = null
		}
		files = append(files, f.Fd())
	}
	// Ours take the lowest numbers that are free. What lockctl has inherited
	// itself keeps its number, for the command.
	var at []string
	for _, f := range []*os.File{ordersR, eventsW} {
		for isInherited(len(files)) {
			files = append(files, uintptr(len(files)))
		}
		at = append(at, strconv.Itoa(len(files)))
		files = append(files, f.Fd())
	}
	attr := &syscall.ProcAttr{Env: c.env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}}
	argv := append([]string{keeperName, at[0], at[1], c.path}, c.argv...)
	pid, err := kin.start(func() (int, error) {
		pid, _, err := syscall.StartProcess(self, argv, attr)
		return pid, err
	})
	if err != nil {
		give()
		return nil, err
	}
	p.keeper, p.orders = identOf(pid), orders{ordersW}
	go p.listen(eventsR)
	return p, nil
}

// proceed has the keeper start the command, and returns when it runs.
func (p *process) proceed() error {
	p.send("start")
	return <-p.started
}

// listen passes on what the keeper says until it has ended, and reaps it.
func (p *process) listen(r *os.File) {
	defer r.Close()
	over := false
	for sc := bufio.NewScanner(r); sc.Scan(); {
		word, number, _ := strings.Cut(sc.Text(), " ")
		n, _ := strconv.Atoi(number)
		switch word {
		case "pid":
			_, _ = fmt.Sscan(number, &p.command.pid, &p.command.start)
			p.pid = p.command.pid
			p.started <- nil
		case "failed":
			p.started <- syscall.Errno(n)
		case "stopped":
			p.tell(event{signal: syscall.Signal(n)})
		case "exit":
			over = true
			p.tell(event{exited: true, status: n})
		case "signal":
			over = true
			p.tell(event{exited: true, status: exitSignal + n, died: true, killed: syscall.Signal(n) == syscall.SIGKILL})
		case "gone":
			close(p.empty)
		}
	}
	for {
		if _, err := unix.Wait4(p.keeper.pid, nil, 0, nil); err != unix.EINTR {
			break
		}
	}
	kin.forget(p.keeper.pid)
	close(p.ended)
	close(p.started) // if it has not said anything, an event follows
	if !over {
		// The kernel has killed the command with its parent, where it does that.
		p.tell(event{exited: true, status: exitSignal + int(syscall.SIGKILL), died: true, killed: true, keeper: true})
	}
}

func (p *process) tell(e event) {
	select {
	case p.events <- e:
	case <-p.quit:
	}
}

// forget ends the reporting.
func (p *process) forget() { close(p.quit) }

// join waits a moment for the keeper's end, so that it is reaped.
func (p *process) join() { within(time.Second, p.ended) }

// forward passes a signal on to the command's process group.
func (p *process) forward(sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok && p.pid > 1 {
		_ = unix.Kill(-p.pid, s)
	}
}

// root is the ancestor of everything that the command has started, without those that
// begin with the exceptions; ok is false when there is none that is known.
func (p *process) root() (root ident, except []int, ok bool) {
	select {
	case <-p.ended:
		return kin.adopted()
	default:
		return p.keeper, nil, true
	}
}

// terminate asks the command, and everything that it has started, to end.
func (p *process) terminate() {
	root, except, _ := p.root()
	askTree(root, p.command, except...)
}

// kill ends the command and everything that it has started, as far as that can be reached.
func (p *process) kill() {
	root, except, _ := p.root()
	killTree(root, p.command, except...)
}

// left reports whether something of what the command has started still runs, and whether
// that is known for all that lockctl can see on this system.
func (p *process) left() (left, known bool) {
	select {
	case <-p.empty:
		return !seesAll && p.groupAlive(), true
	default:
	}
	select {
	case <-p.ended:
	default:
		return true, true
	}
	if root, except, ok := kin.adopted(); ok {
		left = anyLeft(root, except...)
		if !left { // a second look finds what was handed to another parent during the first
			left = anyLeft(root, except...)
		}
		return left, true
	}
	return p.groupAlive(), false
}

// groupAlive reports whether a process of the group still runs.
func (p *process) groupAlive() bool {
	return p.pid > 1 && unix.Kill(-p.pid, 0) != unix.ESRCH && !onlyZombies(p.pid)
}
