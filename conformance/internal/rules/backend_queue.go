package rules

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// place is a ticket that is waited for.
type place struct {
	s      *engine.BackendClient
	req    backend.Request
	ticket backend.Ticket
	done   chan struct{}
	grant  backend.Grant
	err    error
	placed backend.Instant // when the place was asked for
	begun  backend.Instant // when the wait began
	ended  backend.Instant // when the wait had ended
	wait   func()
	cancel context.CancelFunc
}

func enqueue(e *engine.Env, s *engine.BackendClient, key string, ttl time.Duration) *place {
	return enqueueFor(e, s, e.Request(key, "", ttl))
}

func enqueueFor(e *engine.Env, s *engine.BackendClient, req backend.Request) *place {
	q, key := optional[backend.Queuer](s, "Queuer"), req.Key
	p := &place{s: s, req: req, done: make(chan struct{})}
	ev := e.Log.Begin(s.Who, "Enqueue", key)
	p.placed = s.Clock.Now()
	t, err := q.Enqueue(e.Ctx, p.req)
	e.Log.End(ev, engine.Outcome(err))
	if err != nil || t == nil {
		e.UnexpectedFatal(key, err, "Enqueue returned %s (ticket: %t); expected a ticket", engine.Outcome(err), t != nil)
	}
	p.ticket = t
	return p
}

func (p *place) waiting(e *engine.Env) *place {
	ctx, cancel := context.WithCancel(e.Ctx)
	p.cancel, p.begun = cancel, p.s.Clock.Now()
	p.wait = e.Start(func() {
		ev := e.Log.Begin(p.s.Who, "Wait", p.req.Key)
		p.grant, p.err = p.ticket.Wait(ctx)
		p.ended = p.s.Clock.Now()
		e.Log.End(ev, fmt.Sprintf("%s, token %d", engine.Outcome(p.err), p.grant.Token))
		close(p.done)
	})
	return p
}

func (p *place) withdraw(e *engine.Env) {
	ev := e.Log.Begin(p.s.Who, "Withdraw", p.req.Key)
	err := p.ticket.Withdraw(e.Ctx)
	e.Log.End(ev, engine.Outcome(err))
	if err != nil {
		e.Unexpected(p.req.Key, err, "Withdraw returned %s; expected no error", engine.Outcome(err))
	}
}

func (p *place) mustGet(e *engine.Env, why string) {
	if !e.Within(e.WaitBound(), p.done) {
		p.judgeAbandoned(e)
		e.Look(p.req.Key)
		e.OverdueFatalf(p.req.Key, "a place in the queue had not been granted after %s; %s", e.WaitBound(), why)
	}
	if p.err != nil {
		p.judgeAbandoned(e)
		e.UnexpectedFatal(p.req.Key, p.err, "Wait returned %s; expected a grant: %s", engine.Outcome(p.err), why)
	}
}

// placeLasts is how long a place lasts at which nobody waits, unless its TTL is shorter.
const placeLasts = time.Second

// judgeAbandoned makes nothing of a place at which nobody waited for as long as one lasts: nobody keeps it.
func (p *place) judgeAbandoned(e *engine.Env) {
	begun := p.begun
	if p.wait == nil {
		begun = p.s.Clock.Now()
	}
	if late := begun.Sub(p.placed); late >= min(placeLasts, backend.ValidFor(p.req.TTL)) {
		e.TooSlowf(p.req.Key, "nobody waited at a place until %s after it was asked for, and its TTL is %s", engine.Short(late), p.req.TTL)
	}
}

// release gives the key back, and may find that its time is over.
func (p *place) release(e *engine.Env) {
	if err := p.s.Release(e.Ctx, p.hold()); err != nil {
		p.judgeEnded(e)
		e.Unexpected(p.req.Key, err, "Release of a hold that was granted in the queue returned %s; expected no error", engine.Outcome(err))
	}
}

// judgeEnded makes nothing of what was seen after the hold had run out.
func (p *place) judgeEnded(e *engine.Env) {
	if now, until := p.s.Clock.Now(), p.grant.Validity.Until(); now >= until {
		e.TooSlowf(p.req.Key, "a hold that was granted in the queue had run out %s before the case was through with it", engine.Short(now.Sub(until)))
	}
}

