package engine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Processes are the processes of one case.
type Processes struct {
	e     *Env
	clock hostClock

	mu   sync.Mutex
	list []*Process
}

// Process is a process of the suite's own with one client. Its calls are
// recorded with the times at which they were made there.
type Process struct {
	Processes *Processes
	Env       *Env
	Who       string
	cmd       *exec.Cmd
	in        io.WriteCloser
	log       tail
	ended     chan struct{} // closed when it is gone and all that it said has been read

	mu     sync.Mutex
	last   int
	asked  map[int]*Asked
	paused []span // of the machine's clock; an open one ends at zero
	killed bool
	died   time.Duration // when it was killed
	err    error         // how it ended
}

// Asked is a command under way.
type Asked struct {
	op     string
	at     int64        // when, on the machine's clock
	events func(Answer) // is called for each event, in order
	done   chan struct{}
	answer Answer // when done is closed
}

// ErrKilled is what a call returns whose process was killed.
var ErrKilled = errors.New("the process was killed meanwhile")

const (
	helloLimit = 10 * time.Second
	leaveLimit = 3 * time.Second
)

// AcrossProcesses makes a case that has processes, or is skipped.
func AcrossProcesses(run func(e *Env, ps *Processes)) func(*Env) {
	return func(e *Env) {
		switch {
		case e.Claimed.Reach == backend.ReachProcess:
			e.Skipf("the lock reaches one process only")
		case !processesWork:
			e.Skipf("needs an operating system that can stop and continue a process (SIGSTOP, SIGCONT)")
		case !childCalled.Load():
			e.Skipf("no child processes: call conformance.Child in TestMain or main, and set Config.Child")
		case e.Child == "":
			e.Skipf("no child processes: needs Config.Child, by which the function given to conformance.Child makes this Config again")
		}
		ps := &Processes{e: e, clock: newHostClock()}
		defer ps.end()
		run(e, ps)
	}
}

// Start starts n processes and opens a client in each.
func (ps *Processes) Start(n int) []*Process {
	started := make([]*Process, n)
	for i := range started {
		started[i] = ps.launch()
	}
	for _, p := range started {
		p.open()
	}
	return started
}

func (ps *Processes) launch() *Process {
	e := ps.e
	path, err := os.Executable()
	if err != nil {
		e.Fatalf("", "a process cannot be started: %v", err)
	}
	p := &Process{Processes: ps, Env: e, ended: make(chan struct{}), asked: map[int]*Asked{}}
	p.cmd = exec.Command(path)
	if flag.Lookup("test.run") != nil {
		// If TestMain does not get to Child after all, no test runs.
		p.cmd.Args = append(p.cmd.Args, "-test.run=^$")
	}
	p.cmd.Env = append(os.Environ(), childVar+"=1")
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = time.Second
	dieTogether(p.cmd)
	var out io.ReadCloser
	if p.in, err = p.cmd.StdinPipe(); err == nil {
		if out, err = p.cmd.StdoutPipe(); err == nil {
			err = p.cmd.Start()
		}
	}
	if err != nil {
		e.Fatalf("", "a process cannot be started: %v", err)
	}
	ps.mu.Lock()
	ps.list = append(ps.list, p)
	p.Who = fmt.Sprintf("process %d", len(ps.list))
	ps.mu.Unlock()
	go p.listen(out)
	return p
}

// open waits for the first word of the process, and then until it has opened its
// client.
func (p *Process) open() {
	e := p.Env
	ev := e.Log.Begin(p.Who, "Open", "")
	hello := make(chan struct{})
	q := p.Ask(Command{Op: opOpen, Child: e.Child, TTL: e.Settings.TTL, Limit: OpenLimit}, func(Answer) { close(hello) })
	if !e.Within(helloLimit, either(hello, p.ended)) {
		e.Log.End(ev, "no word")
		e.OverdueFatalf("", "a process that the suite started from this program said nothing for %s. %s%s", helloLimit, callChild, p.log.text())
	}
	select {
	case <-hello:
	default:
		e.Log.End(ev, "the process has ended")
		e.Fatalf("", "a process that the suite started from this program ended without a word (%v). %s%s", p.err, callChild, p.log.text())
	}
	a, _ := p.Wait(q)
	err := a.Error()
	e.Log.End(ev, Outcome(err))
	if err != nil {
		e.UnexpectedFatal("", err, "a client could not be opened in another process: %v%s", err, p.log.text())
	}
}

const callChild = "Does every way through TestMain or main call conformance.Child before everything else?"

// either is closed when one of the channels is. The second is closed in any case,
// some time.
func either(a, b <-chan struct{}) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		select {
		case <-a:
		case <-b:
		}
	}()
	return c
}

// listen takes what the process says until it has ended.
func (p *Process) listen(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var a Answer
		if len(line) > 0 && json.Unmarshal(line, &a) == nil && a.ID > 0 {
			p.hear(a)
		} else {
			_, _ = p.log.Write(line)
		}
		if err != nil {
			break
		}
	}
	p.err = p.cmd.Wait()
	if p.err == nil {
		p.err = errors.New("exit status 0")
	}
	close(p.ended)
}

func (p *Process) hear(a Answer) {
	p.mu.Lock()
	q := p.asked[a.ID]
	if a.Event == "" {
		delete(p.asked, a.ID)
	}
	var stood time.Duration
	for _, s := range a.Stalls {
		// The meter of the process may notice a stop a little after its end.
		stood = max(stood, p.unpaused(s, stallRead+stallTick))
	}
	if q != nil && q.op != opOpen && a.Event == "" {
		// What the process was asked waited for it to run. Its meter may tell of that later.
		stood = max(stood, p.unpaused(span{q.at, a.From}, 0))
	}
	p.mu.Unlock()
	if stood >= stallNoted {
		p.Env.Log.stood(stood)
	}
	switch {
	case q == nil:
	case a.Event == "":
		q.answer = a
		close(q.done)
	case q.events != nil:
		q.events(a)
	}
}

