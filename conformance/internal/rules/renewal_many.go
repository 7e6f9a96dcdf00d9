package rules

import (
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// manyLeases holds more leases at a time than a pool of workers or a batch has places.
func manyLeases(e *engine.Env) {
	n := 24
	if !e.Says || e.Claimed.Expiry == backend.ClockConnection {
		n = keysPerClient // each may take a connection
	}
	if e.OpenBackend != nil && e.Claimed.Reach == backend.ReachProcess {
		n = 120 // which costs nothing there
	}
	a, seen := e.Watched()
	b := e.Locker()
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
			e.Latef(h.Key, "Release of one of %d leases that renew themselves returned %s; expected no error", n, engine.Outcome(err))
		}
	})
	e.Notef("%d leases", n)
}
