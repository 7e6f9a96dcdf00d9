package rules

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// handing is what the cases of HandOverIsOneStep share. a hands over, b is another client.
type handing struct {
	e    *engine.Env
	a, b *engine.BackendClient
	ho   backend.HandOverer
}

func handOver(e *engine.Env) {
	c := &handing{e: e, a: e.Backend(), b: e.Backend()}
	c.ho = optional[backend.HandOverer](c.a, "HandOverer")
	c.once()
	cases := []func(){c.longer, func() { c.shorter(false) }, func() { c.shorter(true) }, c.unknown, c.expired, c.forced, c.revoked, c.beforeAPlace}
	owners := []string{""}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owners = append(owners, e.Owner("B"))
		cases = append(cases, c.owners, c.inner)
	}
	for _, owner := range owners {
		cases = append(cases, func() { c.renewed(owner) })
	}
	if e.Claimed.HolderDetails {
		cases = append(cases, c.shown, c.since)
	}
	e.Together(cases...)
}

// give hands the key over from a hold of the owner to the request.
func (c *handing) give(owner string, ttl time.Duration, to backend.Request) *engine.Grant {
	e := c.e
	req := e.Request(to.Key, owner, ttl)
	req.Holder.Label = "before"
	from := c.a.MustTry(req)
	before := c.a.Clock.Now()
	g, err := c.a.HandOver(c.ho, from, to)
	switch {
	case errors.Is(err, backend.ErrHeld):
		e.Fatalf(to.Key, "HandOver of the only hold of a key returned %s; expected a grant, because nobody else waits for it", engine.Outcome(err))
	case err != nil:
		e.UnexpectedFatal(to.Key, err, "HandOver of a hold returned %s; expected a grant", engine.Outcome(err))
	}
	judgeValidity(e, to.Key, "HandOver", g.Answer.Validity, before, c.a.Clock.Now(), to.TTL)
	if engine.ClaimTokens.Made(e.Settings) && g.Token <= from.Token {
		e.Failf(to.Key, "the token after HandOver is %d; expected more than %d", g.Token, from.Token)
	}
	if f, ok := backend.As[backend.ForceReleaser](c.b.Backend); ok && engine.ClaimTokens.Made(e.Settings) {
		e.Is(to.Key, f.ForceRelease(e.Ctx, to.Key, from.Token), "ForceRelease with the token of a hold that was handed over", backend.ErrNotHeld)
	}
	if g.Answer.Holds != 1 {
		e.Failf(to.Key, "the grant of HandOver says %d holds; expected 1", g.Answer.Holds)
	}
	if e.Claimed.ManualRenewal {
		_, err := c.a.Renew(from.Hold)
		e.Is(to.Key, err, "Renew of the hold from which the key was handed over", backend.ErrNotHeld)
		if r, ok := backend.As[backend.BatchRenewer](c.a.Backend); ok {
			for _, x := range r.RenewBatch(e.Ctx, []backend.Hold{from.Hold}) {
				e.Is(to.Key, x.Err, "the answer of RenewBatch for the hold from which the key was handed over", backend.ErrNotHeld)
			}
		}
	}
	e.Is(to.Key, c.a.Release(e.Ctx, from.Hold), "Release of a hold that was handed over", backend.ErrNotHeld)
	_, err = c.ho.HandOver(e.Ctx, from.Hold, e.Request(to.Key, to.Owner, e.Long))
	e.Is(to.Key, err, "a second HandOver of the same hold, to another request,", backend.ErrNotHeld)
	return g
}

func (c *handing) once() {
	e, key := c.e, c.e.Key("a")
	g := c.give("", e.Long, e.Request(key, "", e.Long))
	c.b.MustRefuse(key, "it was handed over")
	e.MustGiveBack(g, key, ", which was handed over")
	_, err := c.a.HandOver(c.ho, g, e.Request(key, "", e.Long))
	e.Is(key, err, "HandOver of a hold that was released", backend.ErrNotHeld)
	if err != nil {
		c.grantedNothing(key, "of a hold that was released")
	}
}

// unknown cleans up what was handed over as after an unknown outcome, when the token is not known.
func (c *handing) unknown() {
	e, key := c.e, c.e.Key("of unknown outcome")
	g := c.give("", e.Long, e.Request(key, "", e.Long))
	clean, until := g.Hold, g.Until()
	clean.Token = 0
	err := g.EndedBy(e, func() error { return c.a.Release(e.Ctx, clean) })
	switch {
	case err != nil && !time.Now().Before(until):
		e.TooSlowf(key, "the hold had run out before it was released; its TTL is %s", e.Long)
	case err != nil:
		e.UnexpectedFatal(key, err, "Release of a hold that was handed over, whose token is not known, returned %s; expected no error", engine.Outcome(err))
	}
	freed(e, key, nil, c.b)
}

