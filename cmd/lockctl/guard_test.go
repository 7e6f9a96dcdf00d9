//go:build unix

package main

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guarded starts a process group of a shell and its child, with a guard that
// watches it, and returns the child's process id.
func guardedProcess(t *testing.T) (*guard, *process, int) {
	t.Helper()
	g, err := startGuard()
	require.NoError(t, err)
	r, w := pipe(t)
	p, err := startProcess(command{
		path: "/bin/sh", argv: []string{"sh", "-c", "sleep 1000 & echo $!; wait"},
		files: [3]*os.File{1: w},
	})
	require.NoError(t, err)
	t.Cleanup(func() { p.kill(); p.forget() })
	require.NoError(t, p.proceed())
	inner := pidOf(t, nextLine(t, lines(r)))
	g.watch(p)
	return g, p, inner
}

func requireKilled(t *testing.T, p *process, inner int) {
	t.Helper()
	for limit := time.After(hang); ; {
		select {
		case e := <-p.events:
			if !e.exited {
				continue // it is stopped first
			}
			require.True(t, e.killed)
			requireGone(t, inner)
			return
		case <-limit:
			require.Fail(t, "the guard did not kill")
		}
	}
}

func TestGuardKillsTheGroupWhenTheToolDies(t *testing.T) {
	t.Parallel()
	g, p, inner := guardedProcess(t)
	require.NoError(t, g.pipe.Close()) // all that a dead process does
	requireKilled(t, p, inner)
}

func TestGuardKillsTheGroupWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	g, p, inner := guardedProcess(t)
	defer g.dismiss()
	g.killIn(50 * time.Millisecond)
	requireKilled(t, p, inner)
}

func TestGuardFollowsTheLatestDeadline(t *testing.T) {
	t.Parallel()
	g, p, inner := guardedProcess(t)
	g.killIn(2 * time.Second) // long enough for the next order to come in time
	g.killIn(time.Hour)
	time.Sleep(3 * time.Second)
	require.True(t, running(inner))
	g.dismiss()
	require.Empty(t, p.events)
}

func TestDismissedGuardKillsNobody(t *testing.T) {
	t.Parallel()
	g, p, inner := guardedProcess(t)
	g.killIn(2 * time.Second)
	g.dismiss()
	time.Sleep(3 * time.Second)
	require.True(t, running(inner))
	require.Empty(t, p.events)
}

func TestGuardReadsOrdersBeforeTheClock(t *testing.T) {
	t.Parallel()
	// A guard that was held up finds an old instant and a newer one behind it.
	r, w := pipe(t)
	past := strconv.FormatInt(sharedClock()-int64(time.Second), 10)
	_, err := w.WriteString("group 77 5\nuntil " + past + "\nuntil 1" + past + "\ndis")
	require.NoError(t, err)
	_, err = w.WriteString("miss\n")
	require.NoError(t, err)
	var b book
	require.Equal(t, dismissed, b.follow(int(r.Fd())))
	require.Equal(t, ident{77, 5}, b.group)
}
