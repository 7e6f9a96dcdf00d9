package engine

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
)

// Expire waits until the server has certainly ended the holds, none of which was
// renewed.
func (e *Env) Expire(gs ...Grip) {
	for _, g := range gs {
		g.Lapses()
		e.Pause(g.Gone(e) - e.Log.Now())
	}
}

// Grip is a hold that is not renewed unless renew is called: a lease taken
// without renewal, or a grant of a backend.
type Grip interface {
	Renew() error
	Release(ctx context.Context) error
	Until() time.Time // the earliest end without another renewal
	Fence() uint64
	IsReleased() bool
	Lapses()                   // nothing rests on it from now on
	Gone(e *Env) time.Duration // when the server has certainly ended it, if it was never renewed
}

// Fence is the token of the lease.
func (h *Hold) Fence() uint64 { return h.Token }

// Party contends for keys: a Locker, or a backend.
type Party interface {
	// take tries the key once, for a hold that is not renewed.
	Take(key string, ttl time.Duration) (Grip, error)
	// refuses fails the case unless the key is refused.
	Refuses(key, why string)
}

// Take implements Party.
func (c *Client) Take(key string, ttl time.Duration) (Grip, error) {
	h, err := c.TryFor(c.Env.Ctx, key, ttl, lock.WithoutRenewal())
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Refuses implements Party.
func (c *Client) Refuses(key, why string) { c.MustRefuse(key, why) }

// Take implements Party.
func (s *BackendClient) Take(key string, ttl time.Duration) (Grip, error) {
	h, err := s.Try(s.Env.Request(key, "", ttl))
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Refuses implements Party.
func (s *BackendClient) Refuses(key, why string) { s.MustRefuse(key, why) }

// Layer is what a case contends with, a Locker or the backend under one. Rules about holds that
// are not renewed run on each layer that the configuration allows, so that what the Locker
// checks by itself does not hide what the server would have done.
type Layer struct {
	Name string
	Open func() Party
}

// Layers are those with which the configuration lets a case contend.
func (e *Env) Layers() []Layer {
	var out []Layer
	if e.Claimed.WithoutRenewal {
		out = append(out, Layer{"Locker", func() Party { return e.Locker() }})
	}
	if e.OpenBackend != nil {
		out = append(out, Layer{"backend", func() Party { return e.Backend() }})
	}
	return out
}

// EachLayer runs the case once for each layer, at the same time.
func (e *Env) EachLayer(f func(k Layer)) {
	layers := e.Layers()
	if len(layers) == 0 {
		e.Skipf("needs leases that are not renewed: the guarantees don't claim WithoutRenewal, and Config.OpenBackend is missing")
	}
	e.Each(len(layers), func(i int) { f(layers[i]) })
}

// MustGiveBack releases a hold that was held, and whose end is not in doubt.
func (e *Env) MustGiveBack(g Grip, key, why string) {
	until := g.Until()
	err := g.Release(e.Ctx)
	switch {
	case err == nil:
	case time.Now().After(until):
		e.TooSlowf(key, "the lease that the case relies on had expired before it was released")
	default:
		e.UnexpectedFatal(key, err, "Release of a hold that was held returned %s; expected no error%s", Outcome(err), why)
	}
}

// MustTake takes a key that must be free.
func (e *Env) MustTake(p Party, key string, ttl time.Duration) Grip {
	g, err := p.Take(key, ttl)
	if err != nil {
		e.UnexpectedFatal(key, err, "a try on a free key returned %s; expected a grant", Outcome(err))
	}
	return g
}

// TakeOver tries the key again and again until it is granted, and fails the case
// when the control timer of the limit fires first.
func (e *Env) TakeOver(p Party, key string, ttl, limit, every time.Duration, why string) Grip {
	g := e.Poll(key, limit, every, why, func() (Grip, error) { return p.Take(key, ttl) })
	return g
}

// NotStated tells an author whose lock has said nothing about itself what was
// assumed of it, where a lease that should have run out has not.
func (e *Env) NotStated(limit time.Duration) string {
	if e.Says || e.Guarantees != nil || !e.Claimed.WithoutRenewal || limit <= e.Slack() {
		return ""
	}
	return " (the lock has no guarantees, so that lock.WithTTL and lock.WithoutRenewal are taken to work; one that renews all the same needs Config.Kill, one with a TTL of its own Config.Guarantees)"
}

// Poll calls try until it is granted; nothing rests on the holds that the key had before.
// At least one try is made after the control
// timer has fired.
func (e *Env) Poll(key string, limit, every time.Duration, why string, try func() (Grip, error)) Grip {
	e.lapsing(key)
	control := time.NewTimer(limit)
	defer control.Stop()
	begun := time.Now()
	expired := false
	var refused time.Duration // how long the last refusal took
	for {
		asked := time.Now()
		g, err := try()
		if err == nil {
			e.Log.overtaken(refused) // the answer may be older than the end of the hold
			return g
		}
		refused = time.Since(asked)
		e.JudgeRefusal(key, "a try", "somebody else held it", nil, err)
		if e.Failed() {
			panic(Abort{})
		}
		if expired {
			e.OverdueFatalf(key, "the key was still refused after %s; expected it within %s, because %s%s", time.Since(begun).Round(time.Millisecond), limit, why, e.NotStated(limit))
		}
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-control.C:
			t.Stop()
			expired = true
		case <-e.Ctx.Done():
			t.Stop()
			panic(Abort{})
		}
	}
}
