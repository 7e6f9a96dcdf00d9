package redlock

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// silentUntil is a node that is silent for a while.
type silentUntil struct {
	healed   time.Time
	timeout  time.Duration
	answered atomic.Bool
}

func (s *silentUntil) do(_ context.Context, calls []*call) {
	silent := time.Until(s.healed)
	time.Sleep(min(max(silent, 0), s.timeout))
	if silent <= s.timeout {
		s.answered.Store(true)
		return
	}
	for _, c := range calls {
		c.err = os.ErrDeadlineExceeded
	}
}

// A node that was silent for a quarter of the TTL is asked again at once, whenever its silence
// began: else all nodes together cost a lease that could be renewed.
func TestShortSilenceIsNotFollowedByALongRest(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	for phase := time.Duration(0); phase < ttl/4; phase += ttl / 100 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			healed := time.Now().Add(ttl/4 - phase)
			s := &silentUntil{healed: healed, timeout: nodeTimeoutFor(ttl)}
			n := &node{server: s, clock: backend.RuntimeClock(), ctx: ctx, timeout: s.timeout, wake: make(chan struct{})}
			for !s.answered.Load() {
				n.send(&call{}, n.clock.Now())
				time.Sleep(ttl / 100)
			}
			require.LessOrEqual(t, time.Since(healed), ttl/10, "asked %s after the silence began", phase)
		})
	}
}
