//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// fakeTool is the tool in this process, on a fake Locker.
func fakeTool(l *fakeLocker) (*tool, *bytes.Buffer) {
	var stderr bytes.Buffer
	return &tool{
		printer: newPrinter(&stderr),
		open: func(context.Context, string, *lock.Options) (openLocker, error) {
			return l, nil
		},
		signals: make(chan os.Signal, 8),
	}, &stderr
}

func jobFor(argv ...string) runConfig {
	return runConfig{from: address{url: "file:"}, wait: -1, grace: time.Second, key: "k", argv: argv, ttl: time.Hour}
}

func requireExit(t *testing.T, want int, err error) *exitError {
	t.Helper()
	var e *exitError
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.code, e.message)
	return e
}

func granting(lease *fakeLease) *fakeLocker {
	return &fakeLocker{acquire: func(context.Context, string) (lock.Lease, error) { return lease, nil }}
}

func TestReleasedAndClosedAfterTheCommand(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	l := granting(lease)
	tool, _ := fakeTool(l)
	require.NoError(t, tool.run(jobFor("true")))
	require.True(t, lease.isReleased())
	require.True(t, l.isClosed())

	lease = newFakeLease(time.Hour)
	tool, _ = fakeTool(granting(lease))
	requireExit(t, 3, tool.run(jobFor("sh", "-c", "exit 3")))
	require.True(t, lease.isReleased())
}

func TestReleaseThatFindsTheHoldGone(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"exit 0", "exit 3"} {
		lease := newFakeLease(time.Hour)
		lease.releaseErr = fmt.Errorf("lock: %w", lock.ErrTakenOver)
		tool, _ := fakeTool(granting(lease))
		e := requireExit(t, exitLost, tool.run(jobFor("sh", "-c", script)))
		require.Contains(t, e.message, "removed or taken over")
	}
}

func TestReleaseThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	lease.releaseErr = fmt.Errorf("%w: no answer", lock.ErrOutcomeUnknown)
	tool, stderr := fakeTool(granting(lease))
	requireExit(t, 3, tool.run(jobFor("sh", "-c", "exit 3")))
	tool.printer.close()
	require.Contains(t, stderr.String(), "lockctl: warning: the release of \"k\" was not confirmed")
	require.Contains(t, stderr.String(), "up to 1h0m0s")
}

func TestLostHoldIsReleasedOnceTheCommandIsGone(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	lease.end(lock.ErrSessionLost)
	tool, _ := fakeTool(granting(lease))
	e := requireExit(t, exitLost, tool.run(jobFor("sleep", "1000")))
	require.Contains(t, e.message, "session")
	require.Contains(t, e.message, "sleep was ")
	require.True(t, lease.isReleased())
}

func TestCommandDoesNotStartUnderAnExpiredHold(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(-time.Second)
	tool, _ := fakeTool(granting(lease))
	file := filepath.Join(t.TempDir(), "started")
	requireExit(t, exitLost, tool.run(jobFor("touch", file)))
	require.NoFileExists(t, file)
}

func TestInterruptWhileWaiting(t *testing.T) {
	t.Parallel()
	waiting := make(chan struct{})
	l := &fakeLocker{acquire: func(ctx context.Context, _ string) (lock.Lease, error) {
		close(waiting)
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", lock.ErrHeld, ctx.Err())
	}}
	tool, _ := fakeTool(l)
	go func() {
		<-waiting
		tool.signals <- syscall.SIGUSR1
		tool.signals <- syscall.SIGHUP
	}()
	e := requireExit(t, 128+int(syscall.SIGHUP), tool.run(jobFor("true")))
	require.Contains(t, e.message, "hangup while waiting")
	require.True(t, l.isClosed())
}

func TestInterruptThatCrossesTheGrant(t *testing.T) {
	t.Parallel()
	lease := newFakeLease(time.Hour)
	waiting := make(chan struct{})
	l := &fakeLocker{acquire: func(ctx context.Context, _ string) (lock.Lease, error) {
		close(waiting)
		<-ctx.Done()
		return lease, nil // granted all the same
	}}
	tool, _ := fakeTool(l)
	go func() {
		<-waiting
		tool.signals <- syscall.SIGINT
	}()
	requireExit(t, 128+int(syscall.SIGINT), tool.run(jobFor("false")))
	require.True(t, lease.isReleased())
}

