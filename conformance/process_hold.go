package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// farHold is a lease in another process.
type farHold struct {
	*record
	p     *process
	lease int
	last  atomic.Int64 // the deadline that was told last, since the case began; or -1
	sure  bool         // the lease was alive when the call that granted it had returned
}

// at is a reading of the machine's clock as time since the case began.
func (ps *processes) at(mono int64) time.Duration { return ps.e.hist.at(ps.clock.time(mono)) }

func (p *process) try(key string, ttl time.Duration, unrenewed bool) (*farHold, error) {
	return p.get("TryAcquire", command{Op: opTry, Key: key, TTL: ttl, Unrenewed: unrenewed, Limit: openLimit})
}

func (p *process) acquire(key string, ttl, limit time.Duration) (*farHold, error) {
	return p.get("Acquire", command{Op: opAcquire, Key: key, TTL: ttl, Limit: limit})
}

// get acquires the key. The error is errKilled when the process was killed first.
func (p *process) get(op string, c command) (*farHold, error) {
	ttl := c.TTL
	if p.e.fixed {
		c.TTL = 0
	}
	ev := p.e.hist.begin(p.who, op, c.Key)
	a, ok := p.wait(p.ask(c, nil))
	if !ok {
		p.e.hist.end(ev, errKilled.Error())
		return nil, errKilled
	}
	if err := a.error(); err != nil {
		p.recall(ev, a, outcome(err), err)
		p.e.hist.failed(ev, err)
		return nil, err
	}
	h := p.granted(c, ttl, a)
	p.recall(ev, a, p.describe(a, c, ttl), nil)
	return h, nil
}

// mustTry is try on a key that must be free.
func (p *process) mustTry(key string, ttl time.Duration, unrenewed bool) *farHold {
	h, err := p.try(key, ttl, unrenewed)
	if err != nil {
		p.e.unexpectedFatal(key, err, "TryAcquire on a free key returned %s in another process; expected a lease", outcome(err))
	}
	return h
}

// granted is the hold of an answer.
func (p *process) granted(c command, ttl time.Duration, a answer) *farHold {
	h := &farHold{p: p, lease: a.Lease, sure: !a.Ended}
	h.last.Store(-1)
	h.hears(a)
	h.record = &record{
		who: p.who, key: c.Key, token: a.Token, ttl: ttl, renews: !c.Unrenewed,
		invoked: p.ps.at(a.From), granted: p.ps.at(a.To), released: -1, deadline: h.told,
		closed: p.connectionEnds,
	}
	if d, ok := h.told(); ok && d < h.granted {
		h.sure = false
	}
	h.see()
	p.e.addRecord(h.record)
	return h
}

func (h *farHold) hears(a answer) {
	if a.Deadline != 0 {
		h.last.Store(int64(h.p.ps.at(a.Deadline)))
	}
}

// told is the deadline that was told last, and false when it is unknown.
func (h *farHold) told() (time.Duration, bool) {
	d := h.last.Load()
	return time.Duration(d), d >= 0
}

func (p *process) describe(a answer, c command, ttl time.Duration) string {
	parts := []string{granted(a.Token, 1)}
	if a.Deadline != 0 {
		parts = append(parts, fmt.Sprintf("deadline %.4f", p.ps.at(a.Deadline).Seconds()))
	}
	if ttl > 0 {
		parts = append(parts, "TTL "+ttl.String())
	}
	if c.Unrenewed {
		parts = append(parts, "not renewed")
	}
	return strings.Join(parts, ", ")
}

// recall ends the event with the times that the process told. A call during which
// the process was stopped was not slow.
func (p *process) recall(ev *event, a answer, result string, err error) {
	slow := ev.op != "Acquire"
	if slow {
		p.mu.Lock()
		slow = p.unpaused(span{a.From, a.To}, stallRead+stallTick) == time.Duration(a.To-a.From)
		p.mu.Unlock()
	}
	p.e.hist.recall(ev, p.ps.at(a.From), p.ps.at(a.To), result, slow, errors.Is(err, lock.ErrHeld))
}

// recall ends an event with its own times.
func (h *history) recall(ev *event, from, to time.Duration, result string, counts, refused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ev.from, ev.to, ev.result, ev.refused = from, to, result, refused
	delete(h.pending, ev)
	if counts {
		h.longest = max(h.longest, to-from)
	}
	h.add(ev)
}

// stood records that a process of the case did not get to run.
func (h *history) stood(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest = max(h.longest, d)
}

