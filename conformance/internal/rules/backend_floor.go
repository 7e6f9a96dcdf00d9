package rules

import (
	"sync/atomic"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// floorStep is by how much the floor is raised above a token: by more than a store counts
// on in the meantime.
const floorStep = 1 << 22

func raisedFloorCounts(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	raiser := optional[backend.FloorRaiser](a, "FloorRaiser")
	raise := func(above uint64) {
		ev := e.Log.Begin(a.Who, "RaiseFloor", "")
		err := raiser.RaiseFloor(e.Ctx, above)
		e.Log.End(ev, engine.Outcome(err))
		if err != nil {
			e.UnexpectedFatal("", err, "RaiseFloor(%d) returned %s; expected no error", above, engine.Outcome(err))
		}
	}
	used := func(s *engine.BackendClient, key string) uint64 {
		h := s.MustTry(e.Request(key, "", e.Long))
		e.MustGiveBack(h, key, "")
		return h.Token
	}
	key, held := e.Key("used"), e.Key("held")
	used(b, key)
	h := b.MustTry(e.Request(held, "", e.Long))
	above := h.Token + floorStep
	raise(above)
	for who, s := range map[string]*engine.BackendClient{"the one that raised it": a, "one that was opened before": b, "one that was opened after": e.Backend()} {
		for _, k := range []string{key, e.Key("new to %s", s.Who)} {
			if token := used(s, k); token <= above {
				e.Failf(k, "%s, %s, was granted the token %d after RaiseFloor(%d); expected a larger one", s.Who, who, token, above)
			}
		}
	}
	last := used(b, key)
	raise(above - 1)
	if token := used(b, key); token <= last {
		e.Failf(key, "the token %d was granted after %d, when the floor was raised to less than it was; expected a larger one", token, last)
	}
	if in, ok := backend.As[backend.Inspector](a.Backend); ok {
		if rec, err := in.Inspect(e.Ctx, held); err != nil || rec.Token != h.Token {
			e.Failf(held, "Inspect shows the token %d and %s for a hold that was granted with %d before the floor was raised", rec.Token, engine.Outcome(err), h.Token)
		}
	}
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err != nil {
			e.Unexpected(held, err, "Renew of a hold returned %s after the floor was raised; expected no error", engine.Outcome(err))
		}
	}
	e.MustGiveBack(h, held, ", although only the floor of the tokens was raised")
	waitersCountFromRaised(e, raise)
	askWhileRaised(e, above, raise)
}

// waitersCountFromRaised raises the floor while others wait, as the holder does who holds
// another store too, and has each of them be served, and raise it again.
func waitersCountFromRaised(e *engine.Env, raise func(uint64)) {
	key := e.Key("awaited")
	holder := e.Locker().MustTry(key)
	waiters := make([]*engine.Acquiring, 4)
	for i := range waiters {
		waiters[i] = e.Locker().Acquiring(key)
		<-waiters[i].Begun
	}
	e.Pause(e.TTL / 4) // most have their places by then
	served := make(chan *engine.Hold)
	wait := e.Start(func() {
		e.Each(len(waiters), func(i int) {
			h := waiters[i].MustGet(e, key, 2*e.WaitBound(), "it was released")
			served <- h
		})
	})
	last := holder.Token
	for i := range waiters {
		if i != 2 { // who comes after one that did not raise it has the larger token, too
			last += floorStep
			raise(last)
		}
		holder.MustRelease()
		select {
		case holder = <-served:
		case <-e.Ctx.Done():
			panic(engine.Abort{})
		}
		if holder.Token <= last {
			e.Failf(key, "a waiter was granted the token %d after the holder before it had the floor raised to %d; expected a larger one", holder.Token, last)
		}
		last = max(last, holder.Token)
	}
	holder.MustRelease()
	wait()
}

// askWhileRaised acquires a free key while the floor of the tokens moves all the time, as it
// does in a change of stores.
func askWhileRaised(e *engine.Env, above uint64, raise func(uint64)) {
	const times, step = 100, 1 << 10
	c, key := e.Locker(), e.Key("while the floor moves")
	var moved atomic.Uint64
	moved.Store(above)
	begun := make(chan struct{})
	wait := e.Start(func() {
		close(begun)
		for n := uint64(1); n <= times && e.Ctx.Err() == nil; n++ {
			raise(above + n*step)
			moved.Store(above + n*step)
		}
	})
	defer wait()
	<-begun
	for last, n := uint64(0), 0; n < times && moved.Load() < above+times*step; n++ {
		before := moved.Load()
		h := c.MustAcquire(key)
		token := h.Lease.Token()
		if token <= max(before, last) {
			e.Failf(key, "the token %d was granted after %d, when the floor had been raised to %d; expected a larger one", token, last, before)
		}
		last = token
		h.MustRelease()
	}
}
