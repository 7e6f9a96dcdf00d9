package rules

import (
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
		Statement: "Guarantees returns the same complete value, without contradiction, from every client, and asks no server.",
		Run:       guaranteesAreStable,
	},
	{
		Name:         "TryIdempotent",
		Statement:    "A request that arrives twice is granted once; one release frees it.",
		NeedsBackend: true,
		Run:          tryIdempotent,
	},
	{
		Name:         "ReleaseByID",
		Statement:    "Release ends the hold of its id only; without one it returns ErrNotHeld.",
		NeedsBackend: true,
		Run:          releaseByID,
	},
	{
		Name:         "RenewByID",
		Statement:    "Renew extends the hold of its id only; without one it returns ErrNotHeld and creates nothing.",
		Claims:       []engine.Claim{engine.ClaimManualRenewal},
		NeedsBackend: true,
		Run:          renewByID,
	},
	{
		Name:         "RefusalLeavesNothing",
		Statement:    "A refused request leaves nothing behind, and the holder's record unchanged.",
		NeedsBackend: true,
		Run:          refusalLeavesNothing,
	},
	{
		Name:         "HoldCount",
		Statement:    "A grant says how many unexpired holds the owner has; repeats don't count.",
		Claims:       []engine.Claim{engine.ClaimServerHolds},
		NeedsBackend: true,
		Run:          holdCount,
	},
	{
		Name:         "ValidityHonest",
		Statement:    "Validity begins within the call, and lasts at most the TTL less drift.",
		NeedsBackend: true,
		Run:          validityHonest,
	},
	{
		Name:         "CancelledSendsNothing",
		Statement:    "With an ended context no method takes effect, optional ones included; what says so returns when its context ends, or waits for nothing.",
		NeedsBackend: true,
		Run:          cancelledSendsNothing,
	},
	{
		Name:         "NotSentIsTrue",
		Statement:    "A request that ends with ErrNotSent has changed nothing.",
		NeedsBackend: true,
		Run:          notSentIsTrue,
	},
	{
		Name:         "BackendErrors",
		Statement:    "Refusals match the errors of package backend, and contain no id or owner.",
		NeedsBackend: true,
		Run:          backendErrors,
	},
	{
		Name:         "NoSecretsShown",
		Statement:    "No error and nothing shown of a hold contains an acquisition id or owner.",
		NeedsBackend: true,
		Run:          noSecretsShown,
	},
	{
		Name:         "HolderIsShown",
		Statement:    "What is shown of a key is its holder now, by the outermost hold.",
		Claims:       []engine.Claim{engine.ClaimDetails},
		NeedsBackend: true,
		Run:          holderIsShown,
	},
	{
		Name:         "ConcurrentTries",
		Statement:    "Of many simultaneous requests for a free key exactly one is granted.",
		NeedsBackend: true,
		Run:          concurrentTries,
	},
	{
		Name:         "WatchBeforeReturn",
		Statement:    "A release after Watch has returned is signalled, or found when the watch breaks.",
		NeedsBackend: true,
		Run:          watchBeforeReturn,
	},
	{
		Name:         "WatchEndsWithContext",
		Statement:    "Watches end with their contexts, in any number, and disturb nobody.",
		NeedsBackend: true,
		Run:          watchEndsWithContext,
	},
	{
		Name:         "ReleaseTells",
		Statement:    "A release tells how many other clients watch the key.",
		NeedsBackend: true,
		Run:          releaseTells,
	},
	{
		Name:         "QueueOrder",
		Statement:    "Places in the server's queue are granted in order.",
		Claims:       []engine.Claim{engine.ClaimFair},
		NeedsBackend: true,
		Run:          queueOrder,
	},
	{
		Name:         "QueueWithdraw",
		Statement:    "A withdrawn place stands in nobody's way; withdrawing twice is harmless, and Behind waits for no Wait.",
		Claims:       []engine.Claim{engine.ClaimFair},
		NeedsBackend: true,
		Run:          queueWithdraw,
	},
	{
		Name:         "WithdrawBesideWait",
		Statement:    "A place may be withdrawn while its Wait is still on its way back, with the grant that it may bring.",
		Claims:       []engine.Claim{engine.ClaimFair},
		NeedsBackend: true,
		Run:          withdrawBesideWait,
	},
	{
		Name:         "QueueAbandoned",
		Statement:    "A place whose client has gone ends within the TTL of its request.",
		NeedsBackend: true,
		LimitTTLs:    30,
		Run:          queueAbandoned,
	},
	{
		Name:         "WaiterSessionCheck",
		Statement:    "A waiter whose session ended gets no key, and stands in nobody's way.",
		NeedsBackend: true,
		Run:          waiterSessionCheck,
	},
	{
		Name:         "BatchRenewMixed",
		Statement:    "A batch renews good, unknown and expired holds as Renew does.",
		Claims:       []engine.Claim{engine.ClaimManualRenewal},
		NeedsBackend: true,
		Run:          batchRenewMixed,
	},
	{
		Name:         "BatchRenewBesideGuardedWrite",
		Statement:    "A batch renews the rest while another client's guarded write keeps one key.",
		Claims:       []engine.Claim{engine.ClaimManualRenewal, engine.ClaimGuardedWrite},
		NeedsBackend: true,
		Run:          batchRenewBesideGuardedWrite,
	},
	{
		Name:         "HandOverIsOneStep",
		Statement:    "Handing over ends one hold and grants the next as asked, with a larger token.",
		NeedsBackend: true,
		Run:          handOver,
	},
	{
		Name:         "InspectShows",
		Statement:    "Inspect shows a held key as it is, of a free or released one ErrNotHeld, and changes nothing.",
		NeedsBackend: true,
		Run:          inspectShows,
	},
	{
		Name:         "ForceReleaseByToken",
		Statement:    "A forced release removes the record only if it has the given token.",
		NeedsBackend: true,
		Run:          forceReleaseByToken,
	},
	{
		Name:         "RevokeByToken",
		Statement:    "A revoked hold is not renewed, and excludes others until its expiry.",
		NeedsBackend: true,
		Run:          revokeByToken,
	},
	{
		Name:         "ListShowsHeldKeys",
		Statement:    "List shows exactly the held keys with the prefix, once each, and stops when told.",
		NeedsBackend: true,
		Run:          listShowsHeldKeys,
	},
	{
		Name:         "ForgetLeavesOthers",
		Statement:    "Forgetting keys removes what is kept of them, and leaves held ones and other prefixes.",
		NeedsBackend: true,
		Run:          forgetLeavesOthers,
	},
	{
		Name:         "CleanupByAge",
		Statement:    "A clean-up by age removes what is kept of keys that were not used for so long; no token goes back.",
		NeedsBackend: true,
		Run:          cleanupByAge,
	},
	{
		Name:         "RaisedFloorCounts",
		Statement:    "After RaiseFloor every client is granted larger tokens only; holds keep theirs.",
		NeedsBackend: true,
		Run:          raisedFloorCounts,
	},
	{
		Name:         "LastTokenCoversAll",
		Statement:    "LastToken is never below a token that was granted, of whatever key, and changes none.",
		NeedsBackend: true,
		Run:          lastTokenCoversAll,
	},
	{
		Name:         "AbilitiesTakeAnyValue",
		Statement:    "What a backend can do beside the basics it does with every key, owner, label and TTL.",
		NeedsBackend: true,
		Run:          abilitiesTakeAnyValue,
	},
	{
		Name:         "LookingChangesNothing",
		Statement:    "Inspect, List and Watch keep nobody from a key, and leave nothing behind.",
		NeedsBackend: true,
		Run:          lookingChangesNothing,
	},
}

