//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// columns is how wide the terminal is, 0 where it does not say. ok: the file is one.
func columns(f *os.File) (n int, ok bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
