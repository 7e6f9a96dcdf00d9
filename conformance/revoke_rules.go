package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// revocation is what the cases of RevokeByToken share. a holds, b is the operator and
// those who come next.
type revocation struct {
	e    *env
	a, b *seam
	r    backend.Revoker
	// keeps: a revoked hold lasts until its expiry whatever its holder does when it
	// learns of it. Where a connection of the holder's is the hold, it ends then.
	keeps bool
}

func revokeByToken(e *env) {
	c := &revocation{e: e, a: e.backend(), b: e.backend(), keeps: e.g.Expiry != backend.ClockConnection}
	c.r = optional[backend.Revoker](c.b, "Revoker")
	if !claimTokens.made(e.settings) {
		e.skipf("needs tokens to name a record by, and none are claimed")
	}
	cases := []func(){c.gone, c.owner, c.locker}
	for _, renewed := range []bool{false, true} {
		cases = append(cases, func() { c.alive(renewed) }, func() { c.queued(renewed) })
	}
	e.together(cases...)
}

func (c *revocation) revoke(key string, token uint64) error {
	ev := c.e.hist.begin(c.b.who, "Revoke", key)
	err := c.r.Revoke(c.e.ctx, key, token)
	c.e.hist.end(ev, fmt.Sprintf("token %d: %s", token, outcome(err)))
	return err
}

// mustRevoke revokes the hold, and looks whether those who ask are told so.
func (c *revocation) mustRevoke(key string, h grip) {
	c.shows(key, h, false)
	if err := c.revoke(key, h.fence()); err != nil {
		c.inTime(key, h, err)
		c.e.unexpectedFatal(key, err, "Revoke with the token of the holder returned %s; expected no error", outcome(err))
	}
	c.shows(key, h, true)
}

// inTime ends a case in which the hold has run out before it was revoked.
func (c *revocation) inTime(key string, h grip, err error) {
	if errors.Is(err, backend.ErrNotHeld) && !time.Now().Before(h.until()) {
		c.e.tooSlowf(key, "the hold had run out before it was revoked; its TTL is %s", c.e.ttl)
	}
}

// shows has the operator look at the key. A revoked hold may have ended by then.
func (c *revocation) shows(key string, h grip, revoked bool) {
	in, ok := backend.As[backend.Inspector](c.b.b)
	if !ok {
		return
	}
	ev := c.e.hist.begin(c.b.who, "Inspect", key)
	rec, err := in.Inspect(c.e.ctx, key)
	c.e.hist.end(ev, fmt.Sprintf("token %d, revoked %t: %s", rec.Token, rec.Revoked, outcome(err)))
	switch {
	case err != nil && revoked && errors.Is(err, backend.ErrNotHeld):
	case err != nil:
		c.inTime(key, h, err)
		c.e.unexpected(key, err, "Inspect of a held key returned %s; expected its record", outcome(err))
	case rec.Token != h.fence():
	case rec.Revoked && !revoked:
		c.e.failf(key, "Inspect says of a hold that nobody has revoked that it was")
	case !rec.Revoked && revoked:
		c.e.failf(key, "Inspect does not say of a hold that it was revoked, so that an operator is told that it may be renewed")
	}
}

// tell has the holder learn of the revocation, and clean up as the lock package does.
// It returns until when others have to wait.
func (c *revocation) tell(h *seamHold) time.Time {
	e, key := c.e, h.key
	until := h.until()
	h.releasing(e.hist.now())
	learned := e.g.ManualRenewal
	if learned {
		if _, err := c.a.renew(h.h); !errors.Is(err, backend.ErrNotHeld) {
			e.unexpected(key, err, "Renew of a revoked hold returned %s; expected ErrNotHeld", outcome(err))
		}
	}
	for range 2 {
		if err := c.a.release(e.ctx, h.h); err != nil && !errors.Is(err, backend.ErrNotHeld) {
			e.unexpected(key, err, "Release of a revoked hold returned %s; expected no error or ErrNotHeld", outcome(err))
		}
	}
	if !learned || !c.keeps {
		return time.Time{}
	}
	return until
}

// notBefore fails the case if the key was granted before the end of the revoked hold,
// as its holder knew it.
func (c *revocation) notBefore(key string, until time.Time, who string) {
	if left := time.Until(until); left > 0 {
		c.e.failf(key, "%s was granted the key %s before the revoked hold would have expired; its holder, who has learned of the revocation, may still be stopping its work",
			who, left.Round(time.Millisecond))
	}
}

// request asks for a hold that is left to expire.
func (c *revocation) request(key, owner string, renewed bool) backend.Request {
	req := c.e.request(key, owner, c.e.ttl)
	req.Renewed = renewed
	return req
}

