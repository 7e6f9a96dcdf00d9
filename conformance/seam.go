package conformance

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// seam is a backend whose calls are recorded.
type seam struct {
	e     *env
	b     backend.Backend
	clock backend.Clock
	who   string
	done  bool
}

// seamHold is a grant of a backend.
type seamHold struct {
	*record
	s     *seam
	h     backend.Hold
	grant backend.Grant
	valid *atomic.Int64 // until when the last confirmed validity lasts, since the case began
}

// request asks for the key with a fresh acquisition id.
func (e *env) request(key, owner string, ttl time.Duration) backend.Request {
	return backend.Request{
		Key: key, ID: backend.NewID(), Owner: owner, TTL: ttl,
		Holder: backend.Holder{Label: "conformance"},
	}
}

// try sends the request.
func (s *seam) try(req backend.Request) (*seamHold, error) { return s.tryCtx(s.e.ctx, req) }

func (s *seam) tryCtx(ctx context.Context, req backend.Request) (*seamHold, error) {
	e := s.e
	ev := e.hist.begin(s.who, "Try", req.Key)
	g, err := s.b.Try(ctx, req)
	if err = untyped(err); err != nil {
		e.hist.ended(ev, err)
		if ctx.Err() == nil { // else its caller has ended it
			e.hist.failed(ev, err)
		}
		return nil, err
	}
	h := &seamHold{s: s, h: backend.HoldOf(req), grant: g, valid: new(atomic.Int64)}
	h.h.Token = g.Token
	until := s.until(g.Validity)
	e.hist.end(ev, granted(g.Token, g.Holds)+fmt.Sprintf(", valid until %.4f, TTL %s", until.Seconds(), req.TTL))
	e.mu.Lock()
	defer e.mu.Unlock()
	if first := e.grants[req.ID]; first != nil { // a repeat is the same hold
		h.record, h.valid = first.record, first.valid
		h.valid.Store(max(h.valid.Load(), int64(until)))
		return h, nil
	}
	h.valid.Store(int64(until))
	h.record = &record{
		who: s.who, key: req.Key, owner: req.Owner, token: g.Token, ttl: req.TTL,
		invoked: ev.from, granted: ev.to, released: -1, seen: until, known: true,
		deadline: func() (time.Duration, bool) { return time.Duration(h.valid.Load()), true },
	}
	e.grants[req.ID] = h
	e.records = append(e.records, h.record)
	e.hist.took(ev)
	return h, nil
}

// granted describes a grant. Where there are no tokens and no re-entries, it has none
// to tell of.
func granted(token uint64, holds int) string {
	s := "granted"
	if token > 0 {
		s += fmt.Sprintf(", token %d", token)
	}
	if holds != 1 {
		s += fmt.Sprintf(", %d holds", holds)
	}
	return s
}

// until is the end of a validity as time since the case began. The clock of the
// case is read first, so that the result is rather too early than too late.
func (s *seam) until(v backend.Validity) time.Duration {
	now := s.e.hist.now()
	return now + v.Until().Sub(s.clock.Now())
}

func (s *seam) mustTry(req backend.Request) *seamHold {
	h, err := s.try(req)
	if err != nil {
		s.e.unexpectedFatal(req.Key, err, "Try of a free key returned %s; expected a grant", outcome(err))
	}
	return h
}

// mustRefuse tries a key that must be held.
func (s *seam) mustRefuse(key, why string) {
	h, err := s.try(s.e.request(key, "", s.e.long))
	if err != nil {
		s.e.judgeRefusal(key, "Try", why, nil, err)
		return
	}
	s.e.judgeRefusal(key, "Try", why, h.record, nil)
	_ = h.release(context.Background())
	panic(abort{})
}

func (h *seamHold) release(ctx context.Context) error {
	return h.endedBy(h.s.e, func() error { return h.s.release(ctx, h.h) })
}

func (s *seam) release(ctx context.Context, hold backend.Hold) error {
	ev := s.e.hist.begin(s.who, "Release", hold.Key)
	err := untyped(s.b.Release(ctx, hold))
	s.e.hist.end(ev, outcome(err))
	s.e.hist.tookOrFailed(ev, err)
	return err
}

func (h *seamHold) renew() error {
	from := h.s.e.hist.now()
	v, err := h.s.renew(h.h)
	if err == nil && v.For > 0 {
		h.confirmed(from)
		h.confirm(v)
	}
	return err
}

// confirm moves the end of the hold to that of a confirmed renewal.
func (h *seamHold) confirm(v backend.Validity) {
	h.valid.Store(max(h.valid.Load(), int64(h.s.until(v))))
	h.see()
}

func (s *seam) renew(hold backend.Hold) (backend.Validity, error) {
	ev := s.e.hist.begin(s.who, "Renew", hold.Key)
	v, err := s.b.Renew(s.e.ctx, hold)
	err = untyped(err)
	text := outcome(err)
	if err == nil {
		text = fmt.Sprintf("ok, valid until %.4f", s.until(v).Seconds())
	}
	s.e.hist.end(ev, text)
	s.e.hist.tookOrFailed(ev, err)
	return v, err
}

