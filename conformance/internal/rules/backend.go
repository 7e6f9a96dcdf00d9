package rules

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var backendRules = []*engine.Rule{
	{
		Name:      "GuaranteesAreStable",
		Statement: "Guarantees returns the same complete value from every client, without a contradiction.",
		Seam:      true,
		Run:       guaranteesAreStable,
	},
	{
		Name:      "TryIdempotent",
		Statement: "A request that arrives twice is granted once: the same token, the same hold count, and one release frees the key.",
		Seam:      true,
		Run:       tryIdempotent,
	},
	{
		Name:      "ReleaseByID",
		Statement: "Release ends the hold of the given acquisition id only; an id that holds nothing gets ErrNotHeld.",
		Seam:      true,
		Run:       releaseByID,
	},
	{
		Name:      "RenewByID",
		Statement: "Renew extends the hold of the given acquisition id only; an id that holds nothing gets ErrNotHeld, and creates nothing.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		Seam:      true,
		Run:       renewByID,
	},
	{
		Name:      "RefusalLeavesNothing",
		Statement: "A refused request leaves nothing behind: its id holds nothing, and the holder's record is unchanged.",
		Seam:      true,
		Run:       refusalLeavesNothing,
	},
	{
		Name:      "HoldCount",
		Statement: "A grant says how many unexpired holds the owner has, and repeats of a request don't count.",
		Claims:    []engine.Claim{engine.ClaimServerHolds},
		Seam:      true,
		Run:       holdCount,
	},
	{
		Name:      "ValidityHonest",
		Statement: "Validity is dated between the start and the end of the call, and lasts no longer than the TTL less the drift allowance.",
		Seam:      true,
		Run:       validityHonest,
	},
	{
		Name:      "CancelledSendsNothing",
		Statement: "With a context that has already ended, no method takes effect.",
		Seam:      true,
		Run:       cancelledSendsNothing,
	},
	{
		Name:      "BackendErrors",
		Statement: "What a backend refuses matches the errors of package backend, and no error or refusal contains an id or an owner.",
		Seam:      true,
		Run:       backendErrors,
	},
	{
		Name:      "ConcurrentTries",
		Statement: "Of many simultaneous requests for a free key exactly one is granted, through one client and through several.",
		Seam:      true,
		Run:       concurrentTries,
	},
	{
		Name:      "WatchBeforeReturn",
		Statement: "A release that happens after Watch has returned is signalled, or found by asking again when the watch breaks.",
		Seam:      true,
		Run:       watchBeforeReturn,
	},
	{
		Name:      "WatchEndsWithContext",
		Statement: "Watches end with their contexts, in any number, and disturb nobody.",
		Seam:      true,
		Run:       watchEndsWithContext,
	},
	{
		Name:      "ReleaseTells",
		Statement: "A release tells how many other clients watch the key: none while it is still held, and not the one that releases.",
		Seam:      true,
		Run:       releaseTells,
	},
	{
		Name:      "QueueOrder",
		Statement: "Places in the server's queue are granted in the order in which they were taken, across clients.",
		Claims:    []engine.Claim{engine.ClaimFair},
		Seam:      true,
		Run:       queueOrder,
	},
	{
		Name:      "QueueWithdraw",
		Statement: "A place that was withdrawn, before or after its grant, stands in nobody's way; withdrawing twice is harmless.",
		Claims:    []engine.Claim{engine.ClaimFair},
		Seam:      true,
		Run:       queueWithdraw,
	},
	{
		Name:      "QueueAbandoned",
		Statement: "A place whose client has gone ends within the TTL of its request.",
		Seam:      true,
		LimitTTLs: 30,
		Run:       queueAbandoned,
	},
	{
		Name:      "WaiterSessionCheck",
		Statement: "A waiter whose session ended while it waited is never granted the key, and stands in nobody's way.",
		Seam:      true,
		Run:       waiterSessionCheck,
	},
	{
		Name:      "BatchRenewMixed",
		Statement: "A batch renews each hold as Renew does: good, unknown and expired ones get their own answers, in order.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal},
		Seam:      true,
		Run:       batchRenewMixed,
	},
	{
		Name:      "BatchRenewBesideGuardedWrite",
		Statement: "While a guarded write of another client is under way, a batch renews all holds on other keys, without waiting for it.",
		Claims:    []engine.Claim{engine.ClaimManualRenewal, engine.ClaimGuardedWrite},
		Seam:      true,
		Run:       batchRenewBesideGuardedWrite,
	},
	{
		Name:      "HandOverIsOneStep",
		Statement: "Handing over, when nobody else waits, ends one hold and grants the next with a larger token; a hold that is gone hands over nothing.",
		Seam:      true,
		Run:       handOver,
	},
	{
		Name:      "InspectShows",
		Statement: "Inspect shows token, hold count, holder, beginning and remaining time of a held key, changes nothing, and gets ErrNotHeld on a free one.",
		Seam:      true,
		Run:       inspectShows,
	},
	{
		Name:      "ForceReleaseByToken",
		Statement: "A forced release removes the record only if its token is the one that was seen, so that a newer holder is never hit.",
		Seam:      true,
		Run:       forceReleaseByToken,
	},
	{
		Name:      "RevokeByToken",
		Statement: "A revoked hold is not renewed, ends at its expiry, and lets nobody in before. A revocation with another token changes nothing.",
		Seam:      true,
		Run:       revokeByToken,
	},
	{
		Name:      "ListShowsHeldKeys",
		Statement: "List shows each held key with the prefix once, with its token and holder, no other key, and stops when it is told to.",
		Seam:      true,
		Run:       listShowsHeldKeys,
	},
	{
		Name:      "ForgetLeavesOthers",
		Statement: "Forgetting the keys with a prefix takes nothing from those that are held, or that have another prefix. A forgotten key is taken as if it were new.",
		Seam:      true,
		Run:       forgetLeavesOthers,
	},
	{
		Name:      "LookingChangesNothing",
		Statement: "Looking at a key (Inspect, List, Watch) keeps nobody from it, and leaves nothing behind, also where nobody has locked anything yet.",
		Seam:      true,
		Run:       lookingChangesNothing,
	},
}