func (p *place) mustWait(e *engine.Env, why string) {
	select {
	case <-p.done:
		if p.err != nil {
			p.judgeAbandoned(e)
		}
		e.UnexpectedFatal(p.req.Key, p.err, "Wait returned (%s), although %s", engine.Outcome(p.err), why)
	default:
	}
}

func queueOrder(e *engine.Env) {
	backends := []*engine.BackendClient{e.Backend(), e.Backend(), e.Backend()}
	for round := range e.Rounds(e.Work(200*time.Millisecond), 3, 30) {
		key := e.Key("%d", round)
		places := make([]*place, moreThanADigit)
		for i := range places {
			places[i] = enqueue(e, backends[i%3], key, e.Long)
			if i%3 == 2 { // no place is left for long, and the order of waiting does not matter
				places[i].waiting(e)
				places[i-1].waiting(e)
				places[i-2].waiting(e)
			}
		}
		var last uint64
		for i, p := range places {
			p.mustBeNext(e, places[i+1:], "all places before it were released", "an earlier place holds the key")
			if engine.ClaimTokens.Made(e.Settings) && p.grant.Token <= last {
				e.Failf(key, "place %d was granted token %d; expected more than that of the place before it, %d", i+1, p.grant.Token, last)
			}
			if p.grant.Holds != 1 {
				e.Failf(key, "the grant of place %d says %d holds; expected 1", i+1, p.grant.Holds)
			}
			last = p.grant.Token
			judgeValidity(e, key, "a place", p.grant.Validity, p.placed, p.ended, p.req.TTL)
			p.release(e)
		}
	}
}

func (p *place) hold() backend.Hold {
	h := backend.HoldOf(p.req)
	h.Token = p.grant.Token
	return h
}

func queueWithdraw(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	first, second := enqueue(e, a, key, e.Long), enqueue(e, b, key, e.Long)
	third, fourth := enqueue(e, a, key, e.Long).waiting(e), enqueue(e, b, key, e.Long).waiting(e)
	showsWaiters(e, a, key, first, second, third, fourth)
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	_ = first.ticket.Withdraw(ended) // which may fail, and be tried again
	first.withdraw(e)                // never waited for
	first.withdraw(e)
	second.waiting(e)
	second.cancel() // cancelled while it waits
	if !e.Within(e.Slack(), second.done) {
		e.OverdueFatalf(key, "Wait had not returned %s after its context", e.Slack())
	}
	if second.err == nil {
		e.Fatalf(key, "Wait was granted a key that is held")
	}
	second.withdraw(e)
	showsWaiters(e, a, key, third, fourth)
	behindBesideWait(e, third)
	behindBesideWait(e, fourth)
	third.mustWait(e, "the key is held")
	_ = h.Release(e.Ctx)
	third.mustGet(e, "the places before it were withdrawn")
	third.withdraw(e) // with its grant
	third.withdraw(e)
	fourth.mustGet(e, "the place before it was withdrawn together with its grant")
	fourth.release(e)
	b.MustTry(e.Request(key, "", e.Long))
	e.Together(
		func() { withdrawsItselfOnly(e, a, b) },
		func() { withdrawnWhenItSaysSo(e, a, b) },
		func() { placeIsARequest(e, a, b) },
		func() { withdrawnInTurn(e, a, b) },
		func() { closeLeavesPlaces(e, a, b) },
	)
}

