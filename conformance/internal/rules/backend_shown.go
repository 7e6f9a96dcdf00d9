package rules

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// secrets are looked for in whatever is shown.
type secrets map[string]string // by what they are

// of is the secrets of a request.
func (s secrets) of(who string, req backend.Request) {
	s["the acquisition id of "+who] = req.ID.Hex()
	if req.Owner != "" {
		s["the owner of "+who] = req.Owner
	}
}

// check prints the thing in all ways, an error without what it wraps.
func (s secrets) check(e *engine.Env, key, what string, shown any) {
	text := fmt.Sprintf("%v %+v %q", shown, shown, shown)
	if err, failed := shown.(error); failed {
		text += fmt.Sprintf(" %#v", err)
		if held := (*backend.HeldError)(nil); errors.As(err, &held) {
			text += fmt.Sprintf("%+v", *held)
		}
	}
	if out, err := json.Marshal(shown); err == nil {
		text += string(out)
	}
	for of, secret := range s {
		if shows(text, secret) {
			e.Failf(key, "%s shows %s, which is a secret: whoever knows it can enter or release", what, of)
		}
	}
}

// shows reports whether the text has the secret in one of its forms.
func shows(text, secret string) bool {
	return slices.ContainsFunc(formsOf(secret), func(form string) bool { return strings.Contains(text, form) })
}

// formsOf are the texts by which a secret can be known: as it is, encoded, and for an
// acquisition id its bytes in the ways in which they are written.
func formsOf(secret string) []string {
	forms := []string{secret, strings.ToUpper(secret), url.QueryEscape(secret), url.PathEscape(secret)}
	for _, quoted := range []string{strconv.Quote(secret), strconv.QuoteToASCII(secret)} {
		forms = append(forms, quoted[1:len(quoted)-1])
	}
	written := [][]byte{[]byte(secret)}
	if id, err := backend.ParseID(secret); err == nil {
		written = append(written, id[:])
		forms = append(forms, strings.Join([]string{secret[:8], secret[8:12], secret[12:16], secret[16:20], secret[20:]}, "-"), string(id[:]))
	}
	for _, b := range written {
		forms = append(forms, fmt.Sprintf("%x", b), fmt.Sprintf("%X", b), fmt.Sprint(b), base64.RawStdEncoding.EncodeToString(b), base64.RawURLEncoding.EncodeToString(b))
	}
	return forms
}

// noSecretsShown makes each call that a backend has so that it fails, and looks at what is
// shown of a hold.
func noSecretsShown(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	key, found := e.Key("a"), secrets{}
	owner := ""
	if engine.ClaimServerHolds.Made(e.Settings) {
		owner = "p4ssw0rd-" + e.Owner("A")
	}
	req := e.Request(key, owner, e.Long)
	found.of("the holder", req)
	req.Holder = backend.Holder{} // nothing to show
	h := a.MustTry(req)
	other := e.Request(key, strings.ReplaceAll(owner, "p4ssw0rd", "s3cret"), e.Long)
	found.of("the caller", other)
	gone := backend.HoldOf(other)
	successor := e.Request(key, strings.ReplaceAll(owner, "p4ssw0rd", "pa55word"), e.Long)
	found.of("the successor", successor)
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	calls := map[string]func() error{
		"Try of a held key":                     func() error { _, err := b.Try(other); return err },
		"Try with a context that has ended":     func() error { _, err := b.TryCtx(ended, other); return err },
		"Release of a hold that there is not":   func() error { return b.Release(e.Ctx, gone) },
		"Release with a context that has ended": func() error { return b.Release(ended, gone) },
		"Renew of a hold that there is not":     func() error { _, err := b.Renew(gone); return err },
		"Renew with a context that has ended":   func() error { _, err := b.Backend.Renew(ended, gone); return err },
	}
	if r, ok := backend.As[backend.BatchRenewer](b.Backend); ok {
		calls["RenewBatch of a hold that there is not"] = func() error {
			for _, answer := range r.RenewBatch(e.Ctx, []backend.Hold{gone}) {
				return answer.Err
			}
			return nil
		}
	}
	if ho, ok := backend.As[backend.HandOverer](b.Backend); ok {
		calls["HandOver of a hold that there is not"] = func() error { _, err := ho.HandOver(e.Ctx, gone, successor); return err }
	}
	if q, ok := backend.As[backend.Queuer](b.Backend); ok {
		calls["Enqueue with a context that has ended"] = func() error {
			t, err := q.Enqueue(ended, other)
			if err == nil {
				_, err = t.Wait(ended)
				_ = t.Withdraw(e.Ctx)
			}
			return err
		}
		waiter := e.Request(key, strings.ReplaceAll(owner, "p4ssw0rd", "l3tmein"), e.Long)
		found.of("the waiter", waiter)
		calls["Wait for a held key, whose context ended,"] = func() error {
			t, err := q.Enqueue(e.Ctx, waiter)
			if err == nil {
				ctx, cancel := context.WithTimeout(e.Ctx, 40*time.Millisecond)
				defer cancel()
				_, err = t.Wait(ctx)
				_ = t.Withdraw(e.Ctx)
			}
			return err
		}
	}
	if f, ok := backend.As[backend.ForceReleaser](b.Backend); ok {
		calls["ForceRelease with another token"] = func() error { return f.ForceRelease(e.Ctx, key, h.Token+1) }
	}
	if r, ok := backend.As[backend.Revoker](b.Backend); ok {
		calls["Revoke with another token"] = func() error { return r.Revoke(e.Ctx, key, h.Token+1) }
	}
	for what, call := range calls {
		if err := call(); err != nil {
			found.check(e, key, "the error of "+what, err)
		}
	}
	recordsShown(e, b, key, func(what string, rec backend.Record) { found.check(e, key, what, rec) })
	_ = a.Release(e.Ctx, h.Hold)
	found.check(e, key, "the error of a second Release", a.Release(e.Ctx, h.Hold))
	found.check(e, key, "the error of a Renew after the release", func() error { _, err := a.Renew(h.Hold); return err }())
}

