package rules

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// Every ability has statements of its own on the server, and each of them has to take what a
// try takes. So here each one meets keys, owners, labels and TTLs that are unusual.

// values is what the cases of AbilitiesTakeAnyValue share. a holds, b is another client. What
// the backend can't do is nil.
type values struct {
	e     *engine.Env
	a, b  *engine.BackendClient
	hand  backend.HandOverer
	batch backend.BatchRenewer
	tell  backend.ReleaseTeller
	watch backend.Watcher // b's
	in    backend.Inspector
	force backend.ForceReleaser
	rev   backend.Revoker
}

// able is the ability of the client's backend, or nil where there is none or it is declined.
func able[T any](s *engine.BackendClient, name string) (ability T) {
	if t, ok := backend.As[T](s.Backend); ok && !s.Env.Declines(name) {
		return t
	}
	return ability
}

func abilitiesTakeAnyValue(e *engine.Env) {
	v := &values{e: e, a: e.Backend(), b: e.Backend()}
	v.hand, v.tell, v.watch = able[backend.HandOverer](v.a, "HandOverer"), able[backend.ReleaseTeller](v.a, "ReleaseTeller"), able[backend.Watcher](v.b, "Watcher")
	v.in = able[backend.Inspector](v.b, "Inspector")
	if e.Claimed.ManualRenewal {
		v.batch = able[backend.BatchRenewer](v.a, "BatchRenewer")
	}
	if engine.ClaimTokens.Made(e.Settings) { // which name what an operator ends
		v.force, v.rev = able[backend.ForceReleaser](v.b, "ForceReleaser"), able[backend.Revoker](v.b, "Revoker")
	}
	if v.hand == nil && v.tell == nil && v.in == nil && v.batch == nil && v.force == nil && v.rev == nil {
		e.Skipf("the backend has none of the abilities that name a key or a hold")
	}
	keys := oddKeys(e)
	cases := []func(){
		func() { e.EachFew(len(keys), func(i int) { v.key(keys[i]) }) },
		v.handedTTLs, v.batchedTTLs, v.enteredTTL, v.handedHolder,
	}
	if engine.ClaimServerHolds.Made(e.Settings) {
		owners := oddOwners(e)
		cases = append(cases, func() {
			e.EachFew(len(owners), func(i int) { v.owner(e.Key("owner %d", i), owners[i].name, owners[i].others) })
		})
	}
	e.Together(cases...)
}

// signs are what some language or pattern of a server has a meaning for.
const signs = "a\\b\\n'c\"d`e%f_g*h?i[j]{k}l$m&amp;n=o+p;q--r#s|t@u^v!w(x)<y>,z~%2F:"

// oddKeys are few, and have much of what is unusual each, since every ability is tried with
// every one of them.
func oddKeys(e *engine.Env) []string {
	longest, wide := filled(e.Key("longest-"), backend.MaxKey), e.Key("wide-")
	wide += strings.Repeat("\u20ac", (backend.MaxKey-len(wide))/len("\u20ac"))
	keys := []string{longest, wide}
	for _, end := range []string{signs, "Aa  ", "a/../b//c/./d/", "\u00e4a\u0308\u00df\u0130\ufeff\u200b\u00a0\U0001f512"} {
		keys = append(keys, e.Key("%s", end))
	}
	return keys
}

// oddOwners are owners, each with those that it must not be taken for.
func oddOwners(e *engine.Env) (owners []struct {
	name   string
	others []string
}) {
	spaced, longest, signed := e.Owner("A")+" ", filled(e.Owner("B"), backend.MaxOwner), e.Owner("C")+signs
	for _, name := range []string{spaced, longest, signed} {
		last := len(name) - 1
		owners = append(owners, struct {
			name   string
			others []string
		}{name, []string{name[:last], name[:last] + "y"}})
	}
	return owners
}

