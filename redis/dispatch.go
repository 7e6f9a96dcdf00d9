package redislock

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/joined"
	"github.com/mortiselock/lock/redis/internal/wire"
)

const (
	// maxFlights is how many requests may be under way before the commands of further
	// callers are collected. With a few of them the server works on one while the
	// answers to another are read, and a third bridges the time that either needs to
	// wake up; more make each of them smaller.
	maxFlights = 3
	// leastTogether is up to how many commands go in one request, rather than in two.
	leastTogether = 16
	// maxTogether bounds the commands of a request, so that the answer to the first is
	// not long behind the server's work on the others.
	maxTogether = 128
	// flightPatience is how long a request counts among those under way. Then commands
	// that wait go on another connection, so that one that hangs holds up no command but
	// its own.
	flightPatience = 10 * time.Millisecond
	// afterDeadline is how long a caller waits for the reply to what was sent when its
	// deadline has passed.
	afterDeadline = 100 * time.Millisecond
)

// dispatcher sends the commands of concurrent callers together: a server that reads
// and writes once for many commands has its processor for the commands.
//
// A caller with nobody beside it sends its command itself, on its own goroutine: on a
// [line], where there are any. While maxFlights requests are under way further commands
// wait, and go as one pipeline when a request is back, or when the oldest has been away for
// longer than flightPatience. Where there are many they are shared evenly among the flights:
// of a large and a small request the small one is back while the server works on the large
// one, and then the server waits. A pipeline has the values of its first caller's context
// and the deadline of the last, and no caller's cancellation ends it. A goroutine exists only
// while there is a pipeline to send. The mutex is never held during I/O.
type dispatcher struct {
	client   *goredis.Client
	clock    backend.Clock
	patience time.Duration
	// obedient: no call lasts longer than its context, since there are lines.
	obedient bool

	mu      sync.Mutex
	lines   []*line    // that no flight has
	flights []*flight  // not overdue, in the order of departure
	queue   []*message // commands to be sent; empty unless there are maxFlights flights
	timer   *time.Timer
	armed   bool // the timer runs, and ends no later than the oldest flight is overdue
	closed  bool
	away    sync.WaitGroup // goroutines
}

// flight is a request under way.
type flight struct {
	since time.Time
	calls int
	line  *line // or nil
}

// message is a command that waits to be sent, or for its reply.
type message struct {
	ctx  context.Context
	cmd  wire.Command
	done chan struct{} // holds one, when the rest is set
	sent backend.Instant
	err  error
}

// messages that were answered are used again: a command is short, and what it
// leaves to collect is a noticeable part of it.
var messages = sync.Pool{New: func() any { return &message{done: make(chan struct{}, 1)} }}

// answered returns the answer that done has told of, and gives the message back:
// nobody else has it any more.
func (q *message) answered() (sent backend.Instant, err error) {
	sent, err = q.sent, q.err
	q.ctx, q.cmd, q.err = nil, wire.Command{}, nil
	messages.Put(q)
	return sent, err
}

func newDispatcher(client *goredis.Client, clock backend.Clock, lines []*line) *dispatcher {
	d := &dispatcher{client: client, clock: clock, patience: flightPatience, obedient: len(lines) > 0, lines: slices.Clone(lines)}
	d.timer = time.AfterFunc(time.Hour, d.overdue)
	d.timer.Stop()
	return d
}

// process sends the command, alone or with those of others, and returns the instant
// before and the error of its reply.
//
// A context that ends while the command waits to be sent takes it back, and the error
// says that nothing was sent. What happens once it was sent depends on whether there are
// lines. With them process returns [abandoned] when the context ends. Without them it waits
// for the reply, until a moment after the context's deadline and whether it was cancelled or
// not: whoever cleans up after the call does so when process has returned, and that should
// come after the command.
func (d *dispatcher) process(ctx context.Context, cmd wire.Command) (sent backend.Instant, err error) {
	d.mu.Lock()
	if d.closed || len(d.flights) < maxFlights {
		f := d.depart(1)
		if n := len(d.lines); n > 0 {
			f.line = d.lines[n-1]
			d.lines = d.lines[:n-1]
		}
		if f.line != nil || !d.obedient {
			d.mu.Unlock()
			defer d.land(f)
			sent = d.clock.Now()
			if f.line != nil {
				return sent, neverSent(f.line.process(ctx, cmd))
			}
			return sent, neverSent(d.client.Process(ctx, cmd))
		}
		q := messageOf(ctx, cmd)
		d.away.Add(1)
		d.mu.Unlock()
		go d.fly(f, []*message{q})
		return d.await(q)
	}
	q := messageOf(ctx, cmd)
	d.queue = append(d.queue, q)
	d.arm()
	d.mu.Unlock()
	return d.await(q)
}

func messageOf(ctx context.Context, cmd wire.Command) *message {
	q := messages.Get().(*message)
	q.ctx, q.cmd = ctx, cmd
	return q
}

