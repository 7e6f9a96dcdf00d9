package backend

import (
	"math"
	"time"
)

// Instant is a reading of a [Clock]: nanoseconds since a start that only that
// clock knows; it may be negative. Only the difference of two readings of the same clock in the
// same process has a meaning.
type Instant int64

// Add returns the instant d later, or the last instant there is.
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	switch {
	case d > 0 && sum < i:
		return math.MaxInt64
	case d < 0 && sum > i:
		return math.MinInt64
	}
	return sum
}

// Sub returns how long after j the instant i is, or the longest duration there is.
func (i Instant) Sub(j Instant) time.Duration {
	diff := i - j
	switch {
	case i > j && diff < 0:
		return math.MaxInt64
	case i < j && diff > 0:
		return math.MinInt64
	}
	return time.Duration(diff)
}

// Before reports whether i is earlier than j.
func (i Instant) Before(j Instant) bool { return i < j }

// Clock measures the life of leases. It never goes back, and its steps are no longer than a
// millisecond.
type Clock interface {
	Now() Instant
}

var base = time.Now()

// SystemClock returns the clock that leases on servers are measured with. It
// counts the time for which the machine was suspended: on Linux it is CLOCK_MONOTONIC
// (which stops in suspend) and what CLOCK_BOOTTIME (which does not) is ahead of it,
// looked at about once in 100 microseconds; elsewhere the monotonic time and every leap of the wall clock
// ahead of it. A wall clock set forward ends leases early there, rather than late,
// and one set back changes nothing.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() Instant { return suspendAware() }

// RuntimeClock returns the clock of the Go runtime (time.Now's monotonic
// reading). It does not count suspend. Inside a testing/synctest bubble it is
// virtual, which is its use: leases in the memory of one process.
func RuntimeClock() Clock { return runtimeClock{} }

type runtimeClock struct{}

func (runtimeClock) Now() Instant { return Instant(time.Since(base)) }