// unpaused is the part of the span for which the process was not stopped on
// purpose, nor had been for so long after it. The caller holds the mutex.
func (p *Process) unpaused(s span, after time.Duration) time.Duration {
	d := s.To - s.From
	for _, x := range p.paused {
		to := s.To
		if x.To != 0 {
			to = min(to, x.To+int64(after))
		}
		d -= max(to-max(x.From, s.From), 0)
	}
	return time.Duration(max(d, 0))
}

// Ask sends a command.
func (p *Process) Ask(c Command, events func(Answer)) *Asked {
	q := &Asked{op: c.Op, at: p.Processes.clock.now(), events: events, done: make(chan struct{})}
	p.mu.Lock()
	p.last++
	c.ID = p.last
	p.asked[c.ID] = q
	line, err := json.Marshal(c)
	if err == nil {
		_, _ = p.in.Write(append(line, '\n')) // whether it is heard shows in the answers
	}
	p.mu.Unlock()
	if err != nil {
		p.Env.Fatalf("", "a command cannot be written: %v", err)
	}
	return q
}

// Wait waits for the answer. It reports false when the process was killed first.
func (p *Process) Wait(q *Asked) (Answer, bool) {
	select {
	case <-q.done:
	case <-p.ended:
	case <-p.Env.Ctx.Done():
		panic(Abort{})
	}
	select {
	case <-q.done:
		return q.answer, true
	default:
	}
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if !killed {
		p.Env.Fatalf("", "%s ended by itself (%v)%s", p.Who, p.err, p.log.text())
	}
	return Answer{}, false
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop stops the process with SIGSTOP and returns when it stands still. The key,
// if any, is the one whose calls the evidence shows it among.
func (p *Process) Stop(key string) {
	p.mu.Lock()
	p.paused = append(p.paused, span{From: p.Processes.clock.now()})
	p.mu.Unlock()
	if err := stopProcess(p.cmd.Process); err != nil {
		p.Env.LateFatalf(key, "%s cannot be stopped: %v", p.Who, err)
	}
	p.Env.Log.Note(p.Who, key, "has been stopped with SIGSTOP")
}

// Continue continues the process with SIGCONT and returns how long it stood still.
func (p *Process) Continue(key string) time.Duration {
	p.mu.Lock()
	x := &p.paused[len(p.paused)-1]
	x.To = p.Processes.clock.now()
	stood := time.Duration(x.To - x.From)
	p.mu.Unlock()
	p.Env.Log.Note(p.Who, key, fmt.Sprintf("goes on with SIGCONT, after %s", stood.Round(time.Millisecond)))
	if err := continueProcess(p.cmd.Process); err != nil {
		p.Env.Fatalf(key, "%s cannot be continued: %v", p.Who, err)
	}
	return stood
}

// stopped is when the process was first stopped after the given time, in the time of the
// case, for at least so long; or -1.
func (p *Process) stopped(after, least time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.paused {
		from := p.Processes.At(x.From)
		if to := p.Processes.At(x.To); from >= after && (x.To == 0 || to-from >= least) {
			return from
		}
	}
	return -1
}

// Kill ends the process with SIGKILL and returns when it is gone and everything
// that it said has been heard.
func (p *Process) Kill() {
	p.mu.Lock()
	p.killed, p.died = true, p.Env.Log.Now()
	p.mu.Unlock()
	p.Env.Log.Note("suite", "", "kills "+p.Who)
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-p.Env.Ctx.Done():
		panic(Abort{})
	}
	p.Env.Log.Note(p.Who, "", "is gone")
}

// connectionEnds is when the death of the process has ended its connections, and with
// them its holds where a hold is one with its connection, or -1.
func (p *Process) connectionEnds() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.died == 0 || p.Env.Claimed.Expiry != backend.ClockConnection {
		return -1
	}
	return p.died
}

// end ends every process: those that can, close their clients first.
func (ps *Processes) end() {
	ps.mu.Lock()
	list := ps.list
	ps.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range list {
		wg.Go(func() {
			p.mu.Lock()
			p.killed = true
			stopped := len(p.paused) > 0 && p.paused[len(p.paused)-1].To == 0
			p.mu.Unlock()
			_ = p.in.Close()
			if !stopped {
				t := time.NewTimer(leaveLimit)
				defer t.Stop()
				select {
				case <-p.ended:
					return
				case <-t.C:
				}
			}
			_ = p.cmd.Process.Kill()
			<-p.ended
		})
	}
	wg.Wait()
}

// Error is the error of the call, with the sentinels that it matched.
func (a Answer) Error() error {
	if a.Err == "" {
		return nil
	}
	err := &toldError{text: a.Err}
	for _, n := range errorNames {
		for _, name := range a.Is {
			if n.name == name {
				err.is = append(err.is, n.err)
			}
		}
	}
	return err
}

// toldError is an error of another process.
type toldError struct {
	text string
	is   []error
}

func (e *toldError) Error() string { return e.text }

func (e *toldError) Unwrap() []error { return e.is }

// tail keeps the last that a process printed.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if n := len(t.buf) - tailSize; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return len(b), nil
}

// text is what was printed, for the end of a sentence.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(bytes.TrimSpace(t.buf)) == 0 {
		return ""
	}
	return "\n  it printed: " + strings.ReplaceAll(strings.TrimSpace(string(t.buf)), "\n", "\n  ")
}
