package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Stranger is a hold of the same key, owner and token with an id of its own.
func Stranger(h backend.Hold) backend.Hold {
	h.ID = backend.NewID()
	return h
}

// BackendClient is a backend whose calls are recorded.
type BackendClient struct {
	Env     *Env
	Backend backend.Backend
	Clock   backend.Clock
	Who     string
	done    bool
}

// Grant is a grant of a backend.
type Grant struct {
	*Record
	Client *BackendClient
	Hold   backend.Hold
	Answer backend.Grant
	valid  *atomic.Int64 // until when the last confirmed validity lasts, since the case began
}

// Request asks for the key with a fresh acquisition id.
func (e *Env) Request(key, owner string, ttl time.Duration) backend.Request {
	return backend.Request{
		Key: key, ID: backend.NewID(), Owner: owner, TTL: ttl,
		Holder: backend.Holder{Label: "conformance"},
	}
}

// Try sends the request.
func (s *BackendClient) Try(req backend.Request) (*Grant, error) { return s.TryCtx(s.Env.Ctx, req) }

// TryCtx is Try on a context of the caller's.
func (s *BackendClient) TryCtx(ctx context.Context, req backend.Request) (*Grant, error) {
	e := s.Env
	ev := e.Log.Begin(s.Who, "Try", req.Key)
	g, err := s.Backend.Try(ctx, req)
	if err = untyped(err); err != nil {
		e.Log.ended(ev, err)
		if ctx.Err() == nil { // else its caller has ended it
			e.Log.failed(ev, err)
		}
		return nil, err
	}
	return s.granted(ev, req, g), nil
}

// HandOver ends the hold and asks for the next one in its place.
func (s *BackendClient) HandOver(ho backend.HandOverer, from *Grant, to backend.Request) (*Grant, error) {
	e := s.Env
	ev := e.Log.Begin(s.Who, "HandOver", to.Key)
	var g backend.Grant
	err := from.EndedBy(e, func() (err error) {
		g, err = ho.HandOver(e.Ctx, from.Hold, to)
		return untyped(err)
	})
	if err != nil {
		e.Log.ended(ev, err)
		e.Log.failed(ev, err)
		return nil, err
	}
	return s.granted(ev, to, g), nil
}

// granted takes note of the grant that the call was answered with.
func (s *BackendClient) granted(ev *Entry, req backend.Request, g backend.Grant) *Grant {
	e := s.Env
	h := &Grant{Client: s, Hold: backend.HoldOf(req), Answer: g, valid: new(atomic.Int64)}
	h.Hold.Token = g.Token
	if req.Owner == "" && g.Holds != 1 {
		e.Failf(req.Key, "a grant without an owner says %d holds; expected 1", g.Holds)
	}
	until := s.until(g.Validity)
	e.Log.End(ev, granted(g.Token, g.Holds)+fmt.Sprintf(", valid until %.4f, TTL %s", until.Seconds(), req.TTL))
	e.mu.Lock()
	defer e.mu.Unlock()
	if first := e.grants[req.ID]; first != nil { // a repeat is the same hold
		h.Record, h.valid = first.Record, first.valid
		h.valid.Store(max(h.valid.Load(), int64(until)))
		return h
	}
	h.valid.Store(int64(until))
	h.Record = &Record{
		Who: s.Who, Key: req.Key, Owner: req.Owner, Token: g.Token, ttl: req.TTL,
		Invoked: ev.From, Granted: ev.to, released: -1, seen: until, known: true,
		Deadline: func() (time.Duration, bool) { return time.Duration(h.valid.Load()), true },
	}
	e.grants[req.ID] = h
	e.records = append(e.records, h.Record)
	e.Log.took(ev)
	return h
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
func (s *BackendClient) until(v backend.Validity) time.Duration {
	now := s.Env.Log.Now()
	return now + v.Until().Sub(s.Clock.Now())
}

// MustTry tries a key that must be free.
func (s *BackendClient) MustTry(req backend.Request) *Grant {
	h, err := s.Try(req)
	if err != nil {
		s.Env.UnexpectedFatal(req.Key, err, "Try of a free key returned %s; expected a grant", Outcome(err))
	}
	return h
}

// MustRefuse tries a key that must be held.
func (s *BackendClient) MustRefuse(key, why string) {
	s.MustRefuseRequest(s.Env.Request(key, "", s.Env.Long), why)
}

// MustRefuseRequest sends a request for a key that must be held.
func (s *BackendClient) MustRefuseRequest(req backend.Request, why string) {
	h, err := s.Try(req)
	if err != nil {
		s.Env.JudgeRefusal(req.Key, "Try", why, nil, err)
		return
	}
	s.Env.JudgeRefusal(req.Key, "Try", why, h.Record, nil)
	_ = h.Release(context.Background())
	panic(Abort{})
}

// Release ends the hold.
func (h *Grant) Release(ctx context.Context) error {
	from := h.Client.Env.Log.Now()
	err := h.EndedBy(h.Client.Env, func() error { return h.Client.Release(ctx, h.Hold) })
	if ctx.Err() == nil { // else its caller has ended it
		h.unheard(h.Client.Env.Log.Now()-from, err)
	}
	return err
}

// Release releases any hold, held or not.
func (s *BackendClient) Release(ctx context.Context, hold backend.Hold) error {
	ev := s.Env.Log.Begin(s.Who, "Release", hold.Key)
	err := untyped(s.Backend.Release(ctx, hold))
	s.Env.Log.End(ev, Outcome(err))
	s.Env.Log.tookOrFailed(ev, err)
	return err
}

// Renew extends the hold, and moves its end.
func (h *Grant) Renew() error {
	from := h.Client.Env.Log.Now()
	v, err := h.Client.Renew(h.Hold)
	if err == nil && v.For > 0 {
		h.confirmed(from)
		h.confirm(v)
	}
	return err
}

// Renewed takes note of a renewal that was made in another way, and asked for at from.
func (h *Grant) Renewed(from time.Duration, v backend.Validity) {
	if v.For > 0 {
		h.confirmed(from)
		h.confirm(v)
	}
}

// confirm moves the end of the hold to that of a confirmed renewal.
func (h *Grant) confirm(v backend.Validity) {
	h.valid.Store(max(h.valid.Load(), int64(h.Client.until(v))))
	h.see()
}

// Renew renews any hold, held or not.
func (s *BackendClient) Renew(hold backend.Hold) (backend.Validity, error) {
	ev := s.Env.Log.Begin(s.Who, "Renew", hold.Key)
	v, err := s.Backend.Renew(s.Env.Ctx, hold)
	err = untyped(err)
	text := Outcome(err)
	if err == nil {
		text = fmt.Sprintf("ok, valid until %.4f", s.until(v).Seconds())
	}
	s.Env.Log.End(ev, text)
	s.Env.Log.tookOrFailed(ev, err)
	return v, err
}

// Until is when the hold ends at the earliest when it is not renewed.
func (h *Grant) Until() time.Time { return h.Client.Env.Log.Base.Add(time.Duration(h.valid.Load())) }

// Fence is the token of the hold.
func (h *Grant) Fence() uint64 { return h.Token }

// Close closes the backend, once.
func (s *BackendClient) Close() error {
	s.Env.mu.Lock()
	done := s.done
	s.done = true
	s.Env.mu.Unlock()
	if done {
		return nil
	}
	return s.Backend.Close()
}
