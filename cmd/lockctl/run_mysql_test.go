//go:build linux

package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

// onMySQL runs the test with both forms of the MySQL backend on both servers, which
// write each commit to the disk: lockctl warns of those that don't.
func onMySQL(t *testing.T, test func(t *testing.T, url, key string)) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB, ...servertest.Option) *servertest.Server{
		"MariaDB": servertest.MariaDB, "MySQL": servertest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, servertest.WithPersistence())
			for _, mode := range []string{"table", "row"} {
				t.Run(mode, func(t *testing.T) {
					t.Parallel()
					test(t, server.URL()+"?mode="+mode, "lockctl "+t.Name())
				})
			}
		})
	}
}

// One command after the other, each with a larger token; the next is refused while
// one runs, and gets the key when lockctl is killed.
func TestRunOnMySQL(t *testing.T) {
	onMySQL(t, func(t *testing.T, url, key string) {
		status, out, errs := run(t, "", "run", "--url", url, key, "--", "sh", "-c", `echo "$LOCK_TOKEN"; exit 7`)
		require.Equal(t, 7, status, errs)
		token := tokenOf(t, out)

		first := start(t, url, "run", "--ttl", "6s", "--label", "the nightly job", key, "--", "sh", "-c", family)
		command, inner := pidOf(t, first.line()), pidOf(t, first.line())
		next := tokenOf(t, first.line())
		require.Greater(t, next, token)
		status, _, errs = run(t, url, "run", "--no-wait", key, "--", "echo", "started")
		require.Equal(t, exitHeld, status, errs)
		require.Contains(t, errs, "the nightly job")

		first.signal(syscall.SIGKILL)
		requireGone(t, command)
		requireGone(t, inner)
		first.requireStatus(-1)
		second := start(t, url, "run", "--ttl", "3s", "--wait", hang.String(), key, "--", "sh", "-c", "echo $LOCK_TOKEN")
		require.Greater(t, tokenOf(t, second.line()), next)
		second.requireStatus(0)
		require.Empty(t, second.errors())

		// A record that is removed by force stops the command.
		p := start(t, url, "run", "--ttl", "6s", key, "--", "sh", "-c",
			`exec 2>/dev/null; trap "echo asked; exit 0" TERM; echo $LOCK_TOKEN; while :; do sleep 0.05; done`)
		removeRecord(t, url, key, tokenOf(t, p.line()))
		require.Equal(t, "asked", p.line())
		p.requireStatus(exitLost)
		requireOneLine(t, p.errors())
	})
}
