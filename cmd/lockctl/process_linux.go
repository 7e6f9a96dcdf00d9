package main

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the kernel kill the child when its parent dies, without any
// help from us. It does not reach the child's own children. The kernel drops the setting
// for set-user-ID commands.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// becomeSubreaper makes this process the parent of those descendants that lose theirs.
func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// ownExecutable is this binary, even if its file has been replaced.
func ownExecutable() (string, error) { return "/proc/self/exe", nil }

// nameProcess shows a helper under its own name in ps and to pkill, instead of the
// "exe" that it was started as.
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// sharedClock is a clock that all processes of this machine read alike and that
// counts suspend, in nanoseconds.
func sharedClock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// onlyZombies reports whether all members of the group have ended and only wait
// to be reaped, for which a container without an init process can take for ever.
func onlyZombies(pgid int) bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return false
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if r, ok := look(pid); ok && r.group == pgid && !r.dead {
				return false
			}
		}
	}
	return true
}

// relatives are the children of this process.
type relatives struct {
	mu     sync.Mutex
	own    map[int]bool // those that it has started and waits for
	adopts bool         // all others are the command's
}

var kin = relatives{own: map[int]bool{}}

// start starts a child that somebody waits for.
func (f *relatives) start(fork func() (int, error)) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pid, err := fork()
	if err == nil {
		f.own[pid] = true
	}
	return pid, err
}

// forget is called when it has been reaped.
func (f *relatives) forget(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.own, pid)
}

// adopt makes lockctl the one that processes come to when the keeper dies, and that reaps
// what has come to it, as the first process of a container has to. As such a process it
// gets those of others too, and a program that became lockctl may have had children: then
// they are not all the command's.
func (f *relatives) adopt() {
	f.adopts = os.Getpid() != 1 && len(children(os.Getpid())) == 0
	becomeSubreaper()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			f.reap()
		}
	}()
}

func (f *relatives) reap() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pid := range children(os.Getpid()) {
		if !f.own[pid] {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// adopted is the process whose descendants, but for the exceptions, are what the command
// has started when there is no keeper; ok is false where that is not known.
func (f *relatives) adopted() (root ident, except []int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.adopts {
		return ident{}, nil, false
	}
	for pid := range f.own {
		except = append(except, pid)
	}
	return identOf(os.Getpid()), except, true
}
