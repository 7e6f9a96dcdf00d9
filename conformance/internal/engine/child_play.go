package engine

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/mortiselock/lock"
)

// player is a process that plays its part.
type player struct {
	config func(string) Config
	clock  hostClock
	stalls *stallMeter

	sending sync.Mutex
	out     *json.Encoder
	told    int // how many stalls have been told

	mu     sync.Mutex
	l      lock.Locker
	leases []lock.Lease // number n is at n-1
}

// play does what the suite says until it has nothing more to say.
func play(config func(string) Config) int {
	// Ctrl-C reaches every process of a terminal: the suite decides what it means.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	p := &player{config: config, clock: newHostClock(), stalls: newStallMeter(), out: json.NewEncoder(os.Stdout)}
	os.Stdout = os.Stderr // what the lock prints is not meant for the suite
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var c Command
		if err := in.Decode(&c); err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "conformance: a command of the suite is unreadable:", err)
				return 1
			}
			return p.leave()
		}
		go p.obey(c)
	}
}

// leave closes the client, so that nothing is left on the server, but not for
// long: the suite, or what is left of it, is gone.
func (p *player) leave() int {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.mu.Lock()
		l := p.l
		p.mu.Unlock()
		if l != nil {
			_ = l.Close()
		}
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
	return 0
}

// send writes an answer. What has been sent reaches the suite even when this
// process is killed next.
func (p *player) send(a Answer) {
	p.sending.Lock()
	defer p.sending.Unlock()
	var stalls []stall
	stalls, p.told = p.stalls.from(p.told)
	for _, s := range stalls {
		a.Stalls = append(a.Stalls, span{p.clock.at(s.at.Add(-s.length)), p.clock.at(s.at)})
	}
	if p.out.Encode(a) != nil {
		os.Exit(1) // nobody is listening
	}
}

// from is the stalls from number n on, and how many there are.
func (m *stallMeter) from(n int) ([]stall, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latencies(time.Now())
	return m.stalls[n:], len(m.stalls)
}

func (a *Answer) fail(err error) {
	if err == nil {
		return
	}
	a.Err = err.Error()
	for _, n := range errorNames {
		if errors.Is(err, n.err) {
			a.Is = append(a.Is, n.name)
		}
	}
}

func (p *player) obey(c Command) {
	a := Answer{ID: c.ID}
	ctx := context.Background()
	if c.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Limit)
		defer cancel()
	}
	a.From = p.clock.now()
	switch c.Op {
	case opOpen:
		p.send(Answer{ID: c.ID, Event: eventHello})
		a.fail(p.open(ctx, c))
		a.To = p.clock.now()
	case opTry, opAcquire:
		lease, err := p.get(ctx, c)
		a.To = p.clock.now()
		if err != nil {
			a.fail(err)
			break
		}
		p.mu.Lock()
		p.leases = append(p.leases, lease)
		a.Lease = len(p.leases)
		p.mu.Unlock()
		p.see(&a, lease)
	case opRenew:
		lease := p.lease(c)
		a.fail(lease.Renew(ctx))
		a.To = p.clock.now()
		a.Deadline = p.deadline(lease)
	case opRelease:
		lease := p.lease(c)
		a.Ended = lease.Context().Err() != nil
		a.fail(lease.Release(ctx))
		a.To = p.clock.now()
	case opSee:
		lease := p.lease(c)
		p.see(&a, lease)
		a.To = p.clock.now()
		if a.Ended {
			a.fail(context.Cause(lease.Context()))
		}
	case OpWrite:
		a.Token = p.lease(c).Token()
		a.To = p.clock.now()
	case opLook:
		p.look(c, &a)
	case opCycle:
		p.cycle(c, &a)
	default:
		a.fail(fmt.Errorf("conformance: unknown command %q", c.Op))
	}
	p.send(a)
}

func (p *player) open(ctx context.Context, c Command) error {
	s := &Settings{Config: p.config(c.Child), TTL: c.TTL}
	if s.Open == nil && s.OpenBackend == nil {
		return fmt.Errorf("the function given to conformance.Child returns a Config without Open and OpenBackend for %q", c.Child)
	}
	l, err := opened(ctx, s.OpenLocker)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.l = l
	return nil
}

func (p *player) get(ctx context.Context, c Command) (lock.Lease, error) {
	p.mu.Lock()
	l := p.l
	p.mu.Unlock()
	var opts []lock.Option
	if c.TTL > 0 {
		opts = append(opts, lock.WithTTL(c.TTL))
	}
	if c.Unrenewed {
		opts = append(opts, lock.WithoutRenewal())
	}
	if c.Owner != "" {
		opts = append(opts, lock.WithOwner(c.Owner))
	}
	if c.Label != "" {
		opts = append(opts, lock.WithLabel(c.Label))
	}
	get := l.Acquire
	if c.Op == opTry {
		get = l.TryAcquire
	}
	lease, err := get(ctx, c.Key, opts...)
	if err == nil && lease == nil {
		err = errors.New("neither a lease nor an error")
	}
	return lease, err
}

