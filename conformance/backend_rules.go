package conformance

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var backendRules = []*rule{
	{
		Name:      "GuaranteesAreStable",
		Statement: "Guarantees returns the same complete value from every client, without a contradiction.",
		Seam:      true,
		run:       guaranteesAreStable,
	},
	{
		Name:      "TryIdempotent",
		Statement: "A request that arrives twice is granted once: the same token, the same hold count, and one release frees the key.",
		Seam:      true,
		run:       tryIdempotent,
	},
	{
		Name:      "ReleaseByID",
		Statement: "Release ends the hold of the given acquisition id only; an id that holds nothing gets ErrNotHeld.",
		Seam:      true,
		run:       releaseByID,
	},
	{
		Name:      "RenewByID",
		Statement: "Renew extends the hold of the given acquisition id only; an id that holds nothing gets ErrNotHeld, and creates nothing.",
		claims:    []claim{claimManualRenewal},
		Seam:      true,
		run:       renewByID,
	},
	{
		Name:      "RefusalLeavesNothing",
		Statement: "A refused request leaves nothing behind: its id holds nothing, and the holder's record is unchanged.",
		Seam:      true,
		run:       refusalLeavesNothing,
	},
	{
		Name:      "HoldCount",
		Statement: "A grant says how many unexpired holds the owner has, and repeats of a request don't count.",
		claims:    []claim{claimServerHolds},
		Seam:      true,
		run:       holdCount,
	},
	{
		Name:      "ValidityHonest",
		Statement: "Validity is dated between the start and the end of the call, and lasts no longer than the TTL less the drift allowance.",
		Seam:      true,
		run:       validityHonest,
	},
	{
		Name:      "CancelledSendsNothing",
		Statement: "With a context that has already ended, no method takes effect.",
		Seam:      true,
		run:       cancelledSendsNothing,
	},
	{
		Name:      "BackendErrors",
		Statement: "What a backend refuses matches the errors of package backend, and no error or refusal contains an id or an owner.",
		Seam:      true,
		run:       backendErrors,
	},
	{
		Name:      "ConcurrentTries",
		Statement: "Of many simultaneous requests for a free key exactly one is granted, through one client and through several.",
		Seam:      true,
		run:       concurrentTries,
	},
	{
		Name:      "WatchBeforeReturn",
		Statement: "A release that happens after Watch has returned is signalled, or found by asking again when the watch breaks.",
		Seam:      true,
		run:       watchBeforeReturn,
	},
	{
		Name:      "WatchEndsWithContext",
		Statement: "Watches end with their contexts, in any number, and disturb nobody.",
		Seam:      true,
		run:       watchEndsWithContext,
	},
	{
		Name:      "ReleaseTells",
		Statement: "A release tells how many other clients watch the key: none while it is still held, and not the one that releases.",
		Seam:      true,
		run:       releaseTells,
	},
	{
		Name:      "QueueOrder",
		Statement: "Places in the server's queue are granted in the order in which they were taken, across clients.",
		claims:    []claim{claimFair},
		Seam:      true,
		run:       queueOrder,
	},
	{
		Name:      "QueueWithdraw",
		Statement: "A place that was withdrawn, before or after its grant, stands in nobody's way; withdrawing twice is harmless.",
		claims:    []claim{claimFair},
		Seam:      true,
		run:       queueWithdraw,
	},
	{
		Name:      "QueueAbandoned",
		Statement: "A place whose client has gone ends within the TTL of its request.",
		Seam:      true,
		LimitTTLs: 30,
		run:       queueAbandoned,
	},
	{
		Name:      "WaiterSessionCheck",
		Statement: "A waiter whose session ended while it waited is never granted the key, and stands in nobody's way.",
		Seam:      true,
		run:       waiterSessionCheck,
	},
	{
		Name:      "BatchRenewMixed",
		Statement: "A batch renews each hold as Renew does: good, unknown and expired ones get their own answers, in order.",
		claims:    []claim{claimManualRenewal},
		Seam:      true,
		run:       batchRenewMixed,
	},
	{
		Name:      "BatchRenewBesideGuardedWrite",
		Statement: "While a guarded write of another client is under way, a batch renews all holds on other keys, without waiting for it.",
		claims:    []claim{claimManualRenewal, claimGuardedWrite},
		Seam:      true,
		run:       batchRenewBesideGuardedWrite,
	},
	{
		Name:      "HandOverIsOneStep",
		Statement: "Handing over, when nobody else waits, ends one hold and grants the next with a larger token; a hold that is gone hands over nothing.",
		Seam:      true,
		run:       handOver,
	},
	{
		Name:      "InspectShows",
		Statement: "Inspect shows token, hold count, holder, beginning and remaining time of a held key, changes nothing, and gets ErrNotHeld on a free one.",
		Seam:      true,
		run:       inspectShows,
	},
	{
		Name:      "ForceReleaseByToken",
		Statement: "A forced release removes the record only if its token is the one that was seen, so that a newer holder is never hit.",
		Seam:      true,
		run:       forceReleaseByToken,
	},
	{
		Name:      "RevokeByToken",
		Statement: "A revoked hold is not renewed, ends at its expiry, and lets nobody in before. A revocation with another token changes nothing.",
		Seam:      true,
		run:       revokeByToken,
	},
	{
		Name:      "ListShowsHeldKeys",
		Statement: "List shows each held key with the prefix once, with its token and holder, no other key, and stops when it is told to.",
		Seam:      true,
		run:       listShowsHeldKeys,
	},
	{
		Name:      "ForgetLeavesOthers",
		Statement: "Forgetting the keys with a prefix takes nothing from those that are held, or that have another prefix. A forgotten key is taken as if it were new.",
		Seam:      true,
		run:       forgetLeavesOthers,
	},
	{
		Name:      "LookingChangesNothing",
		Statement: "Looking at a key (Inspect, List, Watch) keeps nobody from it, and leaves nothing behind, also where nobody has locked anything yet.",
		Seam:      true,
		run:       lookingChangesNothing,
	},
}

