package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var errorRules = []*engine.Rule{
	{
		Name:      "ErrorsAreTyped",
		Statement: "Held, not held, invalid, context and closed errors are told apart with errors.Is.",
		Run:       errorsAreTyped,
	},
	{
		Name:      "HeldDetails",
		Statement: "A refusal names the key, the holder's label and the remaining time.",
		Claims:    []engine.Claim{engine.ClaimDetails},
		Run:       heldDetails,
	},
	{
		Name:      "NoSecretsInErrors",
		Statement: "No error of any call contains an owner, which is a secret.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       noSecretsInErrors,
	},
	{
		Name:      "NoSecretsInLeases",
		Statement: "A lease or a Locker that is printed or logged shows no owner.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       noSecretsInLeases,
	},
	{
		Name:      "LeaseConcurrent",
		Statement: "The methods of a lease may be called from many goroutines at once.",
		Run:       leaseConcurrent,
	},
}

// errorKinds are the errors that mean different things to a caller.
var errorKinds = []error{
	lock.ErrHeld, lock.ErrNotHeld, lock.ErrOutcomeUnknown, lock.ErrUnavailable, lock.ErrPermanent,
	lock.ErrInvalid, lock.ErrUnsupported, lock.ErrClosed, lock.ErrReleased, context.Canceled, context.DeadlineExceeded,
}

// only fails the case unless the error matches these kinds and no others.
func only(e *engine.Env, key, what string, err error, kinds ...error) {
	if err == nil {
		e.Failf(key, "%s returned no error; expected one that matches %s", what, engine.ErrorName(kinds[0]))
		return
	}
	e.Is(key, err, what, kinds...)
	not(e, key, err, what, slices.DeleteFunc(slices.Clone(errorKinds), func(k error) bool { return slices.Contains(kinds, k) })...)
}

// not fails the case if the error matches one of these kinds.
func not(e *engine.Env, key string, err error, what string, kinds ...error) {
	for _, k := range kinds {
		if errors.Is(err, k) {
			e.Unexpected(key, err, "%s returned %s; it must not match %s", what, engine.Outcome(err), engine.ErrorName(k))
		}
	}
}

func errorsAreTyped(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := e.Key("a")
	h := a.MustTry(key)
	_, err := b.Try(key)
	only(e, key, "TryAcquire on a held key", err, lock.ErrHeld)
	for what, cancelled := range map[string]bool{"Acquire whose context ran out": false, "Acquire whose context was cancelled": true} {
		if !waitsEnd(e) {
			break
		}
		ctxErr, err := b.GivesUp(key, cancelled, new(engine.Lateness))
		e.Is(key, err, what, ctxErr, lock.ErrHeld)
		// A request that was under way when the context ended may add that its
		// outcome is unknown.
		not(e, key, err, what, lock.ErrNotHeld, lock.ErrPermanent, lock.ErrInvalid, lock.ErrUnsupported, lock.ErrClosed)
	}
	_, err = b.Try("")
	only(e, "", "TryAcquire of the empty key", err, lock.ErrInvalid)
	h.MustRelease()
	err = h.Release(e.Ctx)
	if !errors.Is(err, lock.ErrNotHeld) {
		e.Unexpected(key, err, "Release of a released lease returned %s; expected ErrNotHeld", engine.Outcome(err))
	}
	if errors.Is(err, lock.ErrLost) {
		e.Unexpected(key, err, "Release of a released lease returned %s; a lease that was released was not lost", engine.Outcome(err))
	}
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
			e.Unexpected(key, err, "Renew of a released lease returned %s; expected ErrNotHeld, and no loss", engine.Outcome(err))
		}
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	_, err = b.TryFor(ended, key, e.Long)
	only(e, key, "TryAcquire with a cancelled context", err, context.Canceled)
	_ = b.Close()
	_, err = b.Try(key)
	only(e, key, "TryAcquire on a closed Locker", err, lock.ErrClosed)
}

// ownerToHide has characters that are written otherwise in URLs and in quotes.
func ownerToHide(e *engine.Env) string { return `p4ss "w0rd"/é+` + e.Owner("A") }

