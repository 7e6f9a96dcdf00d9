//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// takenTTL is one that every backend keeps, however busy the machine.
const takenTTL = 8 * time.Second

// secretOwner is what no message and no output may show.
const secretOwner = "owner-7f3c"

// taken is a key held in this process, by the secret owner.
func taken(t *testing.T, url, key string, opts ...lock.Option) lock.Lease {
	t.Helper()
	l, err := lock.Open(t.Context(), url, &lock.Options{TTL: takenTTL})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	lease, err := l.Acquire(ctx, key, append(opts, lock.WithOwner(secretOwner))...)
	require.NoError(t, err)
	return lease
}

// operated runs lockctl to its end, and requires that it shows no secret.
func operated(t *testing.T, url string, args ...string) (status int, out, errs string) {
	t.Helper()
	status, out, errs = run(t, url, args...)
	secrets := []string{secretOwner}
	if u, err := backend.ParseURL(url); err == nil && u.Password != "" {
		secrets = append(secrets, u.Password)
	}
	for _, secret := range secrets {
		assert.NotContains(t, out, secret, "%v shows a secret", args)
		assert.NotContains(t, errs, secret, "%v shows a secret", args)
	}
	return status, out, errs
}

func inspected(t *testing.T, url, key string) shown {
	t.Helper()
	status, out, errs := operated(t, url, "inspect", "--json", key)
	require.Equal(t, exitOK, status, errs)
	var s shown
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	return s
}

// unlockArgs is the command line that ends the hold of the last argument, a token.
func unlockArgs(args ...string) []string {
	last := len(args) - 1
	return append([]string{"unlock"}, append(slices.Clone(args[:last]), "--token", args[last])...)
}

func token(l lock.Lease) string { return strconv.FormatUint(l.Token(), 10) }

// requireEnded waits for the end of a hold and returns its cause.
func requireEnded(t *testing.T, l lock.Lease) error {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(hang):
		require.Fail(t, "the holder was not told")
	}
	return context.Cause(l.Context())
}

func TestInspect(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		lease := taken(t, url, "k", lock.WithLabel("a label"))
		s := inspected(t, url, "k")
		assert.True(t, s.Held)
		assert.Equal(t, "k", s.Key)
		assert.Equal(t, lease.Token(), s.Token)
		assert.Equal(t, "a label", s.Label)
		assert.Equal(t, 1, s.Holds)
		assert.Equal(t, os.Getpid(), s.PID)
		require.NotNil(t, s.Since)
		require.NotNil(t, s.Until)
		assert.True(t, s.Until.After(*s.Since))
		waiters := "waiters  -"
		if p.waiters {
			require.NotNil(t, s.Waiters)
			assert.Zero(t, *s.Waiters)
			waiters = "waiters  0"
		} else {
			assert.Nil(t, s.Waiters)
		}

		status, out, errs := operated(t, url, "inspect", "k")
		require.Equal(t, exitOK, status, errs)
		for _, want := range []string{"key      k", "token    " + token(lease), "holds    1", waiters, "label    a label", "pid      " + strconv.Itoa(os.Getpid()), "since    ", "until    "} {
			assert.Contains(t, out, want)
		}

		require.NoError(t, lease.Release(t.Context()))
		status, out, errs = operated(t, url, "inspect", "k")
		assert.Equal(t, exitFree, status)
		assert.Empty(t, out)
		u, err := backend.ParseURL(url)
		require.NoError(t, err)
		assert.Contains(t, errs, `lockctl: nobody holds "k" at `+u.String())
		for _, parameter := range []string{"prefix", "table"} {
			if value := u.Query.String(parameter, ""); value != "" {
				assert.Contains(t, errs, parameter+"="+value, "whoever has another %s by mistake does not see it", parameter)
			}
		}
		status, out, _ = operated(t, url, "inspect", "--json", "k")
		assert.Equal(t, exitFree, status)
		assert.JSONEq(t, `{"key":"k","held":false,"waiters":null}`, out)
	})
}

// Where the server keeps the queue, it knows who waits in it.
func TestInspectCountsWaiters(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		if !p.waiters {
			t.Skipf("%s does not know who waits", p.name)
		}
		url := p.url(t)
		lease := taken(t, url, "k")
		waiter := start(t, url, "run", "k", "--", "true")
		require.Eventually(t, func() bool { return *inspected(t, url, "k").Waiters == 1 }, hang, 50*time.Millisecond)
		_, out, errs := operated(t, url, "ls")
		assert.Regexp(t, `\nk +`+token(lease)+` +1 +1 `, out, errs)
		require.NoError(t, lease.Release(t.Context()))
		waiter.requireStatus(exitOK)
	})
}

func TestList(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		for _, key := range []string{"b/2", "b/1", "c"} {
			taken(t, url, key, lock.WithLabel("label of "+key))
		}
		status, out, errs := operated(t, url, "ls", "b/")
		require.Equal(t, exitOK, status, errs)
		rows := strings.Split(out, "\n")
		require.Len(t, rows, 3, out)
		assert.True(t, strings.HasPrefix(rows[0], "KEY "), out)
		assert.True(t, strings.HasPrefix(rows[1], "b/1 "), out)
		assert.True(t, strings.HasPrefix(rows[2], "b/2 "), out)
		assert.Contains(t, rows[2], " label of b/2 ")
		_, out, _ = operated(t, url, "ls", "--json")
		var keys []string
		for line := range strings.SplitSeq(out, "\n") {
			var s shown
			require.NoError(t, json.Unmarshal([]byte(line), &s), line)
			assert.True(t, s.Held)
			assert.Equal(t, "label of "+s.Key, s.Label)
			keys = append(keys, s.Key)
		}
		assert.Equal(t, []string{"b/1", "b/2", "c"}, keys)
		_, out, _ = operated(t, url, "ls", "none")
		assert.True(t, strings.HasPrefix(out, "KEY") && !strings.Contains(out, "\n"), out)
	})
}