// grantedNothing takes the key after a HandOver that was refused.
func (c *handing) grantedNothing(key, of string) {
	h, err := c.b.Try(c.e.Request(key, "", c.e.Long))
	if err != nil {
		c.e.UnexpectedFatal(key, err, "after a HandOver %s, which was refused, Try of the key returned %s; expected a grant, since nobody holds the key: what is refused grants nothing", of, engine.Outcome(err))
	}
	_ = h.Release(c.e.Ctx)
}

// longer has a hold of a long TTL follow one of a short TTL.
func (c *handing) longer() {
	e, key := c.e, c.e.Key("longer")
	if e.Long < 3*e.TTL {
		return
	}
	g := c.give("", e.TTL, e.Request(key, "", e.Long))
	_, err := c.b.Try(e.Request(key, "", e.Long))
	if held := (*backend.HeldError)(nil); errors.As(err, &held) && held.Remaining > 0 {
		leftShown(e, g, held.Remaining, max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag)+e.Long/20, "a refusal because of a hold that was handed over")
	}
	// The lag is the most that it can be, and may be longer than the hold is valid.
	wait := e.TTL*5/4 + e.Claimed.TakeoverLag
	if wait > time.Until(g.Until())*3/4 {
		wait = e.TTL * 5 / 4
	}
	e.Pause(wait)
	c.b.MustRefuse(key, "it was handed over to a request with a TTL of "+e.Long.String())
	if in, ok := backend.As[backend.Inspector](c.b.Backend); ok {
		if _, err := in.Inspect(e.Ctx, key); err != nil {
			e.Latef(key, "Inspect of a key that was handed over, when the hold before would have ended, returned %s; expected its record", engine.Outcome(err))
		}
	}
	e.MustGiveBack(g, key, ", which was handed over")
}

// shorter has a hold of a short TTL follow one of a long TTL, and nobody renew it, whatever the
// request says of that.
func (c *handing) shorter(renewed bool) {
	e, key, of := c.e, c.e.Key("shorter, renewed %t", renewed), "a request"
	if renewed {
		of = "a request of a hold that is renewed,"
	}
	if e.Long < 3*e.TTL+2*e.Claimed.TakeoverLag || e.Claimed.EndsWithSession { // whose session keeps it
		return
	}
	to := e.Request(key, "", e.TTL)
	to.Renewed = renewed
	g := c.give("", e.Long, to)
	e.Expire(g)
	next, err := c.b.Try(e.Request(key, "", e.Long))
	if err != nil {
		e.UnexpectedFatal(key, err, "a hold with a TTL of %s was handed over to %s with a TTL of %s, which nobody has renewed, and a try after the end of that returned %s; expected a grant", e.Long, of, e.TTL, engine.Outcome(err))
	}
	_ = next.Release(e.Ctx)
}

// renewed renews what was handed over past its first TTL.
func (c *handing) renewed(owner string) {
	e, key := c.e, c.e.Key("renewed")
	if !e.Claimed.ManualRenewal {
		return
	}
	if owner != "" {
		key += " of an owner"
	}
	g := c.give("", e.Long, e.Request(key, owner, e.TTL))
	for end := time.Now().Add(e.TTL*5/4 + min(e.Claimed.TakeoverLag, 4*e.TTL)); time.Now().Before(end); {
		e.Pause(e.TTL / 4)
		if err := g.Renew(); err != nil {
			e.UnexpectedLateFatal(key, err, "Renew of a hold that was handed over returned %s; expected no error", engine.Outcome(err))
		}
	}
	c.b.MustRefuse(key, "it was handed over, and is renewed in time")
	if err := g.Release(e.Ctx); err != nil {
		e.UnexpectedLate(key, err, "Release of a hold that was handed over and renewed in time returned %s; expected no error", engine.Outcome(err))
	}
}

// owners hands over between owners, and to and from nobody in particular. Who holds the key
// then enters it again, and who held it doesn't.
func (c *handing) owners() {
	e, self := c.e, c.e.Owner("A")
	for _, x := range []struct{ name, from, to string }{
		{"owner", "", e.Owner("A")}, {"from an owner", e.Owner("A"), ""}, {"from owner to owner", e.Owner("A"), e.Owner("B")},
		{"from an owner to itself", self, self},
	} {
		key := e.Key("%s", x.name)
		g := c.give(x.from, e.Long, e.Request(key, x.to, e.Long))
		c.b.MustRefuse(key, "it was handed over")
		if e.Claimed.HolderDetails {
			c.shows(key, "conformance")
		}
		if x.from != "" && x.from != x.to {
			const who, why = "Try by the owner of the hold before", "it was handed over"
			left, err := c.b.Try(e.Request(key, x.from, e.Long))
			if err == nil {
				e.JudgeRefusal(key, who, why, left.Record, nil)
				return
			}
			e.JudgeRefusal(key, who, why, nil, err)
		}
		if x.to != "" {
			again, err := c.b.Try(e.Request(key, x.to, e.Long))
			switch {
			case err != nil:
				e.Unexpected(key, err, "the owner that a key was handed over to tried it once more, and Try returned %s; expected a second hold", engine.Outcome(err))
				return
			case again.Answer.Holds != 2 || engine.ClaimTokens.Made(e.Settings) && again.Token != g.Token:
				e.Failf(key, "the second hold after HandOver says %d holds, token %d; expected 2 holds, token %d", again.Answer.Holds, again.Token, g.Token)
			}
			e.MustGiveBack(again, key, "")
		}
		e.MustGiveBack(g, key, ", which was handed over")
	}
}