// call makes a call on the lease.
func (h *farHold) call(what, op string) (answer, bool) {
	e := h.p.e
	ev := e.hist.begin(h.p.who, what, h.key)
	a, ok := h.p.wait(h.p.ask(command{Op: op, Lease: h.lease, Limit: openLimit}, nil))
	if !ok {
		e.hist.end(ev, errKilled.Error())
		return a, false
	}
	h.hears(a)
	result := outcome(a.error())
	switch {
	case op == opSee && a.Ended:
		result = "ended, cause " + result
	case op == opSee:
		result = "alive"
	}
	h.p.recall(ev, a, result, nil)
	return a, true
}

func (h *farHold) release(context.Context) error {
	h.record.releasing(h.p.e.hist.now())
	a, ok := h.call("Release", opRelease)
	if !ok {
		return errKilled
	}
	h.releasedWith(a.error())
	return a.error()
}

func (h *farHold) renew() error {
	from := h.p.e.hist.now()
	a, ok := h.call("Renew", opRenew)
	if !ok {
		return errKilled
	}
	if a.error() == nil {
		h.confirmed(from)
	}
	return a.error()
}

// look looks at the lease's context once, and says why it has ended, or nil.
func (h *farHold) look() error {
	a, ok := h.call("Context", opSee)
	switch {
	case !ok:
		return errKilled
	case !a.Ended:
		return nil
	case a.Err == "":
		return errNoCause
	}
	return a.error()
}

var errNoCause = errors.New("no cause")

// mustLive fails the case if the lease has ended.
func (h *farHold) mustLive(why string) {
	if cause := h.look(); cause != nil {
		h.p.e.lateFatalf(h.key, "the lease of %s has ended with cause %s; expected it to be held, because %s", h.who, outcome(cause), why)
	}
}

func (h *farHold) mustRelease() {
	if err := h.release(h.p.e.ctx); err != nil {
		h.p.e.unexpectedFatal(h.key, err, "Release of a lease that was held returned %s; expected no error", outcome(err))
	}
}

func (h *farHold) fence() uint64 { return h.token }

// until is when the lease ends at the earliest, as far as the process has told.
func (h *farHold) until() time.Time {
	d, ok := h.told()
	if !ok {
		d = h.invoked + backend.ValidFor(h.ttl)
	}
	return h.p.e.hist.base.Add(d)
}

// sight is what a process saw that looked at a lease again and again.
type sight struct {
	alive time.Duration // when the last look began that found it alive, or -1
	ended time.Duration // when the first began that found it ended, or -1
	cause error
}

// looking has the process look at the lease again and again, from the time at
// which looking returns until it has ended or for the limit. The function waits
// for what it sees.
func (h *farHold) looking(limit time.Duration, spin bool) func() sight {
	p := h.p
	begun := make(chan struct{})
	q := p.ask(command{Op: opLook, Lease: h.lease, Limit: limit, Spin: spin}, func(answer) { close(begun) })
	select {
	case <-begun:
	case <-p.ended:
		p.wait(q)
	case <-p.e.ctx.Done():
		panic(abort{})
	}
	return func() sight {
		s := sight{-1, -1, nil}
		a, _ := p.wait(q)
		if a.Alive != 0 {
			s.alive = p.ps.at(a.Alive)
		}
		if a.Ended {
			s.ended, s.cause = p.ps.at(a.To), a.error()
			p.e.hist.note(p.who, h.key, fmt.Sprintf("saw the lease ended at %s, cause %s", seconds(s.ended), outcome(s.cause)))
		} else {
			p.e.hist.note(p.who, h.key, fmt.Sprintf("saw the lease alive until it stopped looking, at last at %s", seconds(s.alive)))
		}
		return s
	}
}

// cycling has the process acquire and release the key again and again. The
// function waits for the end, and is false when the process was killed.
func (p *process) cycling(c command) (wait func() (answer, bool)) {
	e := p.e
	c.Op = opCycle
	ttl := c.TTL
	if e.fixed {
		c.TTL = 0
	}
	var held *farHold
	q := p.ask(c, func(a answer) {
		switch a.Event {
		case eventGranted:
			held = p.granted(c, ttl, a)
			e.hist.recall(&event{who: p.who, op: "acquires", key: c.Key}, p.ps.at(a.From), p.ps.at(a.To), p.describe(a, c, ttl), false, false)
		case eventReleasing:
			held.releasing(p.ps.at(a.From))
		}
	})
	return func() (answer, bool) {
		a, ok := p.wait(q)
		if held != nil && a.error() != nil {
			held.releasedWith(a.error())
		}
		return a, ok
	}
}
