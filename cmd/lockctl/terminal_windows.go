package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// columns is how wide the console is. ok: the file is one.
func columns(f *os.File) (n int, ok bool) {
	var mode uint32
	if windows.GetConsoleMode(windows.Handle(f.Fd()), &mode) != nil {
		return 0, false
	}
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &info) != nil {
		return 0, true
	}
	return int(info.Window.Right-info.Window.Left) + 1, true
}