// withdrawsItselfOnly withdraws places whose grants have ended in another way, when the place
// behind holds the key.
func withdrawsItselfOnly(e *engine.Env, a, b *engine.BackendClient) {
	ends := map[string]func(p *place) error{"was released": func(p *place) error { return p.s.Release(e.Ctx, p.hold()) }}
	if f, ok := backend.As[backend.ForceReleaser](b.Backend); ok && engine.ClaimTokens.Made(e.Settings) {
		ends["was removed by force"] = func(p *place) error { return f.ForceRelease(e.Ctx, p.req.Key, p.grant.Token) }
	}
	for how, end := range ends {
		key := e.Key("a grant that %s", how)
		h := a.MustTry(e.Request(key, "", e.Long))
		first, second := enqueue(e, a, key, e.Long).waiting(e), enqueue(e, b, key, e.Long).waiting(e)
		e.MustGiveBack(h, key, "")
		first.mustGet(e, "the key was released")
		if err := end(first); err != nil {
			e.UnexpectedFatal(key, err, "the end of a grant that %s returned %s; expected no error", how, engine.Outcome(err))
		}
		second.mustGet(e, "the grant of the place before it "+how)
		first.withdraw(e)
		if g, err := a.Try(e.Request(key, "", e.Long)); err == nil && second.s.Clock.Now() < second.grant.Until() {
			e.Failf(key, "a key that a place holds was granted (token %d) after the place before it was withdrawn, whose grant %s before; expected that Withdraw ends nothing else", g.Token, how)
		}
		second.withdraw(e)
		withdrawnByHolder(e, a, b, how, end)
	}
}

// mustBeNext requires that the place is granted the key, and that those behind it wait on.
func (p *place) mustBeNext(e *engine.Env, behind []*place, granted, waits string) {
	p.mustGet(e, granted)
	for _, later := range behind {
		select {
		case <-later.done:
			p.judgeEnded(e)
		default:
		}
		later.mustWait(e, waits)
	}
}

// withdrawnByHolder withdraws a place whose grant has ended in another way, when its client holds the
// key by a try.
func withdrawnByHolder(e *engine.Env, a, b *engine.BackendClient, how string, end func(p *place) error) {
	key := e.Key("held again after a grant that %s", how)
	h := a.MustTry(e.Request(key, "", e.Long))
	p := enqueue(e, b, key, e.Long).waiting(e)
	e.MustGiveBack(h, key, "")
	p.mustGet(e, "the key was released")
	if err := end(p); err != nil {
		e.UnexpectedFatal(key, err, "the end of a grant that %s returned %s; expected no error", how, engine.Outcome(err))
	}
	again := b.MustTry(e.Request(key, "", e.Long))
	p.withdraw(e)
	a.MustRefuse(key, "the client that holds it by a try has withdrawn a place only, whose grant "+how+" before")
	e.MustGiveBack(again, key, ", since Withdraw ends nothing but its place and the grant of that")
}

// withdrawnInTurn withdraws each place with its grant. The next one is the one that came next.
func withdrawnInTurn(e *engine.Env, a, b *engine.BackendClient) {
	key := e.Key("in turn")
	h := a.MustTry(e.Request(key, "", e.Long))
	places := make([]*place, 4)
	for i := range places {
		places[i] = enqueue(e, []*engine.BackendClient{b, a}[i%2], key, e.Long).waiting(e)
	}
	e.MustGiveBack(h, key, "")
	for i, p := range places {
		p.mustBeNext(e, places[i+1:], "all places before it were withdrawn with their grants, and it came next",
			"an earlier place holds the key, and those before that were withdrawn with their grants")
		p.withdraw(e)
	}
}

// closeLeavesPlaces closes a client that has had a place, beside those of others.
func closeLeavesPlaces(e *engine.Env, a, b *engine.BackendClient) {
	key, c := e.Key("beside one that closes"), e.Backend()
	h := a.MustTry(e.Request(key, "", e.Long))
	p := enqueue(e, b, key, e.Long).waiting(e)
	enqueue(e, c, key, e.Long).withdraw(e)
	_ = c.Close()
	e.Settle()
	p.mustWait(e, "the key is held, and only another client was closed, which had withdrawn its place")
	e.MustGiveBack(h, key, "")
	p.mustGet(e, "the key was released")
	p.release(e)
}

