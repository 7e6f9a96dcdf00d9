package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

func TestEstimate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		done, total int
		spent       time.Duration
		want        string
	}{
		{0, 100, time.Minute, ""},
		{1, 100, time.Second, ""}, // it says nothing yet
		{25, 100, 10 * time.Second, ", about 30s left"},
		{99, 100, 10 * time.Second, ", about 1s left"},
		{100, 100, time.Minute, ""},
		{101, 100, time.Minute, ""},
	} {
		assert.Equal(t, c.want, estimate(c.done, c.total, c.spent), "%+v", c)
	}
	assert.Equal(t, "[....................]", bar(0, 98))
	assert.Equal(t, "[##########..........]", bar(49, 98))
	assert.Equal(t, "[####################]", bar(99, 98))
	assert.Equal(t, "[####################]", bar(0, 0))
}

// The null device is a character device, as terminals are.
func TestNullDeviceIsNoTerminal(t *testing.T) {
	t.Parallel()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	_, terminal := columns(null)
	assert.False(t, terminal)
}

// On a terminal that is narrow the line is cut: one that is broken would stay.
func TestProgressFitsTheTerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := progressOn(&out, 30, 98)
	p.show(conformance.Result{Verdict: conformance.Pass})
	p.show(conformance.Result{Verdict: conformance.Pass})
	p.end()
	for shown := range strings.SplitSeq(out.String(), "\r") {
		assert.Less(t, len(shown), 30, shown)
	}
	assert.Contains(t, out.String(), "[....................] 2 of 9")
	assert.True(t, strings.HasSuffix(out.String(), "\r"), "the line goes away at the end")
}