func guaranteesAreStable(e *engine.Env) {
	if e.OpenBackend == nil {
		lockerSaysTheSame(e)
		return
	}
	a, b := e.Backend(), e.Backend()
	g := a.Backend.Guarantees()
	ownLists(e, "Guarantees", g, a.Backend.Guarantees(), b.Backend.Guarantees())
	l := e.Locker()
	teller, _ := l.Locker.(interface{ Guarantees() backend.Guarantees })
	var told backend.Guarantees
	if teller != nil {
		told = teller.Guarantees()
		ownLists(e, "Guarantees of a Locker", told, teller.Guarantees())
	}
	says := []func() [2]bool{fixedAnswers(a.Backend), fixedAnswers(b.Backend)}
	first := [][2]bool{says[0](), says[1]()}
	same := func(when string) {
		for i, again := range says {
			if now := again(); now != first[i] {
				e.Fatalf("", "Interruptible and Immediate returned %v, and %s %v; expected the same answer always", first[i], when, now)
			}
		}
		for _, s := range []*engine.BackendClient{a, b, a} {
			if again := s.Backend.Guarantees(); !reflect.DeepEqual(g, again) {
				e.Fatalf("", "Guarantees returned two different values, the second one %s: %+v and %+v", when, g, again)
			}
		}
		if teller == nil {
			return
		}
		if again := teller.Guarantees(); !reflect.DeepEqual(told, again) {
			e.Fatalf("", "Guarantees of a Locker returned two different values, the second one %s: %+v and %+v", when, told, again)
		}
	}
	same("at once")
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	b.MustRefuse(key, "another client holds it")
	l.MustRefuse(key, "another client holds it")
	same("after a refusal")
	e.MustGiveBack(h, key, "")
	l.MustTry(key).MustRelease()
	same("after a release")
	if !e.Claimed.EndsWithSession { // whose session keeps it
		lost := a.MustTry(e.Request(key, "", e.TTL))
		e.Expire(lost)
		_ = lost.Release(e.Ctx)
		same("after a loss")
	}
	_ = l.Close()
	same("after the Close of that Locker")
	guaranteesAskNobody(e)
	knownWords(e, g)
	fewPartitions(e, a.Backend)
	if g.Name == "" || g.Reach == "" || g.Expiry == "" || g.Token == "" || g.Reentrancy == "" || g.Waiting == "" || len(g.Assumptions) == 0 {
		e.Failf("", "the guarantees are incomplete: %+v; expected Name, Reach, Assumptions, Expiry, Token, Reentrancy and Waiting", g)
	}
	if g.MinTTL <= 0 {
		e.Failf("", "MinTTL is %s; expected the smallest TTL that is kept", g.MinTTL)
	}
	if g.Token == backend.TokenNone && len(g.TokenSurvives) > 0 {
		e.Failf("", "TokenSurvives is %v, although there are no tokens", g.TokenSurvives)
	}
	if backend.Survives(g.HoldsSurvive, backend.FaultRecordRemoved) {
		e.Failf("", "HoldsSurvive is %v; expected it without %q, since whose record is removed holds nothing", g.HoldsSurvive, backend.FaultRecordRemoved)
	}
	_, queues := backend.As[backend.Queuer](a.Backend)
	if queues != (g.Waiting == backend.WaitQueue) && !(queues && e.Declines("Queuer")) {
		e.Failf("", "Waiting is %q, and the backend implements Queuer: %t; expected the two to agree", g.Waiting, queues)
	}
	_, watches := backend.As[backend.Watcher](a.Backend)
	if g.Waiting == backend.WaitPush && !watches {
		e.Failf("", "Waiting is %q, but the backend does not implement Watcher", g.Waiting)
	}
}