// recordsShown hands on what the backend shows of a key that is held.
func recordsShown(e *engine.Env, b *engine.BackendClient, key string, show func(what string, rec backend.Record)) {
	if in, ok := backend.As[backend.Inspector](b.Backend); ok {
		rec, err := in.Inspect(e.Ctx, key)
		if err != nil {
			e.UnexpectedFatal(key, err, "Inspect of a held key returned %s; expected its record", engine.Outcome(err))
		}
		show("Inspect", rec)
	}
	if l, ok := backend.As[backend.Lister](b.Backend); ok {
		listed := false
		err := l.List(e.Ctx, key, func(rec backend.Record) bool {
			listed = listed || rec.Key == key
			show("List", rec)
			return true
		})
		switch {
		case err != nil:
			e.Unexpected(key, err, "List returned %s; expected no error", engine.Outcome(err))
		case !listed:
			e.Failf(key, "List does not show a key that is held")
		}
	}
}

// sooner reports whether two beginnings are certainly apart by less than d. They may not be
// known, or to the second only.
func sooner(first, next time.Time, d time.Duration) bool {
	seconds := first.Nanosecond() == 0 && next.Nanosecond() == 0
	return !first.IsZero() && !next.IsZero() && !seconds && next.Sub(first) < d
}

// holderIsShown compares what is shown with who holds the key, through all that may happen
// to it: refusals, renewals, entries of its owner, and holders that follow each other.
func holderIsShown(e *engine.Env) {
	look := e.Backend()
	optional[backend.Inspector](look, "Inspector")
	a, b := e.Locker(), e.Locker()
	key := e.Key("a")
	host, _ := os.Hostname()
	fresh := true // the key was free
	// judge is for a holder in this process. A Locker need not tell where it is.
	judge := func(what, label string, h backend.Holder) {
		switch {
		case h.Label != label:
			e.Failf(key, "%s shows the label %q; expected %q, which is that of the holder", what, h.Label, label)
		case h.Host != "" && h.Host != host, h.PID != 0 && h.PID != os.Getpid():
			e.Failf(key, "%s shows the holder on host %q with the pid %d; expected this process, %q and %d, or nothing", what, h.Host, h.PID, host, os.Getpid())
		case e.Open == nil && e.Wrap == nil && (h.Host != host || h.PID != os.Getpid()): // the lock package tells
			e.Failf(key, "%s shows the holder on host %q with the pid %d; expected this process, %q and %d", what, h.Host, h.PID, host, os.Getpid())
		case h.Since.IsZero() && fresh: // of one that had a place before, a server may not know it
			e.Failf(key, "%s does not show since when the key is held, which was free before", what)
		case !h.Since.IsZero() && time.Since(h.Since).Abs() > clocksApart+time.Since(e.Log.Base):
			e.Failf(key, "%s shows that the key is held since %s; expected the time of the grant", what, h.Since)
		}
	}
	shown := func(when, label string, h *engine.Hold) (since map[string]time.Time) {
		since = map[string]time.Time{}
		recordsShown(e, look, key, func(what string, rec backend.Record) {
			since[what] = rec.Holder.Since
			what += " " + when
			judge(what, label, rec.Holder)
			if rec.Key != key || engine.ClaimTokens.Made(e.Settings) && rec.Token != h.Token {
				e.Failf(key, "%s shows the key %s and the token %d; expected %s and %d", what, engine.QuoteKey(rec.Key), rec.Token, engine.QuoteKey(key), h.Token)
			}
		})
		err := b.Refusal(key, "another client holds it", lock.WithLabel("refused"))
		if held := (*lock.HeldError)(nil); errors.As(err, &held) {
			judge("a refusal "+when, label, held.Holder)
			since["a refusal"] = held.Holder.Since
		}
		return since
	}
	opts := []lock.Option{lock.WithLabel("first")}
	if engine.ClaimReentrancy.Made(e.Settings) {
		opts = append(opts, lock.WithOwner(e.Owner("A")))
	}
	h := a.MustTry(key, opts...)
	began := time.Now() // at the latest
	before := shown("of the first holder", "first", h)
	e.Settle() // a beginning that moves has moved by then
	same := func(when string) {
		for what, since := range shown(when, "first", h) {
			if first, ok := before[what]; ok && !since.Equal(first) {
				e.Failf(key, "%s %s shows that the key is held since %s, and showed %s before; expected the time of the outermost grant", what, when, since, first)
			}
		}
	}
	same("after another client was refused")
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err != nil {
			e.UnexpectedLateFatal(key, err, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
		}
		same("after a renewal")
	}
	if len(opts) > 1 {
		again := a.MustTry(key, append(opts[1:], lock.WithLabel("entered"))...)
		same("while its owner holds it twice")
		again.MustRelease()
		same("after its owner has left it once")
		if engine.ClaimServerHolds.Made(e.Settings) {
			again := b.MustTry(key, append(opts[1:], lock.WithLabel("entered"))...)
			same("while its owner holds it by two Lockers")
			again.MustRelease()
			same("after its owner has left it by one of two Lockers")
		}
		b.MustRefuse(key, "another owner holds it", lock.WithOwner(e.Owner("B")), lock.WithLabel("refused"))
		same("after another owner was refused")
	}
	for _, next := range []struct {
		label string
		of    *engine.Client
	}{{"second", b}, {" \u00e9 third  ", b}, {"", a}} { // from another Locker, from the same, and without a label
		var more []lock.Option
		if next.label != "" {
			more = append(more, lock.WithLabel(next.label))
		}
		w := next.of.Acquiring(key, more...)
		e.Settle()
		lasted := time.Since(began)
		h.MustRelease()
		h = w.MustGet(e, key, e.WaitBound(), "the key was released")
		began = time.Now()
		fresh = false
		now := shown("of the holder that followed", next.label, h)
		for what, since := range now {
			if e.Claimed.Waiting == backend.WaitQueue {
				break // a server may know only when the place was taken
			}
			if last := before[what]; sooner(last, since, lasted-20*time.Millisecond) {
				e.Latef(key, "%s shows that the key is held since %s, by one that followed a holder since %s, which had held it for %s; expected the time of the grant, not that of the wait", what, since, last, lasted)
			}
		}
		before = now
	}
	h.MustRelease()
	if len(opts) > 1 {
		labelLasts(e, look, a, b, "outer")
		labelLasts(e, look, a, b, "")
	}
	nextHolderIsShown(e, look)
	if e.Claimed.EndsWithSession { // which keeps what is not renewed
		return
	}
	for _, next := range []string{"after one that ran out", ""} {
		req := e.Request(key, "", e.TTL) // a Locker would give it back when it has run out
		req.Holder.Label = "runs out"
		look.MustTry(req).Lapses()
		var more []lock.Option
		if next != "" {
			more = append(more, lock.WithLabel(next))
		}
		taken := e.Poll(key, e.TakeoverLimit(e.TTL), e.TTL/20, "its holder did not renew it", func() (engine.Grip, error) {
			got, err := b.Try(key, more...)
			if err != nil {
				return nil, err
			}
			return got, nil
		})
		shown("of the holder that followed one whose lease had run out", next, taken.(*engine.Hold))
		_ = taken.Release(e.Ctx)
	}
}

