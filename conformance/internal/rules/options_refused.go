package rules

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// refuseOption asks with an option that must be refused with one of the errors, by
// TryAcquire and by Acquire, and returns the refusals of the two.
func refuseOption(e *engine.Env, what string, option lock.Option, or ...error) map[string]error {
	c, seen := e.Watched()
	refusals := map[string]error{}
	for op, get := range map[string]engine.Getter{"TryAcquire": c.Locker.TryAcquire, "Acquire": c.Locker.Acquire} {
		key := e.Key("%s-%s", what, op)
		ctx, cancel := context.WithTimeout(e.Ctx, e.WaitBound())
		h, err := c.Get(op, get, ctx, key, append(e.Opts(e.Long), option))
		cancel()
		if err == nil {
			_ = h.Release(e.Ctx)
			names := make([]string, len(or))
			for i, x := range or {
				names[i] = engine.ErrorName(x)
			}
			e.Failf(key, "%s accepted %s; expected %s", op, what, strings.Join(names, " or "))
			continue
		}
		refusals[op] = err
		if seen != nil {
			if n := engine.Requests(seen, key, engine.OpsToGet...) + engine.Requests(seen, key, faultlock.OpWatch); n > 0 {
				e.Failf(key, "%s with %s has sent %d requests; expected it to be refused before anything is sent", op, what, n)
			}
		}
		if !slices.ContainsFunc(or, func(x error) bool { return errors.Is(err, x) }) {
			e.Is(key, err, op+" with "+what, or[0])
		}
	}
	refusedWhileHeld(e, c, what, option, or)
	return refusals
}

// refusedWhileHeld asks with the option for a key that its Locker holds. Nobody waits to be told
// what waiting does not cure. A nil option beside it changes nothing.
func refusedWhileHeld(e *engine.Env, c *engine.Client, what string, option lock.Option, or []error) {
	key := e.Key("%s-held", what)
	h := c.MustTry(key)
	judge := func(err error, what string) {
		if !slices.ContainsFunc(or, func(x error) bool { return errors.Is(err, x) }) {
			e.Is(key, err, what, or[0])
		}
	}
	if asks := c.Acquiring(key, option); !e.Within(e.Slack(), asks.Done) {
		e.Overduef(key, "Acquire with %s, of a key that its Locker holds, had not returned after %s; expected %s at once", what, e.Slack(), engine.ErrorName(or[0]))
		asks.Cancel()
	} else {
		judge(asks.Err, "Acquire with "+what+", of a key that is held,")
	}
	_, err := c.Try(key, nil, option)
	judge(err, "TryAcquire with an option that is nil and then "+what+", of a key that is held,")
	_, err = c.Try(key, option, nil)
	judge(err, "TryAcquire with "+what+" and then an option that is nil, of a key that is held,")
	h.MustRelease()
}

func unsupportedIsRefused(e *engine.Env) {
	tested := false
	refused := func(what string, option lock.Option) {
		tested = true
		refuseOption(e, what, option, lock.ErrUnsupported)
	}
	// A lock that says nothing about itself is not contradicted here.
	if stated := e.Says || e.Guarantees != nil; !stated {
		e.Skipf("the lock does not state its guarantees")
	}
	if !e.Claimed.WithoutRenewal {
		refused("WithoutRenewal, although the guarantees don't claim it", lock.WithoutRenewal())
	}
	if !engine.ClaimReentrancy.Made(e.Settings) {
		refused("an owner, although the guarantees claim no re-entry", lock.WithOwner(e.Owner("A")))
	}
	if !e.Claimed.ManualRenewal {
		tested = true
		key := e.Key("renew")
		h := e.Locker().MustTry(key)
		if err := h.Renew(); err == nil {
			e.Notef("Renew returned no error, although it is not claimed to work")
		} else {
			e.Is(key, err, "Renew", lock.ErrUnsupported)
		}
		h.MustRelease()
	}
	if !tested {
		e.Skipf("the guarantees exclude nothing that could be asked for")
	}
}
