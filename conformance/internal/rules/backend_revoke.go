package rules

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// revocation is what the cases of RevokeByToken share. a holds, b is the operator and
// those who come next.
type revocation struct {
	e    *engine.Env
	a, b *engine.BackendClient
	r    backend.Revoker
	// keeps: a revoked hold lasts until its expiry whatever its holder does when it
	// learns of it. Where a connection of the holder's is the hold, it ends then.
	keeps bool
}

func revokeByToken(e *engine.Env) {
	c := &revocation{e: e, a: e.Backend(), b: e.Backend(), keeps: e.Claimed.Expiry != backend.ClockConnection}
	c.r = optional[backend.Revoker](c.b, "Revoker")
	if !engine.ClaimTokens.Made(e.Settings) {
		e.Skipf("needs tokens to name a record by, and none are claimed")
	}
	cases := []func(){c.gone, c.goneAfterBatch, c.inner, c.innerLeft, c.locker, c.told, c.again, c.several, c.ranOut, c.queuedAfter, c.besideOthers}
	for _, longFirst := range []bool{false, true} {
		cases = append(cases, func() { c.owner(longFirst) })
	}
	for _, renewed := range []bool{false, true} {
		cases = append(cases, func() { c.alive(renewed) }, func() { c.queued(renewed) })
	}
	e.Together(cases...)
}

func (c *revocation) revoke(key string, token uint64) error {
	ev := c.e.Log.Begin(c.b.Who, "Revoke", key)
	err := c.r.Revoke(c.e.Ctx, key, token)
	c.e.Log.End(ev, fmt.Sprintf("token %d: %s", token, engine.Outcome(err)))
	return err
}

// mustRevoke revokes the hold, and looks whether those who ask are told so.
func (c *revocation) mustRevoke(key string, h engine.Grip) {
	c.shows(key, h, false)
	if err := c.revoke(key, h.Fence()); err != nil {
		c.inTime(key, h, err)
		c.e.UnexpectedFatal(key, err, "Revoke with the token of the holder returned %s; expected no error", engine.Outcome(err))
	}
	c.shows(key, h, true)
}

// inTime ends a case in which the hold has run out before it was revoked.
func (c *revocation) inTime(key string, h engine.Grip, err error) {
	if errors.Is(err, backend.ErrNotHeld) && !time.Now().Before(h.Until()) {
		c.e.TooSlowf(key, "the hold had run out before it was revoked; its TTL is %s", c.e.TTL)
	}
}

// shows has the operator look at the key. A revoked hold may have ended by then.
func (c *revocation) shows(key string, h engine.Grip, revoked bool) {
	in, ok := backend.As[backend.Inspector](c.b.Backend)
	if !ok {
		return
	}
	ev := c.e.Log.Begin(c.b.Who, "Inspect", key)
	rec, err := in.Inspect(c.e.Ctx, key)
	c.e.Log.End(ev, fmt.Sprintf("token %d, revoked %t: %s", rec.Token, rec.Revoked, engine.Outcome(err)))
	switch {
	case err != nil && revoked && errors.Is(err, backend.ErrNotHeld):
	case err != nil:
		c.inTime(key, h, err)
		c.e.Unexpected(key, err, "Inspect of a held key returned %s; expected its record", engine.Outcome(err))
	case revoked && isWrong(rec, h):
		c.e.Failf(key, "Inspect of a revoked hold shows the token %d, %d holds and %d waiters; expected the token %d, a hold, since the key is not free, and at least -1 waiters, which is for unknown", rec.Token, rec.Holds, rec.Waiters, h.Fence())
	case rec.Token != h.Fence():
	case rec.Revoked && !revoked:
		c.e.Failf(key, "Inspect says of a hold that nobody has revoked that it was")
	case !rec.Revoked && revoked:
		c.e.Failf(key, "Inspect does not say of a hold that it was revoked, so that an operator is told that it may be renewed")
	}
	if l, ok := backend.As[backend.Lister](c.b.Backend); ok && revoked && rec.Revoked {
		_ = l.List(c.e.Ctx, key, func(shown backend.Record) bool {
			if shown.Key == key && shown.Token == rec.Token && !shown.Revoked {
				c.e.Failf(key, "List does not say of a hold that it was revoked, and Inspect does")
			}
			if shown.Key == key && isWrong(shown, h) {
				c.e.Failf(key, "List shows a revoked hold with the token %d, %d holds and %d waiters; expected the token %d, a hold, since the key is not free, and at least -1 waiters, which is for unknown", shown.Token, shown.Holds, shown.Waiters, h.Fence())
			}
			return true
		})
	}
}