// labelLasts looks at the label of a key that its owner enters and leaves, the outermost hold
// first too, until the owner has left it for good, and takes it again. The outermost hold has the
// label outermost, or none.
func labelLasts(e *engine.Env, look *engine.BackendClient, a, b *engine.Client, outermost string) {
	key, owner := e.Key("entered, and labelled %q", outermost), lock.WithOwner(e.Owner("C"))
	var first map[string]backend.Holder // by who showed it
	shown := func(when, label string) {
		now := map[string]backend.Holder{}
		recordsShown(e, look, key, func(what string, rec backend.Record) { now[what] = rec.Holder })
		err := b.Refusal(key, "an owner holds it")
		if held := (*lock.HeldError)(nil); errors.As(err, &held) {
			now["a refusal"] = held.Holder
		}
		for what, holder := range now {
			if holder.Label != label {
				e.Failf(key, "%s %s shows the label %q; expected %q", what, when, holder.Label, label)
			}
			was, known := first[what]
			if !known {
				continue
			}
			if !holder.Since.Equal(was.Since) {
				e.Failf(key, "%s %s shows that the key is held since %s, and showed %s before; expected the time of the outermost grant", what, when, holder.Since.Format(time.RFC3339Nano), was.Since.Format(time.RFC3339Nano))
			}
			if holder.Since = was.Since; holder != was {
				e.Failf(key, "%s %s shows the holder %s, and showed %s before; expected the process of the outermost hold", what, when, inFull(holder), inFull(was))
			}
		}
		if first == nil {
			first = now
		}
	}
	take := func(label string) *engine.Hold {
		if label == "" {
			return a.MustTry(key, owner)
		}
		return a.MustTry(key, owner, lock.WithLabel(label))
	}
	outer := take(outermost)
	shown("of an owner's first hold", outermost)
	e.Settle() // a beginning that moves has moved by then
	inner := []*engine.Hold{take("inner"), take("")}
	shown("while its owner has two inner holds", outermost)
	inner[0].MustRelease()
	shown("after one of two inner holds was released", outermost)
	outer.MustRelease()
	shown("after the outermost hold was released, and an inner one is left", outermost)
	inner[1].MustRelease()
	for _, label := range []string{"", "next"} {
		h := take(label)
		first = map[string]backend.Holder{} // which is over
		shown("after its owner had released it, and has taken it again", label)
		h.MustRelease()
	}
}

