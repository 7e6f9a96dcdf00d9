package rolling

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// copyVar says that the test binary is a copy of the service, and what it uses.
const copyVar = "ROLLING_COPY"

type copyConfig struct {
	Change change
	Step   step
}

// runCopy is the main function of a copy: a line when it begins to ask for the key, one when it
// gets in, one before it goes.
func runCopy() {
	var c copyConfig
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := json.Unmarshal([]byte(os.Getenv(copyVar)), &c)
	if err == nil {
		err = c.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (c copyConfig) run(ctx context.Context) error {
	l, err := c.Change.open(ctx, c.Step)
	if ctx.Err() != nil && err != nil {
		return nil //nolint:nilerr // it is asked to end before it has begun
	}
	if err != nil {
		return err
	}
	fmt.Println("asks", 0, time.Now().UnixNano())
	err = c.Change.work(ctx, l, func(token uint64, at time.Time) func(time.Time) {
		fmt.Println("in", token, at.UnixNano())
		return func(at time.Time) { fmt.Println("out", token, at.UnixNano()) }
	})
	if closed := l.Close(); err == nil {
		err = closed
	}
	return err
}

// processes is a start for copies that are processes.
func (f *fleet) processes(c change) {
	f.start = func(name string, s step) func(bool) {
		conf, err := json.Marshal(copyConfig{c, s})
		require.NoError(f.t, err)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), copyVar+"="+string(conf))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(f.t, err)
		require.NoError(f.t, cmd.Start())
		var mu sync.Mutex
		var inside *hold
		spoke := make(chan struct{}) // it has begun, or is gone
		read := make(chan struct{})
		go func() {
			defer close(read)
			speak := sync.OnceFunc(func() { close(spoke) })
			defer speak()
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var what string
				var token uint64
				var nanos int64
				if _, err := fmt.Sscan(lines.Text(), &what, &token, &nanos); !assert.NoError(f.t, err) {
					return
				}
				mu.Lock()
				switch at := time.Unix(0, nanos); what {
				case "asks":
					speak()
				case "in":
					inside = f.journal.begin(name, s, token, at)
				case "out":
					f.journal.end(inside, at)
					inside = nil
				}
				mu.Unlock()
			}
		}()
		<-spoke
		return func(roughly bool) {
			killed := time.Now()
			if roughly {
				_ = cmd.Process.Kill()
			} else {
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
			<-read
			if err := cmd.Wait(); !roughly {
				assert.NoError(f.t, err, name)
			}
			if inside != nil && roughly { // it was inside until it was killed
				if killed.After(inside.from) {
					f.journal.end(inside, killed)
				}
			}
		}
	}
}

// TestRollingProcesses does the same with processes, of which some are killed.
func TestRollingProcesses(t *testing.T) {
	for _, m := range moves([][2]string{{"file", "redis"}}) {
		t.Run(m[0]+" to "+m[1], func(t *testing.T) {
			t.Parallel()
			f := fleet{t: t, journal: &journal{}}
			f.processes(changeOf(t, m[0], m[1]))
			f.roll(3, true, stepOld, stepBoth, stepNew)
			overlaps, falls, evidence := f.journal.judge()
			t.Logf("%d holds by %d processes", f.journal.len(), f.n)
			require.Zero(t, overlaps, evidence)
			require.Zero(t, falls, evidence)
		})
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		f := fleet{t: t, journal: &journal{}}
		f.processes(changeOf(t, "file", "redis"))
		f.rollUntilWrong(3, true)
	})
}
