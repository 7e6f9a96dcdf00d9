package rules

import (
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// kind is what a lease may be besides plain.
type kind struct {
	name  string
	opts  []lock.Option
	owned bool
}

// kinds are those that the lock has, the plain one first. What is promised of a lease holds for each of them.
func kinds(e *engine.Env) []kind {
	all := []kind{{name: "plain"}}
	add := func(name string, owned bool, opts ...lock.Option) { all = append(all, kind{name, opts, owned}) }
	distant := lock.WithMaxHold(100 * e.Long)
	add("a maximum hold", false, distant)
	if e.Claimed.HolderDetails {
		add("a label", false, lock.WithLabel("kind"))
	}
	if oneOwner(e) != nil {
		add("an owner", true, oneOwner(e)...)
		if e.Claimed.HolderDetails {
			add("an owner, a label and a maximum hold", true, append(oneOwner(e), distant, lock.WithLabel("kind"))...)
		}
	}
	return all
}

// oneOwner is nil where no lease has an owner.
func oneOwner(e *engine.Env) []lock.Option {
	if !engine.ClaimReentrancy.Made(e.Settings) {
		return nil
	}
	return []lock.Option{lock.WithOwner(e.Owner("A"))}
}

// eachKind runs the case for each of the kinds, at the same time.
func eachKind(e *engine.Env, kinds []kind, f func(k kind)) {
	e.Each(len(kinds), func(i int) { f(kinds[i]) })
}

// take takes a free key, and reports false where the lock has no such leases.
func (k kind) take(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*engine.Hold, bool) {
	h, err := c.TryFor(c.Env.Ctx, key, ttl, append(more, k.opts...)...)
	if errors.Is(err, lock.ErrUnsupported) && len(k.opts) > 0 {
		return nil, false
	}
	if err != nil {
		c.Env.UnexpectedFatal(key, err, "TryAcquire of a free key, for a lease with %s, returned %s; expected a lease", k.name, engine.Outcome(err))
	}
	return h, true
}