// nextHolderIsShown has holders of other processes follow each other in all ways, one that tells
// of itself and one that tells nothing, and an owner enter from another process.
func nextHolderIsShown(e *engine.Env, look *engine.BackendClient) {
	a, b := e.Backend(), e.Backend()
	former := backend.Holder{Label: "former", Host: "a former host", PID: 4711, PairID: "0123456789abcdef"}
	ask := func(key, owner string, of backend.Holder, ttl time.Duration) backend.Request {
		req := e.Request(key, owner, ttl)
		req.Holder = of
		return req
	}
	shown := func(key, when string, holder backend.Holder) {
		recordsShown(e, look, key, func(what string, rec backend.Record) {
			if !tellsOf(e, rec.Holder, holder) {
				e.Failf(key, "%s %s shows the holder %s; expected %s", what, when, inFull(rec.Holder), inFull(holder))
			}
		})
		_, err := look.Try(e.Request(key, "", e.Long))
		if held := (*backend.HeldError)(nil); errors.As(err, &held) && !tellsOf(e, held.Holder, holder) {
			e.Failf(key, "a refusal %s shows the holder %s; expected %s", when, inFull(held.Holder), inFull(holder))
		}
	}
	follows := func(next backend.Holder) {
		name := "told"
		if next == (backend.Holder{}) {
			name = "untold"
		}
		key := e.Key("released, %s", name)
		e.MustGiveBack(a.MustTry(ask(key, "", former, e.Long)), key, "")
		b.MustTry(ask(key, "", next, e.Long))
		shown(key, "after its holder had released it to another", next)
		if f, ok := backend.As[backend.ForceReleaser](a.Backend); ok && engine.ClaimTokens.Made(e.Settings) {
			key := e.Key("forced, %s", name)
			h := a.MustTry(ask(key, "", former, e.Long))
			if err := h.EndedBy(e, func() error { return f.ForceRelease(e.Ctx, key, h.Token) }); err != nil {
				e.UnexpectedFatal(key, err, "ForceRelease with the token of the holder returned %s; expected no error", engine.Outcome(err))
			}
			b.MustTry(ask(key, "", next, e.Long))
			shown(key, "after the hold before it was removed by force", next)
		}
		if ho, ok := backend.As[backend.HandOverer](a.Backend); ok {
			key := e.Key("handed over, %s", name)
			_, err := a.HandOver(ho, a.MustTry(ask(key, "", former, e.Long)), ask(key, "", next, e.Long))
			if err != nil {
				e.UnexpectedFatal(key, err, "HandOver of a hold returned %s; expected a grant", engine.Outcome(err))
			}
			shown(key, "after its holder had handed it over", next)
		}
		if _, ok := backend.As[backend.Queuer](b.Backend); ok {
			key := e.Key("waited for, %s", name)
			h := a.MustTry(ask(key, "", former, e.Long))
			p := enqueueFor(e, b, ask(key, "", next, e.Long)).waiting(e)
			shown(key, "while another waits for it", former)
			e.MustGiveBack(h, key, "")
			p.mustGet(e, "the key was released")
			shown(key, "after it was granted to a place in the queue", next)
			p.withdraw(e)
		}
		if !e.Claimed.EndsWithSession { // which keeps what is not renewed
			key := e.Key("ran out, %s", name)
			e.Expire(a.MustTry(ask(key, "", former, e.TTL)))
			b.MustTry(ask(key, "", next, e.Long))
			shown(key, "after the hold of another had run out", next)
		}
	}
	e.Together(
		func() {
			follows(backend.Holder{Label: "next", Host: "another host", PID: 4712, PairID: "fedcba9876543210"})
		},
		func() { follows(backend.Holder{}) })
	key := e.Key("repeated")
	req := ask(key, "", former, e.Long)
	h := a.MustTry(req)
	repeatIsNotShown(e, look, key, func() { a.MustTry(req) })
	e.MustGiveBack(h, key, "")
	if engine.ClaimServerHolds.Made(e.Settings) {
		key, owner := e.Key("entered by another process"), e.Owner("D")
		a.MustTry(ask(key, owner, former, e.Long))
		again := ask(key, owner, backend.Holder{Label: "inner", Host: "another host", PID: 4712}, e.Long)
		inner := b.MustTry(again)
		shown(key, "after its owner had entered it from another process", former)
		repeatIsNotShown(e, look, key, func() { b.MustTry(again) })
		shown(key, "after the request of its owner's inner hold came once more", former)
		e.MustGiveBack(inner, key, "")
		shown(key, "after its owner had left it there", former)
		if h := innerOnly(e, a, e.Key("outermost ran out")); h != nil {
			shown(h.Key, "after the outermost hold had run out, and its owner holds it by another one", backend.Holder{Label: "outermost"})
			e.MustGiveBack(h, h.Key, "")
		}
	}
}

// repeatIsNotShown compares what is shown before and after a request comes once more.
func repeatIsNotShown(e *engine.Env, look *engine.BackendClient, key string, repeat func()) {
	before := map[string]backend.Holder{}
	recordsShown(e, look, key, func(what string, rec backend.Record) { before[what] = rec.Holder })
	e.Settle() // a beginning that moves has moved by then
	repeat()
	recordsShown(e, look, key, func(what string, rec backend.Record) {
		was := before[what]
		if !rec.Holder.Since.Equal(was.Since) {
			e.Failf(key, "%s shows that the key is held since %s, and showed %s before the same request came once more; expected the time of the outermost grant", what, rec.Holder.Since, was.Since)
		}
		if was.Since = rec.Holder.Since; was != rec.Holder {
			e.Failf(key, "%s shows the holder %s, and showed %s before the same request came once more", what, inFull(rec.Holder), inFull(was))
		}
	})
}