func TestSecondInterruptDoesNotWait(t *testing.T) {
	t.Parallel()
	waiting, never := make(chan struct{}), make(chan struct{})
	defer close(never)
	l := &fakeLocker{acquire: func(context.Context, string) (lock.Lease, error) {
		close(waiting)
		<-never
		return nil, lock.ErrHeld
	}}
	tool, _ := fakeTool(l)
	go func() {
		<-waiting
		tool.signals <- syscall.SIGINT
		tool.signals <- syscall.SIGTERM
	}()
	requireExit(t, 128+int(syscall.SIGTERM), tool.run(jobFor("true")))
}

func TestStatusOfErrors(t *testing.T) {
	t.Parallel()
	held := &lock.HeldError{Key: "k", Holder: lock.Holder{Label: "job", Host: "h", PID: 7, Since: time.Now().Add(-time.Minute)}, Remaining: 12345 * time.Millisecond}
	for _, c := range []struct {
		err  error
		want int
	}{
		{lock.ErrInvalid, exitUsage},
		{lock.ErrUnsupported, exitUsage},
		{held, exitHeld},
		{fmt.Errorf("gave up: %w; %w", context.DeadlineExceeded, held), exitHeld},
		{fmt.Errorf("gave up: %w; %w; %w", context.DeadlineExceeded, held, lock.ErrOutcomeUnknown), exitHeld},
		{fmt.Errorf("gave up: %w; %w; %w", context.DeadlineExceeded, held, lock.ErrUnavailable), exitUnavailable},
		{lock.ErrUnavailable, exitUnavailable},
		{lock.ErrPermanent, exitUnavailable},
		{lock.ErrOutcomeUnknown, exitUnavailable},
		{context.DeadlineExceeded, exitUnavailable},
		{errors.New("something else"), exitUnavailable},
	} {
		require.Equal(t, c.want, acquireError(c.err, "k", time.Second).code, "%v", c.err)
	}
	text := acquireError(held, "k", 0).message
	require.Contains(t, text, `"k" is held by "job" (host h, pid 7) since `)
	require.Contains(t, text, "(for 1m0s so far), and for another 12s unless renewed")
	require.Contains(t, text, "--wait 30s")
	require.Contains(t, acquireError(lock.ErrHeld, "k", -1).message, `"k" is held by somebody else`)
}

func TestDefaultTTLIsTheNearestTheBackendAccepts(t *testing.T) {
	t.Parallel()
	l := &fakeLocker{}
	require.Equal(t, lock.DefaultTTL, effectiveTTL(0, l))
	require.Equal(t, time.Minute, effectiveTTL(time.Minute, l))
	l.guarantees = backend.Guarantees{MinTTL: time.Second, MaxTTL: 10 * time.Second}
	require.Equal(t, 10*time.Second, effectiveTTL(0, l))
	l.guarantees = backend.Guarantees{TTLGrain: 7 * time.Second}
	require.Equal(t, 14*time.Second, effectiveTTL(0, l), "as the Locker's own default")
}

// A URL in the wrong place is shown without its password.
func TestMisplacedURLShowsNoPassword(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newPrinter(&out)
	p.say(`nobody holds "redis://app:pa@ss@cache:6379/1", nor rediss://:word@other`)
	require.Equal(t, "lockctl: nobody holds \"redis://app:xxxxx@cache:6379/1\", nor rediss://:xxxxx@other\n", out.String())
}

func TestPrinterHidesPasswords(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newPrinter(&out)
	tool := &tool{printer: p}
	require.Nil(t, checkURL(tool.printer, "redis://u:pass%2Fw%c3%b6rd@h"))
	log := p.logger().With("url", "redis://u:pass%2Fw%c3%b6rd@h")
	log.Info("not for people")
	log.Warn("lock renewal failed", "error", errors.New("AUTH pass/wörd refused"))
	p.say("the end: pass%2Fw%C3%B6rd")
	require.Equal(t, "lockctl: warning: lock renewal failed (url: redis://u:xxxxx@h, error: AUTH xxxxx refused)\n"+
		"lockctl: the end: xxxxx\n", out.String())
	log.Warn("too late") // must not panic
}