// noSecretsInErrors has every call of a Locker and of a lease fail in the ways that it can.
func noSecretsInErrors(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	secret := ownerToHide(e)
	owner := lock.WithOwner(secret)
	key := e.Key("a")
	check := func(what string, err error) {
		if err == nil {
			return
		}
		// All ways in which an error may be printed.
		text := fmt.Sprintf("%v %+v %#v %q", err, err, err, err)
		if shows(text, secret) {
			e.Failf(key, "the error of %s contains the owner, which is a secret in whatever encoding", what)
		}
	}
	failsToGet := func(c *engine.Client, key, when string, more ...lock.Option) {
		got, err := c.Try(key, more...)
		check("TryAcquire "+when, err)
		if err == nil {
			_ = got.Release(e.Ctx)
		}
		ctx, cancel := context.WithTimeout(e.Ctx, 30*time.Millisecond)
		defer cancel()
		got, err = c.Acquire(ctx, key, more...)
		check("Acquire "+when, err)
		if err == nil {
			_ = got.Release(e.Ctx)
		}
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()

	h := a.MustTry(key, owner)
	failsToGet(b, key, "on a key that the owner holds")
	failsToGet(b, key, "by another owner", lock.WithOwner("another owner"))
	_, err := a.Try(key, owner, lock.WithTTL(-1))
	check("TryAcquire with a bad TTL", err)
	_, err = a.Try(key, owner, lock.WithMaxHold(-1))
	check("TryAcquire with a bad maximum", err)
	_, err = a.Try(key, owner, lock.WithLabel("\x00"))
	check("TryAcquire with a bad label", err)
	_, err = a.Try("", owner)
	check("TryAcquire of a bad key", err)
	_, err = a.TryFor(ended, key, e.Long, owner)
	check("TryAcquire with a context that has ended", err)
	_, err = a.Acquire(ended, key, owner)
	check("Acquire with a context that has ended", err)
	check("Renew with a context that has ended", h.Lease.Renew(ended))
	noSecretsOfTheLimit(e, a, owner, failsToGet)
	h.MustRelease()
	check("Release of a released lease", h.Release(e.Ctx))
	check("Release of a released lease, with a context that has ended", h.Lease.Release(ended))
	check("Renew of a released lease", h.Renew())
	check("context.Cause", h.Cause())

	other := b.Soon(key, "its owner has released it")
	failsToGet(a, key, "by the owner on a held key", owner)
	eachKind(e, append(optionKinds(e, a), optionPairs(e, a)...), func(k kind) {
		failsToGet(a, key, "by the owner on a held key, for a lease with "+k.name, append(slices.Clone(k.opts), owner)...)
	})
	other.MustRelease()
	e.Together(
		func() { noSecretsOfTheLost(e, a, owner, check) },
		func() { noSecretsOfTheEnded(e, a, owner, check) },
		func() { noSecretsOfTheCutOff(e, owner, check) })

	h = a.MustTry(e.Key("closed"), owner)
	check("Close", a.Close())
	failsToGet(a, key, "on a closed Locker", owner)
	check("Release after Close", h.Release(e.Ctx))
	check("Renew after Close", h.Renew())
	check("context.Cause after Close", h.Cause())
}

// noSecretsOfTheLimit asks for one hold more than an owner may have.
func noSecretsOfTheLimit(e *engine.Env, a *engine.Client, owner lock.Option, failsToGet func(c *engine.Client, key, when string, more ...lock.Option)) {
	key := e.Key("limit")
	holds := make([]*engine.Hold, backend.MaxHolds)
	e.EachFew(len(holds), func(i int) { holds[i] = a.MustTry(key, owner) })
	failsToGet(a, key, "of an owner with the largest number of holds", owner)
	e.EachFew(len(holds), func(i int) { holds[i].MustRelease() })
}

// noSecretsOfTheLost looks at the errors of a lease that has run out.
func noSecretsOfTheLost(e *engine.Env, a *engine.Client, owner lock.Option, check func(string, error)) {
	if !e.Claimed.WithoutRenewal {
		return
	}
	h := a.MustTryFor(e.Key("lost"), e.TTL, owner, lock.WithoutRenewal())
	awaitLapse(e, h)
	check("Renew of a lost lease", h.Renew())
	check("Release of a lost lease", h.Release(e.Ctx))
	check("context.Cause of a lost lease", h.Cause())
}

// noSecretsOfTheEnded looks at the errors of leases that ended by their maximum, and by the
// removal of their records.
func noSecretsOfTheEnded(e *engine.Env, a *engine.Client, owner lock.Option, check func(string, error)) {
	ended := func(h *engine.Hold, how string) {
		h.Lapses()
		if !e.Within(e.TTL+e.Slack(), h.Lease.Context().Done()) {
			return // which is for other rules
		}
		check("Renew of a lease that ended by "+how, h.Renew())
		check("context.Cause of a lease that ended by "+how, h.Cause())
		check("Release of a lease that ended by "+how, h.Release(e.Ctx))
	}
	h, err := a.TryFor(e.Ctx, e.Key("maximum"), e.TTL, owner, lock.WithMaxHold(e.TTL/8))
	check("TryAcquire with a maximum hold", err)
	if err == nil {
		ended(h, "its maximum")
	}
	if e.Remove != nil && e.Claimed.LossSignal {
		key := e.Key("removed")
		h := a.MustTryFor(key, e.TTL, owner)
		e.RemoveByForce(key)
		ended(h, "the removal of its record")
	}
}

// noSecretsOfTheCutOff looks at the errors of Lockers whose answers are lost, and of those
// that do not reach their server.
func noSecretsOfTheCutOff(e *engine.Env, owner lock.Option, check func(string, error)) {
	type trouble struct {
		c           *engine.Client
		when        string
		begin, heal func()
	}
	var troubles []trouble
	if e.OpenBackend != nil {
		for when, fault := range map[string]faultlock.Fault{"without a server": faultlock.FailBefore(), "without an answer": faultlock.FailAfter()} {
			c, f := e.FaultyWhole()
			troubles = append(troubles, trouble{c: c, when: when, begin: func() { f.All(fault) }, heal: f.Heal})
		}
	}
	if e.Proxy != nil {
		for when, begin := range map[string]func(*engine.Network){"on a network that is down": (*engine.Network).Down, "on a network that loses answers": (*engine.Network).Deaf} {
			c, n := e.Behind(e.Key("cut-off"))
			troubles = append(troubles, trouble{c: c, when: when, begin: func() { begin(n) }, heal: n.Heal})
		}
	}
	e.Each(len(troubles), func(i int) {
		tr, c := troubles[i], troubles[i].c
		key := e.Key("cut-off-%d", i)
		h := c.MustTry(key, owner)
		h.Lapses()
		briefly := func(f func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(e.Ctx, 100*time.Millisecond)
			defer cancel()
			return f(ctx)
		}
		get := func(get engine.Getter, key string) error {
			return briefly(func(ctx context.Context) error {
				lease, err := get(ctx, key, e.Opts(e.TTL, owner)...)
				return takenAndReleased(lease, err)
			})
		}
		tr.begin()
		check("TryAcquire "+tr.when, get(c.Locker.TryAcquire, e.Key("unreachable-%d", i)))
		check("Acquire "+tr.when, get(c.Locker.Acquire, e.Key("unreachable-%d", i)))
		check("TryAcquire of a held key "+tr.when, get(c.Locker.TryAcquire, key))
		check("Renew "+tr.when, briefly(h.Lease.Renew))
		check("Release "+tr.when, briefly(h.Lease.Release))
		check("context.Cause "+tr.when, h.Cause())
		check("Close "+tr.when, c.Close())
		check("Release after Close "+tr.when, briefly(h.Lease.Release))
		tr.heal()
	})
}

// noSecretsInLeases prints a lease in every way, also while it is renewed if it says how
// it is printed: with the race detector on, a look at what a renewal writes is found too.
func noSecretsInLeases(e *engine.Env) {
	a := e.Locker()
	secret := ownerToHide(e)
	key := e.Key("a")
	h := a.MustTry(key, lock.WithOwner(secret))
	var printed sync.Map
	check := func() {
		for i, what := range []any{h.Lease, h.Lease.Context()} {
			var out bytes.Buffer
			verbs := printing
			if i == 1 {
				verbs = verbs[:5] // the others read what the contexts of the standard library write
			}
			prints(&out, what, verbs)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("", "lease", what)
			if text, err := json.Marshal(what); err == nil {
				out.Write(text)
			}
			shown := shows(out.String(), secret)
			if _, before := printed.LoadOrStore(shown, true); shown && !before {
				e.Failf(key, "a lease or its context that is printed shows its owner")
			}
		}
	}
	// Without a Format of its own a lease is printed field by field, and what it guards by
	// a mutex or changes atomically is read as it is.
	if _, formats := h.Lease.(fmt.Formatter); formats {
		e.Each(4, func(i int) {
			for range 50 {
				if i == 0 && e.Claimed.ManualRenewal {
					_ = h.Renew()
				}
				check()
			}
		})
	}
	check()
	noSecretsInLocker(e, a, key, secret)
	h.MustRelease()
	check()
	_ = a.Close()
	check()
	noSecretsInLocker(e, a, key, secret)
}

// printing are the verbs that a thing may be printed with, and those first that [fmt.Stringer] is
// asked for.
var printing = []string{"%v", "%+v", "%s", "%q", "%x", "%#v", "%d"}

// prints writes the thing as fmt and a log of text do.
func prints(out *bytes.Buffer, what any, verbs []string) {
	for _, verb := range verbs {
		fmt.Fprintf(out, verb, what)
	}
	slog.New(slog.NewTextHandler(out, nil)).Info("", "printed", what)
}

// noSecretsInLocker prints the Locker of an owner's lease, if it says how it is printed: any other
// is printed field by field, with what its goroutines change.
func noSecretsInLocker(e *engine.Env, c *engine.Client, key, secret string) {
	verbs := printing[:5]
	switch c.Locker.(type) {
	case fmt.Formatter:
		verbs = printing
	case fmt.Stringer:
	default:
		return
	}
	var out bytes.Buffer
	prints(&out, c.Locker, verbs)
	if shows(out.String(), secret) {
		e.Failf(key, "a Locker that is printed shows the owner of a lease")
	}
}

func leaseConcurrent(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	for round := range e.Rounds(e.Work(200*time.Millisecond), 3, 30) {
		key := e.Key("%d", round)
		h := a.MustTry(key)
		if e.Claimed.ManualRenewal {
			before := h.Until()
			e.Each(16, func(int) {
				switch err := h.Renew(); {
				case err == nil:
				case time.Now().After(before):
					e.TooSlowf(key, "the lease ran out between renewals")
				default:
					e.Unexpected(key, err, "Renew beside other renewals of the lease returned %s; expected no error", engine.Outcome(err))
				}
			})
		}
		var released atomic.Int64
		e.Each(16, func(i int) {
			for n := range 20 {
				switch (i + n) % 6 {
				case 0:
					if h.Lease.Key() != key {
						e.Failf(key, "Lease.Key is %q; expected %q", h.Lease.Key(), key)
					}
				case 1:
					if h.Lease.Token() != h.Token {
						e.Failf(key, "the token changed from %d to %d", h.Token, h.Lease.Token())
					}
				case 2:
					h.Lease.Deadline()
				case 3:
					_ = context.Cause(h.Lease.Context())
					_, _ = h.Lease.Context().Deadline()
				case 4:
					err := h.Renew()
					if err != nil && e.Claimed.ManualRenewal && !errors.Is(err, lock.ErrNotHeld) {
						e.Unexpected(key, err, "Renew beside other calls returned %s; expected no error, or ErrNotHeld once the lease was released", engine.Outcome(err))
					}
				case 5:
					if n < 15 {
						continue
					}
					if err := h.Release(e.Ctx); err == nil {
						released.Add(1)
					} else if !errors.Is(err, lock.ErrNotHeld) {
						e.Unexpected(key, err, "Release beside other calls returned %s; expected no error, or ErrNotHeld for all but one", engine.Outcome(err))
					}
				}
			}
		})
		if released.Load() == 0 {
			e.Latef(key, "none of many simultaneous releases succeeded")
		}
		if !h.Lost() {
			e.Failf(key, "the lease's context is alive after its release")
		}
		b.MustTry(key).MustRelease()
	}
}
