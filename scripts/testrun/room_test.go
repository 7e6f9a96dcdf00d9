package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain lets this program stand for testrun.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "-begin" {
		fmt.Fprintln(os.Stderr, begin(os.Args[2:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestRoom(t *testing.T) {
	t.Parallel()
	var now load
	r := newRoom(3, func() load { return now })
	var began []string
	enter := func(run int, pkg string) {
		r.enter(&guest{place{run: run, pkg: pkg}, func() { began = append(began, pkg) }})
	}
	pass := func(idle uint64) { // looks for lookback, and a look more
		for end := now.at.Add(lookback + looks); now.at.Before(end); {
			now.at = now.at.Add(looks)
			now.all += 100
			now.idle += idle
			r.look()
		}
	}
	for _, pkg := range []string{"a", "b", "c", "d"} {
		enter(0, pkg)
	}
	enter(1, "a")
	r.look()
	assert.Equal(t, []string{"a", "b"}, began, "two run in any case")
	pass(20)
	assert.Len(t, began, 2, "the processors are busy")
	pass(50)
	assert.Equal(t, []string{"a", "b", "c"}, began)
	pass(99)
	assert.Len(t, began, 3, "no more than three")
	r.leave(place{run: 0, pkg: "b"})
	r.leave(place{run: 0, pkg: "c"})
	r.look()
	assert.Equal(t, []string{"a", "b", "c", "d"}, began, "one runs and one begins")
	r.leave(place{run: 0, pkg: "d"})
	pass(99)
	assert.Len(t, began, 4, "the package runs already")
	r.leave(place{run: 0, pkg: "a"})
	r.look()
	assert.Equal(t, []string{"a", "b", "c", "d", "a"}, began)
}

func TestLoad(t *testing.T) {
	t.Parallel()
	l := loadOfLinux()
	if l.all == 0 {
		t.Skip("there is no /proc/stat")
	}
	assert.Less(t, l.idle, l.all)
	assert.Eventually(t, func() bool { return loadOfLinux().all > l.all }, 10*time.Second, 20*time.Millisecond)
}

// The packages run as they would otherwise, each when there is room.
func TestRunWithRoom(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	one := []string{"-run", "^TestSummary$", "."}
	status, err := run(&out, [][]string{one, {"-run", "^TestNone$", "."}}, 1, "")
	require.NoError(t, err)
	assert.Zero(t, status, out.String())
	assert.Contains(t, out.String(), "2 packages in")
	assert.Contains(t, out.String(), "1 tests passed, 0 failed")
}