// A password that is a word, or short, is taken out where it stands as one. To take it
// out elsewhere would tell it.
func TestPrinterLeavesWordsAlone(t *testing.T) {
	t.Parallel()
	for url, lines := range map[string][2]string{
		"mysql://app:app@db/app":               {"mysql://app:app@db/app: the app has no grant", "mysql://app:xxxxx@db/app: the app has no grant"},
		"redis://:1@127.0.0.1:6379":            {"redis://:1@127.0.0.1:6379: dial 127.0.0.1:6379", "redis://:xxxxx@127.0.0.1:6379: dial 127.0.0.1:6379"},
		"redis://:x@h":                         {"redis://:x@h: x " + strings.Repeat("x", 9), "redis://:xxxxx@h: x " + strings.Repeat("x", 9)},
		"redis://:xxxxx@h":                     {"redis://:xxxxx@h: no", "redis://:xxxxx@h: no"},
		"redis://u:hunter2@h":                  {"AUTH u hunter2, hunter2@h", "AUTH u xxxxx, xxxxx@h"},
		"redis://u:longenoughtobeone@h":        {`"longenoughtobeone"`, `"xxxxx"`},
		"mysql://u:db-1.prod@db-1.prod/":       {"dial db-1.prod: u:db-1.prod@tcp(db-1.prod)", "dial db-1.prod: u:xxxxx@tcp(db-1.prod)"},
		"redis://:sesame@h":                    {`AUTH sesame, password="sesame", password: sesame`, `AUTH xxxxx, password="xxxxx", password: xxxxx`},
		"redis://:word@h":                      {"password wordy, a word", "password wordy, a word"},
		"redis://:a.*@h":                       {"PASSWORD=a.*; password=abc", "PASSWORD=xxxxx; password=abc"},
		"redis://h?sentinel_password=s3ntinel": {"AUTH s3ntinel", "AUTH xxxxx"},
	} {
		p := newPrinter(io.Discard)
		require.Nil(t, checkURL(p, url))
		require.Equal(t, "lockctl: "+lines[1]+"\n", p.line(lines[0]), url)
		p.close()
	}
}

// What servers and other processes have written can do nothing to a terminal.
func TestPrinterIsPrintable(t *testing.T) {
	t.Parallel()
	p := newPrinter(io.Discard)
	defer p.close()
	require.Equal(t, "lockctl: a ?]0;mine? of the server: ?31m ?\nCREATE TABLE (\n    k)\n",
		p.line("a \x1b]0;mine\a of the server: \x9b31m \u202e\nCREATE TABLE (\n\tk)\n"))
}

// A command that takes no hold is not warned about settings, and is about a node.
func TestLooksAreNotWarnedAboutSettings(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newPrinter(&out)
	p.lookLogger().Warn("this release may confirm a renewal", "version", "3.5.0")
	p.lookLogger().Warn("a node can't be reached", "node", "n1")
	p.close()
	require.Equal(t, "lockctl: warning: a node can't be reached (node: n1)\n", out.String())
}

func TestReaderThatDoesNotReadHoldsNothingUp(t *testing.T) {
	t.Parallel()
	_, w := pipe(t)
	p := newPrinter(w)
	log := p.logger()
	for range 1000 {
		log.LogAttrs(context.Background(), slog.LevelWarn, strings.Repeat("x", 1000))
	}
}

func TestEnvironReplacesInsteadOfAdding(t *testing.T) {
	t.Setenv("LOCK_TOKEN", "7") // of an outer lockctl
	env := environ("LOCK_KEY=k", "LOCK_TOKEN=8")
	n := 0
	for _, s := range env {
		if strings.HasPrefix(s, "LOCK_TOKEN=") {
			n++
			require.Equal(t, "LOCK_TOKEN=8", s)
		}
	}
	require.Equal(t, 1, n)
}
