//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
)

// With --json there is JSON too where the answer is no.
func TestRefusalsAreJSON(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	taken(t, url, "k", lock.WithLabel("the holder"))

	status, out, errs := operated(t, url, "wait", "--json", "--timeout", "1s", "k")
	assert.Equal(t, exitHeld, status)
	assert.Contains(t, out, `"key":"k","held":true,`)
	assert.Contains(t, out, `"label":"the holder"`)
	assert.Contains(t, errs, `"k" is still held, after a wait of 1s, by "the holder"`)

	// It was looked at a while before it is printed.
	taken(t, url, "kept", lock.WithoutRenewal(), lock.WithTTL(time.Minute))
	until := func(args ...string) time.Time {
		_, out, _ := operated(t, url, append(args, "--json", "kept")...)
		var s shown
		require.NoError(t, json.Unmarshal([]byte(out), &s), out)
		require.NotNil(t, s.Until)
		return *s.Until
	}
	assert.WithinDuration(t, until("inspect"), until("wait", "--timeout", "800ms"), 400*time.Millisecond)

	status, out, errs = operated(t, url, "unlock", "--json", "k", "--token", "1")
	assert.Equal(t, exitHeld, status)
	assert.JSONEq(t, `{"key":"k","token":1,"ended":false,"refused":true}`, out)
	assert.Contains(t, errs, "nothing was changed")

	status, out, errs = operated(t, url, "unlock", "--json", "free", "--token", "1")
	assert.Equal(t, exitFree, status)
	assert.JSONEq(t, `{"key":"free","token":1,"ended":false,"refused":true}`, out)
	assert.Contains(t, errs, "nothing was changed")
}

// Only a shell replaces a tilde, and in file:~/locks it does not.
func TestTildeIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"run", "k", "--", "true"}, {"inspect", "k"}, {"ls"}, {"wait", "k"}, {"check"}, {"compare", "file:~/locks"},
	} {
		p := startAt(t, dir, "file:~/locks", args...)
		p.requireStatus(exitUsage)
		assert.Contains(t, p.errors(), "file:~/locks: only a shell replaces ~", "%v", args)
	}
	made, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, made)
	status, _, errs := run(t, "file:"+filepath.Join(dir, "a~b"), "run", "k", "--", "true")
	assert.Equal(t, exitOK, status, errs)
}

// A key may begin with a dash.
func TestKeyThatBeginsWithADash(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	p := start(t, url, "run", "--label", "x", "--", "-k", "--", "sh", "-c", `echo "$LOCK_KEY $*"; read end`, "sh", "--", "-a")
	require.Equal(t, "-k -- -a", p.line())
	for _, args := range [][]string{{"inspect", "--", "-k"}, {"ls", "--", "-"}} {
		status, out, errs := run(t, url, args...)
		assert.Equal(t, exitOK, status, errs)
		assert.Contains(t, out, "-k")
	}
	for _, args := range [][]string{{"run", "-k", "--", "true"}, {"inspect", "-k"}} {
		status, _, errs := run(t, url, args...)
		assert.Equal(t, exitUsage, status)
		assert.Contains(t, errs, "a key that begins with - stands behind --")
	}
	for _, args := range [][]string{{"run", "--", "-k"}, {"run", "--", "--", "true"}, {"run", "--", "-k", "--"}, {"run", "--", "-k", "true", "--", "true"}} {
		status, _, errs := run(t, url, args...)
		assert.Equal(t, exitUsage, status, "%v", args)
		assert.Contains(t, errs, "write lockctl run [flags] KEY -- COMMAND", "%v", args)
	}
}

// A server that does not answer is told of long before lockctl gives up.
func TestSilenceIsTold(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"inspect", "k"}, {"run", "k", "--", "true"}, {"check"}, {"compare"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			silent, _ := silentServer(t)
			if args[0] == "compare" {
				args = append(args, "redis://u:pass-word-17@"+silent)
			}
			p := start(t, "redis://u:pass-word-17@"+silent, args...)
			require.Eventually(t, func() bool {
				return strings.Contains(p.said(), "lockctl: still trying to reach redis://")
			}, hang, 5*time.Millisecond)
			select {
			case <-p.done:
				require.Fail(t, "it was told at the end", p.said())
			default:
			}
			assert.NotContains(t, p.said(), "pass-word-17")
		})
	}
}
