//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The guard stands by for the keeper: it kills what the keeper is the parent of when
// the keeper does not, because it has died with lockctl or was stopped. It is in a
// session of its own, where what is meant for lockctl's does not reach it. When it is
// killed itself, lockctl starts another.

// guardName is how ps shows the guard, and how the guard knows what it is.
const guardName = "lock-guard"

// guard is lockctl's end.
type guard struct {
	orders
	ended chan struct{} // closed when the guard has been reaped
}

func startGuard() (*guard, error) {
	path, err := ownExecutable()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := &exec.Cmd{
		Path: path, Args: []string{guardName},
		Stdin:       r,
		Env:         []string{}, // LOCK_URL may hold a password
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	pid, err := kin.start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	g := &guard{orders: orders{w}, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		kin.forget(pid)
		close(g.ended)
	}()
	return g, nil
}

// watch tells the guard what to kill: what the keeper is an ancestor of, and the
// process group, if there is one already, when there is no keeper any more.
func (g *guard) watch(p *process) {
	g.send(fmt.Sprintf("keeper %d %d", p.keeper.pid, p.keeper.start))
	if p.pid != 0 {
		g.send(fmt.Sprintf("group %d %d", p.command.pid, p.command.start))
	}
}

// join waits a moment for the guard's end: in a container whose first process is
// no init nobody else would reap it.
func (g *guard) join() { within(time.Second, g.ended) }

func within(d time.Duration, done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(d):
	}
}

// guardMain is the guard's life.
func guardMain() {
	// A service manager that stops everything sends its signals to the guard too.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGTSTP)
	nameProcess(guardName)
	closeInherited()
	var b book
	for {
		why := b.follow(int(os.Stdin.Fd()))
		if why == dismissed {
			return
		}
		b.end()
		if why == orphaned {
			return
		}
	}
}

// end kills until nothing is left to be seen, which may be a process that was being
// handed from a dead parent to the keeper: so it looks several times.
func (b *book) end() {
	none := 0
	for until := time.Now().Add(killLimit); none < 5 && time.Now().Before(until); time.Sleep(killAgain) {
		none++
		if killTree(b.keeper, b.group) > 0 {
			none = 0
		}
	}
}

const (
	// killLimit bounds the killing of processes that cannot be killed, such as those
	// of another user.
	killLimit = 10 * time.Second
	killAgain = 2 * time.Millisecond
)

// killGroup kills the process group of the command, unless its id has become another's,
// and reports whether there was one.
func killGroup(command ident) bool {
	return command.pid > 1 && !reused(command) && unix.Kill(-command.pid, unix.SIGKILL) == nil
}
