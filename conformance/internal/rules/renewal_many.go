package rules

import (
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// manyLeases holds more leases at a time than a pool of workers or a batch has places.
func manyLeases(e *engine.Env) {
	n := manyAtOnce(e)
	a, seen := e.Watched()
	b := e.Locker()
	owned := e.Start(func() { manyOfOneOwner(e, a, b) })
	holds, oftenEnough := make([]*engine.Hold, n), make([]func(), n)
	e.Each(n, func(i int) {
		holds[i] = a.MustTryFor(e.Key("%d", i), e.TTL)
		oftenEnough[i] = countRenewals(e, seen, holds[i])
	})
	for end := time.Now().Add(e.TTL * 5 / 2); time.Now().Before(end); e.Pause(e.TTL / 8) {
		for _, h := range holds {
			h.MustLive("it is renewed automatically, like the others of its Locker")
		}
	}
	e.Each(n, func(i int) {
		h := holds[i]
		oftenEnough[i]()
		b.MustRefuse(h.Key, "its holder keeps it by automatic renewal")
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(h.Key, err, "Release of one of %d leases that renew themselves returned %s; expected no error", n, engine.Outcome(err))
		}
	})
	owned()
	e.Notef("%d leases", n)
}

// manyAtOnce is how many leases a Locker can have at the same time, at little cost.
func manyAtOnce(e *engine.Env) int {
	switch {
	case e.Claimed.Reach == backend.ReachProcess && e.Says:
		return 300
	case !e.Says || e.Claimed.Expiry == backend.ClockConnection:
		return keysPerClient // each may take a connection
	default:
		return 48
	}
}

// manyOfOneOwner has an owner enter a key more often than a handful, and leave it one by one.
func manyOfOneOwner(e *engine.Env, a, b *engine.Client) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	key := e.Key("entered")
	holds := make([]*engine.Hold, 24)
	for i := range holds {
		holds[i] = a.MustTryFor(key, e.TTL, owner...)
	}
	for end := time.Now().Add(e.TTL * 5 / 2); time.Now().Before(end); e.Pause(e.TTL / 8) {
		for _, h := range holds {
			h.MustLive("it is renewed automatically, like the others of its owner")
		}
	}
	for _, h := range holds {
		b.MustRefuse(key, "some of the holds of its owner are left, which are renewed automatically")
		if err := h.Release(e.Ctx); err != nil {
			e.UnexpectedLate(key, err, "Release of one of %d holds of an owner, which renew themselves, returned %s; expected no error", len(holds), engine.Outcome(err))
		}
	}
	b.MustTry(key).MustRelease()
}
