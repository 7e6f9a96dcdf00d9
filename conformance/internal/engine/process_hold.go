package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// FarHold is a lease in another process.
type FarHold struct {
	*Record
	p      *Process
	Number int
	last   atomic.Int64 // the deadline that was told last, since the case began; or -1
	Sure   bool         // the lease was alive when the call that granted it had returned
}

// At is a reading of the machine's clock as time since the case began.
func (ps *Processes) At(mono int64) time.Duration { return ps.e.Log.At(ps.clock.time(mono)) }

// Try calls TryAcquire in the process.
func (p *Process) Try(key string, ttl time.Duration, unrenewed bool) (*FarHold, error) {
	return p.get("TryAcquire", Command{Op: opTry, Key: key, TTL: ttl, Unrenewed: unrenewed, Limit: OpenLimit})
}

// TryAs calls TryAcquire in the process, with an owner or a label where they are not empty.
func (p *Process) TryAs(key, owner, label string) (*FarHold, error) {
	return p.get("TryAcquire", Command{Op: opTry, Key: key, TTL: p.Env.Long, Owner: owner, Label: label, Limit: OpenLimit})
}

// Acquire calls Acquire in the process.
func (p *Process) Acquire(key string, ttl, limit time.Duration) (*FarHold, error) {
	return p.get("Acquire", Command{Op: opAcquire, Key: key, TTL: ttl, Limit: limit})
}

// get acquires the key. The error is ErrKilled when the process was killed first.
func (p *Process) get(op string, c Command) (*FarHold, error) {
	ttl := c.TTL
	if p.Env.Fixed {
		c.TTL = 0
	}
	ev := p.Env.Log.Begin(p.Who, op, c.Key)
	a, ok := p.Wait(p.Ask(c, nil))
	if !ok {
		p.Env.Log.End(ev, ErrKilled.Error())
		return nil, ErrKilled
	}
	if err := a.Error(); err != nil {
		p.recall(ev, a, Outcome(err), err)
		p.Env.Log.failed(ev, err)
		return nil, err
	}
	h := p.granted(c, ttl, a)
	p.recall(ev, a, p.describe(a, c, ttl), nil)
	return h, nil
}

// MustTry is try on a key that must be free.
func (p *Process) MustTry(key string, ttl time.Duration, unrenewed bool) *FarHold {
	h, err := p.Try(key, ttl, unrenewed)
	if err != nil {
		p.Env.UnexpectedFatal(key, err, "TryAcquire on a free key returned %s in another process; expected a lease", Outcome(err))
	}
	return h
}

// granted is the hold of an answer.
func (p *Process) granted(c Command, ttl time.Duration, a Answer) *FarHold {
	h := &FarHold{p: p, Number: a.Lease, Sure: !a.Ended}
	h.last.Store(-1)
	h.hears(a)
	h.Record = &Record{
		Who: p.Who, Key: c.Key, Owner: c.Owner, Token: a.Token, ttl: ttl, renews: !c.Unrenewed,
		Invoked: p.Processes.At(a.From), Granted: p.Processes.At(a.To), released: -1, Deadline: h.told,
		closed: p.connectionEnds, stood: func() time.Duration { return p.stopped(h.Granted, cmp.Or(ttl, p.Env.TTL)/4) },
	}
	if d, ok := h.told(); ok && d < h.Granted {
		h.Sure = false
	}
	h.see()
	p.Env.addRecord(h.Record)
	return h
}

func (h *FarHold) hears(a Answer) {
	if a.Deadline != 0 {
		h.last.Store(int64(h.p.Processes.At(a.Deadline)))
	}
}

// told is the deadline that was told last, and false when it is unknown.
func (h *FarHold) told() (time.Duration, bool) {
	d := h.last.Load()
	return time.Duration(d), d >= 0
}