func guaranteesAreStable(e *env) {
	a, b := e.backend(), e.backend()
	g := a.b.Guarantees()
	for range 3 {
		if !reflect.DeepEqual(g, a.b.Guarantees()) || !reflect.DeepEqual(g, b.b.Guarantees()) {
			e.failf("", "Guarantees returned two different values: %+v and %+v", g, b.b.Guarantees())
			return
		}
	}
	if g.Name == "" || g.Reach == "" || g.Expiry == "" || g.Token == "" || g.Reentrancy == "" || g.Waiting == "" || len(g.Assumptions) == 0 {
		e.failf("", "the guarantees are incomplete: %+v; expected Name, Reach, Assumptions, Expiry, Token, Reentrancy and Waiting", g)
	}
	if g.MinTTL <= 0 {
		e.failf("", "MinTTL is %s; expected the smallest TTL that is kept", g.MinTTL)
	}
	if g.Token == backend.TokenNone && len(g.TokenSurvives) > 0 {
		e.failf("", "TokenSurvives is %v, although there are no tokens", g.TokenSurvives)
	}
	_, queues := backend.As[backend.Queuer](a.b)
	if queues != (g.Waiting == backend.WaitQueue) {
		e.failf("", "Waiting is %q, and the backend implements Queuer: %t; expected the two to agree", g.Waiting, queues)
	}
	_, watches := backend.As[backend.Watcher](a.b)
	if g.Waiting == backend.WaitPush && !watches {
		e.failf("", "Waiting is %q, but the backend does not implement Watcher", g.Waiting)
	}
}

func tryIdempotent(e *env) {
	a, b := e.backend(), e.backend()
	owners := []string{""}
	if claimServerHolds.made(e.settings) {
		owners = append(owners, e.owner("A"))
	}
	for i, owner := range owners {
		key := e.key("%d", i)
		req := e.request(key, owner, e.long)
		first := a.mustTry(req)
		for range 3 {
			again, err := a.try(req)
			if err != nil {
				e.unexpectedFatal(key, err, "the same request, sent again, returned %s; expected the same grant", outcome(err))
			}
			if again.grant.Token != first.grant.Token || again.grant.Holds != first.grant.Holds {
				e.failf(key, "the same request, sent again, was granted token %d and %d holds; expected token %d and %d holds",
					again.grant.Token, again.grant.Holds, first.grant.Token, first.grant.Holds)
			}
		}
		if first.grant.Holds != 1 {
			e.failf(key, "the first grant says %d holds; expected 1", first.grant.Holds)
		}
		b.mustRefuse(key, "it was granted and not released")
		if err := first.release(e.ctx); err != nil {
			e.unexpected(key, err, "Release returned %s; expected no error", outcome(err))
		}
		b.mustTry(e.request(key, "", e.long))
	}
}

// stranger is a hold of the same key, owner and token with an id of its own.
func stranger(h backend.Hold) backend.Hold {
	h.ID = backend.NewID()
	return h
}

// again repeats what goes wrong at times only, for as long as the case has, and no
// longer than its holds last.
func (e *env) again(f func()) {
	for end, n := time.Now().Add(min(e.window(), e.long/4)), 0; n < 3 || n < 500 && time.Now().Before(end); n++ {
		if f(); e.failed() {
			return
		}
	}
}

