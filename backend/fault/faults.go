package faultlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Options are the settings of [New]. The zero value of each field, and a nil
// pointer, mean the default.
type Options struct {
	// Random draws faults from a seed for calls that no rule matches. Default: none.
	Random *Random

	// Observe is told about each entry of the log when it is made: about a fault
	// just before it takes effect, and about a late request just after. It is
	// called from many goroutines at once, on that of the call, never while a mutex
	// is held; a test may signal from it, or block to hold the call up. Default:
	// none.
	Observe func(Injection)

	// Answered is told how long the inner backend took for each call that it was
	// sent, without the delays of faults, and with what error it answered. Each hold
	// of a batch is told of with the time of the batch; an OpWait takes as long as the
	// wait for its turn. It is called from many goroutines at once, on that of the
	// call, never while a mutex is held. Default: none.
	Answered func(op Op, key string, took time.Duration, err error)
}

// Faults decides about the calls of one backend and remembers what it did to them.
// All methods are safe for concurrent use.
type Faults struct {
	faulty  *faulty
	observe func(Injection)
	answer  func(op Op, key string, took time.Duration, err error)
	since   time.Time
	life    context.Context // ends when Close of the backend begins
	end     context.CancelFunc
	running sync.WaitGroup // goroutines of late requests, clean-ups and watches

	mu      sync.Mutex
	rules   []*rule
	random  *draw         // nil when nothing is drawn
	seeded  *draw         // what random was before Heal, for the log
	healed  chan struct{} // closed and replaced by Heal
	closed  bool
	calls   map[call]int
	log     []Injection
	dropped int // entries that the log had no room for
	held    map[backend.ID]string
	notify  func(id backend.ID, cause error)
	timers  map[*time.Timer]struct{} // of late requests
	watches map[*watch]struct{}
}

// call names an operation on a key.
type call struct {
	op  Op
	key string
}

// New prepares faults for a backend; without further orders, and without
// Options.Random, every call passes. It takes over the inner backend: Close of
// [Faults.Backend] closes it.
func New(inner backend.Backend, opts *Options) *Faults {
	if inner == nil {
		panic("faultlock: New without a backend")
	}
	f := &Faults{
		since: time.Now(), healed: make(chan struct{}),
		calls: map[call]int{}, held: map[backend.ID]string{},
		timers: map[*time.Timer]struct{}{}, watches: map[*watch]struct{}{},
	}
	f.life, f.end = context.WithCancel(context.Background())
	f.faulty = newFaulty(f, inner)
	if opts != nil {
		f.observe, f.answer = opts.Observe, opts.Answered
		if opts.Random != nil {
			f.random = newDraw(*opts.Random)
			f.seeded = f.random
		}
	}
	return f
}

// Backend is the backend with the faults: give it to lock.New. It is a backend.Wrapper, so
// that it has the abilities of the inner backend, as the package comment says.
//
// Its Close ends what hangs or is delayed with backend.ErrClosed, throws away late
// requests that have not been sent yet (the network loses them), waits for those
// that have, and then closes the inner backend.
func (f *Faults) Backend() backend.Backend { return f.faulty }

// Primitives is Backend with try, renewal and release only. The lock package does with
// these: it waits by polling, so that every acquisition goes through OpTry.
// Use one of the two, not both.
func (f *Faults) Primitives() backend.Backend { return primitives{f.faulty, f.faulty} }

// Lose has the Locker told that every hold on the key is lost that was granted
// through this backend, as if the server or the session had ended them. It returns
// how many holds that were. cause must match backend.ErrLost, such as ErrTakenOver
// or ErrExpired; nil stands for ErrSessionLost. The contexts of the leases have
// ended when Lose returns. On the server the holds end a moment later, by the
// clean-up that the Locker sends; that is an OpRelease, which may meet a fault.
func (f *Faults) Lose(key string, cause error) int {
	if cause == nil {
		cause = backend.ErrSessionLost
	}
	if !errors.Is(cause, backend.ErrLost) {
		panic(fmt.Sprintf("faultlock: Lose with the cause %q, which does not match backend.ErrLost", cause))
	}
	f.mu.Lock()
	notify := f.notify
	var ids []backend.ID
	for id, k := range f.held {
		if k == key && notify != nil {
			ids = append(ids, id)
			delete(f.held, id)
		}
	}
	f.mu.Unlock()
	for _, id := range ids {
		notify(id, cause)
	}
	return len(ids)
}

// BreakWatches ends every watch there is, as a lost connection does. It returns how
// many there were. Watches that begin later are not hit.
func (f *Faults) BreakWatches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.watches)
	for w := range f.watches {
		w.cancel(errBroken)
		delete(f.watches, w)
	}
	return n
}

// Heal ends all faults: rules are dropped, nothing is drawn at random any more, and
// calls that hang or are delayed go on now. Late requests stay on their way, as
// packets do when a partition heals. Rules that are added afterwards count again.
func (f *Faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.random = nil, nil
	close(f.healed)
	f.healed = make(chan struct{})
}

// decision is what a call meets.
type decision struct {
	Fault
	op     Op
	key    string
	call   int
	healed <-chan struct{}
}

// meet decides about a call.
func (f *Faults) meet(ctx context.Context, op Op, key string) decision {
	f.mu.Lock()
	c := call{op, key}
	f.calls[c]++
	d := decision{op: op, key: key, call: f.calls[c], healed: f.healed}
	fault, ruled := f.ruled(op, key)
	if !ruled && f.random != nil {
		_, bounded := ctx.Deadline()
		fault = f.random.fault(op, key, d.call, bounded)
	}
	if fault.kind == duplicate && !op.repeats() {
		fault = Pass()
	}
	d.Fault = fault
	if fault.kind == pass {
		f.mu.Unlock()
		return d
	}
	entry := f.record(d)
	f.mu.Unlock()
	if f.observe != nil {
		f.observe(entry)
	}
	return d
}

// pause waits until the fault is over. It returns nil when the call may go on.
func (f *Faults) pause(ctx context.Context, d decision) error {
	var over <-chan time.Time
	if lasts := d.lasts(); lasts > 0 {
		t := time.NewTimer(lasts)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-over:
	case <-d.healed:
	case <-ctx.Done():
	case <-f.life.Done():
	}
	switch {
	case f.life.Err() != nil:
		return backend.ErrClosed
	case ctx.Err() != nil:
		return d.interrupted(d.op, d.key, ctx.Err())
	}
	return nil
}

// background runs something that nobody waits for but Close. It reports false
// after Close has begun.
func (f *Faults) background(run func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.running.Go(run)
	return true
}

// after runs something after a delay, unless the backend is closed before.
func (f *Faults) after(d time.Duration, run func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		f.mu.Lock()
		delete(f.timers, t)
		if f.closed {
			f.mu.Unlock()
			return
		}
		f.running.Add(1)
		f.mu.Unlock()
		defer f.running.Done()
		run()
	})
	f.timers[t] = struct{}{}
}

// close ends everything that is on its way. It reports false the second time.
func (f *Faults) close() bool {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	f.closed = true
	for t := range f.timers {
		t.Stop()
	}
	clear(f.timers)
	f.end()
	f.mu.Unlock()
	f.BreakWatches()
	f.running.Wait()
	return true
}
