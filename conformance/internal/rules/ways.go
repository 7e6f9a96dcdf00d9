package rules

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// ways are how a lease comes about. An option means the same in each of them.
var ways = []way{{"TryAcquire", byTry}, {"Acquire", byAcquire}, {"Acquire after a wait", byWaiting}}

// everyWay has besides what a Locker may do in a way of its own: hand over to its own waiter.
var everyWay = append(slices.Clone(ways), way{"Acquire behind the same Locker", byHandOver})

// waysToWait are those of Acquire.
var waysToWait = everyWay[1:]

type way struct {
	name string
	get  func(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*acquired, error)
}

// acquired is a lease that was acquired in one of the ways.
type acquired struct {
	*engine.Hold
	since time.Duration // when it can have been granted at the earliest, since the case began
}

// eachWay runs the case for each of the ways, at the same time.
func eachWay(e *engine.Env, ways []way, f func(w way)) {
	e.Each(len(ways), func(i int) { f(ways[i]) })
}

// within is how an owner enters who has taken the key in this way: without a wait.
func (w way) within() way {
	if w.name == ways[0].name {
		return w
	}
	return ways[1]
}

// waits reports whether somebody else holds the key first.
func (w way) waits() bool {
	return w.name != ways[0].name && w.name != ways[1].name
}

// untold reports that the holder who was to hand over could not be released, so that this way
// tells nothing; the others do.
func (w way) untold(err error) bool {
	return errors.Is(err, lock.ErrOutcomeUnknown) && w.name == everyWay[3].name
}

// mustGet takes a key that nobody else wants.
func (w way) mustGet(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) *acquired {
	h, _ := w.take(c, key, ttl, more...)
	return h
}

// take is mustGet, and reports false where the way tells nothing.
func (w way) take(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*acquired, bool) {
	h, err := w.get(c, key, ttl, more...)
	if w.untold(err) {
		return nil, false
	}
	if err != nil {
		c.Env.UnexpectedFatal(key, err, "%s returned %s; expected a lease", w.name, engine.Outcome(err))
	}
	return h, true
}

func byTry(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*acquired, error) {
	h, err := c.TryFor(c.Env.Ctx, key, ttl, more...)
	if err != nil {
		return nil, err
	}
	return &acquired{h, h.Invoked}, nil
}

// byTryOfOne ends the context of the call when that has returned.
func byTryOfOne(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*acquired, error) {
	ctx, cancel := context.WithCancel(c.Env.Ctx)
	defer cancel()
	h, err := c.TryFor(ctx, key, ttl, more...)
	if err != nil {
		return nil, err
	}
	return &acquired{h, h.Invoked}, nil
}

func byAcquire(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*acquired, error) {
	ctx, cancel := context.WithTimeout(c.Env.Ctx, c.Env.WaitBound())
	defer cancel()
	h, err := c.AcquireFor(ctx, key, ttl, more...)
	if err != nil {
		return nil, err
	}
	return &acquired{h, h.Invoked}, nil
}

// byWaiting has another client hold the key for a TTL of the run first.
func byWaiting(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*acquired, error) {
	e := c.Env
	stands := e.Locker().MustTry(key)
	a := c.AcquiringFor(key, ttl, more...)
	<-a.Begun // a wait is as long as it is for its caller
	if e.Within(e.TTL, a.Done) {
		if a.Err == nil {
			e.JudgeRefusal(key, "Acquire", "another client holds it", a.Hold.Record, nil)
			panic(engine.Abort{})
		}
		_ = stands.Release(e.Ctx)
		return nil, a.Err
	}
	since := e.Log.Now()
	stands.MustRelease()
	return &acquired{a.MustGet(e, key, e.WaitBound(), "its holder has released it"), since}, nil
}

// byHandOver has the same client hold the key for that long first, which may hand it over.
func byHandOver(c *engine.Client, key string, ttl time.Duration, more ...lock.Option) (*acquired, error) {
	e := c.Env
	stands := c.MustTry(key)
	a := c.AcquiringFor(key, ttl, more...)
	<-a.Begun
	if e.Within(e.TTL, a.Done) {
		if a.Err == nil {
			e.JudgeRefusal(key, "Acquire", "another caller of its Locker holds it", a.Hold.Record, nil)
			panic(engine.Abort{})
		}
		_ = stands.Release(e.Ctx)
		return nil, a.Err
	}
	since := e.Log.Now()
	if err := stands.Release(e.Ctx); err != nil {
		a.Cancel()
		if a.Wait(); a.Err == nil {
			_ = a.Hold.Release(e.Ctx)
		}
		return nil, err
	}
	return &acquired{a.MustGet(e, key, e.WaitBound(), "its holder, the same Locker, has released it"), since}, nil
}