func releaseByID(e *env) {
	a, b := e.backend(), e.backend()
	key := e.key("a")
	h := a.mustTry(e.request(key, "", e.long))
	e.again(func() {
		for _, s := range []*seam{a, b} {
			e.is(key, s.release(e.ctx, stranger(h.h)), "Release with an unknown acquisition id", backend.ErrNotHeld)
			s.mustRefuse(key, "only an unknown id was released")
		}
	})
	elsewhere := h.h
	elsewhere.Key = e.key("never-held")
	e.is(elsewhere.Key, a.release(e.ctx, elsewhere), "Release of a key that was never held", backend.ErrNotHeld)
	// Clean-up after an unknown outcome knows no token.
	clean := h.h
	clean.Token = 0
	if err := h.endedBy(e, func() error { return a.release(e.ctx, clean) }); err != nil {
		e.unexpected(key, err, "Release of a hold whose token is not known returned %s; expected no error", outcome(err))
	}
	e.is(key, h.release(e.ctx), "the second Release", backend.ErrNotHeld)
	b.mustTry(e.request(key, "", e.long))
}

func renewByID(e *env) {
	a, b := e.backend(), e.backend()
	key := e.key("a")
	h := a.mustTry(e.request(key, "", e.long))
	e.again(func() {
		_, err := b.renew(stranger(h.h))
		e.is(key, err, "Renew with an unknown acquisition id", backend.ErrNotHeld)
	})
	if err := h.renew(); err != nil {
		e.unexpected(key, err, "Renew of a hold returned %s; expected no error", outcome(err))
	}
	free := e.key("free")
	_, err := a.renew(backend.HoldOf(e.request(free, "", e.long)))
	e.is(free, err, "Renew of a key that was never held", backend.ErrNotHeld)
	b.mustTry(e.request(free, "", e.long))
	_ = h.release(e.ctx)
	_, err = a.renew(h.h)
	e.is(key, err, "Renew after Release", backend.ErrNotHeld)
	b.mustTry(e.request(key, "", e.long))
}

func refusalLeavesNothing(e *env) {
	a, b, c := e.backend(), e.backend(), e.backend()
	key := e.key("a")
	h := a.mustTry(e.request(key, "", e.long))
	for range 5 {
		req := e.request(key, "", e.long)
		_, err := b.try(req)
		e.judgeRefusal(key, "Try", "another id holds it", nil, err)
		if e.g.ManualRenewal {
			_, err = b.renew(backend.HoldOf(req))
			e.is(key, err, "Renew with the id of a refused request", backend.ErrNotHeld)
		}
		e.is(key, b.release(e.ctx, backend.HoldOf(req)), "Release with the id of a refused request", backend.ErrNotHeld)
		c.mustRefuse(key, "its holder has not released it")
	}
	if err := h.release(e.ctx); err != nil {
		e.unexpected(key, err, "the holder's Release returned %s; expected no error, since others were refused only", outcome(err))
	}
	c.mustTry(e.request(key, "", e.long))
}

func holdCount(e *env) {
	a, b := e.backend(), e.backend()
	key := e.key("a")
	owner := e.owner("A")
	var holds []*seamHold
	for i := range 4 {
		s := []*seam{a, b}[i%2]
		req := e.request(key, owner, e.long)
		h := s.mustTry(req)
		if h.grant.Holds != i+1 {
			e.failf(key, "grant %d of one owner says %d holds; expected %d", i+1, h.grant.Holds, i+1)
		}
		if again, err := s.try(req); err == nil && again.grant.Holds != i+1 {
			e.failf(key, "a repeat of the request says %d holds; expected %d", again.grant.Holds, i+1)
		}
		holds = append(holds, h)
	}
	for i, h := range holds {
		a.mustRefuse(key, "holds of its owner are left")
		if err := h.release(e.ctx); err != nil {
			e.unexpected(key, err, "Release of hold %d returned %s; expected no error", i+1, outcome(err))
		}
	}
	b.mustTry(e.request(key, "", e.long))
	// A hold that has run out is not counted.
	key = e.key("expired")
	short := a.mustTry(e.request(key, owner, e.ttl))
	long := b.mustTry(e.request(key, owner, e.long))
	if e.long < 3*e.ttl {
		return
	}
	e.expire(short)
	h := a.mustTry(e.request(key, owner, e.long))
	if h.grant.Holds != 2 {
		e.failf(key, "after one of two holds has run out, the next grant says %d holds; expected 2", h.grant.Holds)
	}
	_ = h.release(e.ctx)
	_ = long.release(e.ctx)
	b.mustTry(e.request(key, "", e.long))
}

