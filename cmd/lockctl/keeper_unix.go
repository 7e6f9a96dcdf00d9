//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The keeper starts the command and is its parent. On Linux it is the parent too of all
// that the command has started and that has lost its own parent (it is their subreaper),
// whatever process group or session they are in. So what it can still wait for is exactly
// what is left, and when lockctl dies it kills that. It says what happens:
//
//	pid 4712 91  the command runs; the time of its start
//	failed 2     it could not be started: errno
//	stopped 20   it was stopped by a signal
//	exit 3       it has ended
//	signal 15    a signal has ended it
//	gone         it has ended, and so has everything that the keeper is the parent of
//
// When the keeper itself dies, the kernel kills the command on Linux (parent-death
// signal), and lockctl ends the rest.

// keeperName is how ps shows the keeper, and how it knows what it is. Its arguments: the
// descriptors of orders and events, the executable, the command's arguments.
const keeperName = "lock-keeper"

// runHelper turns this process into the guard or the keeper if it was started
// as one, and returns otherwise.
func runHelper() {
	switch name := filepath.Base(os.Args[0]); {
	case name == guardName && len(os.Args) == 1:
		guardMain()
	case name == keeperName && len(os.Args) >= 5:
		keeperMain()
	default:
		return
	}
	os.Exit(0)
}

type keeper struct {
	events int
	begin  chan struct{}
	gone   atomic.Bool

	mu    sync.Mutex
	late  bool // the command must not start any more
	group ident
}

func (k *keeper) say(format string, args ...any) {
	_, _ = unix.Write(k.events, []byte(fmt.Sprintf(format, args...)+"\n"))
}

// keeperMain is the keeper's life.
func keeperMain() {
	// The kernel sends the parent-death signal when the thread ends that started the
	// child: this one stays.
	runtime.LockOSThread()
	in, err1 := strconv.Atoi(os.Args[1])
	out, err2 := strconv.Atoi(os.Args[2])
	if err1 != nil || err2 != nil {
		os.Exit(exitInternal)
	}
	unix.CloseOnExec(in)
	unix.CloseOnExec(out)
	nameProcess(keeperName)
	becomeSubreaper()
	// Caught, not ignored: the command would inherit that.
	notify(make(chan os.Signal, 1), append([]os.Signal{syscall.SIGTSTP}, waitSignals...))
	k := &keeper{events: out, begin: make(chan struct{}, 1)}
	go k.obey(in)
	<-k.begin
	command, err := k.start()
	if err != nil {
		errno := syscall.EINVAL
		errors.As(err, &errno)
		k.say("failed %d", int(errno))
		os.Exit(0)
	}
	if command.pid > 0 {
		k.say("pid %d %d", command.pid, command.start)
	}
	// The files are the command's: a pipe ends when the command has closed it.
	closeInherited()
	if null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil {
		for fd := range 3 {
			_ = unix.Dup2(int(null.Fd()), fd)
		}
	}
	_ = os.Chdir("/")
	k.wait(command.pid)
	select {} // until lockctl says so, or is gone
}

// start starts the command, unless it is too late for that.
func (k *keeper) start() (ident, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.late {
		return ident{}, nil
	}
	attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	dieWithParent(attr.Sys)
	pid, _, err := syscall.StartProcess(os.Args[3], os.Args[4:], attr)
	if err == nil {
		k.group = identOf(pid)
	}
	return k.group, err
}

// wait reaps, and says what becomes of the command, until there is nothing left to wait
// for.
func (k *keeper) wait(command int) {
	if command == 0 {
		k.say("signal %d", int(unix.SIGKILL))
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD
			k.gone.Store(true)
			k.say("gone")
			return
		case pid != command:
		case ws.Exited():
			k.say("exit %d", ws.ExitStatus())
		case ws.Signaled():
			k.say("signal %d", int(ws.Signal()))
		case ws.Stopped():
			k.say("stopped %d", int(ws.StopSignal()))
		}
	}
}

// obey does what lockctl says.
func (k *keeper) obey(fd int) {
	begin := func() {
		select {
		case k.begin <- struct{}{}:
		default:
		}
	}
	b := book{start: begin}
	for {
		why := b.follow(fd)
		if why == dismissed {
			os.Exit(0)
		}
		k.mu.Lock()
		k.late = true
		group := k.group
		k.mu.Unlock()
		if group.pid != 0 {
			k.end(group)
		}
		if why == orphaned {
			os.Exit(0)
		}
		begin()
	}
}

// end kills until nothing is left.
func (k *keeper) end(group ident) {
	self := identOf(os.Getpid())
	for until := time.Now().Add(killLimit); time.Now().Before(until); time.Sleep(killAgain) {
		if killTree(self, group) == 0 && k.gone.Load() {
			return
		}
	}
}