func TestUnlock(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		lease := taken(t, url, "k", lock.WithLabel("the holder"))
		status, _, errs := operated(t, url, unlockArgs("k", "1")...)
		assert.Equal(t, exitHeld, status)
		assert.Contains(t, errs, `token 1 does not hold "k"; now it is held by "the holder"`)
		assert.Contains(t, errs, token(lease))
		require.NoError(t, lease.Renew(t.Context()), "an unlock with another token has hit the holder")

		status, out, errs := operated(t, url, unlockArgs("--json", "k", token(lease))...)
		require.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, `"key":"k"`)
		assert.Contains(t, out, `"ended":false,"until":"`)
		require.ErrorIs(t, requireEnded(t, lease), lock.ErrTakenOver)
		status, _, errs = operated(t, url, "wait", "--timeout", hang.String(), "k")
		require.Equal(t, exitOK, status, errs)

		next := taken(t, url, "k", lock.WithLabel("the next"))
		status, _, errs = operated(t, url, unlockArgs("k", token(lease))...)
		assert.Equal(t, exitHeld, status, "an old token has ended a newer hold")
		assert.Contains(t, errs, `now it is held by "the next"`)
		assert.Contains(t, errs, token(next))
		status, out, errs = operated(t, url, "unlock", "k", "--now", "--token", token(next))
		require.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, "others can have the key now")
		status, _, errs = operated(t, url, "run", "--no-wait", "k", "--", "true")
		assert.Equal(t, exitOK, status, errs)
		require.ErrorIs(t, requireEnded(t, next), lock.ErrTakenOver)

		status, _, errs = operated(t, url, unlockArgs("free", token(lease))...)
		assert.Equal(t, exitFree, status, errs)
		assert.Regexp(t, `nobody holds "free" at \S.*; nothing was changed`, errs)
	})
}

// Where no hold can be ended, --now is not recommended.
func TestUnlockWithoutTokens(t *testing.T) {
	t.Parallel()
	url := usedRedlock(t, []string{servertest.SharedRedis(t).Addr()}) + "?tokens=off"
	for _, args := range [][]string{unlockArgs("k", "0"), unlockArgs("--now", "k", "0")} {
		status, _, errs := operated(t, url, args...)
		assert.Equal(t, exitUsage, status)
		assert.Contains(t, errs, "redlock cannot end the hold of somebody else without fencing tokens")
		assert.NotContains(t, errs, "add --now")
	}
}

// A holder that is stopped renews nothing and is told nothing: its hold, once revoked,
// keeps others out until it expires, and the command is killed by then.
func TestUnlockOfAHolderThatHangs(t *testing.T) {
	nearby(t, func(t *testing.T, p place) {
		url := p.url(t)
		holder := start(t, url, "run", "--ttl", takenTTL.String(), "k", "--", "sh", "-c", "echo $$; exec sleep 600")
		command := pidOf(t, holder.line())
		s := inspected(t, url, "k")
		holder.signal(syscall.SIGSTOP)
		status, out, errs := operated(t, url, "unlock", "k", "--token", strconv.FormatUint(s.Token, 10))
		require.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, "the hold is not renewed any more")
		assert.True(t, inspected(t, url, "k").Revoked)
		_, out, errs = operated(t, url, "inspect", "k")
		assert.Contains(t, out, " at the latest: it was revoked)", errs)
		_, out, errs = operated(t, url, "ls")
		assert.Regexp(t, `\nk .*s, revoked `, out, errs)
		// What was killed may stay as a zombie for a moment.
		stat := "/proc/" + strconv.Itoa(command) + "/stat"
		status, _, errs = operated(t, url, "run", "k", "--", "sh", "-c", "test ! -e "+stat+" || grep -q ') [ZX] ' "+stat)
		require.Equal(t, exitOK, status, "the next command ran beside the one of the hold that was revoked: %s", errs)
	})
}

// A command under lockctl run whose hold is revoked is stopped, and the tool says why.
func TestUnlockStopsACommand(t *testing.T) {
	nearby(t, func(t *testing.T, p place) {
		url := p.url(t)
		holder := start(t, url, "run", "--ttl", takenTTL.String(), "k", "--", "sh", "-c", "echo up; exec sleep 600")
		require.Equal(t, "up", holder.line())
		status, _, errs := operated(t, url, unlockArgs("k", strconv.FormatUint(inspected(t, url, "k").Token, 10))...)
		require.Equal(t, exitOK, status, errs)
		holder.requireStatus(exitLost)
		assert.Contains(t, holder.errors(), `the hold on "k" was lost: its record was removed or taken over on the server; sh was stopped`)
	})
}

func TestWait(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		status, _, errs := operated(t, url, "wait", "k")
		require.Equal(t, exitOK, status, errs)
		lease := taken(t, url, "k", lock.WithLabel("the holder"))
		status, _, errs = operated(t, url, "wait", "--timeout", "0", "k")
		assert.Equal(t, exitHeld, status)
		assert.Contains(t, errs, `"k" is held by "the holder"`)
		waiting := start(t, url, "wait", "--json", "k")
		select {
		case <-waiting.done:
			t.Fatal("wait ended while the key was held: " + waiting.errors())
		case <-time.After(300 * time.Millisecond):
		}
		require.NoError(t, lease.Release(t.Context()))
		waiting.requireStatus(exitOK)
		assert.JSONEq(t, `{"key":"k","held":false,"waiters":null}`, waiting.line())
	})
}