func guaranteesAreStable(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	g := a.Backend.Guarantees()
	for range 3 {
		if !reflect.DeepEqual(g, a.Backend.Guarantees()) || !reflect.DeepEqual(g, b.Backend.Guarantees()) {
			e.Failf("", "Guarantees returned two different values: %+v and %+v", g, b.Backend.Guarantees())
			return
		}
	}
	if g.Name == "" || g.Reach == "" || g.Expiry == "" || g.Token == "" || g.Reentrancy == "" || g.Waiting == "" || len(g.Assumptions) == 0 {
		e.Failf("", "the guarantees are incomplete: %+v; expected Name, Reach, Assumptions, Expiry, Token, Reentrancy and Waiting", g)
	}
	if g.MinTTL <= 0 {
		e.Failf("", "MinTTL is %s; expected the smallest TTL that is kept", g.MinTTL)
	}
	if g.Token == backend.TokenNone && len(g.TokenSurvives) > 0 {
		e.Failf("", "TokenSurvives is %v, although there are no tokens", g.TokenSurvives)
	}
	_, queues := backend.As[backend.Queuer](a.Backend)
	if queues != (g.Waiting == backend.WaitQueue) {
		e.Failf("", "Waiting is %q, and the backend implements Queuer: %t; expected the two to agree", g.Waiting, queues)
	}
	_, watches := backend.As[backend.Watcher](a.Backend)
	if g.Waiting == backend.WaitPush && !watches {
		e.Failf("", "Waiting is %q, but the backend does not implement Watcher", g.Waiting)
	}
}

func tryIdempotent(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	owners := []string{""}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owners = append(owners, e.Owner("A"))
	}
	for i, owner := range owners {
		key := e.Key("%d", i)
		req := e.Request(key, owner, e.Long)
		first := a.MustTry(req)
		for range 3 {
			again, err := a.Try(req)
			if err != nil {
				e.UnexpectedFatal(key, err, "the same request, sent again, returned %s; expected the same grant", engine.Outcome(err))
			}
			if again.Answer.Token != first.Answer.Token || again.Answer.Holds != first.Answer.Holds {
				e.Failf(key, "the same request, sent again, was granted token %d and %d holds; expected token %d and %d holds",
					again.Answer.Token, again.Answer.Holds, first.Answer.Token, first.Answer.Holds)
			}
		}
		if first.Answer.Holds != 1 {
			e.Failf(key, "the first grant says %d holds; expected 1", first.Answer.Holds)
		}
		b.MustRefuse(key, "it was granted and not released")
		if err := first.Release(e.Ctx); err != nil {
			e.Unexpected(key, err, "Release returned %s; expected no error", engine.Outcome(err))
		}
		b.MustTry(e.Request(key, "", e.Long))
	}
}

// again repeats what goes wrong at times only, for as long as the case has, and no
// longer than its holds last.
func again(e *engine.Env, f func()) {
	for end, n := time.Now().Add(min(e.Window(), e.Long/4)), 0; n < 3 || n < 500 && time.Now().Before(end); n++ {
		if f(); e.Failed() {
			return
		}
	}
}

