package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// place is a ticket that is waited for.
type place struct {
	s      *seam
	req    backend.Request
	ticket backend.Ticket
	done   chan struct{}
	grant  backend.Grant
	err    error
	wait   func()
	cancel context.CancelFunc
}

func (e *env) enqueue(s *seam, key string, ttl time.Duration) *place {
	q := optional[backend.Queuer](s, "Queuer")
	p := &place{s: s, req: e.request(key, "", ttl), done: make(chan struct{})}
	ev := e.hist.begin(s.who, "Enqueue", key)
	t, err := q.Enqueue(e.ctx, p.req)
	e.hist.end(ev, outcome(err))
	if err != nil || t == nil {
		e.unexpectedFatal(key, err, "Enqueue returned %s (ticket: %t); expected a ticket", outcome(err), t != nil)
	}
	p.ticket = t
	return p
}

func (p *place) waiting(e *env) *place {
	ctx, cancel := context.WithCancel(e.ctx)
	p.cancel = cancel
	p.wait = e.start(func() {
		ev := e.hist.begin(p.s.who, "Wait", p.req.Key)
		p.grant, p.err = p.ticket.Wait(ctx)
		e.hist.end(ev, fmt.Sprintf("%s, token %d", outcome(p.err), p.grant.Token))
		close(p.done)
	})
	return p
}

func (p *place) withdraw(e *env) {
	ev := e.hist.begin(p.s.who, "Withdraw", p.req.Key)
	err := p.ticket.Withdraw(e.ctx)
	e.hist.end(ev, outcome(err))
	if err != nil {
		e.unexpected(p.req.Key, err, "Withdraw returned %s; expected no error", outcome(err))
	}
}

func (p *place) mustGet(e *env, why string) {
	if !e.within(e.waitBound(), p.done) {
		e.look(p.req.Key)
		e.overdueFatalf(p.req.Key, "a place in the queue had not been granted after %s; %s", e.waitBound(), why)
	}
	if p.err != nil {
		e.unexpectedFatal(p.req.Key, p.err, "Wait returned %s; expected a grant: %s", outcome(p.err), why)
	}
}

func (p *place) mustWait(e *env, why string) {
	select {
	case <-p.done:
		e.unexpectedFatal(p.req.Key, p.err, "Wait returned (%s), although %s", outcome(p.err), why)
	default:
	}
}

func queueOrder(e *env) {
	seams := []*seam{e.backend(), e.backend(), e.backend()}
	for round := range e.rounds(200*time.Millisecond, 3, 30) {
		key := e.key("%d", round)
		places := make([]*place, 6)
		for i := range places {
			places[i] = e.enqueue(seams[i%3], key, e.long)
		}
		for i := len(places) - 1; i >= 0; i-- { // the order of waiting does not matter
			places[i].waiting(e)
		}
		var last uint64
		for i, p := range places {
			p.mustGet(e, "all places before it were released")
			for _, later := range places[i+1:] {
				later.mustWait(e, "an earlier place holds the key")
			}
			if claimTokens.made(e.settings) && p.grant.Token <= last {
				e.failf(key, "place %d was granted token %d; expected more than that of the place before it, %d", i+1, p.grant.Token, last)
			}
			last = p.grant.Token
			if err := p.s.release(e.ctx, p.hold()); err != nil {
				e.unexpected(key, err, "Release of a hold that was granted in the queue returned %s; expected no error", outcome(err))
			}
		}
	}
}

func (p *place) hold() backend.Hold {
	h := backend.HoldOf(p.req)
	h.Token = p.grant.Token
	return h
}

func queueWithdraw(e *env) {
	a, b := e.backend(), e.backend()
	key := e.key("a")
	h := a.mustTry(e.request(key, "", e.long))
	first, second := e.enqueue(a, key, e.long), e.enqueue(b, key, e.long)
	third, fourth := e.enqueue(a, key, e.long).waiting(e), e.enqueue(b, key, e.long).waiting(e)
	first.withdraw(e) // never waited for
	first.withdraw(e)
	second.waiting(e)
	second.cancel() // cancelled while it waits
	if !e.within(e.slack(), second.done) {
		e.overdueFatalf(key, "Wait had not returned %s after its context", e.slack())
	}
	if second.err == nil {
		e.fatalf(key, "Wait was granted a key that is held")
	}
	second.withdraw(e)
	third.mustWait(e, "the key is held")
	_ = h.release(e.ctx)
	third.mustGet(e, "the places before it were withdrawn")
	third.withdraw(e) // with its grant
	third.withdraw(e)
	fourth.mustGet(e, "the place before it was withdrawn together with its grant")
	if err := b.release(e.ctx, fourth.hold()); err != nil {
		e.unexpected(key, err, "Release of a hold that was granted in the queue returned %s; expected no error", outcome(err))
	}
	b.mustTry(e.request(key, "", e.long))
}

func queueAbandoned(e *env) {
	a, b, gone := e.backend(), e.backend(), e.backend()
	key := e.key("a")
	h := a.mustTry(e.request(key, "", e.long))
	e.enqueue(gone, key, e.ttl) // nobody ever waits here
	next := e.enqueue(b, key, e.long).waiting(e)
	e.settle() // it waits by what it knows of the hold, and is to learn of the place
	_ = h.release(e.ctx)
	if !e.within(e.takeover(e.ttl)+e.waitBound(), next.done) {
		e.look(key)
		e.overdueFatalf(key, "a waiter had not been granted the key after %s, behind a place whose client had gone; its TTL was %s", e.takeover(e.ttl)+e.waitBound(), e.ttl)
	}
	if next.err != nil {
		e.unexpectedFatal(key, next.err, "Wait returned %s; expected a grant", outcome(next.err))
	}
	_ = b.release(e.ctx, next.hold())
}

// waiterSessionCheck is the fault that Jepsen found in etcd 3.4.3: the wait ended
// with the release of the holder, and nobody looked whether the waiter's own lease
// was still there.
func waiterSessionCheck(e *env) {
	if e.EndSession == nil {
		e.skipf("needs Config.EndSession")
	}
	holder := e.backend()
	for round := range e.rounds(300*time.Millisecond, 3, 20) {
		a, b := e.backend(), e.backend()
		key := e.key("%d", round)
		h := holder.mustTry(e.request(key, "", e.long))
		first := e.enqueue(a, key, e.long).waiting(e)
		e.settle()
		e.endSession(key)
		second := e.enqueue(b, key, e.long).waiting(e)
		if err := h.release(e.ctx); err != nil {
			e.unexpectedFatal(key, err, "Release of the holder returned %s; expected no error", outcome(err))
		}
		second.mustGet(e, "the session of the place before it has ended, and the holder has released")
		if !e.within(e.waitBound(), first.done) {
			e.overdueFatalf(key, "a waiter whose session had ended still waited after %s", e.waitBound())
		}
		if first.err == nil {
			e.failf(key, "a waiter whose session had ended while it waited was granted token %d, and another client was granted token %d; expected an error", first.grant.Token, second.grant.Token)
		}
		if err := b.release(e.ctx, second.hold()); err != nil {
			e.unexpected(key, err, "Release of a hold that was granted in the queue returned %s; expected no error", outcome(err))
		}
		_ = first.ticket.Withdraw(e.ctx)
	}
}
