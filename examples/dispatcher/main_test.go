//go:build unix

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) {
	runCopy()
	os.Exit(servertest.Main(m))
}

// kills is how often a copy is killed: fifty times where that may take long.
func kills(n int) int {
	if os.Getenv("LOCK_TEST_LONG") != "" {
		return 50
	}
	return n
}

// The whole program, with nothing installed: with state and token each task is done once, by
// whose it is; with the state alone by a copy that is late; with neither twice.
func TestEachTaskIsDoneOnce(t *testing.T) {
	t.Parallel()
	rows := bothRuns(t, "", 300*time.Millisecond, kills(5))
	page, err := os.ReadFile("../../docs/dispatcher.md")
	require.NoError(t, err)
	columns := regexp.MustCompile(` {2,}`)
	for _, row := range rows[:4] {
		assert.Contains(t, columns.ReplaceAllString(string(page), " "), columns.Split(row, 2)[0], "the page has another table")
	}
	assert.Contains(t, columns.ReplaceAllString(string(page), " "), columns.ReplaceAllString(rows[0], " "), "the page has another table")
}

// The same where no TTL is as short as the usual one.
func TestTTLOfTheStore(t *testing.T) {
	t.Parallel()
	bothRuns(t, servertest.SharedEtcd(t).URL(), 0, kills(1))
}

// bothRuns requires that the token makes the difference, and returns the table.
func bothRuns(t *testing.T, url string, ttl time.Duration, n int) (rows []string) {
	t.Helper()
	var out strings.Builder
	require.NoError(t, run(t.Context(), url, ttl, n, &out))
	t.Log("\n" + out.String())
	rows = strings.Split(out.String(), "\n")
	require.Len(t, rows, 5)
	assert.Regexp(t, fmt.Sprintf(`^state and token +%d +1 +\d+ +\d+ +\d+ +\d+ +[1-9]\d* +0 +0 `, n), rows[1])
	assert.Regexp(t, `^state alone +0 +1 +\d+ +\d+ +\d+ +\d+ +\d+ +[1-9]\d* +0 `, rows[2], "what the token is for")
	assert.Regexp(t, `^nothing +0 +1 +\d+ +\d+ +\d+ +\d+ +0 +[1-9]\d* +[1-9]\d* `, rows[3], "what the state is for")
	return rows
}

// The same with servers: the locks of Redis with the tasks of a directory, and locks and
// tasks in one database.
func TestOnServers(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(*testing.T) string{
		"Redis": func(t *testing.T) string {
			return servertest.SharedRedis(t).URL() + "?prefix=dispatcher:" + unique() + ":"
		},
		"MariaDB": func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?table=locks_" + unique() },
		"MySQL":   func(t *testing.T) string { return servertest.SharedMySQL(t).URL() + "?table=locks_" + unique() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup{URL: url(t), TTL: time.Second, Takes: 20 * time.Millisecond}
			for _, s.Check = range []check{byToken, byState, byLock} {
				n := kills(2)
				if s.Check != byToken {
					n = 0
				}
				trial := trial{s, n, 1}
				var err error
				trial.Tasks, err = trial.place(t.TempDir())
				require.NoError(t, err)
				r, err := trial.run(t.Context())
				require.NoError(t, err)
				t.Logf("%+v", r)
				switch s.Check {
				case byToken:
					assert.NoError(t, r.wrong())
					assert.Positive(t, r.refused)
				case byState:
					assert.Positive(t, r.stale)
					assert.Zero(t, r.twice)
				case byLock:
					assert.Positive(t, r.twice, "the check finds nothing")
				}
			}
		})
	}
}

func unique() string { return fmt.Sprintf("%d_%x", os.Getpid(), time.Now().UnixNano()) }

// everyStore runs a test on both stores, with each check.
func everyStore(t *testing.T, test func(t *testing.T, tasks store, by check)) {
	t.Parallel()
	for _, by := range []check{byToken, byState, byLock} {
		t.Run(fmt.Sprintf("file, by %s", by), func(t *testing.T) {
			t.Parallel()
			test(t, openFile(t.TempDir(), by), by)
		})
		t.Run(fmt.Sprintf("MariaDB, by %s", by), func(t *testing.T) {
			t.Parallel()
			s, err := openSQL(servertest.SharedMariaDB(t).URL(), "dispatcher_"+unique(), by)
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.(*sqlStore).create(t.Context()))
			defer func() { assert.NoError(t, s.(*sqlStore).drop(t.Context())) }()
			test(t, s, by)
		})
	}
}

