//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// The commands for operators end with the status of the signal that ended them.
func TestSignalsAreStatuses(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			url := "file:" + t.TempDir()
			taken(t, url, "k")
			for _, args := range [][]string{{"wait", "k"}, {"check", "--budget", "10m"}} {
				t.Run(args[0], func(t *testing.T) {
					t.Parallel()
					p := start(t, url, args...)
					require.Eventually(t, func() bool { return waits(p.cmd.Process.Pid) }, hang, 5*time.Millisecond, "%v", args)
					p.signal(sig)
					p.requireStatus(128 + int(sig))
					assert.Contains(t, p.errors(), "ended by a signal: "+sig.String())
				})
			}
			for _, args := range [][]string{{"inspect", "k"}, {"ls"}, {"compare"}} {
				t.Run(args[0], func(t *testing.T) {
					t.Parallel()
					silent, asked := silentServer(t)
					if args[0] == "compare" {
						args = append(args, "redis://"+silent)
					}
					p := start(t, "redis://"+silent, args...)
					<-asked
					p.signal(sig)
					p.requireStatus(128 + int(sig))
					assert.Contains(t, p.errors(), "ended by a signal: "+sig.String())
				})
			}
		})
	}
}

// A check that is ended early blames no rule for that: what was under way was not tried.
// The processes of the suite get the signals of a terminal too.
func TestInterruptedCheckBreaksNothing(t *testing.T) {
	t.Parallel()
	redis := servertest.SharedRedis(t).URL()
	for i, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGINT, syscall.SIGTERM} {
		t.Run(fmt.Sprint(i, " ", sig), func(t *testing.T) {
			t.Parallel()
			url := "file:" + t.TempDir()
			if i%2 == 1 {
				url = redis + "?prefix=" + unique() + ":"
			}
			file := filepath.Join(t.TempDir(), "report")
			p := startIn(t, &syscall.SysProcAttr{Setpgid: true}, url, "check", "--budget", "10m", "--format", "json", "--output", file)
			require.Eventually(t, func() bool { return waits(p.cmd.Process.Pid) }, hang, 5*time.Millisecond)
			time.Sleep(time.Duration(i) * 700 * time.Millisecond) // other rules, at other places
			require.NoError(t, syscall.Kill(-p.cmd.Process.Pid, sig))
			p.requireStatus(128 + int(sig))
			assert.Contains(t, p.errors(), "ended by a signal: "+sig.String()+". Incomplete: the check was interrupted. What was not tried by then says nothing.")
			assert.NotContains(t, p.errors(), "broken")
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var rep conformance.Report
			require.NoError(t, json.Unmarshal(text, &rep))
			cut := 0
			for _, r := range rep.Results {
				assert.NotEqual(t, conformance.Fail, r.Verdict, "%s: %s", r.Rule, r.Evidence)
				if strings.Contains(r.Evidence, "not tried to its end: the run was cancelled: ended by a signal: "+sig.String()) {
					cut++
				}
			}
			assert.NotZero(t, cut, "nothing was under way: %s", text)
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
	for _, args := range [][]string{
		{"inspect", "k"}, {"inspect", "--json", "k"}, {"inspect", "--json", "free"},
		{"ls"}, {"ls", "--json"}, {"wait", "--json", "free"}, {"wait", "--json", "--timeout", "0", "k"},
		{"unlock", "--json", "k", "--token", "1"}, {"unlock", "--json", "free", "--token", "1"},
		{"compare"}, {"compare", "--format", "json"}, {"compare", "--format", "markdown"}, {"version"},
		{"check", "--only", "HandsOut", "--budget", "1s"}, {"check", "--only", "HandsOut", "--budget", "1s", "--format", "json"},
		{"unlock", "--json", "k", "--token", fmt.Sprint(inspected(t, url, "k").Token)}, // the last, since it ends it
	} {
		p := startTo(t, full, url, args...)
		p.requireStatus(exitInternal)
		assert.Contains(t, p.errors(), "the output cannot be written: no space left on device; look at where it goes")
	}
}