// withdrawnWhenItSaysSo withdraws a place with a context that has ended. Where that returns no
// error, the place is gone.
func withdrawnWhenItSaysSo(e *engine.Env, a, b *engine.BackendClient) {
	key := e.Key("withdrawn with an ended context")
	h := a.MustTry(e.Request(key, "", e.Long))
	first, second := enqueue(e, a, key, e.Long), enqueue(e, b, key, e.Long).waiting(e)
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	if err := first.ticket.Withdraw(ended); err == nil {
		e.MustGiveBack(h, key, "")
		second.mustGet(e, "Withdraw of the place before it, with a context that had ended, returned no error")
	}
	first.withdraw(e)
	second.withdraw(e)
}

// placeIsARequest looks at places as at other requests: at one that is first at once, waited at
// or not, its request when it comes once more, as a try or for a place, that of a hold, one whose
// grant is renewed, and its TTL beside that of the hold before.
func placeIsARequest(e *engine.Env, a, b *engine.BackendClient) {
	q := optional[backend.Queuer](b, "Queuer")
	after := func(name string, before, ttl time.Duration) *place {
		key := e.Key("%s", name)
		h := a.MustTry(e.Request(key, "", before))
		p := enqueue(e, b, key, ttl).waiting(e)
		e.MustGiveBack(h, key, "")
		p.mustGet(e, "the key was released")
		return p
	}
	// untilThen tries the key shortly before a grant's validity ends.
	untilThen := func(key string, clock backend.Clock, until backend.Instant, what string) {
		e.Pause(until.Sub(clock.Now()) - e.TTL/10)
		if g, err := a.Try(e.Request(key, "", e.Long)); err == nil && clock.Now() < until {
			e.Failf(key, "a key was granted to another (token %d) %s before the end of what %s said; expected a refusal", g.Token, until.Sub(clock.Now()), what)
		}
	}
	e.Together(
		func() {
			p := after("repeated after a while", e.Long, e.TTL)
			e.Pause(e.TTL / 2)
			g, err := b.Backend.Try(e.Ctx, p.req)
			if err == nil && g.Token == p.grant.Token {
				untilThen(p.req.Key, p.s.Clock, g.Until(), "the repeat of the request of a place that was granted")
			}
			p.withdraw(e)
		},
		func() {
			p := enqueue(e, b, e.Key("first at once, and waited at later"), e.TTL)
			e.Pause(min(e.TTL/2, time.Second/2))
			ctx, cancel := context.WithTimeout(e.Ctx, e.WaitBound())
			defer cancel()
			if g, err := p.ticket.Wait(ctx); err == nil { // else it was passed over
				untilThen(p.req.Key, p.s.Clock, g.Until(), "the grant of a place that was waited at later")
			}
			p.withdraw(e)
		},
		func() {
			p := enqueue(e, a, e.Key("first at once"), e.Long)
			if p.ticket.Behind() {
				e.Failf(p.req.Key, "Behind of a place for a free key is true; expected false, since nobody was before it")
			}
			p.waiting(e).mustGet(e, "nobody else wants the key")
			p.withdraw(e)
		},
		func() {
			p := enqueue(e, a, e.Key("first at once, and left"), e.Long)
			p.withdraw(e)
			g, err := b.Try(e.Request(p.req.Key, "", e.Long))
			if err != nil {
				e.UnexpectedFatal(p.req.Key, err, "a place for a free key was withdrawn at which nobody had waited, and a try of the key returned %s; expected a grant, since Withdraw removes that of its place", engine.Outcome(err))
			}
			_ = g.Release(e.Ctx)
		},
		func() {
			p := after("repeated", e.Long, e.Long)
			g, err := b.Backend.Try(e.Ctx, p.req)
			if err != nil || g.Token != p.grant.Token || g.Holds != 1 {
				e.Unexpected(p.req.Key, err, "the request of a place that was granted with the token %d came once more, as a try, and returned the token %d, %d holds: %s; expected the same grant",
					p.grant.Token, g.Token, g.Holds, engine.Outcome(err))
			}
			p.withdraw(e)
			next, err := a.Try(e.Request(p.req.Key, "", e.Long))
			if err != nil {
				e.UnexpectedFatal(p.req.Key, err, "a place was withdrawn whose request had come once more, as a try, and a try of the key by another client returned %s; expected a grant, since Withdraw removes that of its place", engine.Outcome(err))
			}
			_ = next.Release(e.Ctx)
		},
		func() {
			if !e.Virtual() {
				return
			}
			req := e.Request(e.Key("of a hold"), "", e.Long)
			h := b.MustTry(req)
			ticket, err := q.Enqueue(e.Ctx, req)
			if err != nil || ticket == nil { // the caller takes another id for a place
				_ = h.Release(e.Ctx)
				return
			}
			ctx, cancel := context.WithTimeout(e.Ctx, e.TTL)
			defer cancel()
			if g, err := ticket.Wait(ctx); err != nil || g.Token != h.Token {
				e.Latef(req.Key, "the request of a hold with the token %d came once more, as one for a place, and Wait returned %s, the token %d; expected the same grant, since nobody else is before it", h.Token, engine.Outcome(err), g.Token)
			}
			h.Releasing(e.Log.Now())
			_ = ticket.Withdraw(e.Ctx)
		},
		func() {
			key := e.Key("asked for twice")
			h := a.MustTry(e.Request(key, "", e.Long))
			p := enqueue(e, b, key, e.Long)
			again, err := q.Enqueue(e.Ctx, p.req)
			p.withdraw(e)
			if err != nil || again == nil || again.Withdraw(e.Ctx) != nil {
				_ = h.Release(e.Ctx)
				return
			}
			e.MustGiveBack(h, key, "")
			next, err := a.Try(e.Request(key, "", e.Long))
			if err != nil {
				e.UnexpectedFatal(key, err, "a place was asked for twice, by one request, and both tickets were withdrawn; a try of the key, which nobody holds, returned %s; expected a grant, since a repeat changes nothing", engine.Outcome(err))
			}
			_ = next.Release(e.Ctx)
		},
		func() {
			if !e.Claimed.ManualRenewal {
				return
			}
			p := after("renewed", e.Long, e.Long)
			if _, err := b.Renew(p.hold()); err != nil {
				e.UnexpectedLateFatal(p.req.Key, err, "Renew of a hold that was granted in the queue returned %s; expected no error", engine.Outcome(err))
			}
			p.withdraw(e)
			g, err := a.Try(e.Request(p.req.Key, "", e.Long))
			if err != nil {
				e.UnexpectedFatal(p.req.Key, err, "a place was withdrawn whose grant had been renewed, and a try of the key returned %s; expected a grant, since Withdraw removes that of its place", engine.Outcome(err))
			}
			_ = g.Release(e.Ctx)
		},
		func() {
			if e.Long < 3*e.TTL {
				return
			}
			p := after("longer than the hold before", e.TTL, e.Long)
			e.Pause(e.TTL * 5 / 4)
			if g, err := a.Try(e.Request(p.req.Key, "", e.Long)); err == nil && p.s.Clock.Now() < p.grant.Until() {
				e.Failf(p.req.Key, "a key that a place was granted with a TTL of %s, after a hold with a TTL of %s, was granted to another (token %d) before the end of that", e.Long, e.TTL, g.Token)
			}
			p.withdraw(e)
		},
		func() {
			if e.Claimed.EndsWithSession || e.Long < 3*e.TTL+2*e.Claimed.TakeoverLag { // whose session keeps it
				return
			}
			p := after("shorter than the hold before", e.Long, e.TTL)
			e.Pause(e.TTL + e.Claimed.TakeoverLag + e.TTL/10)
			g, err := a.Try(e.Request(p.req.Key, "", e.Long))
			if err != nil {
				e.LateFatalf(p.req.Key, "a key that a place was granted with a TTL of %s, after a hold with a TTL of %s, was refused when the shorter one had passed: %s; expected a grant", e.TTL, e.Long, engine.Outcome(err))
			}
			_ = g.Release(e.Ctx)
		},
	)
}

