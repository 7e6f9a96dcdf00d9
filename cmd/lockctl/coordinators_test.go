//go:build linux

package main

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestRunOnCoordinators: the tool on etcd and ZooKeeper, whose leases and sessions
// have limits of their own for the TTL.
func TestRunOnCoordinators(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"etcd":      func(t *testing.T) string { return servertest.SharedEtcdCurrent(t).URL() + "/lockctl" },
		"zookeeper": func(t *testing.T) string { return servertest.SharedZooKeeper(t).URL() + "?prefix=lockctl" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			token := func() uint64 {
				status, out, errs := run(t, url, "run", "--ttl", "8s", "growing", "--", "sh", "-c", `echo $LOCK_TOKEN`)
				require.Zero(t, status, errs)
				require.Empty(t, errs, "silent on success")
				return tokenOf(t, out)
			}
			first := token()
			require.Greater(t, token(), first)

			// Renewed again and again, it is not asked to stop.
			long := start(t, url, "run", "--ttl", "8s", "long", "--", "sh", "-c", "sleep 12; echo done")

			holder := start(t, url, "run", "--ttl", "8s", "--label", "the nightly job", "held", "--", "sh", "-c", "echo held; read end")
			require.Equal(t, "held", holder.line())
			status, _, errs := run(t, url, "run", "--no-wait", "held", "--", "true")
			require.Equal(t, exitHeld, status)
			require.Contains(t, errs, "the nightly job")
			status, _, errs = run(t, url, "run", "--wait", "3s", "held", "--", "true")
			require.Equal(t, exitHeld, status)
			require.Contains(t, errs, "the nightly job", "a waiter is told who holds the key, too")
			require.Contains(t, errs, "gave up after 3s")
			waiter := start(t, url, "run", "--ttl", "8s", "held", "--", "echo", "got it")
			holder.signal(syscall.SIGKILL) // and nobody tells the server
			require.Equal(t, "got it", waiter.line())
			waiter.requireStatus(0)

			p := start(t, url, "run", "--ttl", "8s", "taken", "--", "sh", "-c",
				`exec 2>/dev/null; trap "echo asked; exit 0" TERM; echo $LOCK_TOKEN; while :; do sleep 0.05; done`)
			b, err := backend.DefaultMux.Open(context.Background(), url, backend.OpenConfig{TTL: 8 * time.Second})
			require.NoError(t, err)
			defer b.Close()
			require.NoError(t, b.(backend.ForceReleaser).ForceRelease(t.Context(), "taken", tokenOf(t, p.line())))
			require.Equal(t, "asked", p.line())
			p.requireStatus(exitLost)
			require.Contains(t, p.errors(), "removed or taken over")

			require.Equal(t, "done", long.line())
			long.requireStatus(0)
			require.Empty(t, long.errors())

			status, _, errs = run(t, url, "run", "--ttl", "1ms", "k", "--", "true")
			require.Equal(t, exitUsage, status, errs)
			require.True(t, strings.Contains(errs, "from 1s") || strings.Contains(errs, "at least 1s"), "the limit is told: %s", errs)
		})
	}
}