func (d *dispatcher) await(q *message) (backend.Instant, error) {
	ctx := q.ctx
	one, other := joined.Ends(ctx)
	select {
	case <-q.done:
		return q.answered()
	case <-one:
	case <-other:
	}
	switch {
	case d.withdraw(q):
		return 0, unsentAfter(ctx)
	case d.obedient:
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			<-q.done
		}()
		return 0, abandoned{ctx.Err(), answered}
	}
	var limit <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		timer := time.NewTimer(time.Until(deadline) + afterDeadline)
		defer timer.Stop()
		limit = timer.C
	}
	select {
	case <-q.done:
		return q.answered()
	case <-limit:
		return 0, context.DeadlineExceeded
	}
}

func unsentAfter(ctx context.Context) error {
	return fmt.Errorf("%w: %w", backend.ErrNotSent, ctx.Err())
}

// withdraw takes a command back, unless it is being sent.
func (d *dispatcher) withdraw(q *message) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.queue, q)
	if i < 0 {
		return false
	}
	d.queue = slices.Delete(d.queue, i, i+1)
	return true
}

// depart adds a flight. The caller holds the mutex.
func (d *dispatcher) depart(calls int) *flight {
	f := &flight{since: time.Now(), calls: calls}
	d.flights = append(d.flights, f)
	return f
}

// land ends the flight, and has sent what waits for it.
func (d *dispatcher) land(f *flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.end(f)
	if f.line != nil {
		d.lines = append(d.lines, f.line)
	}
	d.launch()
}

// end takes the flight from the list, where it is not if it was overdue. The caller
// holds the mutex.
func (d *dispatcher) end(f *flight) {
	if i := slices.Index(d.flights, f); i >= 0 {
		d.flights = slices.Delete(d.flights, i, i+1)
	}
}

// launch has sent what may be sent now. The caller holds the mutex.
func (d *dispatcher) launch() {
	for {
		calls, f := d.next()
		if f == nil {
			return
		}
		d.away.Add(1)
		go d.fly(f, calls)
	}
}

// next begins a flight if there is something to send and the flights are few. The
// caller holds the mutex.
func (d *dispatcher) next() ([]*message, *flight) {
	if len(d.queue) == 0 || len(d.flights) >= maxFlights {
		return nil, nil
	}
	n := min(len(d.queue), d.share())
	calls := d.queue[:n:n]
	if d.queue = d.queue[n:]; len(d.queue) == 0 {
		d.queue = nil // the array is that of calls
	}
	return calls, d.depart(n)
}

// share is how many commands a request takes: an even part of those that wait and
// are under way, for as many requests as these fill. The caller holds the mutex.
func (d *dispatcher) share() int {
	n := len(d.queue)
	for _, f := range d.flights {
		n += f.calls
	}
	parts := min((n+leastTogether-1)/leastTogether, maxFlights)
	return min((n+parts-1)/parts, maxTogether)
}

// fly sends the calls, and then what came meanwhile, until nothing waits.
func (d *dispatcher) fly(f *flight, calls []*message) {
	defer d.away.Done()
	for f != nil {
		d.send(calls)
		runtime.Gosched() // whose call has just returned may have the next command
		d.mu.Lock()
		d.end(f)
		calls, f = d.next()
		d.mu.Unlock()
	}
}

// send sends the calls in one request and tells the callers.
func (d *dispatcher) send(calls []*message) {
	calls = slices.DeleteFunc(calls, func(q *message) bool {
		if q.ctx.Err() == nil {
			return false
		}
		q.err = unsentAfter(q.ctx)
		q.done <- struct{}{}
		return true
	})
	if len(calls) == 0 {
		return
	}
	ctx, cancel := contextOf(calls)
	defer cancel()
	cmds := make([]goredis.Cmder, len(calls))
	for i, q := range calls {
		cmds[i] = q.cmd
	}
	pipe := d.client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...)
	sent := d.clock.Now()
	_, err := pipe.Exec(ctx)
	for _, q := range calls {
		q.sent, q.err = sent, neverSent(q.cmd.Err())
		if q.err == nil && q.cmd.Val() == nil {
			q.err = err // a hook of the client has kept it from being sent
		}
		q.done <- struct{}{}
	}
}

// contextOf has the values of the first caller's context and the deadline of the last.
func contextOf(calls []*message) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(calls[0].ctx)
	var last time.Time
	for _, q := range calls {
		deadline, ok := q.ctx.Deadline()
		if !ok {
			return ctx, func() {}
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(ctx, last)
}

// arm sets the timer for when the oldest flight is overdue. The caller holds the
// mutex, and there are flights.
func (d *dispatcher) arm() {
	if !d.armed {
		d.armed = true
		d.timer.Reset(d.patience - time.Since(d.flights[0].since))
	}
}

// overdue no longer counts flights that have been away for too long.
func (d *dispatcher) overdue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
	if len(d.queue) == 0 {
		return
	}
	latest := time.Now().Add(-d.patience)
	d.flights = slices.DeleteFunc(d.flights, func(f *flight) bool { return !f.since.After(latest) })
	d.launch()
	if len(d.queue) > 0 {
		d.arm()
	}
}

// close refuses what was not sent, and waits a moment for the goroutines. The last
// deadline among its callers ends one that has no answer.
func (d *dispatcher) close() {
	d.mu.Lock()
	d.closed = true
	queue := d.queue
	d.queue = nil
	d.timer.Stop()
	d.mu.Unlock()
	for _, q := range queue {
		q.err = errBackendClosed
		q.done <- struct{}{}
	}
	wire.WaitBriefly(&d.away)
}
