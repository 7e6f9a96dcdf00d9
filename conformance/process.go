package conformance

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

// processes are the processes of one case.
type processes struct {
	e     *env
	clock hostClock

	mu   sync.Mutex
	list []*process
}

// process is a process of the suite's own with one client. Its calls are
// recorded with the times at which they were made there.
type process struct {
	ps    *processes
	e     *env
	who   string
	cmd   *exec.Cmd
	in    io.WriteCloser
	log   tail
	ended chan struct{} // closed when it is gone and all that it said has been read

	mu     sync.Mutex
	last   int
	asked  map[int]*asked
	paused []span // of the machine's clock; an open one ends at zero
	killed bool
	died   time.Duration // when it was killed
	err    error         // how it ended
}

// asked is a command under way.
type asked struct {
	op     string
	at     int64        // when, on the machine's clock
	events func(answer) // is called for each event, in order
	done   chan struct{}
	answer answer // when done is closed
}

// errKilled is what a call returns whose process was killed.
var errKilled = errors.New("the process was killed meanwhile")

const (
	helloLimit = 10 * time.Second
	leaveLimit = 3 * time.Second
)

// acrossProcesses makes a case that has processes, or is skipped.
func acrossProcesses(run func(e *env, ps *processes)) func(*env) {
	return func(e *env) {
		switch {
		case e.g.Reach == backend.ReachProcess:
			e.skipf("the lock reaches one process only")
		case !processesWork:
			e.skipf("needs an operating system that can stop and continue a process (SIGSTOP, SIGCONT)")
		case !childCalled.Load():
			e.skipf("no child processes: call conformance.Child in TestMain or main, and set Config.Child")
		case e.Child == "":
			e.skipf("no child processes: needs Config.Child, by which the function given to conformance.Child makes this Config again")
		}
		ps := &processes{e: e, clock: newHostClock()}
		defer ps.end()
		run(e, ps)
	}
}

// start starts n processes and opens a client in each.
func (ps *processes) start(n int) []*process {
	started := make([]*process, n)
	for i := range started {
		started[i] = ps.launch()
	}
	for _, p := range started {
		p.open()
	}
	return started
}

func (ps *processes) launch() *process {
	e := ps.e
	path, err := os.Executable()
	if err != nil {
		e.fatalf("", "a process cannot be started: %v", err)
	}
	p := &process{ps: ps, e: e, ended: make(chan struct{}), asked: map[int]*asked{}}
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
		e.fatalf("", "a process cannot be started: %v", err)
	}
	ps.mu.Lock()
	ps.list = append(ps.list, p)
	p.who = fmt.Sprintf("process %d", len(ps.list))
	ps.mu.Unlock()
	go p.listen(out)
	return p
}

// open waits for the first word of the process, and then until it has opened its
// client.
func (p *process) open() {
	e := p.e
	ev := e.hist.begin(p.who, "Open", "")
	hello := make(chan struct{})
	q := p.ask(command{Op: opOpen, Child: e.Child, TTL: e.settings.ttl, Limit: openLimit}, func(answer) { close(hello) })
	if !e.within(helloLimit, either(hello, p.ended)) {
		e.hist.end(ev, "no word")
		e.overdueFatalf("", "a process that the suite started from this program said nothing for %s. %s%s", helloLimit, callChild, p.log.text())
	}
	select {
	case <-hello:
	default:
		e.hist.end(ev, "the process has ended")
		e.fatalf("", "a process that the suite started from this program ended without a word (%v). %s%s", p.err, callChild, p.log.text())
	}
	a, _ := p.wait(q)
	err := a.error()
	e.hist.end(ev, outcome(err))
	if err != nil {
		e.unexpectedFatal("", err, "a client could not be opened in another process: %v%s", err, p.log.text())
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
func (p *process) listen(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var a answer
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

func (p *process) hear(a answer) {
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
		p.e.hist.stood(stood)
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
func (p *process) unpaused(s span, after time.Duration) time.Duration {
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

// ask sends a command.
func (p *process) ask(c command, events func(answer)) *asked {
	q := &asked{op: c.Op, at: p.ps.clock.now(), events: events, done: make(chan struct{})}
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
		p.e.fatalf("", "a command cannot be written: %v", err)
	}
	return q
}

// wait waits for the answer. It reports false when the process was killed first.
func (p *process) wait(q *asked) (answer, bool) {
	select {
	case <-q.done:
	case <-p.ended:
	case <-p.e.ctx.Done():
		panic(abort{})
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
		p.e.fatalf("", "%s ended by itself (%v)%s", p.who, p.err, p.log.text())
	}
	return answer{}, false
}

// stop stops the process with SIGSTOP and returns when it stands still. The key,
// if any, is the one whose calls the evidence shows it among.
func (p *process) stop(key string) {
	p.mu.Lock()
	p.paused = append(p.paused, span{From: p.ps.clock.now()})
	p.mu.Unlock()
	if err := stopProcess(p.cmd.Process); err != nil {
		p.e.lateFatalf(key, "%s cannot be stopped: %v", p.who, err)
	}
	p.e.hist.note(p.who, key, "has been stopped with SIGSTOP")
}

// goOn continues the process with SIGCONT and returns how long it stood still.
func (p *process) goOn(key string) time.Duration {
	p.mu.Lock()
	x := &p.paused[len(p.paused)-1]
	x.To = p.ps.clock.now()
	stood := time.Duration(x.To - x.From)
	p.mu.Unlock()
	p.e.hist.note(p.who, key, fmt.Sprintf("goes on with SIGCONT, after %s", stood.Round(time.Millisecond)))
	if err := continueProcess(p.cmd.Process); err != nil {
		p.e.fatalf(key, "%s cannot be continued: %v", p.who, err)
	}
	return stood
}

// kill ends the process with SIGKILL and returns when it is gone and everything
// that it said has been heard.
func (p *process) kill() {
	p.mu.Lock()
	p.killed, p.died = true, p.e.hist.now()
	p.mu.Unlock()
	p.e.hist.note("suite", "", "kills "+p.who)
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-p.e.ctx.Done():
		panic(abort{})
	}
	p.e.hist.note(p.who, "", "is gone")
}

// connectionEnds is when the death of the process has ended its connections, and with
// them its holds where a hold is one with its connection, or -1.
func (p *process) connectionEnds() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.died == 0 || p.e.g.Expiry != backend.ClockConnection {
		return -1
	}
	return p.died
}

// end ends every process: those that can, close their clients first.
func (ps *processes) end() {
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

// error is the error of the call, with the sentinels that it matched.
func (a answer) error() error {
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

func (e *toldError) Error() string   { return e.text }
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
