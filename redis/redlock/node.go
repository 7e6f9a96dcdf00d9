package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/redis/internal/wire"
)

const (
	// maxQueued bounds what waits for one node, and maxBatch what is sent to it
	// in one round trip.
	maxQueued = 1024
	maxBatch  = 500
	// maxOwed bounds the releases that a node which does not answer is to get later.
	maxOwed = 4096
	// nodeIdle is how long the goroutine of a node waits for work. The stack of a new
	// one has to grow first, which takes a good part of a request's time.
	nodeIdle = time.Second
	// A node that does not answer is left alone for this part of its timeout, then for twice
	// as long each time, and for longestRest at most. It begins so short because all of them
	// may be back: a network that is silent for a moment must not cost the leases.
	firstRestPart = 4
	longestRest   = time.Second
)

// call is one request to one node. It is answered once.
type call struct {
	round  *round // nil for a release that nobody waits for
	index  int    // of the node
	script wire.Script
	args   []any // the command by its hash, shared by the calls of a round

	// A release that was not confirmed is sent again when the node answers, until
	// the lease has ended by itself.
	release bool
	until   backend.Instant

	sent  backend.Instant // just before; zero if it was not
	value any
	err   error
}

// server carries out the calls on one node, in their order, and fills in value
// and err of each.
type server interface {
	do(ctx context.Context, calls []*call)
}

var (
	errSilent  = errors.New("did not answer the last request, and was not asked")
	errTooMany = errors.New("too many requests wait for it")
	errClosing = errors.New("the Locker is closing")
)

// silentError is errSilent with how the last request ended. That is not the end of the
// call which was not sent, so it can be read and not matched.
type silentError struct{ last error }

func (e silentError) Error() string {
	return "was not asked, since the last request failed: " + wire.Sanitized(e.last).Error() + wire.Hint(e.last)
}

func (silentError) Is(target error) bool { return target == errSilent }

// unsent marks the errors of calls that were not sent.
func unsent(err error) bool {
	return errors.Is(err, errSilent) || errors.Is(err, errTooMany) || errors.Is(err, errClosing) || errors.Is(err, errTwice)
}

// node sends the calls of a Locker to one node: one batch at a time, in the
// order in which they were made, so that a release never overtakes the request that
// it follows. One goroutine does so while there is work, and for a moment longer. Whoever makes a call never
// waits for the node: a node that does not answer has one request under way, to find
// out when it is back, and refuses all others at once.
type node struct {
	name    string // for errors
	server  server
	clock   backend.Clock
	ctx     context.Context
	timeout time.Duration // after which an answer no longer counts
	wake    chan struct{} // taken by the goroutine if it has nothing to do
	clocked nodeClock

	mu        sync.Mutex
	queue     []*call
	spare     []*call
	busy      bool            // the goroutine is at work
	began     backend.Instant // when the batch under way was sent
	failures  int             // batches in a row without an answer
	failure   error           // of the last of them
	restUntil backend.Instant // until when the node is left alone
	owed      []*call         // releases to be sent again
	closed    bool
	lost      bool          // its client was closed by its owner
	idle      chan struct{} // closed when the goroutine has nothing to do, if somebody waits
}

// send makes the call, or answers it at once when the node can't be asked.
func (n *node) send(c *call, now backend.Instant) {
	if err := n.enqueue(c, now); err != nil {
		c.err = err
		tell([]*call{c})
	}
}

func (n *node) enqueue(c *call, now backend.Instant) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	switch {
	case n.closed && !(c.release && n.busy):
		err = errClosing
	case n.lost:
		err = goredis.ErrClosed
	case n.silent(now):
		err = n.silence()
	case len(n.queue) >= maxQueued:
		err = errTooMany
	}
	if err != nil {
		n.owe(c)
		return err
	}
	n.queue = append(n.queue, c)
	if !n.busy {
		n.busy = true
		n.began = now
		select {
		case n.wake <- struct{}{}:
		default:
			go n.run()
		}
	}
	return nil
}