// alive: the holder learns of it at its next renewal.
func (c *revocation) alive(renewed bool) {
	e, a, b := c.e, c.a, c.b
	key := e.key("alive, renewed %t", renewed)
	e.is(key, c.revoke(key, 1), "Revoke of a free key", backend.ErrNotHeld)
	h := a.mustTry(c.request(key, "", renewed))
	for _, other := range []uint64{h.token - 1, h.token + 1} {
		e.is(key, c.revoke(key, other), "Revoke with another token", backend.ErrNotHeld)
	}
	if e.g.ManualRenewal {
		if err := h.renew(); err != nil {
			e.latef(key, "Renew after revocations with other tokens returned %s; expected no error", outcome(err))
		}
	}
	c.mustRevoke(key, h)
	b.mustRefuse(key, "it was revoked, and has not expired")
	until := c.tell(h)
	next := e.takeOver(b, key, e.long, e.takeover(e.ttl), e.ttl/25, "its hold was revoked")
	c.notBefore(key, until, "another client")
	if next.fence() <= h.token {
		e.failf(key, "the token after a revoked hold is %d; expected more than %d", next.fence(), h.token)
	}
	c.shows(key, next, false)
	e.is(key, c.revoke(key, h.token), "Revoke with the token of the earlier holder", backend.ErrNotHeld)
	e.mustGiveBack(next, key, "the earlier holder's token was revoked")
	if again, err := a.try(c.request(key, "", renewed)); err != nil {
		e.unexpected(key, err, "the earlier holder's client tried the key when it was free again, and Try returned %s; expected a grant", outcome(err))
	} else if err := again.release(e.ctx); err != nil {
		e.unexpected(key, err, "Release returned %s; expected no error", outcome(err))
	}
}

// queued: somebody has a place in the server's queue before the revocation, and the
// holder's client another one behind it.
func (c *revocation) queued(renewed bool) {
	e, a, b := c.e, c.a, c.b
	if _, ok := backend.As[backend.Queuer](b.b); !ok {
		return
	}
	key := e.key("queued, renewed %t", renewed)
	h := a.mustTry(c.request(key, "", renewed))
	p := e.enqueue(b, key, e.long).waiting(e)
	e.settle()
	c.mustRevoke(key, h)
	e.pause(e.ttl / 20)
	if h.until().After(time.Now()) {
		p.mustWait(e, "the hold before it was revoked, and has not expired")
	}
	until := c.tell(h)
	q := e.enqueue(a, key, e.long).waiting(e)
	if !e.within(e.takeover(e.ttl)+e.waitBound(), p.done) {
		e.overdueFatalf(key, "a place in the queue had not been granted %s after the hold before it was revoked; its TTL was %s", e.takeover(e.ttl)+e.waitBound(), e.ttl)
	}
	c.notBefore(key, until, "a place in the queue, taken before the revocation,")
	p.mustGet(e, "the hold before it was revoked and has ended")
	if p.grant.Token <= h.token {
		e.failf(key, "the token after a revoked hold is %d; expected more than %d", p.grant.Token, h.token)
	}
	q.mustWait(e, "an earlier place holds the key")
	p.withdraw(e)
	q.mustGet(e, "the places before it have ended")
	q.withdraw(e)
}

// locker: the whole of it, a lease that is renewed automatically and a caller who waits
// in Acquire.
func (c *revocation) locker() {
	e := c.e
	key := e.key("locker")
	holder, other := e.locker(), e.locker()
	h := holder.mustTryFor(key, e.ttl)
	w := other.acquiring(key)
	e.settle()
	c.mustRevoke(key, h)
	until := h.until()
	if !c.keeps {
		h.releasing(e.hist.now())
		until = time.Time{}
	}
	if e.g.LossSignal {
		bound := e.ttl/3 + e.slack()
		if !e.within(bound, h.lease.Context().Done()) {
			e.overdueFatalf(key, "the holder had not been told %s after its hold was revoked; its TTL is %s, and it renews every third of that", bound, e.ttl)
		}
	}
	if !e.within(e.takeover(e.ttl)+e.waitBound(), w.done) {
		e.look(key)
		e.overdueFatalf(key, "a waiter had not been granted the key %s after the hold was revoked; its TTL was %s", e.takeover(e.ttl)+e.waitBound(), e.ttl)
	}
	c.notBefore(key, until, "a caller who waited in Acquire before the revocation")
	w.mustGet(e, key, 0, "the hold was revoked and has ended").mustRelease()
}

// gone: the holder does not come back.
func (c *revocation) gone() {
	e := c.e
	if e.g.EndsWithSession {
		return // its session keeps the hold, in this process
	}
	key := e.key("gone")
	h := c.a.mustTry(c.request(key, "", false))
	c.mustRevoke(key, h)
	deadline := h.until()
	e.pause(time.Until(deadline) - e.ttl/16)
	next := e.takeOver(c.b, key, e.long, e.takeover(e.ttl), 2*time.Millisecond, "its hold was revoked and not renewed")
	if now := time.Now(); now.Before(deadline) {
		e.failf(key, "another client was granted the key %s before the deadline of a holder that did not know of the revocation", deadline.Sub(now))
	}
	_ = next.release(e.ctx)
}

// owner: an explicit owner does not come back in.
func (c *revocation) owner() {
	e := c.e
	if !claimServerHolds.made(e.settings) {
		return
	}
	key, owner := e.key("owner"), e.owner("o")
	h := c.a.mustTry(c.request(key, owner, false))
	c.mustRevoke(key, h)
	if again, err := c.a.try(c.request(key, owner, false)); err == nil && again.token == h.token {
		e.failf(key, "the owner entered its revoked hold again")
	}
	h.releasing(e.hist.now())
}