func (h *seamHold) until() time.Time { return h.s.e.hist.base.Add(time.Duration(h.valid.Load())) }
func (h *seamHold) fence() uint64    { return h.token }

func (s *seam) close() error {
	s.e.mu.Lock()
	done := s.done
	s.done = true
	s.e.mu.Unlock()
	if done {
		return nil
	}
	return s.b.Close()
}

// grip is a hold that is not renewed unless renew is called: a lease taken
// without renewal, or a grant of a backend.
type grip interface {
	renew() error
	release(ctx context.Context) error
	until() time.Time // the earliest end without another renewal
	fence() uint64
	isReleased() bool
	lapses()                   // nothing rests on it from now on
	gone(e *env) time.Duration // when the server has certainly ended it, if it was never renewed
}

func (h *hold) fence() uint64 { return h.token }

// party contends for keys: a Locker, or at the seam a backend.
type party interface {
	// take tries the key once, for a hold that is not renewed.
	take(key string, ttl time.Duration) (grip, error)
	// refuses fails the case unless the key is refused.
	refuses(key, why string)
}

func (c *client) take(key string, ttl time.Duration) (grip, error) {
	h, err := c.tryFor(c.e.ctx, key, ttl, lock.WithoutRenewal())
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (c *client) refuses(key, why string) { c.mustRefuse(key, why) }

func (s *seam) take(key string, ttl time.Duration) (grip, error) {
	h, err := s.try(s.e.request(key, "", ttl))
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (s *seam) refuses(key, why string) { s.mustRefuse(key, why) }

// kind is a way to contend. Rules about holds that are not renewed run for each
// kind that the configuration allows, so that what the Locker checks by itself
// does not hide what the server would have done.
type kind struct {
	name string
	open func() party
}

func (e *env) kinds() []kind {
	var out []kind
	if e.g.WithoutRenewal {
		out = append(out, kind{"Locker", func() party { return e.locker() }})
	}
	if e.OpenBackend != nil {
		out = append(out, kind{"backend", func() party { return e.backend() }})
	}
	return out
}

// eachKind runs the case once for each kind, at the same time.
func (e *env) eachKind(f func(k kind)) {
	kinds := e.kinds()
	if len(kinds) == 0 {
		e.skipf("needs leases that are not renewed: the guarantees don't claim WithoutRenewal, and Config.OpenBackend is missing")
	}
	e.each(len(kinds), func(i int) { f(kinds[i]) })
}

// mustGiveBack releases a hold that was held, and whose end is not in doubt.
func (e *env) mustGiveBack(g grip, key, why string) {
	until := g.until()
	err := g.release(e.ctx)
	switch {
	case err == nil:
	case time.Now().After(until):
		e.tooSlowf(key, "the lease that the case relies on had expired before it was released")
	default:
		e.unexpectedFatal(key, err, "Release of a hold that was held returned %s; expected no error%s", outcome(err), why)
	}
}

// mustTake takes a key that must be free.
func (e *env) mustTake(p party, key string, ttl time.Duration) grip {
	g, err := p.take(key, ttl)
	if err != nil {
		e.unexpectedFatal(key, err, "a try on a free key returned %s; expected a grant", outcome(err))
	}
	return g
}

// takeOver tries the key again and again until it is granted, and fails the case
// when the control timer of the limit fires first.
func (e *env) takeOver(p party, key string, ttl, limit, every time.Duration, why string) grip {
	g := e.poll(key, limit, every, why, func() (grip, error) { return p.take(key, ttl) })
	return g
}

// notStated tells an author whose lock has said nothing about itself what was
// assumed of it, where a lease that should have run out has not.
func (e *env) notStated(limit time.Duration) string {
	if e.says || e.Guarantees != nil || !e.g.WithoutRenewal || limit <= e.slack() {
		return ""
	}
	return " (the lock has no guarantees, so that lock.WithTTL and lock.WithoutRenewal are taken to work; one that renews all the same needs Config.Kill, one with a TTL of its own Config.Guarantees)"
}

// poll calls try until it is granted; nothing rests on the holds that the key had before.
// At least one try is made after the control
// timer has fired.
func (e *env) poll(key string, limit, every time.Duration, why string, try func() (grip, error)) grip {
	e.lapsing(key)
	control := time.NewTimer(limit)
	defer control.Stop()
	begun := time.Now()
	expired := false
	for {
		g, err := try()
		if err == nil {
			return g
		}
		e.judgeRefusal(key, "a try", "somebody else held it", nil, err)
		if e.failed() {
			panic(abort{})
		}
		if expired {
			e.overdueFatalf(key, "the key was still refused after %s; expected it within %s, because %s%s", time.Since(begun).Round(time.Millisecond), limit, why, e.notStated(limit))
		}
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-control.C:
			t.Stop()
			expired = true
		case <-e.ctx.Done():
			t.Stop()
			panic(abort{})
		}
	}
}