// behindBesideWait asks a place at which somebody waits what the server has said of it. No call
// is recorded, so that nothing but the ticket puts Behind and Wait in an order, and the race
// detector sees what they share.
func behindBesideWait(e *engine.Env, p *place) {
	asked := make(chan struct{})
	var said, takenBack bool
	e.Start(func() {
		defer close(asked)
		for range 1000 {
			again := p.ticket.Behind()
			takenBack = takenBack || said && !again
			said = again
		}
	})
	if !e.Within(e.Slack(), asked) {
		e.OverdueFatalf(p.req.Key, "Behind had not answered a thousand times after %s, beside a Wait; expected it to wait for nothing", e.Slack())
	}
	if takenBack {
		e.Failf(p.req.Key, "Behind returned true and then false, beside a Wait for a key that was held; what the server has said stays said")
	}
}

// withdrawBesideWait is also about what Wait and Withdraw share, which the race detector
// sees. So nothing puts the two in an order: no call is recorded, and no context is cancelled
// whose mutex they both take.
func withdrawBesideWait(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	raiser, floors := backend.As[backend.FloorRaiser](a.Backend)
	for round := range e.Rounds(e.Work(20*time.Millisecond), 8, 60) {
		key := e.Key("%d", round)
		h := a.MustTry(e.Request(key, "", e.Long))
		p := enqueue(e, b, key, e.Long)
		ctx := endable{e.Ctx, make(chan struct{}), new(atomic.Bool)}
		e.Start(func() {
			p.grant, p.err = p.ticket.Wait(ctx)
			close(p.done)
		})
		if floors && round%4 == 0 { // its token changes
			if err := raiser.RaiseFloor(e.Ctx, h.Token+floorStep); err != nil && !errors.Is(err, backend.ErrUnsupported) {
				e.Unexpected(key, err, "RaiseFloor returned %s; expected no error", engine.Outcome(err))
			}
		}
		if round%4 != 3 {
			_ = h.Release(e.Ctx)
		}
		switch round % 4 {
		case 0, 3: // it is granted by then, or still waits
			e.Settle()
		case 1:
			e.Pause(rand.N(2 * time.Millisecond))
		}
		ctx.end()
		if err := p.ticket.Withdraw(e.Ctx); err != nil {
			e.Unexpected(key, err, "Withdraw returned %s beside a Wait; expected no error", engine.Outcome(err))
		}
		if !e.Within(e.Slack(), p.done) {
			e.OverdueFatalf(key, "Wait had not returned %s after its context", e.Slack())
		}
		late, ok := p.ticket.(backend.LateTicket)
		if p.err == nil || ok && late.MayArrive() {
			p.withdraw(e) // the grant came later than the first request
		}
		if round%4 == 3 {
			_ = h.Release(e.Ctx)
		}
		_ = a.MustTry(e.Request(key, "", e.Long)).Release(e.Ctx)
	}
}

