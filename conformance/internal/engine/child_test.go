//go:build unix

package engine

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	filelock "github.com/mortiselock/lock/file"
)

// forgetVar makes this program one whose TestMain does not call Child: "always",
// or only in processes of the suite, where it goes on ("child") or hangs ("mute").
const forgetVar = "CONFORMANCE_TEST_FORGET"

func TestMain(m *testing.M) {
	started := os.Getenv(childVar) != ""
	switch forget := os.Getenv(forgetVar); {
	case forget == "mute" && started:
		time.Sleep(time.Minute)
	case forget == "always", forget == "child" && started:
	default:
		Child(farConfig)
	}
	os.Exit(m.Run())
}

// farConfig is a lock over files that several processes share. The argument says how it is,
// "healthy" or "panics", and then names the directory.
func farConfig(child string) Config {
	how, dir, _ := strings.Cut(child, " ")
	return Config{
		Name: "file", Child: child,
		Open: func(ctx context.Context) (lock.Locker, error) {
			if os.Stdout == os.Stderr { // in a child
				fmt.Println(`{"id":1,"err":"a lock that prints is nothing special"}`)
			}
			l, err := filelock.New(ctx, dir, nil)
			switch {
			case err != nil:
				return nil, err
			case how == "panics":
				return panicking{l}, nil
			}
			return l, nil
		},
		TTL: time.Second, Budget: 5 * time.Second,
	}
}

// panicking is a lock whose tries panic.
type panicking struct{ *lock.Client }

func (panicking) TryAcquire(context.Context, string, ...lock.Option) (lock.Lease, error) {
	panic("the lock broke")
}

// again runs one test of this program in another process of it.
func again(t *testing.T, test string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), "TMPDIR="+t.TempDir()), env...)
	return cmd
}

// A process that does not get to Child runs no tests, and the suite says so soon.
func TestChildThatDoesNotPlay(t *testing.T) {
	t.Parallel()
	forget := os.Getenv(forgetVar)
	if forget == "" {
		var all sync.WaitGroup
		for _, how := range []string{"child", "mute"} {
			all.Go(func() {
				out, err := again(t, t.Name(), forgetVar+"="+how).CombinedOutput()
				assert.NoError(t, err, "%s", out)
				assert.Contains(t, string(out), "--- PASS: "+t.Name())
			})
		}
		all.Wait()
		return
	}
	dir, err := os.MkdirTemp("", "") // removed by the test that started this process: the client may still write there
	require.NoError(t, err)
	res := one(t, farConfig("healthy "+dir), &Rule{Run: AcrossProcesses(func(_ *Env, ps *Processes) { ps.Start(1) })})
	assert.Equal(t, Fail, res.Verdict)
	assert.Contains(t, res.Evidence, "call conformance.Child before everything else")
	if forget == "child" {
		assert.Contains(t, res.Evidence, "no tests to run")
		assert.NotContains(t, res.Evidence, "panic")
	} else {
		assert.Contains(t, res.Evidence, "said nothing for "+helloLimit.String())
	}
}

func TestSuiteDoesNotRunInAChild(t *testing.T) {
	t.Parallel()
	if os.Getenv(forgetVar) == "" {
		out, err := again(t, t.Name(), forgetVar+"=always", childVar+"=1").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	_, err := Prepare(t.Context(), memory(), nil)
	require.ErrorIs(t, err, errInChild)
}

// When the suite's own process is killed, those that it started end too, even one
// that is stopped.
func TestChildrenDieWithTheSuite(t *testing.T) {
	t.Parallel()
	if os.Getenv(forgetVar) != "" {
		one(t, farConfig("healthy "+t.TempDir()), &Rule{Run: AcrossProcesses(func(e *Env, ps *Processes) {
			all := ps.Start(2)
			if runtime.GOOS == "linux" {
				all[1].Stop("")
			}
			fmt.Println("\nchildren:", all[0].cmd.Process.Pid, all[1].cmd.Process.Pid)
			<-e.Ctx.Done()
		})})
		return
	}
	cmd := again(t, t.Name(), forgetVar+"=no")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var pids []string
	for len(pids) == 0 && lines.Scan() {
		if after, ok := strings.CutPrefix(lines.Text(), "children: "); ok {
			pids = strings.Fields(after)
		}
	}
	require.Len(t, pids, 2)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for _, pid := range pids {
		n, err := strconv.Atoi(pid)
		require.NoError(t, err)
		assert.Eventually(t, func() bool { return gone(n) }, 20*time.Second, 10*time.Millisecond, "process %d", n)
	}
}

// gone reports whether the process has ended. Whoever inherited it may not have
// taken its status yet.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(state, "Z")
}