// key takes the key again and again, and each time it is another ability that ends the hold.
func (v *values) key(key string) {
	e, quoted := v.e, engine.QuoteKey(key)
	h := v.a.MustTry(e.Request(key, "", e.Long))
	v.shown(h)
	v.batched(h, "a hold of the key "+quoted)
	if v.hand != nil {
		next, err := v.a.HandOver(v.hand, h, e.Request(key, "", e.Long))
		if err != nil {
			e.UnexpectedFatal(key, err, "HandOver of the key %s returned %s; expected a grant", quoted, engine.Outcome(err))
		}
		v.b.MustRefuse(key, "it was handed over")
		h = next
	}
	v.told(h)
	if v.force != nil {
		h := v.b.MustTry(e.Request(key, "", e.Long))
		if err := h.EndedBy(e, func() error { return v.force.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
			v.inTime(h)
			e.UnexpectedFatal(key, err, "ForceRelease of the key %s, with the token of its holder, returned %s; expected no error", quoted, engine.Outcome(err))
		}
		_ = v.b.Backend.Release(e.Ctx, h.Hold) // who has lost a hold drops what it keeps of it
	}
	if v.rev == nil {
		return
	}
	h = v.a.MustTry(e.Request(key, "", e.Long))
	h.Releasing(e.Log.Now())
	if err := v.rev.Revoke(e.Ctx, key, h.Token); err != nil {
		v.inTime(h)
		e.UnexpectedFatal(key, err, "Revoke of the key %s, with the token of its holder, returned %s; expected no error", quoted, engine.Outcome(err))
	}
	_ = v.a.Backend.Release(e.Ctx, h.Hold)
}

// inTime ends a case whose hold has run out before it was looked at.
func (v *values) inTime(h *engine.Grant) {
	if !time.Now().Before(h.Until()) {
		v.e.TooSlowf(h.Key, "the hold had run out before another ability was asked for; its TTL is %s", h.Hold.TTL)
	}
}

// shown looks at a key that is held.
func (v *values) shown(h *engine.Grant) {
	if v.in == nil {
		return
	}
	e, quoted := v.e, engine.QuoteKey(h.Key)
	rec, err := v.in.Inspect(e.Ctx, h.Key)
	switch {
	case err != nil:
		v.inTime(h)
		e.UnexpectedFatal(h.Key, err, "Inspect of the held key %s returned %s; expected its record", quoted, engine.Outcome(err))
	case rec.Key != h.Key || rec.Token != h.Token:
		e.Failf(h.Key, "Inspect of the key %s shows the key %s, token %d; expected token %d", quoted, engine.QuoteKey(rec.Key), rec.Token, h.Token)
	}
}

// batched renews the hold in a batch of one.
func (v *values) batched(h *engine.Grant, what string) {
	if v.batch == nil {
		return
	}
	e, from := v.e, v.e.Log.Now()
	for _, x := range v.batch.RenewBatch(e.Ctx, []backend.Hold{h.Hold}) {
		if x.Err != nil {
			v.inTime(h)
			e.UnexpectedFatal(h.Key, x.Err, "the answer of RenewBatch for %s is %s; expected a validity", what, engine.Outcome(x.Err))
		}
		h.Renewed(from, x.Validity)
	}
}

// told releases a key that another client watches.
func (v *values) told(h *engine.Grant) {
	e, quoted := v.e, engine.QuoteKey(h.Key)
	if v.tell == nil {
		e.MustGiveBack(h, h.Key, "")
		return
	}
	watched := v.watch != nil
	if watched {
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		if _, err := v.watch.Watch(ctx, h.Key); err != nil {
			e.UnexpectedFatal(h.Key, err, "Watch of the key %s returned %s", quoted, engine.Outcome(err))
		}
	}
	others, until := 0, h.Until()
	err := h.EndedBy(e, func() (err error) { others, err = v.tell.ReleaseTelling(e.Ctx, h.Hold); return err })
	switch {
	case err != nil && !time.Now().Before(until):
		e.TooSlowf(h.Key, "the hold had run out before it was released; its TTL is %s", h.Hold.TTL)
	case err != nil:
		e.UnexpectedFatal(h.Key, err, "ReleaseTelling of the key %s returned %s; expected no error", quoted, engine.Outcome(err))
	case watched && others == 0:
		e.Failf(h.Key, "ReleaseTelling of the key %s tells of no other client, and one watches it; expected 1", quoted)
	}
}

// owner hands a key over to the owner, who enters it, renews both of its holds and hands it on.
func (v *values) owner(key, name string, others []string) {
	e := v.e
	var h *engine.Grant
	if v.hand == nil {
		h = v.a.MustTry(e.Request(key, name, e.Long))
	} else {
		next, err := v.a.HandOver(v.hand, v.a.MustTry(e.Request(key, "", e.Long)), e.Request(key, name, e.Long))
		if err != nil {
			e.UnexpectedFatal(key, err, "HandOver to an owner with an unusual name returned %s; expected a grant", engine.Outcome(err))
		}
		h = next
	}
	for _, other := range others {
		v.b.MustRefuseRequest(e.Request(key, other, e.Long), "it is held by an owner whose name differs in the last byte")
	}
	again, err := v.b.Try(e.Request(key, name, e.Long))
	switch {
	case err != nil:
		v.inTime(h)
		e.UnexpectedFatal(key, err, "the owner of a key, who has an unusual name, tried it once more, and Try returned %s; expected a second hold", engine.Outcome(err))
	case again.Answer.Holds != 2 || engine.ClaimTokens.Made(e.Settings) && again.Token != h.Token:
		e.Failf(key, "the second hold of an owner with an unusual name says %d holds, token %d; expected 2 holds, token %d", again.Answer.Holds, again.Token, h.Token)
	}
	v.batched(h, "a hold of an owner with an unusual name")
	v.batched(again, "a second hold of an owner with an unusual name")
	e.MustGiveBack(again, key, "")
	if v.hand != nil {
		next, err := v.a.HandOver(v.hand, h, e.Request(key, "", e.Long))
		if err != nil {
			v.inTime(h)
			e.UnexpectedFatal(key, err, "HandOver from an owner with an unusual name returned %s; expected a grant", engine.Outcome(err))
		}
		h = next
	}
	v.told(h)
}

// handedHolder hands a key over to a holder with the longest label there is.
func (v *values) handedHolder() {
	if v.hand == nil {
		return
	}
	e, key := v.e, v.e.Key("holder")
	to := e.Request(key, "", e.Long)
	to.Holder = backend.Holder{Label: filled(" "+signs+" \u00e4", backend.MaxOwner-1) + " ", Host: longHost, PID: 4194303, PairID: "0123456789abcdef"}
	g, err := v.a.HandOver(v.hand, v.a.MustTry(e.Request(key, "", e.Long)), to)
	if err != nil {
		e.UnexpectedFatal(key, err, "HandOver to a holder with the longest label returned %s; expected a grant", engine.Outcome(err))
	}
	tells := func(what string, shown backend.Holder) {
		if !tellsOf(e, shown, to.Holder) {
			e.Failf(key, "%s shows the holder %s after HandOver; expected %s", what, inFull(shown), inFull(to.Holder))
		}
	}
	if v.in != nil {
		rec, err := v.in.Inspect(e.Ctx, key)
		if err != nil {
			v.inTime(g)
			e.UnexpectedFatal(key, err, "Inspect of a key that was handed over returned %s; expected its record", engine.Outcome(err))
		}
		tells("Inspect", rec.Holder)
	}
	_, err = v.b.Try(e.Request(key, "", e.Long))
	if held := (*backend.HeldError)(nil); errors.As(err, &held) {
		tells("a refusal", held.Holder)
	}
	e.MustGiveBack(g, key, ", which was handed over")
}

// broken is a TTL with most of a second beside whole ones, and the one of the whole ones, or zero
// where there is none.
func broken(e *engine.Env) (ttl, whole time.Duration) {
	whole = max(e.TTL, time.Second) / time.Second * time.Second
	ttl = e.Fit(whole + 900*time.Millisecond)
	if ttl%time.Second < 500*time.Millisecond || e.Claimed.EndsWithSession { // whose session keeps what is not renewed
		return 0, 0
	}
	return ttl, e.Fit(whole)
}

// longestTTL is more milliseconds than fit in 32 bits with a sign, if the lock has so many.
func longestTTL(e *engine.Env) time.Duration { return e.Fit(60*24*time.Hour + 1500*time.Millisecond) }

func (v *values) handedTTLs() {
	if v.hand == nil {
		return
	}
	e := v.e
	over := func(name string, ttl time.Duration) *engine.Grant {
		key := e.Key("%s", name)
		g, err := v.a.HandOver(v.hand, v.a.MustTry(e.Request(key, "", e.Long)), e.Request(key, "", ttl))
		if err != nil {
			e.UnexpectedFatal(key, err, "HandOver to a request with a TTL of %s returned %s; expected a grant", ttl, engine.Outcome(err))
		}
		return g
	}
	if ttl := longestTTL(e); ttl > e.Long {
		g := over("longest TTL, handed over", ttl)
		v.lastsAsTold(g, "a hold that was handed over to a request with a TTL of "+ttl.String())
		e.MustGiveBack(g, g.Key, ", which was handed over")
	}
	if ttl, _ := broken(e); ttl > 0 {
		g := over("broken TTL, handed over", ttl)
		v.lasts(g, "a hold that was handed over to a request with a TTL of "+ttl.String())
	}
}

func (v *values) batchedTTLs() {
	if v.batch == nil {
		return
	}
	e := v.e
	if ttl := longestTTL(e); ttl > e.Long && !e.Claimed.EndsWithSession {
		h := v.a.MustTry(e.Request(e.Key("longest TTL, in a batch"), "", e.Long))
		h.Hold.TTL = ttl
		v.batched(h, "a hold that is renewed by "+ttl.String())
		v.lastsAsTold(h, "a hold that a batch renewed by "+ttl.String())
		e.MustGiveBack(h, h.Key, ", which a batch has renewed")
	}
	if ttl, whole := broken(e); ttl > 0 {
		h := v.a.MustTry(e.Request(e.Key("broken TTL, in a batch"), "", whole))
		h.Hold.TTL = ttl
		v.batched(h, "a hold that is renewed by "+ttl.String())
		v.lasts(h, "a hold that a batch renewed by "+ttl.String())
	}
}

// enteredTTL has an owner enter for the longest TTL what it holds for a shorter one.
func (v *values) enteredTTL() {
	e, ttl := v.e, longestTTL(v.e)
	if !engine.ClaimServerHolds.Made(e.Settings) || e.Claimed.EndsWithSession || ttl <= e.Long {
		return
	}
	key, owner := e.Key("longest TTL, entered"), e.Owner("A")
	outer, inner := v.a.MustTry(e.Request(key, owner, e.Long)), v.a.MustTry(e.Request(key, owner, ttl))
	e.MustGiveBack(outer, key, "")
	v.lastsAsTold(inner, "a hold by which an owner entered a key with a TTL of "+ttl.String())
	e.MustGiveBack(inner, key, "")
}

// lastsAsTold looks for how long others are told that a hold lasts.
func (v *values) lastsAsTold(h *engine.Grant, what string) {
	e := v.e
	grain := max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag) + h.Hold.TTL/100
	if v.in != nil {
		rec, err := v.in.Inspect(e.Ctx, h.Key)
		if err != nil {
			v.inTime(h)
			e.UnexpectedFatal(h.Key, err, "Inspect of %s returned %s; expected its record", what, engine.Outcome(err))
		}
		leftShown(e, h, rec.Remaining, grain, "Inspect of "+what)
	}
	err := v.keepsOut(h, what)
	if held := (*backend.HeldError)(nil); errors.As(err, &held) && held.Remaining > 0 {
		leftShown(e, h, held.Remaining, grain, "a refusal because of "+what)
	}
}

// keepsOut has the other client try the key, and returns its refusal.
func (v *values) keepsOut(h *engine.Grant, what string) error {
	e := v.e
	next, err := v.b.Try(e.Request(h.Key, "", e.Long))
	if left := time.Until(h.Until()); err == nil && left > 0 {
		e.Failf(h.Key, "another client was granted the key %s before the end of %s; expected nobody to get it before", engine.Short(left), what)
	}
	if err == nil {
		_ = next.Release(e.Ctx)
	}
	return err
}

// lasts looks whether a hold lasts as long as its holder was told.
func (v *values) lasts(h *engine.Grant, what string) {
	e := v.e
	h.Lapses()
	e.Pause(10 * time.Millisecond) // what is left is no whole number of seconds then
	v.lastsAsTold(h, what)
	if e.Unhurried() || v.in == nil { // else that has to do
		e.Pause(time.Until(h.Until()) - h.Hold.TTL/25)
		_ = v.keepsOut(h, what)
	}
	_ = h.Release(e.Ctx)
}
