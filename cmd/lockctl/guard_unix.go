//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The guard is a second process of this binary that kills the command's process
// group when lockctl itself cannot: when lockctl was killed, and when it is
// stopped or hangs while the lease runs out. The parent-death signal of Linux
// does neither: it reaches only the command, not what the command has started,
// and only at lockctl's death. The two talk through a pipe:
//
//	group 4711         the process group to kill
//	until 93000000000  kill it at this time of sharedClock; replaces the last one
//	dismiss            do nothing any more
//
// The end of the pipe without dismiss means that lockctl has died.

// guardName is how ps shows the guard, and how the guard knows what it is.
const guardName = "lock-guard"

// guard is lockctl's end.
type guard struct {
	pipe  *os.File
	ended chan struct{} // closed when the guard has been reaped
}

// startGuard starts the guard in a session of its own, where the signals of the
// terminal do not reach it.
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
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return nil, err
	}
	g := &guard{pipe: w, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(g.ended)
	}()
	return g, nil
}

func (g *guard) watch(pgid int) { g.send("group " + strconv.Itoa(pgid)) }

// killIn sets the instant of the kill, from now. The clock is read by the caller
// after the deadline was, so that a pause in between makes it earlier, not later.
func (g *guard) killIn(d time.Duration) {
	g.send("until " + strconv.FormatInt(sharedClock()+int64(d), 10))
}

// dismiss lets the guard go without killing anybody.
func (g *guard) dismiss() {
	g.send("dismiss")
	_ = g.pipe.Close()
}

// join waits a moment for the guard's end: in a container whose first process is
// no init nobody else would reap it.
func (g *guard) join() {
	select {
	case <-g.ended:
	case <-time.After(time.Second):
	}
}

// send never blocks for long: a guard that somebody has stopped does not read.
func (g *guard) send(line string) {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = g.pipe.WriteString(line + "\n")
}

// guardMain is the guard's life.
func guardMain() {
	// A service manager that stops everything sends its signals to the guard too.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGTSTP)
	nameGuard()
	closeInherited()
	var pgid int
	var until int64
	if !followOrders(int(os.Stdin.Fd()), &pgid, &until) && pgid > 1 {
		_ = unix.Kill(-pgid, unix.SIGKILL)
	}
}

// followOrders reads from the pipe until the guard is dismissed (true), or has to
// kill (false). What is in the pipe is always read before the clock, so that a
// guard which was held up itself does not act on an old instant.
func followOrders(fd int, pgid *int, until *int64) bool {
	var pending []byte
	for {
		timeout := -1
		if *until != 0 {
			// At least once a second, since poll(2) does not count suspend.
			left := max(0, *until-sharedClock())
			timeout = int(min(left/int64(time.Millisecond), 1000))
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, timeout)
		if err == unix.EINTR {
			continue
		}
		if n == 0 && err == nil {
			if *until-sharedClock() < int64(time.Millisecond) {
				return false
			}
			continue
		}
		buf := make([]byte, 1024)
		k, err := unix.Read(fd, buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil || k == 0 {
			return false
		}
		pending = append(pending, buf[:k]...)
		for {
			line, rest, ok := bytes.Cut(pending, []byte("\n"))
			if !ok {
				break
			}
			pending = rest
			word, number, _ := bytes.Cut(line, []byte(" "))
			switch string(word) {
			case "dismiss":
				return true
			case "group":
				*pgid, _ = strconv.Atoi(string(number))
			case "until":
				*until, _ = strconv.ParseInt(string(number), 10, 64)
			}
		}
	}
}

// closeInherited closes what lockctl's parent left open for its children. The
// command gets those files; the guard must not keep a pipe among them open.
func closeInherited() {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		if isInherited(fd) {
			_ = unix.Close(fd)
		}
	}
}
