//go:build !linux

package backend

import "time"

var (
	wallBase = base.Round(0)
	wallTime wallLeaps
)

func suspendAware() Instant {
	return wallTime.now(func() (mono, wall time.Duration) {
		t := time.Now()
		return t.Sub(base), t.Round(0).Sub(wallBase)
	})
}
