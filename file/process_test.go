//go:build unix

package filelock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// The test binary plays a process of its own when this variable names a role.
const (
	inContainer = "hold in a container"

	roleVar = "FILELOCK_TEST_ROLE"
	dirVar  = "FILELOCK_TEST_DIR"
)

// enter makes the process of a role one of a container.
var enter = func(role string) error { return nil }

// runRole is main of such a process.
func runRole(role string) int {
	dir := os.Getenv(dirVar)
	if err := enter(role); err != nil {
		say(err)
		return 1
	}
	if role == "sleep" {
		say("sleeping")
		block()
	}
	if strings.HasPrefix(role, "nobody") {
		if err := syscall.Setuid(65534); err != nil {
			say(err)
			return 1
		}
	}
	b, err := newFiles(context.Background(), dir, nil)
	if err != nil {
		say(err)
		return 1
	}
	p := b.placeOf("key")
	switch role {
	case "hammer":
		err = hammer(b, filepath.Join(dir, "shared"), 40)
	case "nobody":
		_, err = b.Try(context.Background(), request("", time.Second))
	case "hold", "nobody holds", inContainer:
		var g backend.Grant
		r := request("", time.Second)
		if role != "hold" {
			r.TTL = time.Hour
		}
		g, err = b.Try(context.Background(), r)
		if err == nil {
			say(g.Token)
			block()
		}
	case "cycle":
		for err == nil {
			var g backend.Grant
			r := request("", minTTL)
			if g, err = b.Try(context.Background(), r); err == nil {
				say(g.Token)
				err = b.Release(context.Background(), backend.HoldOf(r))
			}
			if errors.Is(err, backend.ErrHeld) || errors.Is(err, backend.ErrNotHeld) {
				err = nil // left by a process that was killed, or slower than the TTL
			}
		}
	case "guard":
		err = b.guarded(context.Background(), p, func(*guard) error {
			say("inside")
			block()
			return nil
		})
	case "parent":
		err = b.guarded(context.Background(), p, func(*guard) error {
			child := command("sleep", dir)
			if err := child.Start(); err != nil {
				return err
			}
			say(child.Process.Pid)
			block()
			return nil
		})
	default:
		err = errors.New("no such role")
	}
	if err != nil {
		say(err)
		return 1
	}
	return 0
}

func say(v any) { fmt.Println(v) }

// block waits to be killed; a lost parent ends it too.
func block() {
	time.Sleep(2 * time.Minute)
	os.Exit(3)
}

func command(role, dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+role, dirVar+"="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

// start runs a role and returns the first line that it prints.
func start(t *testing.T, role, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := command(role, dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.TrimSpace(line)
}

// hammer takes the key again and again. Inside, it reads a number from a file,
// checks that it is alone, and writes the number back one higher.
func hammer(b *files, shared string, rounds int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range rounds {
		r := request("", 30*time.Second)
		g, err := b.Try(ctx, r)
		for errors.Is(err, backend.ErrHeld) {
			wctx, stop := context.WithTimeout(ctx, 5*time.Millisecond)
			ch, werr := b.Watch(wctx, "key")
			if werr != nil && wctx.Err() == nil {
				stop()
				return werr
			}
			if g, err = b.Try(ctx, r); errors.Is(err, backend.ErrHeld) {
				select {
				case <-ch:
				case <-wctx.Done():
				}
				g, err = b.Try(ctx, r)
			}
			stop()
		}
		if err != nil {
			return err
		}
		alone, err := os.OpenFile(shared+".alone", os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("two holders at a time: %w", err)
		}
		_ = alone.Close()
		data, err := os.ReadFile(shared)
		if err != nil {
			return err
		}
		lines := strings.Fields(string(data))
		if last, _ := strconv.ParseUint(lines[len(lines)-1], 10, 64); g.Token <= last {
			return fmt.Errorf("token %d after %d", g.Token, last)
		}
		lines = append(lines, strconv.FormatUint(g.Token, 10))
		if err := os.WriteFile(shared, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			return err
		}
		if err := os.Remove(shared + ".alone"); err != nil {
			return err
		}
		h := backend.HoldOf(r)
		h.Token = g.Token
		if err := b.Release(ctx, h); err != nil {
			return err
		}
	}
	return b.Close()
}

func TestEightProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shared := filepath.Join(dir, "shared")
	require.NoError(t, os.WriteFile(shared, []byte("0"), 0o600))
	type result struct {
		out string
		err error
	}
	results := make(chan result)
	for range 8 {
		cmd := command("hammer", dir)
		go func() {
			out, err := cmd.Output()
			results <- result{string(out), err}
		}()
	}
	for range 8 {
		r := <-results
		require.NoError(t, r.err, r.out)
	}
	data, err := os.ReadFile(shared)
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(data)), 1+8*40, "no update was lost")
	b := newBackend(t, dir)
	guards, err := os.ReadDir(filepath.Join(dir, guardDir))
	require.NoError(t, err)
	require.Len(t, guards, 1)
	require.Nil(t, stateOf(t, b, "key"))
}

func TestKilledHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, line := start(t, "hold", dir)
	token, err := strconv.ParseUint(line, 10, 64)
	require.NoError(t, err, line)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	b := newBackend(t, dir)
	r := request("", time.Second)
	rec, err := b.Inspect(t.Context(), "key")
	require.NoError(t, err, "a dead holder keeps others out until its lease ends")
	require.Equal(t, token, rec.Token)
	before := b.clock.Now()
	g, err := b.Try(t.Context(), r)
	for errors.Is(err, backend.ErrHeld) {
		require.Less(t, b.clock.Now().Sub(before), patience)
		time.Sleep(time.Millisecond)
		g, err = b.Try(t.Context(), r)
	}
	require.NoError(t, err)
	require.Greater(t, g.Token, token)
	require.Equal(t, 1, g.Holds)
}

// A process that is killed at any point of any operation leaves nothing behind
// that keeps others out for longer than its lease, and no token is used twice.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := newBackend(t, dir)
	var last uint64
	for range 20 {
		cmd := command("cycle", dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		var printed int
		for lines.Scan() {
			token, err := strconv.ParseUint(lines.Text(), 10, 64)
			require.NoError(t, err, lines.Text())
			require.Greater(t, token, last)
			last = token
			if printed++; printed == 3 {
				delay := time.Duration(rand.IntN(2000)) * time.Microsecond
				time.AfterFunc(delay, func() { _ = cmd.Process.Kill() })
			}
		}
		_ = cmd.Wait()
		before := b.clock.Now()
		r := request("", minTTL)
		g, err := b.Try(t.Context(), r)
		for errors.Is(err, backend.ErrHeld) {
			require.Less(t, b.clock.Now().Sub(before), patience)
			time.Sleep(time.Millisecond)
			g, err = b.Try(t.Context(), r)
		}
		require.NoError(t, err)
		require.Greater(t, g.Token, last)
		last = g.Token
		_ = b.Release(t.Context(), backend.HoldOf(r))
	}
}

// A process that is stopped inside the guard costs others no more than their
// patience; refusals and inspections do not even need the guard.
func TestStoppedInsideTheGuard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := newBackend(t, dir)
	_, h := mustTry(t, b, request("", time.Hour))
	cmd, line := start(t, "guard", dir)
	require.Equal(t, "inside", line)
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))

	_, err := b.Try(t.Context(), request("", time.Second))
	require.ErrorIs(t, err, backend.ErrHeld)
	_, err = b.Inspect(t.Context(), "key")
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = b.Renew(ctx, h)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, backend.ErrUnavailable)

	b.guardWait = 200 * time.Millisecond
	_, err = b.Renew(t.Context(), h)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, b.placeOf("key").guard)
	// The goroutines of one process wait in line, with the same bound.
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() { errs <- b.Release(context.Background(), h) }()
	}
	for range cap(errs) {
		require.ErrorIs(t, <-errs, backend.ErrUnavailable)
	}

	require.NoError(t, cmd.Process.Kill()) // the kernel frees the guard
	_ = cmd.Wait()
	require.NoError(t, b.Release(t.Context(), h))
}

// A child that outlives a killed process does not inherit its guard.
func TestChildDoesNotKeepTheGuard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := newBackend(t, dir)
	cmd, line := start(t, "parent", dir)
	pid, err := strconv.Atoi(line)
	require.NoError(t, err, line)
	child, err := os.FindProcess(pid)
	require.NoError(t, err)
	t.Cleanup(func() { _ = child.Kill() })
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.NoError(t, child.Signal(syscall.Signal(0)), "the child lives")
	mustTry(t, b, request("", time.Second))
}

func TestNoPermission(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	dir := filepath.Join(t.TempDir(), "locks")
	require.NoError(t, os.Mkdir(dir, 0o700))
	out, err := command("nobody", dir).Output()
	require.Error(t, err)
	require.Contains(t, string(out), backend.ErrPermanent.Error())
	require.Contains(t, string(out), "permission denied")
	require.Contains(t, string(out), "another directory")
}
