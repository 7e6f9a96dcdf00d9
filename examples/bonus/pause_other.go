//go:build !unix

package main

import (
	"errors"
	"os"
)

var errNoStop = errors.New("this system has no SIGSTOP: run the example on Unix")

func pause(*os.Process) error  { return errNoStop }
func resume(*os.Process) error { return errNoStop }