// A claim counts as long as its token is that of the task, and once.
func TestStaleClaims(t *testing.T) {
	everyStore(t, func(t *testing.T, tasks store, by check) {
		ctx := t.Context()
		require.NoError(t, tasks.Add(ctx, 2))
		old, ok, err := tasks.Dispatch(ctx, 5, 50)
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, tasks.Send(ctx, old))
		require.NoError(t, tasks.Begin(ctx, old))

		require.NoError(t, tasks.Requeue(ctx, 5), "its own are no old ones")
		require.NoError(t, tasks.Begin(ctx, old))
		require.NoError(t, tasks.Requeue(ctx, 6))
		if by == byToken {
			late, ok, err := tasks.Dispatch(ctx, 5, 50)
			require.NoError(t, err)
			require.Equal(t, claim{Task: old.Task + 1, Token: 5}, late, "what waits for a larger token is not for a smaller one")
			require.True(t, ok)
		}
		again, ok, err := tasks.Dispatch(ctx, 6, 60)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, old.Task, again.Task)
		require.NoError(t, tasks.Begin(ctx, again))
		require.NoError(t, tasks.Requeue(ctx, 5), "who was paused wakes up")
		if by == byToken {
			require.ErrorIs(t, tasks.Begin(ctx, old), errNotOurs)
			require.ErrorIs(t, tasks.Finish(ctx, old, true), errNotOurs, "the task is dispatched, under another token")
			require.ErrorIs(t, tasks.Finish(ctx, old, false), errNotOurs)
			v, err := tasks.Look(ctx)
			require.NoError(t, err)
			require.Equal(t, task{ID: old.Task, State: dispatched, Token: 6, PID: 60, Begun: 3}, v.Tasks[0])
			require.Empty(t, v.Effects)
		}
		if by == byState {
			require.NoError(t, tasks.Finish(ctx, old, true), "this is what the token is for")
			require.ErrorIs(t, tasks.Finish(ctx, again, true), errNotOurs, "it was whose the task is")
			v, err := tasks.Look(ctx)
			require.NoError(t, err)
			require.Equal(t, 1, v.stale(0))
			require.Equal(t, map[int]int{old.Task: 1}, v.effects())
			return
		}
		require.NoError(t, tasks.Finish(ctx, again, true))
		require.ErrorIs(t, tasks.Begin(ctx, again), errNotOurs, "it is delivered again")
		if by == byToken {
			require.ErrorIs(t, tasks.Finish(ctx, again, true), errNotOurs, "the token is right, and the task is done")
			require.ErrorIs(t, tasks.Finish(ctx, again, false), errNotOurs)
		}
		require.NoError(t, tasks.Requeue(ctx, 7), "what is done stays done")
		err = tasks.Finish(ctx, old, true)
		v, lookErr := tasks.Look(ctx)
		require.NoError(t, lookErr)
		if by == byLock {
			require.NoError(t, err)
			require.Equal(t, 2, v.effects()[old.Task], "this is what the state is for")
			return
		}
		require.ErrorIs(t, err, errNotOurs)
		require.Len(t, v.Refused, 5)
		require.Equal(t, map[int]int{old.Task: 1}, v.effects())
		require.Equal(t, done, v.Tasks[0].State)
		require.EqualValues(t, 6, v.Tasks[0].Token)

		// What is on the queue stays there until it is acknowledged.
		for range 2 {
			got, err := tasks.Receive(ctx)
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.Equal(t, old.Task, got[0].Task)
			old = got[0]
		}
		require.NoError(t, tasks.Ack(ctx, old))
		got, err := tasks.Receive(ctx)
		require.NoError(t, err)
		require.Empty(t, got)
	})
}

// A task that fails waits again, and is failed in the end, without an effect.
func TestTaskFails(t *testing.T) {
	everyStore(t, func(t *testing.T, tasks store, by check) {
		ctx := t.Context()
		require.NoError(t, tasks.Add(ctx, 1))
		for range maxTries {
			c, ok, err := tasks.Dispatch(ctx, 5, 50)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, tasks.Finish(ctx, c, false))
			if by != byLock {
				require.ErrorIs(t, tasks.Finish(ctx, c, true), errNotOurs, "the token is right, and the task is not dispatched")
			}
		}
		_, ok, err := tasks.Dispatch(ctx, 5, 50)
		require.NoError(t, err)
		require.False(t, ok)
		v, err := tasks.Look(ctx)
		require.NoError(t, err)
		require.Equal(t, failed, v.Tasks[0].State)
		require.Equal(t, maxTries, v.Tasks[0].Tries)
		require.Empty(t, v.Effects)
	})
}