// inner hands over from the hold by which an owner entered, when that is the only one left.
func (c *handing) inner() {
	e, key, owner := c.e, c.e.Key("inner"), c.e.Owner("A")
	outer, inner := c.a.MustTry(e.Request(key, owner, e.Long)), c.a.MustTry(e.Request(key, owner, e.Long))
	if err := outer.Release(e.Ctx); err != nil {
		e.UnexpectedFatal(key, err, "Release of an owner's outermost hold returned %s; expected no error", engine.Outcome(err))
	}
	g, err := c.a.HandOver(c.ho, inner, e.Request(key, "", e.Long))
	if err != nil {
		e.UnexpectedFatal(key, err, "HandOver of an owner's inner hold, when the outermost had been released, returned %s; expected a grant", engine.Outcome(err))
	}
	c.b.MustRefuse(key, "it was handed over from an inner hold")
	e.MustGiveBack(g, key, ", which was handed over")
}

// expired hands over what has run out.
func (c *handing) expired() {
	e, key := c.e, c.e.Key("expired")
	if e.Claimed.EndsWithSession {
		return // its session keeps the hold
	}
	from := c.a.MustTry(e.Request(key, "", e.TTL))
	e.Expire(from)
	_, err := c.a.HandOver(c.ho, from, e.Request(key, "", e.Long))
	e.Is(key, err, "HandOver of a hold that has expired", backend.ErrNotHeld)
	if err != nil {
		c.grantedNothing(key, "of a hold that has expired")
	}
	key = e.Key("taken")
	from = c.a.MustTry(e.Request(key, "", e.TTL))
	e.Expire(from)
	next := c.b.MustTry(e.Request(key, "", e.Long))
	_, err = c.a.HandOver(c.ho, from, e.Request(key, "", e.Long))
	e.Is(key, err, "HandOver of a hold that has expired, of a key that another client holds by now,", backend.ErrNotHeld)
	e.MustGiveBack(next, key, ", although only a hold that had expired was handed over")
}

// beforeAPlace hands over while a place in the queue waits. Whoever is due then, the hold before is
// released.
func (c *handing) beforeAPlace() {
	e, key := c.e, c.e.Key("before a place")
	if _, ok := backend.As[backend.Queuer](c.b.Backend); !ok || e.Declines("Queuer") {
		return
	}
	from := c.a.MustTry(e.Request(key, "", e.Long))
	until := from.Until()
	p := enqueue(e, c.b, key, e.Long).waiting(e)
	e.Settle() // it waits by then
	g, err := c.a.HandOver(c.ho, from, e.Request(key, "", e.Long))
	switch {
	case err == nil:
		e.Settle()
		select {
		case <-p.done:
			if p.err == nil && time.Now().Before(g.Until()) {
				e.Failf(key, "a place in the queue was granted the token %d, when the key had been handed over to another request, with the token %d, and was not released; expected that it goes on waiting", p.grant.Token, g.Token)
			}
		default:
		}
		e.Is(key, c.a.Release(e.Ctx, from.Hold), "Release of a hold that was handed over while a place waited", backend.ErrNotHeld)
		e.MustGiveBack(g, key, ", which was handed over")
	case errors.Is(err, backend.ErrHeld):
		e.Is(key, c.a.Release(e.Ctx, from.Hold), "Release of a hold after its HandOver returned an error matching ErrHeld, which says that it was released,", backend.ErrNotHeld)
	case errors.Is(err, backend.ErrNotHeld) && !time.Now().Before(until):
		e.TooSlowf(key, "the hold had run out before it was handed over; its TTL is %s", e.Long)
	default:
		e.UnexpectedFatal(key, err, "HandOver of a hold, while a place waits, returned %s; expected a grant, or an error matching ErrHeld", engine.Outcome(err))
	}
	p.mustGet(e, "the hold before was released by HandOver, or handed over and released then")
	p.release(e)
}