// isWrong reports whether what is shown of a revoked hold can't be so. The hold may have ended, and
// the key have another one that nobody has revoked.
func isWrong(rec backend.Record, h engine.Grip) bool {
	return rec.Revoked && (rec.Token != h.Fence() || rec.Holds < 1 || rec.Waiters < -1)
}

// told: others are told of a revoked hold, which keeps them out as before, for how long, and whose
// it is.
func (c *revocation) told() {
	if !c.keeps {
		return
	}
	e, grain := c.e, max(c.e.Claimed.TTLGrain, c.e.Claimed.TakeoverLag)+c.e.Long/20
	req := e.Request(e.Key("told"), "", e.Long)
	req.Holder = backend.Holder{Label: "revoked", Host: longHost, PID: 4711}
	h := c.a.MustTry(req)
	c.mustRevoke(req.Key, h)
	shown := func(what string, left time.Duration, by backend.Holder) {
		what += " a hold that was revoked"
		if left != 0 { // which a refusal may not know
			leftShown(e, h, left, grain, what)
		}
		if !tellsOf(e, by, req.Holder) {
			e.Failf(h.Key, "%s shows the holder %s; expected %s, as before", what, inFull(by), inFull(req.Holder))
		}
	}
	if in, ok := backend.As[backend.Inspector](c.b.Backend); ok {
		if rec, err := in.Inspect(e.Ctx, h.Key); err == nil && rec.Token == h.Token {
			shown("Inspect of", rec.Remaining, rec.Holder)
		}
	}
	if l, ok := backend.As[backend.Lister](c.b.Backend); ok {
		_ = l.List(e.Ctx, h.Key, func(rec backend.Record) bool {
			if rec.Key == h.Key && rec.Token == h.Token {
				shown("List of", rec.Remaining, rec.Holder)
			}
			return true
		})
	}
	next, err := c.b.Try(e.Request(h.Key, "", e.TTL))
	if err == nil { // the other cases ask whether it may be
		_ = next.Release(e.Ctx)
	}
	if held := (*backend.HeldError)(nil); errors.As(err, &held) {
		shown("a refusal because of", held.Remaining, held.Holder)
		if e.Claimed.HolderDetails && held.Remaining <= 0 {
			e.Failf(h.Key, "a refusal because of a hold that was revoked says that %s remain; expected what is left of its TTL of %s", held.Remaining, e.Long)
		}
	}
	h.Releasing(e.Log.Now())
	c.cleanUp(h, "a revoked hold")
}