func TestProcessThatEndsByItself(t *testing.T) {
	t.Parallel()
	res := one(t, farConfig("panics "+t.TempDir()), &Rule{Run: AcrossProcesses(func(e *Env, ps *Processes) {
		ps.Start(1)[0].MustTry(e.Key("a"), e.TTL, false)
	})})
	assert.Equal(t, Fail, res.Verdict)
	assert.Contains(t, res.Evidence, "process 1 ended by itself (exit status 2)")
	assert.Contains(t, res.Evidence, "panic: the lock broke")
}

// What a process tells: times on one clock, errors that match what they matched
// there, and calls under way when it is killed.
func TestProcessesTell(t *testing.T) {
	t.Parallel()
	res := one(t, farConfig("healthy "+t.TempDir()), &Rule{Run: AcrossProcesses(func(e *Env, ps *Processes) {
		all := ps.Start(2)
		p, b := all[0], e.Locker()
		key := e.Key("a")
		before := e.Log.Now()
		h := p.MustTry(key, e.TTL, true)
		after := e.Log.Now()
		assert.Less(t, before, h.Invoked)
		assert.LessOrEqual(t, h.Invoked, h.Granted)
		assert.Less(t, h.Granted, after)
		d, ok := h.told()
		assert.True(t, ok)
		assert.InDelta(t, h.Invoked+e.TTL, d, float64(e.TTL/20))

		_, err := all[1].Try(key, e.TTL, false)
		assert.ErrorIs(t, err, lock.ErrHeld)
		assert.NotErrorIs(t, err, lock.ErrNotHeld)
		assert.ErrorContains(t, err, key)

		assert.NoError(t, h.look())
		assert.NoError(t, h.Renew())
		renewed, _ := h.told()
		assert.Greater(t, renewed, d)
		p.Stop(key)
		begun := e.Start(func() {
			assert.ErrorIs(t, h.look(), lock.ErrExpired)
			assert.ErrorIs(t, h.Release(e.Ctx), lock.ErrLost)
		})
		held := b.Wins(key, e.TakeoverLimit(e.TTL), 10*ms, "its holder stands still")
		assert.Greater(t, p.Continue(key), e.TTL/2)
		begun()
		assert.Less(t, e.Log.slowest(), e.TTL/2, "a call during a stop was not slow")

		waiting := e.Start(func() {
			_, err := p.Acquire(key, e.TTL, time.Minute)
			assert.ErrorIs(t, err, ErrKilled)
		})
		e.Settle()
		p.Kill()
		waiting()
		held.MustRelease()
		assert.Contains(t, e.Log.around(key), "process 1  Context: ended, cause")
	})})
	assert.Equal(t, Pass, res.Verdict, res.Evidence)
}

func TestHostClocksAgree(t *testing.T) {
	t.Parallel()
	a := newHostClock()
	time.Sleep(5 * ms)
	b := newHostClock()
	now := time.Now()
	assert.InDelta(t, a.at(now), b.at(now), float64(ms))
	assert.InDelta(t, a.at(now), monotonic(), float64(time.Second))
	assert.WithinDuration(t, now, b.time(a.at(now)), ms)
}

