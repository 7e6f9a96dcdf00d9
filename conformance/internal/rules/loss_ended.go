package rules

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// endedLeases are leases that have ended and were released, whose Locker is closed later.
type endedLeases struct {
	mu  sync.Mutex
	all []endedLease
}

type endedLease struct {
	*engine.Hold
	cause error
}

func (l *endedLeases) add(h *engine.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, endedLease{h, h.Cause()})
}

// outliveClose closes their Locker, which changes nothing about them.
func (l *endedLeases) outliveClose(e *engine.Env, c *engine.Client, what string) {
	_ = c.Close()
	if e.Declared("CloseEndsHolds", "close") {
		return // it closes something else
	}
	ended, cancel := context.WithCancel(e.Ctx)
	cancel()
	what = ", after the Close of its Locker, of " + what
	e.Each(len(l.all), func(i int) {
		h := l.all[i]
		if now := h.Cause(); now != h.cause && h.cause != nil {
			e.Failf(h.Key, "context.Cause%s is %s, and was %s before; expected the same", what, engine.Outcome(now), engine.Outcome(h.cause))
		}
		if d, known := h.Lease.Deadline(); known && d.After(time.Now()) {
			e.Failf(h.Key, "the deadline%s is in the future", what)
		}
		if h.Lease.Key() != h.Key || h.Lease.Token() != h.Token {
			e.Failf(h.Key, "key and token%s are %s and %d; expected %s and %d, as before", what, engine.QuoteKey(h.Lease.Key()), h.Lease.Token(), engine.QuoteKey(h.Key), h.Token)
		}
		for _, ctx := range []context.Context{e.Ctx, ended} {
			e.Is(h.Key, h.Release(ctx), "another Release"+what, lock.ErrNotHeld)
			if e.Claimed.ManualRenewal {
				e.Is(h.Key, h.Lease.Renew(ctx), "Renew"+what, lock.ErrNotHeld)
			}
		}
	})
}
