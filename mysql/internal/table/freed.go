package table

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// freedKeys remembers keys that this client has freed within the last second, so
// that taking one of them again need not look first. What it forgets or confuses
// costs a round trip and nothing else. No waiter is told of it.
type freedKeys struct {
	slots [4096]struct{ hash, at atomic.Uint64 }
}

var freedSeed = maphash.MakeSeed()

const freedFor = time.Second

func (f *freedKeys) add(key string, at backend.Instant) {
	hash := maphash.String(freedSeed, key)
	slot := &f.slots[hash%uint64(len(f.slots))]
	slot.at.Store(uint64(at))
	slot.hash.Store(hash)
}

// take reports whether the key was freed lately, and forgets it.
func (f *freedKeys) take(key string, at backend.Instant) bool {
	hash := maphash.String(freedSeed, key)
	slot := &f.slots[hash%uint64(len(f.slots))]
	fresh := at.Sub(backend.Instant(slot.at.Load())) < freedFor
	return slot.hash.CompareAndSwap(hash, 0) && fresh
}
