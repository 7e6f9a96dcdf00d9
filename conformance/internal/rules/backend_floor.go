package rules

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// floorKeys is how many keys a floor is tried with: many stores keep a counter for each of
// some hundred groups of keys, and a single one must not pass for all.
const floorKeys = 12

// tooLarge are numbers above which there are no tokens.
const tooLarge = 1 << 53

// floorStep is by how much the floor is raised above a token: by more than a store counts
// on in the meantime.
const floorStep = 1 << 22

// leap is farther than a store counts on while a case lasts, even one that counts microseconds.
const leap = 1 << 31

func raisedFloorCounts(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	raiser := optional[backend.FloorRaiser](a, "FloorRaiser")
	ask := func(above uint64) error {
		ev := e.Log.Begin(a.Who, "RaiseFloor", "")
		err := raiser.RaiseFloor(e.Ctx, above)
		e.Log.End(ev, engine.Outcome(err))
		return err
	}
	raise := func(above uint64) {
		if err := ask(above); err != nil {
			e.UnexpectedFatal("", err, "RaiseFloor(%d) returned %s; expected no error", above, engine.Outcome(err))
		}
	}
	var keys []string
	for n := range floorKeys {
		keys = append(keys, e.Key("used %d", n))
		useOnce(e, b, keys[n])
	}
	held := e.Key("held")
	req := e.Request(held, "", e.Long)
	h := b.MustTry(req)
	operated := heldWhileRaised(e, a, b)
	entersAgain := ownerEnters(e, b)
	above := h.Token + floorStep
	raise(above)
	raise(above) // as after an error, which may have left a part of the keys
	entersAgain(above)
	operated(above)
	if until := h.Until(); e.Long < 3*e.TTL {
		// The holds end too soon for more requests.
	} else if again := b.MustTry(req); again.Answer.Token != h.Token && time.Now().Before(until) {
		e.Failf(held, "the request of a hold with the token %d came once more after RaiseFloor, and was granted %d; expected the same token", h.Token, again.Answer.Token)
	}
	for who, s := range map[string]*engine.BackendClient{"the one that raised it": a, "one that was opened before": b, "one that was opened after": e.Backend()} {
		for _, k := range append(keys, e.Key("new to %s", s.Who)) {
			if token := useOnce(e, s, k); token <= above {
				e.Failf(k, "%s, %s, was granted the token %d after RaiseFloor(%d); expected a larger one", s.Who, who, token, above)
			}
		}
	}
	key := keys[0]
	last := useOnce(e, b, key)
	raise(0)
	raise(above - 1)
	switch token := useOnce(e, b, key); {
	case token <= last:
		e.Failf(key, "the token %d was granted after %d, when the floor was raised to less than it was; expected a larger one", token, last)
	case e.Virtual() && e.Claimed.Token == backend.TokenCounter && token > last+leap:
		e.Latef(key, "the token %d was granted after %d, when the floor was raised to less than it was; expected that to change nothing", token, last)
	}
	// The others are less than nothing where a number has a sign.
	tooMuch := []uint64{tooLarge, tooLarge + 1, 1 << 63, math.MaxUint64}
	if e.Claimed.Token == backend.TokenCounter {
		tooMuch = append(tooMuch, tooLarge-1)
	}
	for _, refused := range tooMuch {
		if err := ask(refused); !errors.Is(err, backend.ErrInvalid) {
			e.Unexpected("", err, "RaiseFloor(%d) returned %s; expected an error matching ErrInvalid, as from 2^53 on, and one less for a counter", refused, engine.Outcome(err))
		}
	}
	if token := useOnce(e, b, key); token >= tooLarge {
		e.Failf(key, "the token %d was granted after a floor that leaves no token was refused; expected the floor to stay", token)
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	if err := raiser.RaiseFloor(ended, last+floorStep); err == nil {
		if token := useOnce(e, b, key); token <= last+floorStep {
			e.Failf(key, "the token %d was granted after RaiseFloor(%d), with a context that had ended, had returned no error; expected an error, or a larger token", token, last+floorStep)
		}
	}
	above = floorOutlivesClient(e, b, key, max(above, last+floorStep))
	above = raisedAtOnce(e, []*engine.BackendClient{a, b}, keys, above)
	if in, ok := backend.As[backend.Inspector](a.Backend); ok {
		if rec, err := in.Inspect(e.Ctx, held); err != nil || rec.Token != h.Token {
			e.Failf(held, "Inspect shows the token %d and %s for a hold that was granted with %d before the floor was raised", rec.Token, engine.Outcome(err), h.Token)
		}
	}
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err != nil {
			e.Unexpected(held, err, "Renew of a hold returned %s after the floor was raised; expected no error", engine.Outcome(err))
		}
	}
	e.MustGiveBack(h, held, ", although only the floor of the tokens was raised")
	if token := useOnce(e, a, held); token <= above {
		e.Failf(held, "a key that was held during RaiseFloor(%d) was granted with the token %d afterwards; expected a larger one", above, token)
	}
	waitersCountFromRaised(e, raise)
	askWhileRaised(e, above, raise)
	largestFloorLeavesOne(e)
}

