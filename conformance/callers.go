package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

// cancelHarmsNobody has callers of one Locker use it side by side, each on keys of
// its own, so that nothing but the Locker and its connections is between them; now and
// then two meet at one key. The contexts of half of them end at any moment.
func cancelHarmsNobody(e *env) {
	c := e.locker()
	// On a fast lock it takes many tries until two callers meet at the wrong moment.
	least, most := e.rounds(100*time.Millisecond, 20, 40), 400
	end := time.Now().Add(e.window())
	var tries, hurry atomic.Int64
	over := make(chan struct{})
	patient := func(i int) func() {
		return func() {
			for j := 0; j < least || j < most && time.Now().Before(end); j++ {
				tries.Add(1)
				hurry.Store(100)
				if j%4 == 3 && !e.meet(c, e.key("shared-%d-%d", i, j)) {
					return
				}
				key := e.key("patient-%d-%d", i, j)
				h, err := c.try(key)
				if err != nil {
					e.unexpected(key, err, "TryAcquire of a free key, on a context that goes on, returned %s while the contexts of other callers ended; expected a lease", outcome(err))
					return
				}
				if err := h.release(e.ctx); err != nil {
					e.unexpected(key, err, "Release, on a context that goes on, returned %s while the contexts of other callers ended; expected success", outcome(err))
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
					e.pause(time.Millisecond)
					continue
				}
				e.leaveEarly(c, e.key("hasty-%d-%d", i, j), j%2 == 0)
			}
		}
	}
	var patients, others []func()
	for i := range 2 {
		patients, others = append(patients, patient(i)), append(others, hasty(i))
	}
	wait := e.start(others...)
	defer func() { close(over); wait() }()
	e.together(patients...)
	e.notef("%d acquisitions beside callers whose contexts ended", tries.Load())
}

// meet has two callers try one key at the same time, one of whom leaves: the other is
// granted the key or refused it.
func (e *env) meet(c *client, key string) bool {
	ok := true
	e.together(func() { e.leaveEarly(c, key, true) }, func() {
		h, err := c.try(key)
		switch {
		case err == nil:
			_ = h.release(e.ctx)
		case !errors.Is(err, lock.ErrHeld):
			e.unexpected(key, err, "TryAcquire, on a context that goes on, returned %s while the context of another caller for the key ended; expected a lease or ErrHeld", outcome(err))
			ok = false
		}
	})
	return ok
}

// leaveEarly makes an acquisition whose context ends soon, by a deadline or by a
// cancellation.
func (e *env) leaveEarly(c *client, key string, deadline bool) {
	life := e.randomly(3 * time.Millisecond)
	ctx, cancel := context.WithTimeout(e.ctx, life)
	if !deadline {
		cancel()
		ctx, cancel = context.WithCancel(e.ctx)
		defer time.AfterFunc(life, cancel).Stop()
	}
	defer cancel()
	if h, err := c.tryFor(ctx, key, e.long); err == nil {
		_ = h.release(e.ctx)
	}
}
