package rules

import (
	"errors"
	"slices"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// kind is what a lease may be besides plain.
type kind struct {
	name      string
	opts      []lock.Option
	owned     bool
	unrenewed bool
	waited    bool // another client holds the key first
	handed    bool // the same Locker holds the key first, and may hand it over
	second    bool // its owner held the key already, and that hold was released since
}

var plain = kind{name: "no option"}

// kinds are those that the lock has, the plain one first. What is promised of a lease holds for each of them.
func kinds(e *engine.Env) []kind {
	all := []kind{plain, {name: "a wait before it", waited: true}, {name: "a wait behind its own Locker before it", handed: true}}
	add := func(name string, owned bool, opts ...lock.Option) {
		all = append(all, kind{name: name, opts: opts, owned: owned})
	}
	distant := lock.WithMaxHold(100 * e.Long)
	add("a maximum hold", false, distant)
	if e.Claimed.HolderDetails {
		add("a label", false, lock.WithLabel("kind"))
	}
	if oneOwner(e) != nil {
		add("an owner", true, oneOwner(e)...)
		all = append(all, kind{name: "an owner who had held the key before it", opts: oneOwner(e), second: true},
			kind{name: "an owner, and a wait before it", opts: oneOwner(e), waited: true})
		if e.Claimed.HolderDetails {
			add("an owner, a label and a maximum hold", true, append(oneOwner(e), distant, lock.WithLabel("kind"))...)
		}
	}
	return all
}

// pairs are what two of the kinds make together: where time costs nothing, since they are many.
func pairs(e *engine.Env) (both []kind) {
	if !e.Virtual() {
		return nil
	}
	all := kindsAndUnrenewed(e)
	for i, k := range all {
		both = append(both, k.with(all[i+1:])...)
	}
	return both
}

// with is what the kind makes together with each of the others.
func (k kind) with(others []kind) (both []kind) {
	for _, other := range others {
		if k.comes() && other.comes() || k.hasOwner() && other.hasOwner() {
			continue
		}
		pair := kind{
			name: k.name + ", and " + other.name, opts: slices.Concat(k.opts, other.opts), unrenewed: k.unrenewed || other.unrenewed,
			waited: k.waited || other.waited, handed: k.handed || other.handed, second: k.second || other.second,
		}
		pair.owned = (k.owned || other.owned) && !pair.comes()
		both = append(both, pair)
	}
	return both
}

// comes reports whether the kind comes about in a way of its own.
func (k kind) comes() bool { return k.waited || k.handed || k.second }

func (k kind) hasOwner() bool {
	s, err := lock.ResolveOptions(k.opts...)
	return err == nil && s.Owner != ""
}

// kindsAndUnrenewed are all but the plain one, and one that does not renew itself.
func kindsAndUnrenewed(e *engine.Env) []kind {
	all := kinds(e)[1:]
	if e.Claimed.WithoutRenewal {
		all = append(all, kind{name: "no renewal", opts: unrenewed(e), unrenewed: true})
	}
	return all
}

// renewedPairs are those of the pairs that renew themselves.
func renewedPairs(e *engine.Env) []kind {
	return slices.DeleteFunc(pairs(e), func(k kind) bool { return k.unrenewed })
}

// optionKinds are those that differ by their options alone, as far as the lock has them.
func optionKinds(e *engine.Env, c *engine.Client) []kind {
	return haveOptions(e, c, kindsAndUnrenewed(e))
}

// optionPairs are optionKinds of the pairs.
func optionPairs(e *engine.Env, c *engine.Client) []kind { return haveOptions(e, c, pairs(e)) }

// haveOptions are those of the kinds that differ by their options alone, as far as the lock has them.
func haveOptions(e *engine.Env, c *engine.Client, of []kind) (all []kind) {
	for _, k := range of {
		if len(k.opts) == 0 || k.comes() {
			continue
		}
		if h, ok := k.take(c, e.Key("%s-probes-%s", c.Who, k.name), e.Long); ok {
			h.MustRelease()
			all = append(all, k)
		}
	}
	return all
}

// policyTried reports that the Locker is the root package's, over a backend of which each
// request costs something: what does not depend on the backend is tried in memory.
func policyTried(e *engine.Env) bool {
	return e.OpenBackend != nil && e.Claimed.Reach != backend.ReachProcess && !e.Unhurried()
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

// eachLease takes a lease in each of the ways, one of each kind, and one that does not renew
// itself, and runs the case for all of them at the same time.
func eachLease(e *engine.Env, c *engine.Client, of string, f func(h *engine.Hold)) {
	e.Together(
		func() { eachWay(e, ways, func(w way) { f(w.mustGet(c, e.Key("%s-%s", of, w.name), e.Long).Hold) }) },
		func() {
			eachKind(e, append(kindsAndUnrenewed(e), pairs(e)...), func(k kind) {
				if h, ok := k.take(c, e.Key("%s-with-%s", of, k.name), e.Long); ok {
					f(h)
				}
			})
		})
}

// take takes a free key, and reports false where the lock has no such leases, or their way tells
// nothing.
func (k kind) take(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*engine.Hold, bool) {
	return k.takeBy(k.way(), c, key, ttl, more...)
}

// way is how leases of the kind come about.
func (k kind) way() way {
	switch {
	case k.waited:
		return ways[2]
	case k.handed:
		return everyWay[3]
	}
	return ways[0]
}

func (k kind) takeBy(w way, c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*engine.Hold, bool) {
	opts := append(slices.Clone(more), k.opts...)
	var outer *acquired
	lacks := func(w way, err error) bool {
		return errors.Is(err, lock.ErrUnsupported) && len(k.opts) > 0 || w.untold(err)
	}
	if k.second {
		var err error
		if outer, err = w.get(c, key, ttl, opts...); lacks(w, err) {
			return nil, false
		} else if err != nil {
			c.Env.UnexpectedFatal(key, err, "%s of a key that nobody else wants, for a lease with %s to be entered, returned %s; expected a lease", w.name, k.name, engine.Outcome(err))
		}
		w = w.within()
	}
	h, err := w.get(c, key, ttl, opts...)
	if lacks(w, err) {
		return nil, false
	}
	if err != nil {
		c.Env.UnexpectedFatal(key, err, "%s of a key that nobody else wants, for a lease with %s, returned %s; expected a lease", w.name, k.name, engine.Outcome(err))
	}
	if outer != nil {
		outer.MustRelease()
	}
	return h.Hold, true
}