func refusalLeavesNothing(e *engine.Env) {
	a, b, c := e.Backend(), e.Backend(), e.Backend()
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	for range 5 {
		req := e.Request(key, "", e.Long)
		b.MustRefuseRequest(req, "another id holds it")
		if e.Claimed.ManualRenewal {
			_, err := b.Renew(backend.HoldOf(req))
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
		if i > 0 && h.Token != holds[0].Token {
			e.Failf(key, "grant %d of one owner has the token %d; expected that of the first, %d", i+1, h.Token, holds[0].Token)
		}
		if again, err := s.Try(req); err == nil && again.Answer.Holds != i+1 {
			e.Failf(key, "a repeat of the request says %d holds; expected %d", again.Answer.Holds, i+1)
		}
		holds = append(holds, h)
	}
	more := make([]*engine.Grant, backend.MaxHolds-len(holds))
	e.EachFew(len(more), func(i int) { more[i] = a.MustTry(e.Request(key, owner, e.Long)) })
	holds = append(holds, more...)
	last := e.Request(key, owner, e.Long)
	last.ID = holds[len(holds)-1].Hold.ID
	if again, err := a.Try(last); err != nil {
		e.Unexpected(key, err, "a repeat of the request for the last of %d holds returned %s; expected its grant", backend.MaxHolds, engine.Outcome(err))
	} else if again.Answer.Holds != backend.MaxHolds {
		e.Failf(key, "a repeat of the request for the last of %d holds says %d holds", backend.MaxHolds, again.Answer.Holds)
	}
	tooMany := e.Request(key, owner, e.Long)
	if h, err := b.Try(tooMany); err == nil {
		_ = h.Release(e.Ctx)
		e.Failf(key, "an owner with %d holds was granted another; expected ErrTooManyHolds", backend.MaxHolds)
	} else {
		only(e, key, "Try by an owner with the most holds", err, backend.ErrTooManyHolds)
		found := secrets{}
		found.of("the caller", tooMany)
		found.check(e, key, "the error of a Try by an owner with the most holds", err)
	}
	b.MustRefuseRequest(e.Request(key, e.Owner("other"), e.Long), "another owner has the most holds on it")
	for i, h := range holds {
		a.MustRefuse(key, "holds of its owner are left")
		if err := h.Release(e.Ctx); err != nil {
			e.Unexpected(key, err, "Release of hold %d returned %s; expected no error", i+1, engine.Outcome(err))
		}
	}
	b.MustTry(e.Request(key, "", e.Long))
	tooManyExtendsNothing(e, a, b)
	holdsAtOnce(e, a, b)
	holdsOutliveClient(e, a, b)
	if _, ok := backend.As[backend.Queuer](b.Backend); ok {
		holdCountOfPlace(e, a, b)
	}
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
	if h.Token != long.Token {
		e.Failf(key, "after the outermost of two holds has run out, the next grant has the token %d; expected that of the record, %d", h.Token, long.Token)
	}
	_ = h.Release(e.Ctx)
	_ = long.Release(e.Ctx)
	b.MustTry(e.Request(key, "", e.Long))
}

// holdsAtOnce has an owner enter several times at once, then renew and release at once, each
// release twice.
func holdsAtOnce(e *engine.Env, a, b *engine.BackendClient) {
	key, owner := e.Key("at-once"), e.Owner("C")
	outer := a.MustTry(e.Request(key, owner, e.Long))
	holds := make([]*engine.Grant, 6)
	e.Each(len(holds), func(i int) {
		holds[i] = []*engine.BackendClient{a, b}[i%2].MustTry(e.Request(key, owner, e.Long))
	})
	ended, kept := holds[:4], holds[4:]
	e.Each(2*len(ended)+len(kept), func(i int) {
		if i >= 2*len(ended) {
			if !e.Claimed.ManualRenewal {
				return
			}
			if err := kept[i-2*len(ended)].Renew(); err != nil {
				e.Unexpected(key, err, "Renew beside releases of other holds of the owner returned %s; expected no error", engine.Outcome(err))
			}
			return
		}
		if err := ended[i/2].Release(e.Ctx); err != nil {
			e.Is(key, err, "one of two releases of a hold at once", backend.ErrNotHeld)
		}
	})
	again := a.MustTry(e.Request(key, owner, e.Long))
	if expected := len(kept) + 2; again.Answer.Holds != expected {
		e.Failf(key, "a grant says %d holds, after %d of %d were released twice at once; expected %d", again.Answer.Holds, len(ended), len(holds)+1, expected)
	}
	for _, h := range append(kept, outer, again) {
		a.MustRefuse(key, "holds of its owner are left")
		e.MustGiveBack(h, key, ", since only other holds of its owner were released")
	}
	freed(e, key, nil, b)
}

// holdsOutliveClient has an owner enter by a client that leaves again and is closed.
func holdsOutliveClient(e *engine.Env, a, b *engine.BackendClient) {
	key, owner := e.Key("by one that closes"), e.Owner("D")
	h, c := a.MustTry(e.Request(key, owner, e.Long)), e.Backend()
	e.MustGiveBack(c.MustTry(e.Request(key, owner, e.Long)), key, "")
	_ = c.Close()
	b.MustRefuse(key, "its owner holds it, and only another client of that, which had released its hold, was closed")
	e.MustGiveBack(h, key, ", since only another client of its owner was closed, which had released its hold")
	freed(e, key, nil, b)
}

// tooManyExtendsNothing has an owner with the most holds ask for a longer one.
func tooManyExtendsNothing(e *engine.Env, a, b *engine.BackendClient) {
	ttl := e.Fit(2 * e.TTL)
	if !e.Virtual() || e.Claimed.EndsWithSession || e.Long < 3*ttl+e.Claimed.TakeoverLag { // there are many requests, and time passes
		return
	}
	key, owner := e.Key("too many, and longer"), e.Owner("A")
	first := a.MustTry(e.Request(key, owner, ttl))
	last := first
	for range backend.MaxHolds - 1 {
		last = a.MustTry(e.Request(key, owner, ttl))
	}
	_, err := b.Try(e.Request(key, owner, e.Long))
	if !time.Now().Before(first.Until()) { // the server is far away
		return
	}
	if err == nil {
		e.Failf(key, "an owner with %d holds was granted another; expected ErrTooManyHolds", backend.MaxHolds)
	}
	e.Expire(last)
	if _, err := b.Try(e.Request(key, "", e.TTL)); err != nil {
		e.UnexpectedLate("", err, "a key whose owner had %d holds was not granted after their TTL of %s (%s); its owner had asked for one more, with a TTL of %s, and was refused, which changes nothing", backend.MaxHolds, ttl, engine.Outcome(err), e.Long)
	}
}

// holdCountOfPlace has an owner wait in the queue, and enter again what it gets there.
func holdCountOfPlace(e *engine.Env, a, b *engine.BackendClient) {
	key, owner := e.Key("queued"), e.Owner("A")
	before := a.MustTry(e.Request(key, "", e.Long))
	p := enqueueFor(e, b, e.Request(key, owner, e.Long)).waiting(e)
	e.MustGiveBack(before, key, "")
	p.mustGet(e, "the key was released")
	if p.grant.Holds != 1 {
		e.Failf(key, "the grant of an owner's place in the queue says %d holds; expected 1", p.grant.Holds)
	}
	again := a.MustTry(e.Request(key, owner, e.Long))
	if again.Answer.Holds != 2 {
		e.Failf(key, "the grant after that of an owner's place in the queue says %d holds; expected 2", again.Answer.Holds)
	}
	_ = again.Release(e.Ctx)
	if err := b.Release(e.Ctx, p.hold()); err != nil {
		e.Unexpected(key, err, "Release of a hold that was granted in the queue returned %s; expected no error", engine.Outcome(err))
	}
}

// judgeValidity looks at the answer to a call that was made and returned at these instants.
func judgeValidity(e *engine.Env, key, op string, v backend.Validity, before, after backend.Instant, ttl time.Duration) {
	if v.Sent < before || v.Sent > after {
		e.Failf(key, "the validity of %s is dated %s before the call and %s before its end; expected it in between", op, before.Sub(v.Sent), after.Sub(v.Sent))
	}
	if most := backend.ValidFor(ttl); v.For > most {
		e.Failf(key, "%s is valid for %s; expected at most %s, the TTL of %s less the drift allowance", op, v.For, most, ttl)
	}
}

func validityHonest(e *engine.Env) {
	a := e.Backend()
	check := func(key, op string, v backend.Validity, before, after backend.Instant, ttl time.Duration) {
		judgeValidity(e, key, op, v, before, after, ttl)
	}
	for i := range 10 {
		key, owner := e.Key("%d", i), ""
		if i%2 == 1 && engine.ClaimServerHolds.Made(e.Settings) {
			owner = e.Owner("A")
		}
		before := a.Clock.Now()
		h := a.MustTry(e.Request(key, owner, e.TTL))
		check(key, "Try", h.Answer.Validity, before, a.Clock.Now(), e.TTL)
		if owner != "" {
			before = a.Clock.Now()
			again := a.MustTry(e.Request(key, owner, e.TTL))
			check(key, "Try by the owner of the key", again.Answer.Validity, before, a.Clock.Now(), e.TTL)
		}
		if h.Answer.For < e.TTL/2 {
			e.Latef(key, "a grant with a TTL of %s is valid for %s; expected most of the TTL", e.TTL, h.Answer.For)
		}
		if !e.Claimed.ManualRenewal {
			continue
		}
		before = a.Clock.Now()
		v, err := a.Renew(h.Hold)
		if err != nil {
			e.UnexpectedLate(key, err, "Renew of a fresh hold returned %s; expected no error", engine.Outcome(err))
		} else if v.For > 0 {
			check(key, "Renew", v, before, a.Clock.Now(), e.TTL)
		}
	}
	long := e.Fit(time.Hour)
	key := e.Key("long")
	before := a.Clock.Now()
	h := a.MustTry(e.Request(key, "", long))
	check(key, "Try", h.Answer.Validity, before, a.Clock.Now(), long)
	if e.Claimed.ManualRenewal {
		if v, err := a.Renew(h.Hold); err == nil && v.For > 0 && v.For < h.Answer.For-e.TTL/4 {
			e.Failf(key, "Renew of a hold with a TTL of %s is valid for %s; expected no less than its grant, which was for %s", long, v.For, h.Answer.For)
		}
	}
	e.MustGiveBack(h, key, "")
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
	if owner != "" {
		_, err := b.Try(e.Request(key, e.Owner("B"), e.Long))
		only(e, key, "Try of a held key by another owner", err, lock.ErrHeld)
		switch details := (*backend.HeldError)(nil); {
		case !e.Claimed.HolderDetails:
		case !errors.As(err, &details):
			e.Unexpected(key, err, "Try of a held key by another owner returned %s; expected a *backend.HeldError", engine.Outcome(err))
		case details.Holder.Label != req.Holder.Label || details.Key != key:
			e.Failf(key, "the refusal of another owner names the key %s and the holder %q; expected %s and the label %q", engine.QuoteKey(details.Key), details.Holder.Label, engine.QuoteKey(key), req.Holder.Label)
		case details.Remaining <= 0:
			e.Failf(key, "the refusal of another owner says that %s remain; expected what is left of a TTL of %s", details.Remaining, e.Long)
		}
	}
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
	backends := []*engine.BackendClient{e.Backend(), e.Backend(), e.Backend()}
	n := e.Rounds(e.Work(50*time.Millisecond), 10, 200)
	for round := range n {
		key := e.Key("%d", round)
		holds := make([]*engine.Grant, 12)
		e.Each(len(holds), func(i int) {
			h, err := backends[i%len(backends)].Try(e.Request(key, "", e.Long))
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

// optional is an ability of the backend, which the rule needs.
func optional[T any](s *engine.BackendClient, name string) T {
	t, ok := backend.As[T](s.Backend)
	if !ok {
		s.Env.Skipf("the backend does not implement backend.%s", name)
	}
	return t
}
