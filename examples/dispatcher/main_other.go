//go:build !unix

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "dispatcher: it kills and pauses processes (SIGKILL, SIGSTOP), which this system cannot; run it on Linux, macOS or a BSD")
	os.Exit(1)
}
