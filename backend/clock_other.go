//go:build !linux

package backend

import "time"

var wallBase = time.Now().Round(0)

func suspendAware() Instant { return Instant(time.Now().Round(0).Sub(wallBase)) }