func TestStopsAreNoStalls(t *testing.T) {
	t.Parallel()
	sec := int64(time.Second)
	p := &Process{paused: []span{{1 * sec, 2 * sec}, {4 * sec, 5 * sec}, {8 * sec, 0}}}
	read := stallRead + stallTick
	for s, want := range map[span]time.Duration{
		{0, sec / 2}:               500 * ms,
		{0, 3 * sec / 2}:           time.Second,
		{1 * sec, 2 * sec}:         0,
		{1 * sec, 2*sec + 100*1e6}: 0,
		{1 * sec, 3 * sec}:         time.Second - read,
		{3 * sec, 7 * sec}:         3*time.Second - read,
		{7 * sec, 99 * sec}:        time.Second,
		{9 * sec, 10 * sec}:        0,
	} {
		assert.Equal(t, want, p.unpaused(s, stallRead+stallTick), "%v", s)
	}
}

// A process that the machine did not let run after a stop tells of it too late, with its
// next answer; that it took long to hear the question counts at once.
func TestLateToListenIsAStall(t *testing.T) {
	t.Parallel()
	sec := int64(time.Second)
	for name, c := range map[string]struct {
		op          string
		asked, from int64
		want        time.Duration
	}{
		"at once":                {opSee, 3 * sec, 3 * sec, 0},
		"after a while":          {opSee, 3 * sec, 3*sec + 300*1e6, 300 * ms},
		"right after a stop":     {opSee, 2 * sec, 2*sec + 100*1e6, 100 * ms},
		"during a stop":          {opSee, 1 * sec, 2*sec + 60*1e6, 60 * ms},
		"the process has begun":  {opOpen, 3 * sec, 9 * sec, 0},
		"less than counts as it": {opSee, 3 * sec, 3*sec + 10*1e6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Env{Log: &CallLog{}}
			p := &Process{Env: e, paused: []span{{1 * sec, 2 * sec}}, asked: map[int]*Asked{
				1: {op: c.op, at: c.asked, done: make(chan struct{})},
			}}
			p.hear(Answer{ID: 1, From: c.from, To: c.from})
			assert.Equal(t, c.want, e.Log.slowest())
		})
	}
}

func TestFencedRegisterOracle(t *testing.T) {
	t.Parallel()
	type w struct {
		granted time.Duration
		token   uint64
	}
	for name, c := range map[string]struct {
		writes  []w
		refused int
		want    string
	}{
		"nothing":               {nil, 0, ""},
		"in order":              {[]w{{1, 5}, {2, 6}, {2, 6}, {3, 9}}, 0, ""},
		"an old one is refused": {[]w{{1, 5}, {2, 6}, {1, 5}, {3, 7}, {2, 6}}, 2, ""},
		"late, but first":       {[]w{{2, 6}, {1, 5}}, 1, ""},
		"one token for all":     {[]w{{1, 5}, {2, 5}, {1, 5}}, 0, "an older holder's write was accepted"},
		"no tokens":             {[]w{{2, 0}, {1, 0}}, 0, "an older holder's write was accepted"},
		"falling":               {[]w{{1, 5}, {2, 4}}, 1, "the newest holder's write was refused"},
		"the older is larger":   {[]w{{2, 5}, {1, math.MaxInt64}}, 0, "an older holder's write was accepted"},
		"falling and late":      {[]w{{1, 5}, {3, 9}, {2, 10}, {3, 9}}, 1, "an older holder's write was accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := NewFencedRegister()
			for _, x := range c.writes {
				r.Write(FencedWrite{Granted: x.granted, Token: x.token, Sure: true})
			}
			_, refused := r.Counts()
			assert.Equal(t, c.refused, refused)
			text, _ := r.Verdict()
			if c.want == "" {
				assert.Empty(t, text)
			} else {
				assert.Contains(t, text, c.want)
			}
		})
	}
	r := NewFencedRegister()
	r.Write(FencedWrite{Granted: 2, Token: 5, Sure: true})
	r.Write(FencedWrite{Granted: 1, Token: 5})
	text, _ := r.Verdict()
	assert.Empty(t, text, "whose lease may have ended before its call returned proves nothing")
}