func (p *Process) describe(a Answer, c Command, ttl time.Duration) string {
	parts := []string{granted(a.Token, 1)}
	if a.Deadline != 0 {
		parts = append(parts, fmt.Sprintf("deadline %.4f", p.Processes.At(a.Deadline).Seconds()))
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
func (p *Process) recall(ev *Entry, a Answer, result string, err error) {
	slow := ev.op != "Acquire"
	if slow {
		p.mu.Lock()
		slow = p.unpaused(span{a.From, a.To}, stallRead+stallTick) == time.Duration(a.To-a.From)
		p.mu.Unlock()
	}
	p.Env.Log.recall(ev, p.Processes.At(a.From), p.Processes.At(a.To), result, slow, errors.Is(err, lock.ErrHeld))
}

// recall ends an event with its own times.
func (h *CallLog) recall(ev *Entry, from, to time.Duration, result string, counts, refused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ev.From, ev.to, ev.result, ev.refused = from, to, result, refused
	h.returned(ev)
	if counts {
		h.longest = max(h.longest, to-from)
	}
	h.add(ev)
}

// stood records that a process of the case did not get to run.
func (h *CallLog) stood(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest = max(h.longest, d)
}

// call makes a call on the lease.
func (h *FarHold) call(what, op string) (Answer, bool) {
	e := h.p.Env
	ev := e.Log.Begin(h.p.Who, what, h.Key)
	a, ok := h.p.Wait(h.p.Ask(Command{Op: op, Lease: h.Number, Limit: OpenLimit}, nil))
	if !ok {
		e.Log.End(ev, ErrKilled.Error())
		return a, false
	}
	h.hears(a)
	result := Outcome(a.Error())
	switch {
	case op == opSee && a.Ended:
		result = "ended, cause " + result
	case op == opSee:
		result = "alive"
	}
	h.p.recall(ev, a, result, nil)
	return a, true
}

// Release releases the lease.
func (h *FarHold) Release(context.Context) error {
	first := !h.IsReleased()
	h.Releasing(h.p.Env.Log.Now())
	a, ok := h.call("Release", opRelease)
	if !ok {
		return ErrKilled
	}
	if first {
		h.releasedWith(a.Ended, a.Error())
	}
	return a.Error()
}

// Renew renews the lease by hand.
func (h *FarHold) Renew() error {
	from := h.p.Env.Log.Now()
	a, ok := h.call("Renew", opRenew)
	if !ok {
		return ErrKilled
	}
	if a.Error() == nil {
		h.confirmed(from)
	}
	return a.Error()
}

// look looks at the lease's context once, and says why it has ended, or nil.
func (h *FarHold) look() error {
	a, ok := h.call("Context", opSee)
	switch {
	case !ok:
		return ErrKilled
	case !a.Ended:
		return nil
	case a.Err == "":
		return errNoCause
	}
	return a.Error()
}

var errNoCause = errors.New("no cause")

// MustLive fails the case if the lease has ended.
func (h *FarHold) MustLive(why string) {
	if cause := h.look(); cause != nil {
		h.p.Env.LateFatalf(h.Key, "the lease of %s has ended with cause %s; expected it to be held, because %s", h.Who, Outcome(cause), why)
	}
}

// MustRelease releases a lease that is held.
func (h *FarHold) MustRelease() {
	if err := h.Release(h.p.Env.Ctx); err != nil {
		h.p.Env.UnexpectedFatal(h.Key, err, "Release of a lease that was held returned %s; expected no error", Outcome(err))
	}
}

// Fence is the token of the lease.
func (h *FarHold) Fence() uint64 { return h.Token }

// Until is when the lease ends at the earliest, as far as the process has told.
func (h *FarHold) Until() time.Time {
	d, ok := h.told()
	if !ok {
		d = h.Invoked + backend.ValidFor(h.ttl)
	}
	return h.p.Env.Log.Base.Add(d)
}

// Sight is what a process saw that looked at a lease again and again.
type Sight struct {
	Alive time.Duration // when the last look began that found it alive, or -1
	Ended time.Duration // when the first began that found it ended, or -1
	Cause error
}

// Looking has the process look at the lease again and again, from the time at
// which looking returns until it has ended or for the limit. The function waits
// for what it sees.
func (h *FarHold) Looking(limit time.Duration, spin bool) func() Sight {
	p := h.p
	begun := make(chan struct{})
	q := p.Ask(Command{Op: opLook, Lease: h.Number, Limit: limit, Spin: spin}, func(Answer) { close(begun) })
	select {
	case <-begun:
	case <-p.ended:
		p.Wait(q)
	case <-p.Env.Ctx.Done():
		panic(Abort{})
	}
	return func() Sight {
		s := Sight{-1, -1, nil}
		a, _ := p.Wait(q)
		if a.Alive != 0 {
			s.Alive = p.Processes.At(a.Alive)
		}
		if a.Ended {
			s.Ended, s.Cause = p.Processes.At(a.To), a.Error()
			p.Env.Log.Note(p.Who, h.Key, fmt.Sprintf("saw the lease ended at %s, cause %s", Seconds(s.Ended), Outcome(s.Cause)))
		} else {
			p.Env.Log.Note(p.Who, h.Key, fmt.Sprintf("saw the lease alive until it stopped looking, at last at %s", Seconds(s.Alive)))
		}
		return s
	}
}

// Cycling has the process acquire and release the key again and again. The
// function waits for the end, and is false when the process was killed.
func (p *Process) Cycling(c Command) (wait func() (Answer, bool)) {
	e := p.Env
	c.Op = opCycle
	ttl := c.TTL
	if e.Fixed {
		c.TTL = 0
	}
	var held *FarHold
	q := p.Ask(c, func(a Answer) {
		switch a.Event {
		case eventGranted:
			if held != nil {
				held.releasedWith(false, nil)
			}
			held = p.granted(c, ttl, a)
			e.Log.recall(&Entry{who: p.Who, op: "acquires", key: c.Key}, p.Processes.At(a.From), p.Processes.At(a.To), p.describe(a, c, ttl), false, false)
		case eventReleasing:
			held.Releasing(p.Processes.At(a.From))
		}
	})
	return func() (Answer, bool) {
		a, ok := p.Wait(q)
		if held != nil && ok && held.IsReleased() {
			held.releasedWith(false, a.Error())
		}
		return a, ok
	}
}