func releaseByID(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	again(e, func() {
		for _, s := range []*engine.BackendClient{a, b} {
			e.Is(key, s.Release(e.Ctx, engine.Stranger(h.Hold)), "Release with an unknown acquisition id", backend.ErrNotHeld)
			s.MustRefuse(key, "only an unknown id was released")
		}
	})
	elsewhere := h.Hold
	elsewhere.Key = e.Key("never-held")
	e.Is(elsewhere.Key, a.Release(e.Ctx, elsewhere), "Release of a key that was never held", backend.ErrNotHeld)
	// Clean-up after an unknown outcome knows no token.
	clean := h.Hold
	clean.Token = 0
	if err := h.EndedBy(e, func() error { return a.Release(e.Ctx, clean) }); err != nil {
		e.Unexpected(key, err, "Release of a hold whose token is not known returned %s; expected no error", engine.Outcome(err))
	}
	e.Is(key, h.Release(e.Ctx), "the second Release", backend.ErrNotHeld)
	b.MustTry(e.Request(key, "", e.Long))
}

func renewByID(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	again(e, func() {
		_, err := b.Renew(engine.Stranger(h.Hold))
		e.Is(key, err, "Renew with an unknown acquisition id", backend.ErrNotHeld)
	})
	if err := h.Renew(); err != nil {
		e.Unexpected(key, err, "Renew of a hold returned %s; expected no error", engine.Outcome(err))
	}
	free := e.Key("free")
	_, err := a.Renew(backend.HoldOf(e.Request(free, "", e.Long)))
	e.Is(free, err, "Renew of a key that was never held", backend.ErrNotHeld)
	b.MustTry(e.Request(free, "", e.Long))
	_ = h.Release(e.Ctx)
	_, err = a.Renew(h.Hold)
	e.Is(key, err, "Renew after Release", backend.ErrNotHeld)
	b.MustTry(e.Request(key, "", e.Long))
}

func refusalLeavesNothing(e *engine.Env) {
	a, b, c := e.Backend(), e.Backend(), e.Backend()
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	for range 5 {
		req := e.Request(key, "", e.Long)
		_, err := b.Try(req)
		e.JudgeRefusal(key, "Try", "another id holds it", nil, err)
		if e.Claimed.ManualRenewal {
			_, err = b.Renew(backend.HoldOf(req))
			e.Is(key, err, "Renew with the id of a refused request", backend.ErrNotHeld)
		}
		e.Is(key, b.Release(e.Ctx, backend.HoldOf(req)), "Release with the id of a refused request", backend.ErrNotHeld)
		c.MustRefuse(key, "its holder has not released it")
	}
	if err := h.Release(e.Ctx); err != nil {
		e.Unexpected(key, err, "the holder's Release returned %s; expected no error, since others were refused only", engine.Outcome(err))
	}
	c.MustTry(e.Request(key, "", e.Long))
}

func holdCount(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	key := e.Key("a")
	owner := e.Owner("A")
	var holds []*engine.Grant
	for i := range 4 {
		s := []*engine.BackendClient{a, b}[i%2]
		req := e.Request(key, owner, e.Long)
		h := s.MustTry(req)
		if h.Answer.Holds != i+1 {
			e.Failf(key, "grant %d of one owner says %d holds; expected %d", i+1, h.Answer.Holds, i+1)
		}
		if again, err := s.Try(req); err == nil && again.Answer.Holds != i+1 {
			e.Failf(key, "a repeat of the request says %d holds; expected %d", again.Answer.Holds, i+1)
		}
		holds = append(holds, h)
	}
	for i, h := range holds {
		a.MustRefuse(key, "holds of its owner are left")
		if err := h.Release(e.Ctx); err != nil {
			e.Unexpected(key, err, "Release of hold %d returned %s; expected no error", i+1, engine.Outcome(err))
		}
	}
	b.MustTry(e.Request(key, "", e.Long))
	// A hold that has run out is not counted.
	key = e.Key("expired")
	short := a.MustTry(e.Request(key, owner, e.TTL))
	long := b.MustTry(e.Request(key, owner, e.Long))
	if e.Long < 3*e.TTL {
		return
	}
	e.Expire(short)
	h := a.MustTry(e.Request(key, owner, e.Long))
	if h.Answer.Holds != 2 {
		e.Failf(key, "after one of two holds has run out, the next grant says %d holds; expected 2", h.Answer.Holds)
	}
	_ = h.Release(e.Ctx)
	_ = long.Release(e.Ctx)
	b.MustTry(e.Request(key, "", e.Long))
}