// shown looks at what is shown of a key that was handed over.
func (c *handing) shown() {
	e, key := c.e, c.e.Key("shown")
	to := e.Request(key, "", e.Long)
	to.Holder.Label = "after"
	g := c.give("", e.Long, to)
	recordsShown(e, c.b, key, func(what string, rec backend.Record) {
		switch {
		case rec.Holder.Label != to.Holder.Label:
			e.Failf(key, "%s shows the label %q after HandOver; expected %q, which is that of the holder", what, rec.Holder.Label, to.Holder.Label)
		case rec.Holds != 1 || engine.ClaimTokens.Made(e.Settings) && rec.Token != g.Token:
			e.Failf(key, "%s shows %d holds, token %d after HandOver; expected 1 hold, token %d", what, rec.Holds, rec.Token, g.Token)
		}
	})
	_, err := c.b.Try(e.Request(key, "", e.Long))
	if held := (*backend.HeldError)(nil); errors.As(err, &held) && held.Holder.Label != to.Holder.Label {
		e.Failf(key, "a refusal shows the label %q after HandOver; expected %q, which is that of the holder", held.Holder.Label, to.Holder.Label)
	}
	e.MustGiveBack(g, key, ", which was handed over")
}

// shows looks whether the key is shown with the label of its holder.
func (c *handing) shows(key, label string) {
	recordsShown(c.e, c.b, key, func(what string, rec backend.Record) {
		if rec.Key == key && rec.Holder.Label != label {
			c.e.Failf(key, "%s shows the label %q after HandOver; expected %q, which is that of the holder", what, rec.Holder.Label, label)
		}
	})
}

// since hands a key over several times in a row, and looks since when each holder has it.
func (c *handing) since() {
	e, key := c.e, c.e.Key("in a row")
	in, ok := backend.As[backend.Inspector](c.b.Backend)
	if !ok || e.Claimed.Waiting == backend.WaitQueue { // a server may know only when a place was taken
		return
	}
	since := func() time.Time {
		rec, err := in.Inspect(e.Ctx, key)
		if err != nil {
			e.UnexpectedFatal(key, err, "Inspect of a key that was handed over returned %s; expected its record", engine.Outcome(err))
		}
		return rec.Holder.Since
	}
	e.Settle() // in virtual time, the first moment is a whole second
	g := c.give("", e.Long, e.Request(key, "", e.Long))
	began := time.Now() // at the latest
	last := since()
	for n := range 3 {
		e.Settle()
		lasted := time.Since(began)
		next, err := c.a.HandOver(c.ho, g, e.Request(key, "", e.Long))
		if err != nil {
			e.UnexpectedFatal(key, err, "HandOver of a hold that was handed over itself returned %s; expected a grant", engine.Outcome(err))
		}
		began = time.Now()
		now := since()
		if sooner(last, now, lasted-20*time.Millisecond) {
			e.Latef(key, "Inspect shows that the key is held since %s, by one that it was handed over to from a holder since %s, which had held it for %s (hand-over %d in a row); expected the time of the grant", now, last, lasted, n+2)
		}
		g, last = next, now
	}
	e.MustGiveBack(g, key, ", which was handed over")
}

// operated has an operator end what was handed over.
func (c *handing) operated(op string, end func(g *engine.Grant) error) *engine.Grant {
	e, key := c.e, c.e.Key("%s", op)
	g := c.give("", e.Long, e.Request(key, "", e.Long))
	ev := e.Log.Begin(c.b.Who, op, key)
	err := end(g)
	e.Log.End(ev, fmt.Sprintf("token %d: %s", g.Token, engine.Outcome(err)))
	if err != nil {
		e.UnexpectedFatal(key, err, "%s with the token of a hold that was handed over returned %s; expected no error", op, engine.Outcome(err))
	}
	return g
}

func (c *handing) forced() {
	f, ok := backend.As[backend.ForceReleaser](c.b.Backend)
	if !ok || !engine.ClaimTokens.Made(c.e.Settings) {
		return
	}
	g := c.operated("ForceRelease", func(g *engine.Grant) error {
		return g.EndedBy(c.e, func() error { return f.ForceRelease(c.e.Ctx, g.Key, g.Token) })
	})
	c.b.MustTry(c.e.Request(g.Key, "", c.e.Long))
}

func (c *handing) revoked() {
	r, ok := backend.As[backend.Revoker](c.b.Backend)
	if !ok || !engine.ClaimTokens.Made(c.e.Settings) {
		return
	}
	g := c.operated("Revoke", func(g *engine.Grant) error {
		g.Lapses()
		return r.Revoke(c.e.Ctx, g.Key, g.Token)
	})
	if c.e.Claimed.ManualRenewal {
		_, err := c.a.Renew(g.Hold)
		c.e.Is(g.Key, err, "Renew of a hold that was handed over and revoked", backend.ErrNotHeld)
	}
}
