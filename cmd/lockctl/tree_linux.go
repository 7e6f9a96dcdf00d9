package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// seesAll: lockctl knows when nothing is left of what the command has started.
const seesAll = true

// ident is a process: its id alone may be another's a moment later.
type ident struct {
	pid   int
	start uint64 // in clock ticks since the boot
}

// relative is a descendant of a process.
type relative struct {
	ident
	group int
	dead  bool // it only waits to be reaped
}

// look reads what the kernel says of a process.
func look(pid int) (relative, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return relative{}, false // ended meanwhile
	}
	// pid (name) state ppid pgrp ... starttime is the 22nd; the name may contain anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return relative{}, false
	}
	group, _ := strconv.Atoi(string(fields[2]))
	start, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	return relative{ident{pid, start}, group, fields[0][0] == 'Z' || fields[0][0] == 'X'}, true
}

func identOf(pid int) ident {
	r, _ := look(pid)
	return r.ident
}

// children are the ids of the children of a process. A parent that ends meanwhile hands
// its children on, and a new one may be missing: who must know all asks again.
func children(pid int) []int {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	var pids []int
	for _, file := range tasks {
		list, _ := os.ReadFile(file)
		for _, word := range bytes.Fields(list) {
			if pid, err := strconv.Atoi(string(word)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// descendants are the children of the process, theirs and so on, without those that
// begin with one of the exceptions.
func descendants(root ident, except ...int) []relative {
	if r, ok := look(root.pid); !ok || r.ident != root {
		return nil
	}
	var found []relative
	known := map[int]bool{root.pid: true}
	for next := []int{root.pid}; len(next) > 0; {
		pid := next[0]
		next = next[1:]
		for _, child := range children(pid) {
			if known[child] || slices.Contains(except, child) {
				continue
			}
			known[child] = true
			if r, ok := look(child); ok {
				found, next = append(found, r), append(next, child)
			}
		}
	}
	return found
}

// handle refers to one process and no other, if the kernel has such references.
type handle struct{ pid, fd int }

// hold opens a handle on the process, or reports that it has ended.
func (r relative) hold() (handle, bool) {
	fd, err := unix.PidfdOpen(r.pid, 0)
	if err != nil {
		fd = -1 // an old kernel, or too many files
	}
	if now, ok := look(r.pid); !ok || now.ident != r.ident {
		handle{r.pid, fd}.close()
		return handle{}, false
	}
	return handle{r.pid, fd}, true
}

func (h handle) signal(sig unix.Signal) {
	if h.fd < 0 {
		_ = unix.Kill(h.pid, sig)
		return
	}
	_ = unix.PidfdSendSignal(h.fd, sig, nil, 0)
}

func (h handle) close() {
	if h.fd >= 0 {
		_ = unix.Close(h.fd)
	}
}

// killTree kills the descendants of root and returns how many there were. It stops them
// all before it kills the first, so that none starts another one, or goes on to its next
// step, because the one has ended for which it has waited. Without a root it kills the
// process group of the command.
func killTree(root, command ident, except ...int) int {
	if r, ok := look(root.pid); !ok || r.ident != root || r.dead {
		if killGroup(command) && !onlyZombies(command.pid) {
			return 1
		}
		return 0
	}
	held := map[ident]handle{}
	member := false
	for more := true; more; {
		more = false
		for _, r := range descendants(root, except...) {
			if _, known := held[r.ident]; known || r.dead {
				continue
			}
			h, ok := r.hold()
			if !ok {
				continue
			}
			h.signal(unix.SIGSTOP)
			held[r.ident] = h
			more = true
			member = member || r.group == command.pid
		}
	}
	if member { // so the group is still ours, and the kernel lets no new member slip through
		_ = unix.Kill(-command.pid, unix.SIGKILL)
	}
	for _, h := range held {
		h.signal(unix.SIGKILL)
		h.close()
	}
	return len(held)
}

// askTree sends SIGTERM to the descendants of root, or without it to the process group.
// Stopped processes are continued, since they could not answer.
func askTree(root, command ident, except ...int) {
	all := descendants(root, except...)
	member := func(r relative) bool { return r.group == command.pid }
	if root.pid == 0 && command.pid > 1 && !reused(command) || slices.ContainsFunc(all, member) {
		_ = unix.Kill(-command.pid, unix.SIGTERM)
		_ = unix.Kill(-command.pid, unix.SIGCONT)
	}
	for _, r := range all {
		if r.dead || member(r) {
			continue
		}
		if h, ok := r.hold(); ok {
			h.signal(unix.SIGTERM)
			h.signal(unix.SIGCONT)
			h.close()
		}
	}
}

// reused reports whether the id of a process has become another's.
func reused(p ident) bool {
	r, ok := look(p.pid)
	return ok && r.ident != p
}

// anyLeft reports whether a descendant of root still runs.
func anyLeft(root ident, except ...int) bool {
	return slices.ContainsFunc(descendants(root, except...), func(r relative) bool { return !r.dead })
}
