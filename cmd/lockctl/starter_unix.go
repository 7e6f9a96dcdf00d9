//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The command begins as a third process of this binary, the starter, which
// becomes the command (execve) when it is told to. In between the guard learns
// the process group. Without that step a lockctl that is killed or stopped just
// after the start would leave the command's children to nobody.

// starterName is how the starter knows what it is. Its arguments: the descriptors
// of ready and failed, the executable, the command's arguments.
const starterName = "lock-start"

// runHelper turns this process into the guard or the starter if it was started
// as one, and returns otherwise.
func runHelper() {
	switch name := filepath.Base(os.Args[0]); {
	case name == guardName && len(os.Args) == 1:
		guardMain()
		os.Exit(exitOK)
	case name == starterName && len(os.Args) > 4:
		starterMain()
	}
}

// fork starts the starter. It fills in p.pid, and p.ready and p.failed for
// proceed.
func (p *process) fork(c command) error {
	self, err := ownExecutable()
	if err != nil {
		return err
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer readyR.Close()
	failedR, failedW, err := os.Pipe()
	if err != nil {
		_ = readyW.Close()
		return err
	}
	defer failedW.Close()
	p.ready, p.failed = readyW, failedR

	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
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
	for _, f := range []*os.File{readyR, failedW} {
		for isInherited(len(files)) {
			files = append(files, uintptr(len(files)))
		}
		at = append(at, strconv.Itoa(len(files)))
		files = append(files, f.Fd())
	}
	attr := &syscall.ProcAttr{Env: c.env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}}
	dieWithParent(attr.Sys)
	argv := append([]string{starterName, at[0], at[1], c.path}, c.argv...)
	p.pid, _, err = syscall.StartProcess(self, argv, attr)
	if err != nil {
		_ = readyW.Close()
		_ = failedR.Close()
	}
	return err
}

// proceed lets the starter become the command and returns when it has.
func (p *process) proceed() error {
	if _, err := p.ready.WriteString("x"); err != nil {
		return err
	}
	buf := make([]byte, 16)
	n, _ := p.failed.Read(buf)
	if n == 0 {
		return nil // closed by a successful execve
	}
	errno, err := strconv.Atoi(string(buf[:n]))
	if err != nil {
		return fmt.Errorf("the starter says %q", buf[:n])
	}
	return syscall.Errno(errno)
}

// starterMain waits for lockctl's word and becomes the command. It never returns.
func starterMain() {
	runtime.LockOSThread()
	ready, err1 := strconv.Atoi(os.Args[1])
	failed, err2 := strconv.Atoi(os.Args[2])
	if err1 != nil || err2 != nil {
		os.Exit(exitInternal)
	}
	unix.CloseOnExec(ready)
	unix.CloseOnExec(failed)
	dieWithParentToo()
	buf := make([]byte, 1)
	for {
		n, err := unix.Read(ready, buf)
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			os.Exit(exitInternal) // lockctl has died, or thought better of it
		}
		break
	}
	err := syscall.Exec(os.Args[3], os.Args[4:], os.Environ())
	errno, ok := err.(syscall.Errno)
	if !ok {
		errno = syscall.EINVAL
	}
	_, _ = unix.Write(failed, []byte(strconv.Itoa(int(errno))))
	os.Exit(exitNotExec)
}

// isInherited reports whether lockctl got the descriptor from its parent. Go
// opens its own files close-on-exec; what came through execve is not.
func isInherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}
