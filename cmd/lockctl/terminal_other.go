//go:build !unix && !windows

package main

import "os"

// columns is how wide the terminal is. Here no file is known to be one.
func columns(*os.File) (n int, ok bool) { return 0, false }
