//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// lockctl has two helpers, which are processes of this binary: the keeper, which is
// the parent of the command, and the guard. Both kill the command with all that it has
// started when lockctl itself cannot: when lockctl was killed, and when it is stopped or
// hangs while the lease runs out. It tells them what to do through a pipe:
//
//	start              the keeper: start the command
//	keeper 4711 88     the guard: the keeper's process id and the time of its start
//	group 4712 91      the same of the command, whose process group has that id
//	until 93000000000  kill at this time of sharedClock; replaces the last one
//	dismiss            exit, and kill nobody
//
// The end of the pipe without dismiss means that lockctl has died.

// orders is lockctl's end of the pipe.
type orders struct{ pipe *os.File }

// killIn sets the instant of the kill, from now. The clock is read by the caller
// after the deadline was, so that a pause in between makes it earlier, not later.
func (o orders) killIn(d time.Duration) {
	o.send("until " + strconv.FormatInt(sharedClock()+int64(d), 10))
}

// dismiss lets the helper go without killing anybody.
func (o orders) dismiss() {
	o.send("dismiss")
	_ = o.pipe.Close()
}

// send never blocks for long: a helper that somebody has stopped does not read.
func (o orders) send(line string) {
	_ = o.pipe.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = o.pipe.WriteString(line + "\n")
}

// book is what a helper has been told.
type book struct {
	keeper ident
	group  ident
	until  int64
	start  func()

	pending []byte
}

// ending is why a helper has to act.
type ending int

const (
	dismissed ending = iota
	expired          // it is time to kill
	orphaned         // lockctl has died
)

// follow reads from the pipe until there is something to do. What is in the pipe is
// always read before the clock, so that a helper which was held up itself does not act on
// an old instant. It may be called again after expired.
func (b *book) follow(fd int) ending {
	for {
		timeout := -1
		if b.until != 0 {
			// At least once a second, since poll(2) does not count suspend.
			left := max(0, b.until-sharedClock())
			timeout = int(min(left/int64(time.Millisecond), 1000))
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, timeout)
		if err == unix.EINTR {
			continue
		}
		if n == 0 && err == nil {
			if b.until-sharedClock() < int64(time.Millisecond) {
				b.until = 0
				return expired
			}
			continue
		}
		buf := make([]byte, 1024)
		k, err := unix.Read(fd, buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil || k == 0 {
			return orphaned
		}
		b.pending = append(b.pending, buf[:k]...)
		for {
			line, rest, ok := bytes.Cut(b.pending, []byte("\n"))
			if !ok {
				break
			}
			b.pending = rest
			word, number, _ := bytes.Cut(line, []byte(" "))
			switch string(word) {
			case "dismiss":
				return dismissed
			case "start":
				b.start()
			case "keeper":
				_, _ = fmt.Sscan(string(number), &b.keeper.pid, &b.keeper.start)
			case "group":
				_, _ = fmt.Sscan(string(number), &b.group.pid, &b.group.start)
			case "until":
				b.until, _ = strconv.ParseInt(string(number), 10, 64)
			}
		}
	}
}

// isInherited reports whether lockctl got the descriptor from its parent. Go
// opens its own files close-on-exec; what came through execve is not.
func isInherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// closeInherited closes what lockctl's parent left open for its children. The
// command gets those files; a helper must not keep a pipe among them open.
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
