package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var errorRules = []*rule{
	{
		Name:      "ErrorsAreTyped",
		Statement: "Held, not held, invalid, context and closed errors are told apart with errors.Is, and none of them matches another.",
		run:       errorsAreTyped,
	},
	{
		Name:      "NoSecretsInErrors",
		Statement: "No error contains an owner, which is a secret: whoever knows it walks in.",
		claims:    []claim{claimReentrancy},
		run:       noSecretsInErrors,
	},
	{
		Name:      "NoSecretsInLeases",
		Statement: "A lease that is printed or logged, renewed meanwhile or not, shows no owner.",
		claims:    []claim{claimReentrancy},
		run:       noSecretsInLeases,
	},
	{
		Name:      "LeaseConcurrent",
		Statement: "The methods of a lease may be called from many goroutines at once.",
		run:       leaseConcurrent,
	},
}

// errorKinds are the errors that mean different things to a caller.
var errorKinds = []error{
	lock.ErrHeld, lock.ErrNotHeld, lock.ErrOutcomeUnknown, lock.ErrUnavailable, lock.ErrPermanent,
	lock.ErrInvalid, lock.ErrUnsupported, lock.ErrClosed, lock.ErrReleased, context.Canceled, context.DeadlineExceeded,
}

// only fails the case unless the error matches these kinds and no others.
func (e *env) only(key, what string, err error, kinds ...error) {
	if err == nil {
		e.failf(key, "%s returned no error; expected one that matches %s", what, errorName(kinds[0]))
		return
	}
	e.is(key, err, what, kinds...)
	e.not(key, err, what, slices.DeleteFunc(slices.Clone(errorKinds), func(k error) bool { return slices.Contains(kinds, k) })...)
}

// not fails the case if the error matches one of these kinds.
func (e *env) not(key string, err error, what string, kinds ...error) {
	for _, k := range kinds {
		if errors.Is(err, k) {
			e.unexpected(key, err, "%s returned %s; it must not match %s", what, outcome(err), errorName(k))
		}
	}
}

func errorsAreTyped(e *env) {
	a, b := e.locker(), e.locker()
	key := e.key("a")
	h := a.mustTry(key)
	_, err := b.try(key)
	e.only(key, "TryAcquire on a held key", err, lock.ErrHeld)
	for what, cancelled := range map[string]bool{"Acquire whose context ran out": false, "Acquire whose context was cancelled": true} {
		ctxErr, err := b.givesUp(key, cancelled, new(lateness))
		e.is(key, err, what, ctxErr, lock.ErrHeld)
		// A request that was under way when the context ended may add that its
		// outcome is unknown.
		e.not(key, err, what, lock.ErrNotHeld, lock.ErrPermanent, lock.ErrInvalid, lock.ErrUnsupported, lock.ErrClosed)
	}
	_, err = b.try("")
	e.only("", "TryAcquire of the empty key", err, lock.ErrInvalid)
	h.mustRelease()
	err = h.release(e.ctx)
	if !errors.Is(err, lock.ErrNotHeld) {
		e.unexpected(key, err, "Release of a released lease returned %s; expected ErrNotHeld", outcome(err))
	}
	if errors.Is(err, lock.ErrLost) {
		e.unexpected(key, err, "Release of a released lease returned %s; a lease that was released was not lost", outcome(err))
	}
	if e.g.ManualRenewal {
		if err := h.renew(); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
			e.unexpected(key, err, "Renew of a released lease returned %s; expected ErrNotHeld, and no loss", outcome(err))
		}
	}
	ended, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err = b.tryFor(ended, key, e.long)
	e.only(key, "TryAcquire with a cancelled context", err, context.Canceled)
	_ = b.close()
	_, err = b.try(key)
	e.only(key, "TryAcquire on a closed Locker", err, lock.ErrClosed)
}

