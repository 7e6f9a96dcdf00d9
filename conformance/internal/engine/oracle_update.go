package engine

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Updates is the lost-update oracle: a plain counter that is read, left alone
// for a moment and written back, while the caller believes that it holds the
// key. An update that is missing at the end proves that two did so at the same
// time. (The loads and stores are atomic so that the race detector, which cannot
// see an order that a server makes, has nothing to say.)
type Updates struct {
	value   atomic.Int64
	made    atomic.Int64
	doubted atomic.Bool // a lease had run out by the end of its work
}

// Work makes one update under the lease and reports whether the lease was good
// to the end.
func (u *Updates) Work(h *Hold) bool {
	v := u.value.Load()
	runtime.Gosched()
	if v%4 == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	u.value.Store(v + 1)
	u.made.Add(1)
	if h.Lost() || time.Now().After(h.Until()) && !h.renews {
		u.doubted.Store(true)
		return false
	}
	return true
}

// Check fails the case when an update is missing. Updates of leases that ran out
// during the work don't count, since no lock can prevent their loss.
func (u *Updates) Check(e *Env, key string) {
	if made, kept := u.made.Load(), u.value.Load(); made != kept && !u.doubted.Load() {
		e.Failf(key, "%d of %d updates made under the lock were lost: a counter was changed by two holders at the same time", made-kept, made)
	}
}