func (p *player) lease(c Command) lock.Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leases[c.Lease-1]
}

func (p *player) see(a *Answer, lease lock.Lease) {
	a.Ended = lease.Context().Err() != nil
	a.Token, a.Deadline = lease.Token(), p.deadline(lease)
}

func (p *player) deadline(lease lock.Lease) int64 {
	d, ok := lease.Deadline()
	if !ok {
		return 0
	}
	return p.clock.at(d)
}

// cyclePatience is for how long a cycle may go on after its time: longer than a server
// that is busy stands still, or a waiter that polls is out of luck.
const cyclePatience = 15 * time.Second

// cycle acquires and releases until the limit. With a counter it reads a number
// from the file, waits a moment and writes it back one higher, while it believes
// that it holds the key.
func (p *player) cycle(c Command, a *Answer) {
	var counter *os.File
	if c.Counter != "" {
		var err error
		if counter, err = os.OpenFile(c.Counter, os.O_RDWR, 0); err != nil {
			a.fail(err)
			return
		}
		defer counter.Close()
	}
	for end := time.Now().Add(c.Limit); time.Now().Before(end); {
		if rand.IntN(4) == 0 {
			c.Op = opTry
		} else {
			c.Op = opAcquire
		}
		g := Answer{ID: c.ID, Event: eventGranted, From: p.clock.now()}
		// The others end, too, so that the last one waits for nobody.
		ctx, cancel := context.WithDeadline(context.Background(), end.Add(c.Limit+cyclePatience))
		lease, err := p.get(ctx, c)
		cancel()
		g.To = p.clock.now()
		if err != nil {
			if c.Op == opTry && errors.Is(err, lock.ErrHeld) {
				time.Sleep(time.Millisecond)
				continue
			}
			a.From, a.To = g.From, g.To
			a.fail(err)
			return
		}
		p.see(&g, lease)
		p.send(g)
		if counter != nil {
			if err := raise(counter); err != nil {
				a.fail(err)
				return
			}
			a.Made++
			if d := p.deadline(lease); lease.Context().Err() != nil || d > 0 && p.clock.now() > d {
				a.Doubted = true
			}
		}
		if c.Work > 0 {
			time.Sleep(rand.N(c.Work))
		}
		r := Answer{ID: c.ID, Event: eventReleasing, From: p.clock.now()}
		p.send(r)
		if err := lease.Release(context.Background()); err != nil {
			a.From, a.To = r.From, p.clock.now()
			a.fail(fmt.Errorf("release: %w", err))
			return
		}
	}
	a.To = p.clock.now()
}

// raise raises the counter in the file by one. The moment between reading and
// writing is for others to come in between.
func raise(f *os.File) error {
	var b [8]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return err
	}
	time.Sleep(rand.N(300 * time.Microsecond))
	binary.LittleEndian.PutUint64(b[:], binary.LittleEndian.Uint64(b[:])+1)
	_, err := f.WriteAt(b[:], 0)
	return err
}

// look looks at the lease's context again and again until it has ended. With
// spin it does so without a pause, on every processor that the process may use:
// when the process was stopped and goes on, the next look comes before any timer
// has run.
func (p *player) look(c Command, a *Answer) {
	ctx := p.lease(c).Context()
	pause, n := 500*time.Microsecond, 1
	if c.Spin {
		pause, n = 0, min(runtime.GOMAXPROCS(0), 4)
	}
	type sight struct{ alive, ended time.Time }
	seen := make(chan sight, n)
	var begun sync.WaitGroup
	begun.Add(n)
	for range n {
		go func() {
			begun.Done()
			alive, ended := looks(ctx, c.Limit, pause)
			seen <- sight{alive, ended}
		}()
	}
	begun.Wait()
	p.send(Answer{ID: c.ID, Event: eventLooking})
	for range n {
		s := <-seen
		if !s.alive.IsZero() {
			a.Alive = max(a.Alive, p.clock.at(s.alive))
		}
		if s.ended.IsZero() {
			continue
		}
		if at := p.clock.at(s.ended); !a.Ended || at < a.To {
			a.Ended, a.To = true, at
		}
	}
	if a.Ended {
		a.fail(context.Cause(ctx))
	}
}

// looks is the start of the last look that found the context alive, and of the
// first that found it ended, if there was one. The limit is of the time for which
// the process runs.
func looks(ctx context.Context, limit, pause time.Duration) (alive, ended time.Time) {
	var spent time.Duration
	last := time.Now()
	for spent < limit {
		t := time.Now()
		spent += min(t.Sub(last), 20*time.Millisecond)
		last = t
		if ctx.Err() != nil {
			return alive, t
		}
		alive = t
		if pause > 0 {
			time.Sleep(pause)
		}
	}
	return alive, time.Time{}
}