func noSecretsInErrors(e *env) {
	a, b := e.locker(), e.locker()
	secret := "p4ssw0rd-" + e.owner("A")
	owner := lock.WithOwner(secret)
	key := e.key("a")
	check := func(what string, err error) {
		// All ways in which an error may be printed.
		if err != nil && strings.Contains(fmt.Sprintf("%v %+v %#v %q", err, err, err, err), secret) {
			e.failf(key, "the error of %s contains the owner", what)
		}
	}
	h := a.mustTry(key, owner)
	_, err := b.try(key)
	check("TryAcquire on a key that the owner holds", err)
	_, err = b.try(key, lock.WithOwner("another owner"))
	check("TryAcquire by another owner", err)
	ctx, cancel := context.WithTimeout(e.ctx, 30*time.Millisecond)
	_, err = b.acquire(ctx, key)
	cancel()
	check("Acquire whose context ran out", err)
	_, err = a.try(key, owner, lock.WithTTL(-1))
	check("TryAcquire with a bad TTL", err)
	h.mustRelease()
	check("Release of a released lease", h.release(e.ctx))
	check("Renew of a released lease", h.renew())
	check("context.Cause", h.cause())
	other := b.soon(key, "its owner has released it")
	_, err = a.try(key, owner)
	check("TryAcquire by the owner on a held key", err)
	ctx, cancel = context.WithTimeout(e.ctx, 30*time.Millisecond)
	_, err = a.acquire(ctx, key, owner)
	cancel()
	check("Acquire by the owner whose context ran out", err)
	other.mustRelease()
	_ = a.close()
	_, err = a.try(key, owner)
	check("TryAcquire on a closed Locker", err)
}

// noSecretsInLeases prints a lease in every way, also while it is renewed if it says how
// it is printed: with the race detector on, a look at what a renewal writes is found too.
func noSecretsInLeases(e *env) {
	a := e.locker()
	secret := "p4ssw0rd-" + e.owner("A")
	key := e.key("a")
	h := a.mustTry(key, lock.WithOwner(secret))
	var printed sync.Map
	check := func() {
		for i, what := range []any{h.lease, h.lease.Context()} {
			var out bytes.Buffer
			verbs := []string{"%v", "%+v", "%s", "%q", "%x", "%#v", "%d"}
			if i == 1 {
				verbs = verbs[:5] // the others read what the contexts of the standard library write
			}
			for _, verb := range verbs {
				fmt.Fprintf(&out, verb, what)
			}
			slog.New(slog.NewTextHandler(&out, nil)).Info("", "lease", what)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("", "lease", what)
			if text, err := json.Marshal(what); err == nil {
				out.Write(text)
			}
			shown := strings.Contains(out.String(), secret) || strings.Contains(out.String(), fmt.Sprintf("%x", secret))
			if _, before := printed.LoadOrStore(shown, true); shown && !before {
				e.failf(key, "a lease or its context that is printed shows its owner")
			}
		}
	}
	// Without a Format of its own a lease is printed field by field, and what it guards by
	// a mutex or changes atomically is read as it is.
	if _, formats := h.lease.(fmt.Formatter); formats {
		e.each(4, func(i int) {
			for range 50 {
				if i == 0 && e.g.ManualRenewal {
					_ = h.renew()
				}
				check()
			}
		})
	}
	check()
	h.mustRelease()
	check()
	_ = a.close()
	check()
}

func leaseConcurrent(e *env) {
	a, b := e.locker(), e.locker()
	for round := range e.rounds(200*time.Millisecond, 3, 30) {
		key := e.key("%d", round)
		h := a.mustTry(key)
		if e.g.ManualRenewal {
			before := h.until()
			e.each(16, func(int) {
				switch err := h.renew(); {
				case err == nil:
				case time.Now().After(before):
					e.tooSlowf(key, "the lease ran out between renewals")
				default:
					e.unexpected(key, err, "Renew beside other renewals of the lease returned %s; expected no error", outcome(err))
				}
			})
		}
		var released atomic.Int64
		e.each(16, func(i int) {
			for n := range 20 {
				switch (i + n) % 6 {
				case 0:
					if h.lease.Key() != key {
						e.failf(key, "Lease.Key is %q; expected %q", h.lease.Key(), key)
					}
				case 1:
					if h.lease.Token() != h.token {
						e.failf(key, "the token changed from %d to %d", h.token, h.lease.Token())
					}
				case 2:
					h.lease.Deadline()
				case 3:
					_ = context.Cause(h.lease.Context())
					_, _ = h.lease.Context().Deadline()
				case 4:
					err := h.renew()
					if err != nil && e.g.ManualRenewal && !errors.Is(err, lock.ErrNotHeld) {
						e.unexpected(key, err, "Renew beside other calls returned %s; expected no error, or ErrNotHeld once the lease was released", outcome(err))
					}
				case 5:
					if n < 15 {
						continue
					}
					if err := h.release(e.ctx); err == nil {
						released.Add(1)
					} else if !errors.Is(err, lock.ErrNotHeld) {
						e.unexpected(key, err, "Release beside other calls returned %s; expected no error, or ErrNotHeld for all but one", outcome(err))
					}
				}
			}
		})
		if released.Load() == 0 {
			e.latef(key, "none of many simultaneous releases succeeded")
		}
		if !h.lost() {
			e.failf(key, "the lease's context is alive after its release")
		}
		b.mustTry(key).mustRelease()
	}
}
