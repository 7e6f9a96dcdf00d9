package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// binary is lockctl, built once for all tests that run it as a process.
var binary string

func TestMain(m *testing.M) {
	conformance.Child(checkOf)
	runHelper() // tests in this process start them too
	unignoreSignals()
	atOnce(12)
	os.Exit(testMain(m))
}

// atOnce raises -parallel: nearly all that these tests do is to wait for processes.
func atOnce(n int) {
	flag.Parse()
	given := flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int)
	if err := flag.Set("test.parallel", strconv.Itoa(max(n, given))); err != nil {
		panic(err)
	}
}

// unignoreSignals makes the tests independent of who runs them: under nohup, or in
// the background of a script, signals are ignored from the start, and lockctl would
// honour that. A signal that is caught here is back at its default in children.
func unignoreSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockctl-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "lockctl")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	build := exec.Command("go", "build", "-trimpath", "-o", binary, ".")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building lockctl:", err)
		return 1
	}
	return servertest.Main(m)
}