// endable is a context whose end needs no mutex.
type endable struct {
	context.Context
	done  chan struct{}
	ended *atomic.Bool
}

func (c endable) Done() <-chan struct{} { return c.done }

func (c endable) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

func (c endable) end() {
	c.ended.Store(true)
	close(c.done)
}

// showsWaiters looks at a key for which so many places wait. Fewer are no mistake where nobody waited
// at one of them for long, or where a request took so long that a place was not kept.
func showsWaiters(e *engine.Env, s *engine.BackendClient, key string, places ...*place) {
	if _, ok := backend.As[backend.Inspector](s.Backend); !ok {
		return
	}
	n := len(places)
	recordsShown(e, s, key, func(what string, rec backend.Record) {
		if rec.Key != key || rec.Waiters == n || rec.Waiters == -1 {
			return
		}
		var excuse engine.Excuse
		if rec.Waiters < n {
			for _, p := range places {
				p.judgeAbandoned(e)
			}
			excuse = engine.Excuse{From: placeLasts / 4, By: engine.AnyRequest}
		}
		e.Fail(excuse, key, "%s shows %d waiters; expected %d, for each of whom there is a place in the queue, or -1 for unknown", what, rec.Waiters, n)
	})
}

func queueAbandoned(e *engine.Env) {
	a, b, gone := e.Backend(), e.Backend(), e.Backend()
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	enqueue(e, gone, key, e.TTL) // nobody ever waits here
	next := enqueue(e, b, key, e.Long).waiting(e)
	e.Settle() // it waits by what it knows of the hold, and is to learn of the place
	_ = h.Release(e.Ctx)
	if !e.Within(e.TakeoverLimit(e.TTL)+e.WaitBound(), next.done) {
		e.Look(key)
		e.OverdueFatalf(key, "a waiter had not been granted the key after %s, behind a place whose client had gone; its TTL was %s", e.TakeoverLimit(e.TTL)+e.WaitBound(), e.TTL)
	}
	if next.err != nil {
		e.UnexpectedFatal(key, next.err, "Wait returned %s; expected a grant", engine.Outcome(next.err))
	}
	_ = b.Release(e.Ctx, next.hold())
	if e.Virtual() {
		abandonedLongAgo(e, a, b, gone)
	}
}