// largestFloorLeavesOne raises the floor of a store of its own as far as a counter can go.
func largestFloorLeavesOne(e *engine.Env) {
	if e.Claimed.Token != backend.TokenCounter { // others may count on in larger steps
		return
	}
	if e.Untouched == nil {
		e.Notef("without Config.Untouched it was not asked whether the largest floor leaves a token")
		return
	}
	const floor = tooLarge - 2
	s := untouched(e).open("backend on a store of its own")
	raiser, ok := backend.As[backend.FloorRaiser](s.Backend)
	if !ok {
		e.Fatalf("", "a backend of a store that nobody has used does not implement backend.FloorRaiser")
	}
	ev := e.Log.Begin(s.Who, "RaiseFloor", "")
	err := raiser.RaiseFloor(e.Ctx, floor)
	e.Log.End(ev, engine.Outcome(err))
	if err != nil {
		e.UnexpectedFatal("", err, "RaiseFloor(%d) returned %s; expected no error, since it leaves a counter one token", uint64(floor), engine.Outcome(err))
	}
	key := e.Key("the last token")
	h, err := s.Try(e.Request(key, "", e.Long))
	switch {
	case errors.Is(err, backend.ErrUnavailable): // a new store may have to wait before it grants
		e.Notef("whether the largest floor leaves a token is not known: a store of its own grants nothing yet (%v)", err)
	case err != nil:
		e.Unexpected(key, err, "Try of a free key after RaiseFloor(%d) returned %s; expected a grant, with the last token", uint64(floor), engine.Outcome(err))
	case h.Token != floor+1:
		e.Failf(key, "the token %d was granted after RaiseFloor(%d); expected %d, the last one", h.Token, uint64(floor), uint64(floor+1))
	}
}