func validityHonest(e *env) {
	a := e.backend()
	check := func(key, op string, v backend.Validity, before, after backend.Instant, ttl time.Duration) {
		if v.Sent < before || v.Sent > after {
			e.failf(key, "the validity of %s is dated %s before the call and %s before its end; expected it in between", op, before.Sub(v.Sent), after.Sub(v.Sent))
		}
		if most := backend.ValidFor(ttl); v.For > most {
			e.failf(key, "%s is valid for %s; expected at most %s, the TTL of %s less the drift allowance", op, v.For, most, ttl)
		}
	}
	for i := range 10 {
		key := e.key("%d", i)
		before := a.clock.Now()
		h := a.mustTry(e.request(key, "", e.ttl))
		check(key, "Try", h.grant.Validity, before, a.clock.Now(), e.ttl)
		if h.grant.For < e.ttl/2 {
			e.failf(key, "a grant with a TTL of %s is valid for %s; expected most of the TTL", e.ttl, h.grant.For)
		}
		if !e.g.ManualRenewal {
			continue
		}
		before = a.clock.Now()
		v, err := a.renew(h.h)
		if err != nil {
			e.latef(key, "Renew of a fresh hold returned %s; expected no error", outcome(err))
		} else if v.For > 0 {
			check(key, "Renew", v, before, a.clock.Now(), e.ttl)
		}
	}
}

func cancelledSendsNothing(e *env) {
	a, b := e.backend(), e.backend()
	ended, cancel := context.WithCancel(e.ctx)
	cancel()
	key := e.key("a")
	if _, err := a.tryCtx(ended, e.request(key, "", e.long)); err == nil {
		e.failf(key, "Try with a cancelled context was granted")
	}
	h, err := b.try(e.request(key, "", e.long))
	if err != nil {
		e.unexpectedFatal(key, err, "a try returned %s after one with a cancelled context; expected a grant", outcome(err))
	}
	if err := a.release(ended, h.h); err == nil {
		// It was sent and confirmed all the same: harmless, and the hold has ended.
		h.releasing(e.hist.now())
		return
	}
	a.mustRefuse(key, "only a Release with a cancelled context was called")
}

func backendErrors(e *env) {
	a, b := e.backend(), e.backend()
	key := e.key("a")
	owner := ""
	if claimServerHolds.made(e.settings) {
		owner = e.owner("A")
	}
	req := e.request(key, owner, e.long)
	h := a.mustTry(req)
	other := e.request(key, "", e.long)
	_, held := b.try(other)
	e.only(key, "Try of a held key", held, lock.ErrHeld)
	notHeld := b.release(e.ctx, stranger(h.h))
	if notHeld == nil || !errors.Is(notHeld, backend.ErrNotHeld) || errors.Is(notHeld, backend.ErrHeld) {
		e.unexpected(key, notHeld, "Release with an unknown id returned %s; expected ErrNotHeld", outcome(notHeld))
	}
	for _, err := range []error{held, notHeld} {
		if err == nil {
			continue
		}
		for what, secret := range map[string]string{"the acquisition id of the holder": req.ID.Hex(), "its own acquisition id": other.ID.Hex(), "the owner": owner} {
			if secret != "" && strings.Contains(err.Error(), secret) {
				e.failf(key, "the error %q contains %s, which is a secret", err, what)
			}
		}
	}
	if e.g.HolderDetails {
		var details *backend.HeldError
		if !errors.As(held, &details) {
			e.unexpected(key, held, "Try of a held key returned %s; expected a *backend.HeldError", outcome(held))
		} else if details.Holder.Label != req.Holder.Label {
			e.failf(key, "the refusal names the holder %q; expected the label %q", details.Holder.Label, req.Holder.Label)
		}
	}
	_ = h.release(e.ctx)
}

func concurrentTries(e *env) {
	seams := []*seam{e.backend(), e.backend(), e.backend()}
	n := e.rounds(50*time.Millisecond, 10, 200)
	for round := range n {
		key := e.key("%d", round)
		holds := make([]*seamHold, 12)
		e.each(len(holds), func(i int) {
			h, err := seams[i%len(seams)].try(e.request(key, "", e.long))
			if err != nil {
				e.judgeRefusal(key, "Try", "somebody else was faster", nil, err)
				return
			}
			holds[i] = h
		})
		granted := 0
		for _, h := range holds {
			if h != nil {
				granted++
				_ = h.release(e.ctx)
			}
		}
		if granted != 1 {
			e.failf(key, "%d of %d simultaneous requests for a free key were granted; expected exactly one", granted, len(holds))
			return
		}
	}
}
