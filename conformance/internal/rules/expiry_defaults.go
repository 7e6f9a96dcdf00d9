package rules

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

const (
	// longestDefault is more than anybody would have others wait for a dead holder who has
	// said nothing.
	longestDefault = 24 * time.Hour
	// watchedDefault is the longest default TTL whose renewals are waited for: a third of it.
	watchedDefault = 40 * time.Second
)

// defaults makes calls without any option, and with one that is nil, which is the same.
func defaults(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	type call struct {
		name string
		get  engine.Getter
		opts []lock.Option
		with string // the options in words
	}
	calls := []call{
		{"TryAcquire", a.Locker.TryAcquire, nil, ""},
		{"Acquire", a.Locker.Acquire, nil, ""},
		{"TryAcquire", a.Locker.TryAcquire, []lock.Option{nil}, ", with an option that is nil"},
		{"Acquire", a.Locker.Acquire, []lock.Option{nil}, ", with an option that is nil"},
		{"Acquire after a wait", afterAWait(a, b), nil, ""},
	}
	for _, k := range optionKinds(e, a) {
		if !k.unrenewed {
			calls = append(calls, call{"TryAcquire", a.Locker.TryAcquire, k.opts, ", with " + k.name}, call{"Acquire", a.Locker.Acquire, k.opts, ", with " + k.name})
		}
	}
	e.Together(func() {
		e.Each(len(calls), func(i int) {
			c, key := calls[i], e.Key("%d", i)
			ctx, cancel := context.WithTimeout(e.Ctx, e.WaitBound())
			defer cancel()
			h, err := a.Get(c.name, c.get, ctx, key, c.opts)
			if err != nil {
				e.UnexpectedFatal(key, err, "%s without a TTL%s, returned %s for a free key; expected a lease", c.name, c.with, engine.Outcome(err))
			}
			keepsByDefault(e, h, "a lease without lock.WithTTL, by "+c.name+c.with, func(why string) {
				for _, who := range []*engine.Client{a, b} {
					again, err := who.Get("TryAcquire", who.Locker.TryAcquire, e.Ctx, key, nil)
					if err == nil {
						e.JudgeRefusal(key, "TryAcquire without an option", why, again.Record, nil)
						panic(engine.Abort{})
					}
					e.JudgeRefusal(key, "TryAcquire without an option", why, nil, err)
				}
			})
			h.MustRelease()
			b.MustTry(key).MustRelease()
		})
	}, func() { endsByDefault(e, a, b) }, func() { renewsByDefault(e, a) })
}

// afterAWait is Acquire of a key that another client holds for a moment.
func afterAWait(a, b *engine.Client) engine.Getter {
	return func(ctx context.Context, key string, opts ...lock.Option) (lease lock.Lease, err error) {
		e, stands := a.Env, b.MustTry(key)
		e.Together(
			func() { lease, err = a.Locker.Acquire(ctx, key, opts...) },
			func() { e.Pause(e.TTL / 4); stands.MustRelease() })
		return lease, err
	}
}

// keepsByDefault looks at a lease of the default TTL, and holds it for longer than that
// where it is short.
func keepsByDefault(e *engine.Env, h *engine.Hold, what string, mustRefuse func(why string)) {
	mustRefuse("it is held, and neither caller has named an owner")
	first, known := h.Lease.Deadline()
	ttl := time.Until(first) // at most what it is
	switch {
	case !known && e.Claimed.Deadline:
		e.Fatalf(h.Key, "Lease.Deadline is unknown, although the guarantees claim it")
	case !known && e.Open != nil:
		return // nothing tells how long the default is
	case e.Open == nil:
		if known && ttl > e.TTL {
			e.Fatalf(h.Key, "%s, lasts for another %s; expected at most the Locker's default of %s", what, ttl, e.TTL)
		}
		ttl = e.TTL
	case ttl > longestDefault, e.Claimed.MaxTTL > 0 && ttl > e.Claimed.MaxTTL:
		e.Fatalf(h.Key, "%s, lasts for %s; expected a default that ends while others still wait for a holder that has died", what, ttl)
	}
	if ttl > watchedDefault {
		return
	}
	if e.Open != nil && ttl < e.TTL/2 && e.TTL > e.Settings.TTL {
		e.TooSlowf(h.Key, "requests were so slow that a TTL of %s was tried, and the default of the Locker is %s", e.TTL, engine.Short(ttl))
	}
	if known && !e.Declared("RenewKeeps", "renewal") {
		for end := time.Now().Add(ttl * 3 / 4); !h.Until().After(first); e.Pause(min(ttl/20, time.Second/4)) {
			h.MustLive("it is renewed automatically by default")
			if time.Now().After(end) {
				e.LateFatalf(h.Key, "the deadline of %s, has not moved from %s; expected it to be renewed automatically", what, engine.Seconds(e.Log.At(first)))
			}
		}
	}
	if ttl > 2*e.TTL {
		return
	}
	for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); e.Pause(ttl / 8) {
		h.MustLive("it is renewed automatically by default, as " + what)
		mustRefuse("its holder keeps it by automatic renewal, which is the default; it is " + what)
	}
}

// renewsByDefault renews leases of the default TTL by hand, which is that of the Locker.
func renewsByDefault(e *engine.Env, a *engine.Client) {
	if e.Open != nil || !e.Claimed.ManualRenewal {
		return // nothing tells how long the default is
	}
	for name, more := range map[string][]lock.Option{"": nil, ", which is not renewed otherwise,": unrenewed(e)} {
		h, err := a.Get("TryAcquire", a.Locker.TryAcquire, e.Ctx, e.Key("renewed by hand%s", name), more)
		if err != nil {
			continue // the other cases say so
		}
		err = h.Renew()
		d, known := h.Lease.Deadline()
		if left := time.Until(d); err == nil && known && left > e.TTL && !h.Lost() {
			e.Failf(h.Key, "a lease without lock.WithTTL%s lasts for another %s after a Renew by hand; expected at most the Locker's default of %s", name, engine.Short(left), e.TTL)
		}
		_ = h.Release(e.Ctx)
	}
}

// endsByDefault leaves a lease of the default TTL to run out.
func endsByDefault(e *engine.Env, a, b *engine.Client) {
	if !e.Claimed.WithoutRenewal {
		return
	}
	key := e.Key("unrenewed")
	h, err := a.Get("TryAcquire", a.Locker.TryAcquire, e.Ctx, key, []lock.Option{lock.WithoutRenewal()})
	if err != nil {
		e.UnexpectedFatal(key, err, "TryAcquire without lock.WithTTL returned %s for a free key; expected a lease", engine.Outcome(err))
	}
	ttl := e.TTL
	if e.Open != nil { // whose default is its own affair
		d, known := h.Lease.Deadline()
		if ttl = d.Sub(e.Log.Base.Add(h.Invoked)); !known || ttl > 2*e.TTL {
			h.MustRelease()
			return
		}
	}
	h.Lapses()
	next := b.Wins(key, e.TakeoverLimit(ttl), ttl/20, "its holder did not renew it, and the default TTL is "+ttl.String())
	_ = next.Release(e.Ctx)
}