// heldWhileRaised takes keys before the floor is raised. What it returns looks at them afterwards:
// at one that is listed and removed by force, one that is revoked, and one that runs out.
func heldWhileRaised(e *engine.Env, a, b *engine.BackendClient) (look func(above uint64)) {
	if e.Long < 3*e.TTL { // they end too soon for so many requests
		return func(uint64) {}
	}
	f, forces := backend.As[backend.ForceReleaser](a.Backend)
	forces = forces && !e.Declines("ForceReleaser")
	l, lists := backend.As[backend.Lister](a.Backend)
	key, ends := e.Key("forced"), e.Key("ran out")
	h := b.MustTry(e.Request(key, "", e.Long))
	var revoked *engine.Grant
	r, revokes := backend.As[backend.Revoker](a.Backend)
	if revokes && e.Claimed.Expiry != backend.ClockConnection {
		revoked = b.MustTry(e.Request(e.Key("revoked"), "", e.Long))
	}
	var lost, ended *engine.Grant   // which run out, the second one revoked before
	if !e.Claimed.EndsWithSession { // whose session keeps it
		lost = b.MustTry(e.Request(ends, "", e.TTL))
		lost.Lapses()
		if revoked != nil && !e.Declines("Revoker") {
			ended = revokedBefore(e, b, r)
		}
	}
	return func(above uint64) {
		if lists {
			err := l.List(e.Ctx, key, func(rec backend.Record) bool {
				if rec.Key == key && rec.Token != h.Token {
					e.Failf(key, "List shows the token %d for a hold that was granted with %d before the floor was raised; expected the same token", rec.Token, h.Token)
				}
				return true
			})
			if err != nil {
				e.Unexpected(key, err, "List returned %s; expected no error", engine.Outcome(err))
			}
		}
		until := h.Until()
		if !time.Now().Before(until) {
			e.TooSlowf(key, "the hold had run out before it was removed by force")
		}
		if !forces {
			e.MustGiveBack(h, key, ", although only the floor of the tokens was raised")
		} else if err := h.EndedBy(e, func() error { return f.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
			if !time.Now().Before(until) {
				e.TooSlowf(key, "the hold had run out before it was removed by force")
			}
			e.Unexpected(key, err, "ForceRelease with the token of a hold, which was granted before the floor was raised, returned %s; expected no error", engine.Outcome(err))
		}
		if token := useOnce(e, b, key); token <= above {
			e.Failf(key, "a key that was held during RaiseFloor(%d), and released by force, was granted with the token %d; expected a larger one", above, token)
		}
		if revoked != nil {
			until := revoked.Until()
			revoked.Releasing(e.Log.Now())
			if err := r.Revoke(e.Ctx, revoked.Key, revoked.Token); err != nil {
				if !time.Now().Before(until) {
					e.TooSlowf(revoked.Key, "the hold had run out before it was revoked")
				}
				e.Unexpected(revoked.Key, err, "Revoke with the token of a hold, which was granted before the floor was raised, returned %s; expected no error", engine.Outcome(err))
			}
			_ = b.Backend.Release(e.Ctx, revoked.Hold)
		}
		if lost == nil {
			return
		}
		e.Expire(lost)
		if token := useOnce(e, b, ends); token <= above {
			e.Failf(ends, "a key whose hold ran out after RaiseFloor(%d) was granted with the token %d; expected a larger one", above, token)
		}
		if ended == nil {
			return
		}
		e.Expire(ended)
		if token := useOnce(e, b, ended.Key); token <= above {
			e.Failf(ended.Key, "a key whose hold was revoked before RaiseFloor(%d), and ran out after it, was granted with the token %d; expected a larger one", above, token)
		}
	}
}

// revokedBefore is a hold that was revoked, and runs out.
func revokedBefore(e *engine.Env, b *engine.BackendClient, r backend.Revoker) *engine.Grant {
	h := b.MustTry(e.Request(e.Key("revoked, ran out"), "", e.TTL))
	h.Lapses()
	until := h.Until()
	if err := r.Revoke(e.Ctx, h.Key, h.Token); err != nil {
		if !time.Now().Before(until) {
			e.TooSlowf(h.Key, "the hold had run out before it was revoked")
		}
		e.UnexpectedFatal(h.Key, err, "Revoke with the token of the holder returned %s; expected no error", engine.Outcome(err))
	}
	return h
}

// ownerEnters has an owner hold a key. What it returns has it enter once more, with the same
// token. Who comes after it has one above the floor.
func ownerEnters(e *engine.Env, s *engine.BackendClient) (again func(above uint64)) {
	if !engine.ClaimServerHolds.Made(e.Settings) {
		return func(uint64) {}
	}
	key, owner := e.Key("owned"), e.Owner("A")
	h := s.MustTry(e.Request(key, owner, e.Long))
	return func(above uint64) {
		inner := s.MustTry(e.Request(key, owner, e.Long))
		if inner.Token != h.Token {
			e.Failf(key, "an owner that holds the key with the token %d entered again after RaiseFloor, and was granted %d; expected the same token", h.Token, inner.Token)
		}
		e.MustGiveBack(inner, key, "")
		e.MustGiveBack(h, key, ", although only the floor of the tokens was raised")
		if token := useOnce(e, s, key); token <= above {
			e.Failf(key, "a key that an owner held during RaiseFloor(%d) was granted with the token %d when it was free; expected a larger one", above, token)
		}
	}
}

// raisedAtOnce has several raise the floor at the same time, each to another number. It returns
// the largest.
func raisedAtOnce(e *engine.Env, clients []*engine.BackendClient, keys []string, above uint64) uint64 {
	const rounds, at = 4, 4
	for round := range rounds {
		e.Each(at, func(i int) {
			if round%2 == 1 { // whoever comes first may have the largest, or the smallest
				i = at - 1 - i
			}
			to := above + uint64(i+1)*floorStep
			if err := optional[backend.FloorRaiser](clients[i%len(clients)], "FloorRaiser").RaiseFloor(e.Ctx, to); err != nil {
				e.UnexpectedFatal("", err, "RaiseFloor(%d), beside others, returned %s; expected no error", to, engine.Outcome(err))
			}
		})
		above += at * floorStep
		for i, key := range keys[:3] {
			if token := useOnce(e, clients[i%len(clients)], key); token <= above {
				e.Failf(key, "the token %d was granted after the floor was raised by several at once, to %d at most; expected a larger one", token, above)
			}
		}
	}
	return above
}

// floorOutlivesClient raises the floor with a client that is closed then. It returns the floor.
func floorOutlivesClient(e *engine.Env, b *engine.BackendClient, key string, above uint64) uint64 {
	c := e.Backend()
	above += floorStep
	ev := e.Log.Begin(c.Who, "RaiseFloor", "")
	err := optional[backend.FloorRaiser](c, "FloorRaiser").RaiseFloor(e.Ctx, above)
	e.Log.End(ev, engine.Outcome(err))
	if err != nil {
		e.UnexpectedFatal("", err, "RaiseFloor(%d) returned %s; expected no error", above, engine.Outcome(err))
	}
	_ = c.Close()
	if token := useOnce(e, b, key); token <= above {
		e.Failf(key, "the token %d was granted after RaiseFloor(%d), when the client that had raised it was closed; expected a larger one", token, above)
	}
	return above
}

// waitersCountFromRaised raises the floor while others wait, as the holder does who holds
// another store too, and has each of them be served, and raise it again where that is one
// write.
func waitersCountFromRaised(e *engine.Env, raise func(uint64)) {
	key := e.Key("awaited")
	own := e.Locker() // which may hand over to the waiters of its own
	holder := own.MustTry(key)
	waiters := make([]*engine.Acquiring, 5)
	for i := range waiters {
		c := own
		if i%2 == 1 {
			c = e.Locker()
		}
		waiters[i] = c.Acquiring(key)
		<-waiters[i].Begun
	}
	e.Pause(e.TTL / 4) // most have their places by then
	served := make(chan *engine.Hold)
	wait := e.Start(func() {
		e.Each(len(waiters), func(i int) {
			<-waiters[i].Done // by the end of the case at the latest
			select {
			case served <- waiters[i].MustGet(e, key, e.WaitBound(), "it was released"):
			case <-e.Ctx.Done():
			}
		})
	})
	last := holder.Token
	for i := range waiters {
		// Who comes after one that did not raise it has the larger token, too.
		if i == 0 || i != 2 && e.Claimed.Token == backend.TokenRevision {
			last += floorStep
			raise(last)
		}
		holder.MustRelease()
		patience := time.NewTimer(e.WaitBound())
		select {
		case holder = <-served:
		case <-patience.C:
			e.Look(key)
			e.OverdueFatalf(key, "none of %d waiters had been granted the key after %s; it was released", len(waiters)-i, e.WaitBound())
		case <-e.Ctx.Done():
			panic(engine.Abort{})
		}
		patience.Stop()
		if holder.Token <= last {
			e.Failf(key, "a waiter was granted the token %d after the holder before it had the floor raised to %d; expected a larger one", holder.Token, last)
		}
		last = max(last, holder.Token)
	}
	holder.MustRelease()
	wait()
}

// useOnce is the token of a grant that is released again.
func useOnce(e *engine.Env, s *engine.BackendClient, key string) uint64 {
	h := s.MustTry(e.Request(key, "", e.Long))
	e.MustGiveBack(h, key, "")
	return h.Token
}

// lastTokenCoversAll asks one client, for each of some keys, after another client was granted
// the largest token so far for it: each key may have a counter of its own.
func lastTokenCoversAll(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	teller := optional[backend.TokenTeller](a, "TokenTeller")
	covers := func(key string, token uint64, when string) {
		ev := e.Log.Begin(a.Who, "LastToken", "")
		last, err := teller.LastToken(e.Ctx)
		e.Log.End(ev, engine.Outcome(err))
		switch {
		case err != nil:
			e.UnexpectedFatal("", err, "LastToken returned %s; expected no error", engine.Outcome(err))
		case last < token:
			e.Failf(key, "LastToken returned %d %s was granted with the token %d; expected no less", last, when, token)
		}
	}
	held := e.Key("held")
	h := b.MustTry(e.Request(held, "", e.Long))
	if h.Token == 0 {
		e.Skipf("the backend has no tokens")
	}
	covers(held, h.Token, "while a key")
	largest := h.Token
	for n := range floorKeys {
		key := e.Key("%d", n)
		token := useOnce(e, b, key)
		for again := 0; token <= largest && again < floorKeys*floorKeys; again++ { // the clock stands still
			token = useOnce(e, b, key)
		}
		covers(key, token, "after a key")
		largest = max(largest, token)
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	if last, err := teller.LastToken(ended); err == nil && last < largest {
		e.Failf(held, "LastToken with a context that had ended returned %d and no error, after a key was granted with the token %d; expected an error, or no less", last, largest)
	}
	c, key := e.Backend(), e.Key("of one that closes")
	token := useOnce(e, c, key)
	_ = c.Close()
	covers(key, token, "after a key of a client that was closed")
	e.MustGiveBack(h, held, ", although only the largest token was asked for")
	coversOtherGrants(e, b, covers)
	coversOneDigitMore(e)
}

// coversOneDigitMore has the tokens of a store of its own have one digit more. The largest of them
// is not the one whose text is.
func coversOneDigitMore(e *engine.Env) {
	if e.Untouched == nil || e.Claimed.Token != backend.TokenCounter {
		return
	}
	s := untouched(e).open("backend on a store of its own")
	raiser, raises := backend.As[backend.FloorRaiser](s.Backend)
	teller, tells := backend.As[backend.TokenTeller](s.Backend)
	few, more := e.Request(e.Key("of few digits"), "", e.Long), e.Request(e.Key("of one digit more"), "", e.Long)
	h, err := s.Try(few)
	if err != nil || !raises || !tells {
		return // a new store may have to wait before it grants
	}
	_ = h.Release(e.Ctx)
	next := uint64(10)
	for next <= h.Token {
		next *= 10
	}
	if next >= tooLarge-2 || raiser.RaiseFloor(e.Ctx, next) != nil {
		return // other rules say so
	}
	if h, err = s.Try(more); err != nil {
		return
	}
	switch last, err := teller.LastToken(e.Ctx); {
	case err != nil:
		e.Unexpected(more.Key, err, "LastToken returned %s; expected no error", engine.Outcome(err))
	case last < h.Token:
		e.Failf(more.Key, "LastToken returned %d after a key was granted with the token %d, the first with one digit more; expected no less", last, h.Token)
	}
	_ = h.Release(e.Ctx)
}

// coversOtherGrants has tokens be granted in other ways than by a try, and by one that is
// revoked or removed by force.
func coversOtherGrants(e *engine.Env, b *engine.BackendClient, covers func(key string, token uint64, when string)) {
	if engine.ClaimServerHolds.Made(e.Settings) {
		key := e.Key("of an owner")
		h := b.MustTry(e.Request(key, e.Owner("A"), e.Long))
		covers(key, h.Token, "after a key of an owner")
		e.MustGiveBack(h, key, "")
	}
	owners := []string{""}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owners = append(owners, e.Owner("B"))
	}
	if ho, ok := backend.As[backend.HandOverer](b.Backend); ok {
		for i, owner := range owners {
			key := e.Key("handed over %d", i)
			g, err := b.HandOver(ho, b.MustTry(e.Request(key, "", e.Long)), e.Request(key, owner, e.Long))
			if err != nil {
				e.UnexpectedFatal(key, err, "HandOver of a hold returned %s; expected a grant", engine.Outcome(err))
			}
			covers(key, g.Token, "after a key that was handed over")
			e.MustGiveBack(g, key, ", which was handed over")
		}
	}
	if _, ok := backend.As[backend.Queuer](b.Backend); ok {
		key := e.Key("waited for")
		h := b.MustTry(e.Request(key, "", e.Long))
		p := enqueue(e, b, key, e.Long).waiting(e)
		e.MustGiveBack(h, key, "")
		p.mustGet(e, "the hold before it was released")
		covers(key, p.grant.Token, "after a key that was waited for")
		p.withdraw(e)
	}
	if !e.Claimed.EndsWithSession { // whose session keeps it
		key := e.Key("ran out")
		h := b.MustTry(e.Request(key, "", e.TTL))
		e.Expire(h)
		covers(key, h.Token, "after a key whose hold has run out")
	}
	if r, ok := backend.As[backend.Revoker](b.Backend); ok && !e.Declines("Revoker") {
		key := e.Key("revoked")
		h := b.MustTry(e.Request(key, "", e.Long))
		until := h.Until()
		h.Releasing(e.Log.Now())
		err := r.Revoke(e.Ctx, key, h.Token)
		switch {
		case err == nil:
			covers(key, h.Token, "after a key whose hold was revoked")
		case !time.Now().Before(until):
			e.TooSlowf(key, "the hold had run out before it was revoked; its TTL is %s", e.Long)
		default:
			e.UnexpectedFatal(key, err, "Revoke with the token of the holder returned %s; expected no error", engine.Outcome(err))
		}
		_ = b.Backend.Release(e.Ctx, h.Hold)
	}
	if f, ok := backend.As[backend.ForceReleaser](b.Backend); ok && !e.Declines("ForceReleaser") {
		key := e.Key("forced")
		h := b.MustTry(e.Request(key, "", e.Long))
		if err := h.EndedBy(e, func() error { return f.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
			e.UnexpectedFatal(key, err, "ForceRelease with the token of the holder returned %s; expected no error", engine.Outcome(err))
		}
		covers(key, h.Token, "after a key whose hold was removed by force")
	}
}

// askWhileRaised acquires a free key while the floor of the tokens moves all the time, as it
// does in a change of stores. Where moving it takes long it ends after as many grants.
func askWhileRaised(e *engine.Env, above uint64, raise func(uint64)) {
	const times, step = 100, 1 << 10
	c, key := e.Locker(), e.Key("while the floor moves")
	var moved atomic.Uint64
	var asked atomic.Bool
	moved.Store(above)
	begun := make(chan struct{})
	wait := e.Start(func() {
		close(begun)
		for n := uint64(1); n <= times && !asked.Load() && e.Ctx.Err() == nil; n++ {
			raise(above + n*step)
			moved.Store(above + n*step)
		}
	})
	defer wait()
	defer asked.Store(true)
	<-begun
	for last, n := uint64(0), 0; n < times && moved.Load() < above+times*step; n++ {
		before := moved.Load()
		h := c.MustAcquire(key)
		token := h.Lease.Token()
		if token <= max(before, last) {
			e.Failf(key, "the token %d was granted after %d, when the floor had been raised to %d; expected a larger one", token, last, before)
		}
		last = token
		h.MustRelease()
	}
}
