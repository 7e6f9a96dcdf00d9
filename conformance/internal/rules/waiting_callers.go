package rules

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// cancelHarmsNobody has callers of one Locker use it side by side, each on keys of
// its own, so that nothing but the Locker and its connections is between them; now and
// then two meet at one key. The contexts of half of them end at any moment.
func cancelHarmsNobody(e *engine.Env) {
	c := e.Locker()
	// On a fast lock it takes many tries until two callers meet at the wrong moment.
	least, most := e.Rounds(e.Work(100*time.Millisecond), 20, 40), 400
	end := time.Now().Add(e.Window())
	var tries, hurry atomic.Int64
	over := make(chan struct{})
	patient := func(i int) func() {
		return func() {
			for j := 0; j < least || j < most && time.Now().Before(end); j++ {
				tries.Add(1)
				hurry.Store(100)
				if j%4 == 3 && !meet(e, c, e.Key("shared-%d-%d", i, j)) {
					return
				}
				key := e.Key("patient-%d-%d", i, j)
				h, err := c.Try(key)
				if err != nil {
					e.Unexpected(key, err, "TryAcquire of a free key, on a context that goes on, returned %s while the contexts of other callers ended; expected a lease", engine.Outcome(err))
					return
				}
				if err := h.Release(e.Ctx); err != nil {
					e.Unexpected(key, err, "Release, on a context that goes on, returned %s while the contexts of other callers ended; expected success", engine.Outcome(err))
					return
				}
			}
		}
	}
	hasty := func(i int) func() {
		return func() {
			for j := 0; ; j++ {
				select {
				case <-over:
					return
				default:
				}
				// While the server stands still, those who don't wait for it would flood it.
				if hurry.Add(-1) < 0 {
					e.Pause(time.Millisecond)
					continue
				}
				leaveEarly(e, c, e.Key("hasty-%d-%d", i, j), j%2 == 0)
			}
		}
	}
	var patients, others []func()
	for i := range 2 {
		patients, others = append(patients, patient(i)), append(others, hasty(i))
	}
	wait := e.Start(others...)
	defer func() { close(over); wait() }()
	e.Together(append(patients, func() { meetOnTheWay(e) })...)
	e.Notef("%d acquisitions beside callers whose contexts ended", tries.Load())
}

// meet has two callers try one key at the same time, one of whom leaves: the other is
// granted the key or refused it.
func meet(e *engine.Env, c *engine.Client, key string) bool {
	ok := true
	e.Together(func() { leaveEarly(e, c, key, true) }, func() {
		e.Pause(e.Randomly(time.Millisecond)) // mostly behind the other, who may take both along
		h, err := c.Try(key)
		switch {
		case err == nil:
			_ = h.Release(e.Ctx)
		case !errors.Is(err, lock.ErrHeld):
			e.Unexpected(key, err, "TryAcquire, on a context that goes on, returned %s while the context of another caller for the key ended; expected a lease or ErrHeld", engine.Outcome(err))
			ok = false
		}
	})
	return ok
}

// meetOnTheWay has two calls for one key be under way at the same time, of which the context of the
// first ends. Requests take a while for that: in one process they hardly ever meet.
func meetOnTheWay(e *engine.Env) {
	if e.OpenBackend == nil {
		return
	}
	takes := min(150*time.Millisecond, e.TTL/4)
	c, f := e.FaultyWhole()
	defer f.Heal()
	// both returns the error of the second call.
	both := func(key string, op faultlock.Op, call func(ctx context.Context) error) error {
		f.All(faultlock.DelayBefore(takes), op)
		defer f.Heal()
		ctx, leave := context.WithCancel(e.Ctx)
		defer leave()
		before := engine.Requests(f, key, op)
		wait := e.Start(func() { _ = call(ctx) })
		for end := time.Now().Add(e.Slack()); engine.Requests(f, key, op) == before && time.Now().Before(end); {
			e.Pause(time.Millisecond)
		}
		time.AfterFunc(takes/3, leave)
		err := call(e.Ctx)
		wait()
		return err
	}
	key := e.Key("on the way")
	get := func(ctx context.Context) error {
		// Without options, which might keep the two apart.
		h, err := c.Get("TryAcquire", c.Locker.TryAcquire, ctx, key, nil)
		if err == nil {
			_ = h.Release(e.Ctx)
		}
		return err
	}
	if err := both(key, faultlock.OpTry, get); err != nil && !errors.Is(err, lock.ErrHeld) {
		e.Unexpected(key, err, "TryAcquire, on a context that goes on, returned %s when the context of an earlier call for the key ended, with both under way; expected a lease or ErrHeld", engine.Outcome(err))
	}
	if !e.Claimed.ManualRenewal {
		return
	}
	h := c.MustTry(e.Key("renewed on the way"))
	if err := both(h.Key, faultlock.OpRenew, h.Lease.Renew); err != nil {
		e.Unexpected(h.Key, err, "Renew, on a context that goes on, returned %s when the context of an earlier Renew of the lease ended, with both under way; expected no error", engine.Outcome(err))
	}
	h.MustRelease()
}

// leaveEarly makes an acquisition whose context ends soon, by a deadline or by a
// cancellation.
func leaveEarly(e *engine.Env, c *engine.Client, key string, deadline bool) {
	life := e.Randomly(3 * time.Millisecond)
	ctx, cancel := context.WithTimeout(e.Ctx, life)
	if !deadline {
		cancel()
		ctx, cancel = context.WithCancel(e.Ctx)
		defer time.AfterFunc(life, cancel).Stop()
	}
	defer cancel()
	if h, err := c.TryFor(ctx, key, e.Long); err == nil {
		_ = h.Release(e.Ctx)
	}
}