// silent reports that the node is known not to answer. The mutex is held.
func (n *node) silent(now backend.Instant) bool {
	if n.busy && (n.failures > 0 || now.Sub(n.began) > n.timeout) {
		return true
	}
	return n.failures > 0 && now < n.restUntil
}

// silence is the error of what is not sent to a node that does not answer. The mutex is
// held.
func (n *node) silence() error {
	if n.failure == nil {
		return errSilent // the request is still under way
	}
	return silentError{n.failure}
}

// owe remembers a release that was not confirmed. The mutex is held.
func (n *node) owe(c *call) {
	if c.release && len(n.owed) < maxOwed {
		n.owed = append(n.owed, &call{script: c.script, args: c.args, release: true, until: c.until})
	}
}

// owes reports whether the node is to get releases again.
func (n *node) owes() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.owed) > 0
}

// run sends what is queued, until there has been nothing for a while.
func (n *node) run() {
	limit := time.NewTimer(nodeIdle)
	defer limit.Stop()
	for {
		batch, tested := n.take()
		if batch == nil {
			limit.Reset(nodeIdle)
			select {
			case <-n.wake:
				continue
			case <-limit.C:
			case <-n.ctx.Done():
			}
			return
		}
		n.server.do(n.ctx, batch)
		late := n.finish(batch, tested)
		tell(batch)
		tell(late)
		n.mu.Lock()
		if n.spare == nil && cap(batch) <= maxBatch {
			clear(batch)
			n.spare = batch[:0]
		}
		n.mu.Unlock()
	}
}

// take returns the next batch, or nil when there is nothing to send. tested says that the
// node answered the batch before.
func (n *node) take() (batch []*call, tested bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock.Now()
	tested = n.failures == 0
	batch = n.queue
	n.queue, n.spare = n.spare, nil
	if len(batch) > maxBatch {
		n.queue = append(n.queue, batch[maxBatch:]...)
		batch = batch[:maxBatch:maxBatch]
	}
	if len(n.owed) > 0 && !n.closed && (tested || now >= n.restUntil) {
		batch = append(batch, n.debts(now, maxBatch)...)
	}
	if len(batch) == 0 {
		n.busy = false
		if n.idle != nil {
			close(n.idle)
			n.idle = nil
		}
		return nil, tested
	}
	n.began = now
	for _, c := range batch {
		c.sent = now
	}
	return batch, tested
}

// debts takes up to most of the releases that are owed and still matter. The mutex
// is held.
func (n *node) debts(now backend.Instant, most int) []*call {
	var due, rest []*call
	for _, c := range n.owed {
		switch {
		case now >= c.until:
		case len(due) < most:
			due = append(due, c)
		default:
			rest = append(rest, c)
		}
	}
	n.owed = rest
	return due
}

func tell(calls []*call) {
	for _, c := range calls {
		if c.round != nil {
			c.round.answer(c)
		}
	}
}