// again: the holds that follow one that was revoked are as any other.
func (c *revocation) again() {
	f, ok := backend.As[backend.ForceReleaser](c.b.Backend)
	if !ok || !c.keeps { // it keeps the next one out
		return
	}
	e, key := c.e, c.e.Key("again")
	for i := range 3 {
		h := c.a.MustTry(e.Request(key, "", e.Long))
		if e.Claimed.ManualRenewal {
			if err := h.Renew(); err != nil {
				e.UnexpectedLateFatal(key, err, "Renew of a hold that nobody has revoked, of a key of which %d were revoked before, returned %s; expected no error", i, engine.Outcome(err))
			}
		}
		c.mustRevoke(key, h)
		if err := h.EndedBy(e, func() error { return f.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
			e.UnexpectedFatal(key, err, "ForceRelease of a revoked hold returned %s; expected no error", engine.Outcome(err))
		}
		_ = c.a.Backend.Release(e.Ctx, h.Hold) // who has lost a hold drops what it keeps of it
	}
}

// several: a store remembers more than one revocation.
func (c *revocation) several() {
	e := c.e
	if !e.Claimed.ManualRenewal {
		return
	}
	holds := make([]*engine.Grant, 3)
	for i := range holds {
		holds[i] = c.a.MustTry(e.Request(e.Key("several %d", i), "", e.Long))
		c.mustRevoke(holds[i].Key, holds[i])
	}
	for i, h := range holds {
		h.Releasing(e.Log.Now())
		_, err := c.a.Renew(h.Hold)
		what := fmt.Sprintf("revoked hold %d of %d", i+1, len(holds))
		e.Is(h.Key, err, "Renew of "+what, backend.ErrNotHeld)
		c.batched(h, what)
	}
	for _, h := range holds {
		c.cleanUp(h, "one of several revoked holds")
	}
}

// ranOut: nobody is shown of a revoked hold that has run out.
func (c *revocation) ranOut() {
	e := c.e
	in, ok := backend.As[backend.Inspector](c.b.Backend)
	if !ok || !c.keeps || e.Claimed.EndsWithSession { // whose session keeps it
		return
	}
	key := e.Key("ran out")
	h := c.a.MustTry(c.request(key, "", false))
	c.mustRevoke(key, h)
	e.Expire(h)
	rec, err := in.Inspect(e.Ctx, key)
	if err == nil {
		e.Latef(key, "Inspect shows a hold that was revoked (%s remaining) after the end of its TTL of %s, and nobody has taken the key; expected ErrNotHeld", rec.Remaining, e.TTL)
		return
	}
	e.Is(key, err, "Inspect of a key whose hold was revoked and has run out", backend.ErrNotHeld)
}

// tell has the holder learn of the revocation, and clean up as the lock package does.
// It returns until when others have to wait.
func (c *revocation) tell(h *engine.Grant) time.Time {
	e, key := c.e, h.Key
	until := h.Until()
	h.Releasing(e.Log.Now())
	learned := e.Claimed.ManualRenewal
	if learned {
		if _, err := c.a.Renew(h.Hold); !errors.Is(err, backend.ErrNotHeld) {
			e.Unexpected(key, err, "Renew of a revoked hold returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
		c.batched(h, "a revoked hold")
	}
	c.cleanUp(h, "a revoked hold")
	if !learned || !c.keeps {
		return time.Time{}
	}
	return until
}

// batched renews a revoked hold in a batch.
func (c *revocation) batched(h *engine.Grant, what string) {
	if r, ok := backend.As[backend.BatchRenewer](c.a.Backend); ok {
		for _, x := range r.RenewBatch(c.e.Ctx, []backend.Hold{h.Hold}) {
			c.e.Is(h.Key, x.Err, "the answer of RenewBatch for "+what, backend.ErrNotHeld)
		}
	}
}

// besideOthers renews a revoked hold in one batch with others, which are held.
func (c *revocation) besideOthers() {
	e := c.e
	r, ok := backend.As[backend.BatchRenewer](c.a.Backend)
	if !ok {
		return
	}
	holds := make([]*engine.Grant, 3)
	for i := range holds {
		holds[i] = c.a.MustTry(e.Request(e.Key("beside others %d", i), "", e.Long))
	}
	c.mustRevoke(holds[1].Key, holds[1])
	holds[1].Releasing(e.Log.Now())
	answers := r.RenewBatch(e.Ctx, []backend.Hold{holds[0].Hold, holds[1].Hold, holds[2].Hold})
	if len(answers) != len(holds) {
		e.Fatalf(holds[1].Key, "RenewBatch returned %d answers for %d holds", len(answers), len(holds))
	}
	for i, x := range answers {
		if i == 1 {
			e.Is(holds[i].Key, x.Err, "the answer of RenewBatch for a revoked hold between others", backend.ErrNotHeld)
			continue
		}
		if x.Err != nil {
			e.Unexpected(holds[i].Key, x.Err, "the answer of RenewBatch for a hold beside one that was revoked is %s; expected a validity", engine.Outcome(x.Err))
		}
		e.MustGiveBack(holds[i], holds[i].Key, "")
	}
}

// cleanUp ends a revoked hold in all the ways there are, also as one of unknown outcome, whose
// token is not known.
func (c *revocation) cleanUp(h *engine.Grant, what string) {
	e, key, unknown := c.e, h.Key, h.Hold
	unknown.Token = 0
	if ho, ok := backend.As[backend.HandOverer](c.a.Backend); ok {
		_, err := ho.HandOver(e.Ctx, h.Hold, e.Request(key, "", e.TTL))
		e.Is(key, err, "HandOver of "+what, backend.ErrNotHeld)
	}
	if t, ok := backend.As[backend.ReleaseTeller](c.a.Backend); ok && c.keeps {
		for _, hold := range []backend.Hold{h.Hold, unknown} {
			if _, err := t.ReleaseTelling(e.Ctx, hold); err != nil && !errors.Is(err, backend.ErrNotHeld) {
				e.Unexpected(key, err, "ReleaseTelling of %s returned %s; expected no error or ErrNotHeld", what, engine.Outcome(err))
			}
		}
	}
	for _, hold := range []backend.Hold{h.Hold, h.Hold, unknown} {
		if err := c.a.Release(e.Ctx, hold); err != nil && !errors.Is(err, backend.ErrNotHeld) {
			e.Unexpected(key, err, "Release of %s returned %s; expected no error or ErrNotHeld", what, engine.Outcome(err))
		}
	}
}

// notBefore fails the case if the key was granted before the end of the revoked hold,
// as its holder knew it.
func (c *revocation) notBefore(key string, until time.Time, who string) {
	if left := time.Until(until); left > 0 {
		c.e.Failf(key, "%s was granted the key %s before the revoked hold would have expired; its holder, who has learned of the revocation, may still be stopping its work",
			who, left.Round(time.Millisecond))
	}
}

// request asks for a hold that is left to expire.
func (c *revocation) request(key, owner string, renewed bool) backend.Request {
	req := c.e.Request(key, owner, c.e.TTL)
	req.Renewed = renewed
	return req
}

// alive: the holder learns of it at its next renewal.
func (c *revocation) alive(renewed bool) {
	e, a, b := c.e, c.a, c.b
	key := e.Key("alive, renewed %t", renewed)
	e.Is(key, c.revoke(key, 1), "Revoke of a free key", backend.ErrNotHeld)
	req := c.request(key, "", renewed)
	h := a.MustTry(req)
	for _, other := range otherTokens(h.Token) {
		e.Is(key, c.revoke(key, other), "Revoke with another token", backend.ErrNotHeld)
	}
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err != nil {
			e.UnexpectedLate(key, err, "Renew after revocations with other tokens returned %s; expected no error", engine.Outcome(err))
		}
	}
	c.mustRevoke(key, h)
	b.MustRefuse(key, "it was revoked, and has not expired")
	if c.keeps {
		if err := c.revoke(key, h.Token); err != nil && !errors.Is(err, backend.ErrNotHeld) {
			e.Unexpected(key, err, "a second Revoke with the same token returned %s; expected no error or ErrNotHeld", engine.Outcome(err))
		}
		b.MustRefuse(key, "it was revoked twice, and has not expired")
		g, err := a.Backend.Try(e.Ctx, req)
		if err == nil && g.Token != h.Token && !time.Now().Before(h.Until()) {
			_ = a.Backend.Release(e.Ctx, backend.HoldOf(req))
			e.TooSlowf(key, "the revoked hold had expired before its request came once more; its TTL is %s", e.TTL)
		}
		if err == nil {
			e.Fatalf(key, "the request of a revoked hold came once more, and was granted with the token %d, where the hold had %d; expected that it is not entered again", g.Token, h.Token)
		}
	}
	until := c.tell(h)
	next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/25, "its hold was revoked")
	c.notBefore(key, until, "another client")
	if next.Fence() <= h.Token {
		e.Failf(key, "the token after a revoked hold is %d; expected more than %d", next.Fence(), h.Token)
	}
	c.shows(key, next, false)
	e.Is(key, c.revoke(key, h.Token), "Revoke with the token of the earlier holder", backend.ErrNotHeld)
	if until != (time.Time{}) {
		_, err := a.Renew(h.Hold)
		e.Is(key, err, "Renew of a revoked hold, of a key that another client holds by now,", backend.ErrNotHeld)
	}
	e.Is(key, a.Release(e.Ctx, h.Hold), "Release of a revoked hold, of a key that another client holds by now,", backend.ErrNotHeld)
	a.MustRefuse(key, "only a revoked hold was released, which another client has followed")
	e.MustGiveBack(next, key, "the earlier holder's token was revoked")
	if again, err := a.Try(c.request(key, "", renewed)); err != nil {
		e.Unexpected(key, err, "the earlier holder's client tried the key when it was free again, and Try returned %s; expected a grant", engine.Outcome(err))
	} else if err := again.Release(e.Ctx); err != nil {
		e.Unexpected(key, err, "Release returned %s; expected no error", engine.Outcome(err))
	}
}

// queued: somebody has a place in the server's queue before the revocation, and the
// holder's client another one behind it.
func (c *revocation) queued(renewed bool) {
	e, a, b := c.e, c.a, c.b
	if _, ok := backend.As[backend.Queuer](b.Backend); !ok {
		return
	}
	key := e.Key("queued, renewed %t", renewed)
	h := a.MustTry(c.request(key, "", renewed))
	p := enqueue(e, b, key, e.Long).waiting(e)
	e.Settle()
	c.mustRevoke(key, h)
	e.Pause(e.TTL / 20)
	if h.Until().After(time.Now()) {
		p.mustWait(e, "the hold before it was revoked, and has not expired")
	}
	until := c.tell(h)
	q := enqueue(e, a, key, e.Long).waiting(e)
	turn := p.done
	if !e.Claimed.Fair { // whose turn it is has not been promised
		turn = either(p.done, q.done)
	}
	if !e.Within(e.TakeoverLimit(e.TTL)+e.WaitBound(), turn) {
		e.OverdueFatalf(key, "a place in the queue had not been granted %s after the hold before it was revoked; its TTL was %s", e.TakeoverLimit(e.TTL)+e.WaitBound(), e.TTL)
	}
	select {
	case <-p.done:
	default:
		p, q = q, p
	}
	c.notBefore(key, until, "a place in the queue")
	p.mustGet(e, "the hold before it was revoked and has ended")
	if p.grant.Token <= h.Token {
		e.Failf(key, "the token after a revoked hold is %d; expected more than %d", p.grant.Token, h.Token)
	}
	q.mustWait(e, "an earlier place holds the key")
	p.withdraw(e)
	q.mustGet(e, "the places before it have ended")
	q.withdraw(e)
}

// either is closed when one of the two is.
func either(a, b <-chan struct{}) chan struct{} {
	one := make(chan struct{})
	go func() {
		defer close(one)
		select {
		case <-a:
		case <-b:
		}
	}()
	return one
}

// locker: the whole of it, a lease that is renewed automatically and a caller who waits
// in Acquire.
func (c *revocation) locker() {
	e := c.e
	key := e.Key("locker")
	holder, other := e.Locker(), e.Locker()
	h := holder.MustTryFor(key, e.TTL)
	w := other.Acquiring(key)
	e.Settle()
	if !c.keeps {
		h.Releasing(e.Log.Now()) // it ends as soon as the holder has learned of the revocation
	}
	c.mustRevoke(key, h)
	until := h.Until()
	if !c.keeps {
		until = time.Time{}
	}
	if e.Claimed.LossSignal {
		bound := e.TTL/3 + e.Slack()
		if !e.Within(bound, h.Lease.Context().Done()) {
			e.OverdueFatalf(key, "the holder had not been told %s after its hold was revoked; its TTL is %s, and it renews every third of that", bound, e.TTL)
		}
		const what = "context.Cause of a lease whose hold was revoked"
		isLoss(e, key, h.Cause(), what)
		not(e, key, h.Cause(), what, lock.ErrMaxHold, lock.ErrReleased, lock.ErrClosed)
		if time.Now().Before(until) {
			not(e, key, h.Cause(), what+", long before its deadline,", lock.ErrExpired)
		}
		e.Is(key, h.Release(e.Ctx), "Release of a lease whose hold was revoked, as it knew,", lock.ErrLost, lock.ErrNotHeld)
	}
	if !e.Within(e.TakeoverLimit(e.TTL)+e.WaitBound(), w.Done) {
		e.Look(key)
		e.OverdueFatalf(key, "a waiter had not been granted the key %s after the hold was revoked; its TTL was %s", e.TakeoverLimit(e.TTL)+e.WaitBound(), e.TTL)
	}
	c.notBefore(key, until, "a caller who waited in Acquire before the revocation")
	w.MustGet(e, key, 0, "the hold was revoked and has ended").MustRelease()
}

// gone: the holder does not come back.
func (c *revocation) gone() {
	e := c.e
	if e.Claimed.EndsWithSession {
		return // its session keeps the hold, in this process
	}
	key := e.Key("gone")
	h := c.a.MustTry(c.request(key, "", false))
	e.Pause(e.TTL / 4)
	if e.Claimed.ManualRenewal { // its expiry is another one than at its grant
		if err := h.Renew(); err != nil {
			e.UnexpectedLateFatal(key, err, "Renew after a quarter of the TTL returned %s; expected no error", engine.Outcome(err))
		}
		e.Pause(e.TTL / 4)
	}
	before := c.left(key)
	c.mustRevoke(key, h)
	if after := c.left(key); before > 0 && after > before {
		e.Failf(key, "a hold that would have lasted for another %s lasts for another %s since it was revoked; Revoke must leave its expiry as it is", before, after)
	}
	c.lastsOut(h, "a holder that did not know of the revocation")
	key = e.Key("expired")
	h = c.a.MustTry(c.request(key, "", false))
	e.Expire(h)
	e.Is(key, c.revoke(key, h.Token), "Revoke of a hold that has expired", backend.ErrNotHeld)
}

// goneAfterBatch: the holder does not come back, who was renewed in a batch.
func (c *revocation) goneAfterBatch() {
	e := c.e
	r, ok := backend.As[backend.BatchRenewer](c.a.Backend)
	if !ok || !e.Virtual() || e.Claimed.EndsWithSession || !e.Claimed.ManualRenewal {
		return
	}
	key := e.Key("gone, after a batch")
	h := c.a.MustTry(c.request(key, "", false))
	e.Pause(e.TTL / 2)
	from := e.Log.Now()
	for _, x := range r.RenewBatch(e.Ctx, []backend.Hold{h.Hold}) {
		if x.Err != nil {
			e.UnexpectedLateFatal(key, x.Err, "the answer of RenewBatch after half of the TTL is %s; expected a validity", engine.Outcome(x.Err))
		}
		h.Renewed(from, x.Validity)
	}
	c.mustRevoke(key, h)
	c.lastsOut(h, "a holder whose hold was renewed in a batch, and revoked")
}

// lastsOut takes the key when the revoked hold of a holder who is gone has expired.
func (c *revocation) lastsOut(h *engine.Grant, who string) {
	e, deadline := c.e, h.Until()
	e.Pause(time.Until(deadline) - e.TTL/16)
	next := e.TakeOver(c.b, h.Key, e.Long, e.TakeoverLimit(e.TTL), 2*time.Millisecond, "its hold was revoked and not renewed")
	if now := time.Now(); now.Before(deadline) {
		e.Failf(h.Key, "another client was granted the key %s before the deadline of %s", deadline.Sub(now), who)
	}
	_ = next.Release(e.Ctx)
}

// owner: an explicit owner does not come back in, and the longest of its holds counts, whichever
// was the last.
func (c *revocation) owner(longFirst bool) {
	e := c.e
	if !engine.ClaimServerHolds.Made(e.Settings) {
		return
	}
	key, owner := e.Key("owner, long first %t", longFirst), e.Owner("o")
	longer, shorter := e.Request(key, owner, e.Fit(5*e.TTL/2)), c.request(key, owner, false)
	var h, last *engine.Grant // the shorter and the longer hold
	if longFirst {
		last = c.a.MustTry(longer)
	}
	h = c.a.MustTry(shorter)
	if !longFirst {
		last = c.a.MustTry(longer)
	}
	c.mustRevoke(key, h)
	switch again, err := c.a.Try(c.request(key, owner, false)); {
	case err == nil && (again.Token == h.Token || c.keeps && time.Now().Before(last.Until())):
		e.Failf(key, "the owner entered its revoked hold again")
		return
	case err != nil && c.keeps:
		e.JudgeRefusal(key, "Try by the owner of a revoked hold", "it was revoked, and has not expired", nil, err)
		not(e, key, err, "Try by the owner of a revoked hold", backend.ErrPermanent, backend.ErrTooManyHolds)
	}
	if c.keeps {
		c.repeated(last, longer, shorter)
	}
	if c.keeps && e.Claimed.ManualRenewal {
		c.tellOwner(key, last, h)
	}
	if c.keeps && !e.Claimed.EndsWithSession && longer.TTL >= 2*e.TTL {
		h.Lapses()
		e.Pause(time.Until(h.Until()) + e.TTL/4)
		_, err := c.b.Try(c.request(key, "", false))
		if left := time.Until(last.Until()); err == nil && left > 0 {
			e.Failf(key, "a key whose owner had two holds was granted %s before the longer of them would have expired; it was revoked, and nobody released it", left.Round(time.Millisecond))
		}
	}
	h.Releasing(e.Log.Now())
	last.Releasing(e.Log.Now())
}

// repeated has the requests of an owner's revoked holds come once more. The longest of them is h.
func (c *revocation) repeated(h *engine.Grant, requests ...backend.Request) {
	e := c.e
	for _, req := range requests {
		g, err := c.a.Backend.Try(e.Ctx, req)
		if err != nil {
			continue
		}
		if g.Token != h.Token && !time.Now().Before(h.Until()) {
			_ = c.a.Backend.Release(e.Ctx, backend.HoldOf(req))
			e.TooSlowf(req.Key, "the revoked holds had expired before their requests came once more")
		}
		e.Fatalf(req.Key, "the request of an owner's revoked hold, with a TTL of %s, came once more, and was granted with the token %d, where the hold had %d; expected that it is not entered again", req.TTL, g.Token, h.Token)
	}
}

// queuedAfter: the first place in the server's queue comes when the hold is revoked already.
func (c *revocation) queuedAfter() {
	e := c.e
	if _, ok := backend.As[backend.Queuer](c.b.Backend); !ok || !c.keeps {
		return
	}
	key := e.Key("queued after it")
	h := c.a.MustTry(c.request(key, "", false))
	c.mustRevoke(key, h)
	p := enqueue(e, c.b, key, e.Long).waiting(e)
	held := c.a.MustTry(e.Request(e.Key("queued after one that goes on"), "", e.Long))
	other := enqueue(e, c.b, held.Key, e.Long).waiting(e)
	e.Pause(e.TTL / 20)
	if h.Until().After(time.Now()) {
		p.mustWait(e, "the hold was revoked before it came, and has not expired")
	}
	for half := h.Until().Add(-e.TTL / 2); !p.ticket.Behind() && time.Now().Before(half); { // a server may have said nothing yet
		e.Pause(e.TTL / 20)
	}
	if other.ticket.Behind() && !p.ticket.Behind() {
		e.Latef(key, "Behind of a place behind a revoked hold was false for half of its TTL, and true of a place behind another hold; expected true, since the hold was before the place")
	}
	h.Lapses()
	p.withdraw(e)
	other.withdraw(e)
	_ = held.Release(e.Ctx)
}

// inner: an owner's outermost hold has run out before.
func (c *revocation) inner() {
	e, key := c.e, c.e.Key("inner")
	h := innerOnly(e, c.a, key)
	if h == nil || !c.keeps {
		return
	}
	if err := c.revoke(key, h.Token); err != nil {
		e.UnexpectedFatal(key, err, "Revoke of a key whose outermost hold has run out, and that its owner holds by another one, returned %s; expected no error", engine.Outcome(err))
	}
	c.b.MustRefuse(key, "it was revoked, and the longer of its owner's holds has not expired")
	h.Releasing(e.Log.Now())
	if e.Claimed.ManualRenewal {
		_, err := c.a.Renew(h.Hold)
		e.Is(key, err, "Renew of an owner's inner hold, which was revoked,", backend.ErrNotHeld)
	}
	_ = c.a.Release(e.Ctx, h.Hold)
}

// innerLeft: an owner's outermost hold was released before.
func (c *revocation) innerLeft() {
	e, key, owner := c.e, c.e.Key("inner, left"), c.e.Owner("A")
	if !engine.ClaimServerHolds.Made(e.Settings) || !c.keeps {
		return
	}
	outer, h := c.a.MustTry(e.Request(key, owner, e.Long)), c.a.MustTry(e.Request(key, owner, e.Long))
	e.MustGiveBack(outer, key, "")
	until := h.Until()
	if err := c.revoke(key, h.Token); err != nil {
		if !time.Now().Before(until) {
			e.TooSlowf(key, "the hold had run out before it was revoked; its TTL is %s", e.Long)
		}
		e.UnexpectedFatal(key, err, "Revoke of a key whose outermost hold was released, and that its owner holds by another one, returned %s; expected no error", engine.Outcome(err))
	}
	c.b.MustRefuse(key, "the hold that was left of its owner's was revoked, and has not expired")
	h.Releasing(e.Log.Now())
	if e.Claimed.ManualRenewal {
		_, err := c.a.Renew(h.Hold)
		e.Is(key, err, "Renew of the hold that was left of an owner's, which was revoked,", backend.ErrNotHeld)
	}
	_ = c.a.Release(e.Ctx, h.Hold)
}

// tellOwner has the owner learn of the revocation for each of its holds, and clean up. The
// first one is the longest.
func (c *revocation) tellOwner(key string, holds ...*engine.Grant) {
	e := c.e
	for i, h := range holds {
		h.Releasing(e.Log.Now())
		_, err := c.a.Renew(h.Hold)
		what := fmt.Sprintf("hold %d of an owner, which was revoked,", len(holds)-i)
		e.Is(key, err, "Renew of "+what, backend.ErrNotHeld)
		c.batched(h, what)
	}
	for i, h := range holds {
		c.cleanUp(h, fmt.Sprintf("hold %d of an owner, which was revoked,", len(holds)-i))
		_, err := c.b.Try(c.request(key, "", false))
		if left := time.Until(holds[0].Until()); err == nil && left > 0 {
			e.Failf(key, "a key whose owner had two holds was granted %s before the longer of them would have expired; it was revoked, and its owner, who has learned of that, may still be stopping its work", left.Round(time.Millisecond))
			return
		}
	}
}

// left is for how long others are told that the key is held, and zero if that is not told.
func (c *revocation) left(key string) time.Duration {
	in, ok := backend.As[backend.Inspector](c.b.Backend)
	if !ok {
		return 0
	}
	rec, err := in.Inspect(c.e.Ctx, key)
	if err != nil {
		return 0
	}
	return rec.Remaining
}
