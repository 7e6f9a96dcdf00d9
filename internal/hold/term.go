package hold

import (
	"math"
	"sync/atomic"

	"github.com/mortiselock/lock/backend"
)

// term is until when a hold lasts, and whether it is over, in one word: who ends a hold
// and who moves its deadline at the same time can't both succeed, and neither waits for
// a mutex. The lowest bit says that it is over; that leaves 146 years for the rest.
type term struct{ word atomic.Int64 }

func word(at backend.Instant, over int64) int64 {
	return int64(min(max(at, math.MinInt64>>1), math.MaxInt64>>1))<<1 | over
}

// read returns until when the hold lasts or lasted, and whether it is over.
func (t *term) read() (at backend.Instant, over bool) {
	w := t.word.Load()
	return backend.Instant(w >> 1), w&1 != 0
}

// begin sets the first term.
func (t *term) begin(at backend.Instant) { t.word.Store(word(at, 0)) }

// move replaces the term, unless it is not the one that was read.
func (t *term) move(from, to backend.Instant) bool {
	return t.word.CompareAndSwap(word(from, 0), word(to, 0))
}

// end says that the hold is over, at now where that is earlier than the term, unless that
// was said before or the term is not the one that was read.
func (t *term) end(at, now backend.Instant) bool {
	return t.word.CompareAndSwap(word(at, 0), word(min(at, now), 1))
}