// finish draws the conclusions about the node from a batch. It returns the calls
// that will not be sent, since they have waited for too long.
func (n *node) finish(batch []*call, tested bool) []*call {
	answered, timeout, lost := false, false, false
	for _, c := range batch {
		if c.err == nil || wire.ServerRefused(c.err) {
			answered = true
		} else {
			timeout = timeout || failure.IsTimeout(c.err)
			lost = lost || errors.Is(c.err, goredis.ErrClosed)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range batch {
		// What was sent before the node was known to answer may have been overtaken
		// by a request that it got earlier, on a connection that was given up.
		if c.release && (c.err != nil || !tested) {
			n.owe(c)
		}
	}
	if answered {
		n.failures, n.failure = 0, nil
		return nil
	}
	n.failures++
	n.failure = batch[0].err
	n.lost = n.lost || lost
	// A single broken connection says little; a server that restarts breaks them all.
	if timeout || n.failures > 1 {
		n.restUntil = n.clock.Now().Add(min(n.timeout/firstRestPart<<min(n.failures-1, 8), longestRest))
	}
	late := n.queue
	n.queue = nil
	for _, c := range late {
		c.err = n.silence()
		if n.lost {
			c.err = goredis.ErrClosed
		}
		n.owe(c)
	}
	return late
}

// close refuses further calls and returns what is closed when those under way have
// ended, or nil if there are none.
func (n *node) close() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if !n.busy {
		return nil
	}
	if n.idle == nil {
		n.idle = make(chan struct{})
	}
	return n.idle
}

// redisServer is a node on a client of go-redis.
type redisServer struct {
	client *goredis.Client
	mark   string        // the name of the node's mark
	delay  time.Duration // after which a node that has lost its data grants again
	run    *nodeRun
}

func (s redisServer) do(ctx context.Context, calls []*call) {
	if s.run != nil && !s.run.known.Load() {
		s.again(ctx, calls)
		return
	}
	execute(ctx, s.client, calls, false)
	for i, c := range calls {
		if wire.UnknownScript(c.err) {
			// The server has been restarted, or was never asked. The calls after this
			// one go again too, to keep the order; they may be repeated.
			s.again(ctx, calls[i:])
			return
		}
	}
}

// again sends the calls as text, after the script that notices a restart and on the same
// connection: a run of the server that begins in between learns no script.
func (s redisServer) again(ctx context.Context, calls []*call) {
	type answer struct {
		value any
		err   error
	}
	first := make([]answer, len(calls))
	for i, c := range calls {
		if !wire.UnknownScript(c.err) {
			first[i] = answer{c.value, c.err}
		}
	}
	mark := wire.NewCommand(ctx, markCommand(s.mark, s.delay)...)
	conn := s.client.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back
	err := conn.Process(ctx, mark)
	if err == nil && s.run != nil {
		err = s.run.is(wire.ListOf(mark.Val()).String(0))
	}
	if err == nil {
		execute(ctx, conn, calls, true)
	} else {
		for _, c := range calls {
			c.value, c.err = nil, err
		}
	}
	for i, c := range calls {
		switch {
		case errors.Is(c.err, errTwice):
		case c.release && c.err == nil && released(first[i].value):
			c.value = first[i].value
		case c.err != nil && wire.Sentinel(c.err) != nil && first[i] != answer{}:
			// That nothing was done now does not deny what was done, or may have been.
			c.value, c.err = first[i].value, first[i].err
		case c.err == nil && first[i].err != nil && !wire.ServerRefused(first[i].err) && c.round != nil && !c.release && c.round.meaning(c) == no:
			// The request that lost its answer may arrive yet, and be granted.
			c.value, c.err = nil, first[i].err
		}
	}
}

// released reports whether the answer says that a hold was ended.
func released(value any) bool {
	n, _ := value.(int64)
	return n > 0
}

// executor is a client, or one connection of it.
type executor interface {
	Process(ctx context.Context, cmd goredis.Cmder) error
	Pipeline() goredis.Pipeliner
}

func execute(ctx context.Context, s executor, calls []*call, asText bool) {
	if len(calls) == 1 {
		c := calls[0]
		cmd := c.command(ctx, asText)
		c.err = s.Process(ctx, cmd)
		c.value = cmd.Val()
		return
	}
	pipe := s.Pipeline()
	cmds := make([]wire.Command, len(calls))
	for i, c := range calls {
		cmds[i] = c.command(ctx, asText)
		_ = pipe.Process(ctx, cmds[i])
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, c := range calls {
		c.value, c.err = cmds[i].Val(), cmds[i].Err()
	}
}

func (c *call) command(ctx context.Context, asText bool) wire.Command {
	if !asText {
		return wire.NewCommand(ctx, c.args...)
	}
	return wire.NewCommand(ctx, c.script.AsText(c.args)...)
}