// abandonedLongAgo has the TTLs of places pass whose client has gone, before the holder is released.
// Meanwhile others ask for the key, look at it and list it, and its holder renews: nothing of that is
// the client's.
func abandonedLongAgo(e *engine.Env, a, b, gone *engine.BackendClient) {
	key, newcomer, ttl := e.Key("long ago"), e.Backend(), e.Fit(2*e.TTL)
	if !e.Claimed.ManualRenewal && e.Long < 3*ttl+e.Claimed.TakeoverLag {
		return // the holder's TTL would pass, too
	}
	h := a.MustTry(e.Request(key, "", e.Long))
	for range 2 {
		enqueue(e, gone, key, ttl)
	}
	next := enqueue(e, b, key, e.Long).waiting(e)
	others := func() {
		enqueue(e, newcomer, key, ttl).withdraw(e)
		newcomer.MustRefuse(key, "it is held")
		recordsShown(e, newcomer, key, func(string, backend.Record) {})
		if !e.Claimed.ManualRenewal {
			return
		}
		if err := h.Renew(); err != nil {
			e.UnexpectedFatal(key, err, "Renew of a hold returned %s, while others wait; expected no error", engine.Outcome(err))
		}
	}
	for last := time.Now().Add(2*ttl + e.Claimed.TakeoverLag); time.Now().Before(last); {
		e.Pause(min(ttl/3, time.Until(last)))
		others()
	}
	next.mustWait(e, "the key is held")
	e.MustGiveBack(h, key, "")
	if !e.Within(ttl/2, next.done) {
		e.OverdueFatalf(key, "a waiter had not been granted the key %s after its release, behind places whose client had gone; their TTL of %s had passed before, in which others asked for the key, and looked at it", ttl/2, ttl)
	}
	next.withdraw(e)
}

// waiterSessionCheck is the fault that Jepsen found in etcd 3.4.3: the wait ended
// with the release of the holder, and nobody looked whether the waiter's own lease
// was still there.
func waiterSessionCheck(e *engine.Env) {
	if e.EndSession == nil {
		e.Skipf("needs Config.EndSession")
	}
	holder := e.Backend()
	for round := range e.Rounds(e.Work(300*time.Millisecond), 3, 20) {
		a, b := e.Backend(), e.Backend()
		key := e.Key("%d", round)
		h := holder.MustTry(e.Request(key, "", e.Long))
		first := enqueue(e, a, key, e.Long).waiting(e)
		e.Settle()
		endSession(e, key)
		second := enqueue(e, b, key, e.Long).waiting(e)
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedFatal(key, err, "Release of the holder returned %s; expected no error", engine.Outcome(err))
		}
		second.mustGet(e, "the session of the place before it has ended, and the holder has released")
		if !e.Within(e.WaitBound(), first.done) {
			e.OverdueFatalf(key, "a waiter whose session had ended still waited after %s", e.WaitBound())
		}
		if first.err == nil {
			e.Failf(key, "a waiter whose session had ended while it waited was granted token %d, and another client was granted token %d; expected an error", first.grant.Token, second.grant.Token)
		}
		second.release(e)
		_ = first.ticket.Withdraw(e.Ctx)
	}
}
