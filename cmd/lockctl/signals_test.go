//go:build linux

package main

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The commands for operators end with the status of the signal that ended them.
func TestSignalsAreStatuses(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			url := "file:" + t.TempDir()
			taken(t, url, "k")
			for _, args := range [][]string{{"wait", "k"}, {"check", "--budget", "10m"}} {
				p := start(t, url, args...)
				require.Eventually(t, func() bool { return waits(p.cmd.Process.Pid) }, hang, 5*time.Millisecond, "%v", args)
				p.signal(sig)
				p.requireStatus(128 + int(sig))
				assert.Contains(t, p.errors(), "ended by a signal: "+sig.String())
			}
			for _, args := range [][]string{{"inspect", "k"}, {"ls"}, {"compare"}} {
				silent, asked := silentServer(t)
				if args[0] == "compare" {
					args = append(args, "redis://"+silent)
				}
				p := start(t, "redis://"+silent, args...)
				<-asked
				p.signal(sig)
				p.requireStatus(128 + int(sig))
				assert.Contains(t, p.errors(), "ended by a signal: "+sig.String())
			}
		})
	}
}

// silentServer accepts connections, and says that it has, and never answers.
func silentServer(t *testing.T) (addr string, asked <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	said := make(chan struct{})
	go func() {
		first := true
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			if first {
				first = false
				close(said)
			}
		}
	}()
	return l.Addr().String(), said
}

// What cannot be printed is a status of its own, and no lost key.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full")
	}
	defer full.Close()
	url := "file:" + t.TempDir()
	taken(t, url, "k")
	for _, args := range [][]string{{"inspect", "k"}, {"ls"}, {"compare"}} {
		p := startTo(t, full, url, args...)
		p.requireStatus(exitInternal)
		assert.Contains(t, p.errors(), "the output cannot be written: no space left on device; look at where it goes")
	}
}
