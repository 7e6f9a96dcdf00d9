//go:build unix

package conformance

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
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
	filelock "github.com/mortiselock/lock/backend/file"
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

// farConfig is a lock over files that several processes share, with the change
// that the argument names before the directory.
func farConfig(child string) Config {
	name, dir, _ := strings.Cut(child, " ")
	flaw := farMutants[name]
	return Config{
		Name: "file", Child: child,
		Open: func(ctx context.Context) (lock.Locker, error) {
			if os.Stdout == os.Stderr { // in a child
				fmt.Println(`{"id":1,"err":"a lock that prints is nothing special"}`)
			}
			dir := dir
			if flaw.ownStore {
				dir = filepath.Join(dir, strconv.Itoa(os.Getpid()))
			}
			l, err := filelock.New(ctx, dir, nil)
			if err != nil {
				return nil, err
			}
			m := &lockerMutant{Locker: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
			if flaw.change != nil {
				flaw.change(m, dir)
			}
			return m, nil
		},
		TTL: time.Second, Budget: 5 * time.Second,
	}
}

func TestProcessesOfAHealthyLock(t *testing.T) {
	t.Parallel()
	cfg := farConfig("healthy " + t.TempDir())
	cfg.Only = []string{"processes"}
	rep, err := Check(t.Context(), cfg)
	require.NoError(t, err)
	assert.Len(t, rep.Results, len(processRules))
	for _, r := range rep.Results {
		assert.Equal(t, Pass, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		t.Log(r.Rule, r.Evidence)
	}
}

// again runs one test of this program in another process of it.
func again(t *testing.T, test string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

func TestForgottenChildIsANamedSkip(t *testing.T) {
	t.Parallel()
	if os.Getenv(forgetVar) == "" {
		out, err := again(t, t.Name(), forgetVar+"=always").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	cfg := farConfig("healthy " + t.TempDir())
	assertSkipped(t, cfg, "call conformance.Child in TestMain")
}

func TestWhatElseLacksProcesses(t *testing.T) {
	t.Parallel()
	assertSkipped(t, memory(), "reaches one process only")
	cfg := farConfig("healthy " + t.TempDir())
	cfg.Child = ""
	assertSkipped(t, cfg, "needs Config.Child")
}

func assertSkipped(t *testing.T, cfg Config, why string) {
	t.Helper()
	cfg.Only = []string{"processes"}
	rep, err := Check(t.Context(), cfg)
	require.NoError(t, err)
	for _, r := range rep.Results {
		assert.Equal(t, Skipped, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		assert.Contains(t, r.Evidence, why)
	}
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
	res := one(t, farConfig("healthy "+t.TempDir()), &rule{run: acrossProcesses(func(_ *env, ps *processes) { ps.start(1) })})
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
	_, err := prepare(t.Context(), memory(), nil)
	require.ErrorIs(t, err, errInChild)
}

// When the suite's own process is killed, those that it started end too, even one
// that is stopped.
func TestChildrenDieWithTheSuite(t *testing.T) {
	t.Parallel()
	if os.Getenv(forgetVar) != "" {
		one(t, farConfig("healthy "+t.TempDir()), &rule{run: acrossProcesses(func(e *env, ps *processes) {
			all := ps.start(2)
			if runtime.GOOS == "linux" {
				all[1].stop("")
			}
			fmt.Println("\nchildren:", all[0].cmd.Process.Pid, all[1].cmd.Process.Pid)
			<-e.ctx.Done()
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
	res := one(t, farConfig("panics "+t.TempDir()), &rule{run: acrossProcesses(func(e *env, ps *processes) {
		ps.start(1)[0].mustTry(e.key("a"), e.ttl, false)
	})})
	assert.Equal(t, Fail, res.Verdict)
	assert.Contains(t, res.Evidence, "process 1 ended by itself (exit status 2)")
	assert.Contains(t, res.Evidence, "panic: the lock broke")
}

// What a process tells: times on one clock, errors that match what they matched
// there, and calls under way when it is killed.
func TestProcessesTell(t *testing.T) {
	t.Parallel()
	res := one(t, farConfig("healthy "+t.TempDir()), &rule{run: acrossProcesses(func(e *env, ps *processes) {
		all := ps.start(2)
		p, b := all[0], e.locker()
		key := e.key("a")
		before := e.hist.now()
		h := p.mustTry(key, e.ttl, true)
		after := e.hist.now()
		assert.Less(t, before, h.invoked)
		assert.LessOrEqual(t, h.invoked, h.granted)
		assert.Less(t, h.granted, after)
		d, ok := h.told()
		assert.True(t, ok)
		assert.InDelta(t, h.invoked+e.ttl, d, float64(e.ttl/20))

		_, err := all[1].try(key, e.ttl, false)
		assert.ErrorIs(t, err, lock.ErrHeld)
		assert.NotErrorIs(t, err, lock.ErrNotHeld)
		assert.ErrorContains(t, err, key)

		assert.NoError(t, h.look())
		assert.NoError(t, h.renew())
		renewed, _ := h.told()
		assert.Greater(t, renewed, d)
		p.stop(key)
		begun := e.start(func() {
			assert.ErrorIs(t, h.look(), lock.ErrExpired)
			assert.ErrorIs(t, h.release(e.ctx), lock.ErrLost)
		})
		held := b.wins(key, e.takeover(e.ttl), 10*ms, "its holder stands still")
		assert.Greater(t, p.goOn(key), e.ttl/2)
		begun()
		assert.Less(t, e.hist.slowest(), e.ttl/2, "a call during a stop was not slow")

		waiting := e.start(func() {
			_, err := p.acquire(key, e.ttl, time.Minute)
			assert.ErrorIs(t, err, errKilled)
		})
		e.settle()
		p.kill()
		waiting()
		held.mustRelease()
		assert.Contains(t, e.hist.around(key), "process 1  Context: ended, cause")
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
	p := &process{paused: []span{{1 * sec, 2 * sec}, {4 * sec, 5 * sec}, {8 * sec, 0}}}
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
			e := &env{hist: &history{}}
			p := &process{e: e, paused: []span{{1 * sec, 2 * sec}}, asked: map[int]*asked{
				1: {op: c.op, at: c.asked, done: make(chan struct{})},
			}}
			p.hear(answer{ID: 1, From: c.from, To: c.from})
			assert.Equal(t, c.want, e.hist.slowest())
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
			r := newFencedRegister()
			for _, x := range c.writes {
				r.write(fencedWrite{granted: x.granted, token: x.token, sure: true})
			}
			_, refused := r.counts()
			assert.Equal(t, c.refused, refused)
			text, _ := r.verdict()
			if c.want == "" {
				assert.Empty(t, text)
			} else {
				assert.Contains(t, text, c.want)
			}
		})
	}
	r := newFencedRegister()
	r.write(fencedWrite{granted: 2, token: 5, sure: true})
	r.write(fencedWrite{granted: 1, token: 5})
	text, _ := r.verdict()
	assert.Empty(t, text, "whose lease may have ended before its call returned proves nothing")
}
