package wire

import "time"

// Micros rounds up to microseconds. It adds nothing to the duration, which may be the largest that
// there is.
func Micros(d time.Duration) int64 {
	n := d.Microseconds()
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}