func validityHonest(e *engine.Env) {
	a := e.Backend()
	check := func(key, op string, v backend.Validity, before, after backend.Instant, ttl time.Duration) {
		if v.Sent < before || v.Sent > after {
			e.Failf(key, "the validity of %s is dated %s before the call and %s before its end; expected it in between", op, before.Sub(v.Sent), after.Sub(v.Sent))
		}
		if most := backend.ValidFor(ttl); v.For > most {
			e.Failf(key, "%s is valid for %s; expected at most %s, the TTL of %s less the drift allowance", op, v.For, most, ttl)
		}
	}
	for i := range 10 {
		key := e.Key("%d", i)
		before := a.Clock.Now()
		h := a.MustTry(e.Request(key, "", e.TTL))
		check(key, "Try", h.Answer.Validity, before, a.Clock.Now(), e.TTL)
		if h.Answer.For < e.TTL/2 {
			e.Failf(key, "a grant with a TTL of %s is valid for %s; expected most of the TTL", e.TTL, h.Answer.For)
		}
		if !e.Claimed.ManualRenewal {
			continue
		}
		before = a.Clock.Now()
		v, err := a.Renew(h.Hold)
		if err != nil {
			e.Latef(key, "Renew of a fresh hold returned %s; expected no error", engine.Outcome(err))
		} else if v.For > 0 {
			check(key, "Renew", v, before, a.Clock.Now(), e.TTL)
		}
	}
}

func cancelledSendsNothing(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	key := e.Key("a")
	if _, err := a.TryCtx(ended, e.Request(key, "", e.Long)); err == nil {
		e.Failf(key, "Try with a cancelled context was granted")
	}
	h, err := b.Try(e.Request(key, "", e.Long))
	if err != nil {
		e.UnexpectedFatal(key, err, "a try returned %s after one with a cancelled context; expected a grant", engine.Outcome(err))
	}
	if err := a.Release(ended, h.Hold); err == nil {
		// It was sent and confirmed all the same: harmless, and the hold has ended.
		h.Releasing(e.Log.Now())
		return
	}
	a.MustRefuse(key, "only a Release with a cancelled context was called")
}

func backendErrors(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	key := e.Key("a")
	owner := ""
	if engine.ClaimServerHolds.Made(e.Settings) {
		owner = e.Owner("A")
	}
	req := e.Request(key, owner, e.Long)
	h := a.MustTry(req)
	other := e.Request(key, "", e.Long)
	_, held := b.Try(other)
	only(e, key, "Try of a held key", held, lock.ErrHeld)
	notHeld := b.Release(e.Ctx, engine.Stranger(h.Hold))
	if notHeld == nil || !errors.Is(notHeld, backend.ErrNotHeld) || errors.Is(notHeld, backend.ErrHeld) {
		e.Unexpected(key, notHeld, "Release with an unknown id returned %s; expected ErrNotHeld", engine.Outcome(notHeld))
	}
	for _, err := range []error{held, notHeld} {
		if err == nil {
			continue
		}
		for what, secret := range map[string]string{"the acquisition id of the holder": req.ID.Hex(), "its own acquisition id": other.ID.Hex(), "the owner": owner} {
			if secret != "" && strings.Contains(err.Error(), secret) {
				e.Failf(key, "the error %q contains %s, which is a secret", err, what)
			}
		}
	}
	if e.Claimed.HolderDetails {
		var details *backend.HeldError
		if !errors.As(held, &details) {
			e.Unexpected(key, held, "Try of a held key returned %s; expected a *backend.HeldError", engine.Outcome(held))
		} else if details.Holder.Label != req.Holder.Label {
			e.Failf(key, "the refusal names the holder %q; expected the label %q", details.Holder.Label, req.Holder.Label)
		}
	}
	_ = h.Release(e.Ctx)
}

func concurrentTries(e *engine.Env) {
	seams := []*engine.BackendClient{e.Backend(), e.Backend(), e.Backend()}
	n := e.Rounds(50*time.Millisecond, 10, 200)
	for round := range n {
		key := e.Key("%d", round)
		holds := make([]*engine.Grant, 12)
		e.Each(len(holds), func(i int) {
			h, err := seams[i%len(seams)].Try(e.Request(key, "", e.Long))
			if err != nil {
				e.JudgeRefusal(key, "Try", "somebody else was faster", nil, err)
				return
			}
			holds[i] = h
		})
		granted := 0
		for _, h := range holds {
			if h != nil {
				granted++
				_ = h.Release(e.Ctx)
			}
		}
		if granted != 1 {
			e.Failf(key, "%d of %d simultaneous requests for a free key were granted; expected exactly one", granted, len(holds))
			return
		}
	}
}
