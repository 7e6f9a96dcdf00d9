package lock

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
	"github.com/mortiselock/lock/internal/schedule"
)

// A look at the clock finds the term over that it has read before, and a renewal, which
// was confirmed in time, moves it just then: that one counts.
func TestLookBesideARenewalEndsNothing(t *testing.T) {
	t.Parallel()
	clock := backend.RuntimeClock()
	c := &client{server: call.NewServer(granting{}, clock, slog.New(slog.DiscardHandler))}
	c.expiries = &expiries{clock: clock, armed: schedule.Never, begin: func() {}}
	now := clock.Now()
	hold := backend.Hold{Key: "k", TTL: time.Minute}
	l := c.newLease(hold, backend.Grant{Validity: backend.Validity{Sent: now, For: time.Minute}}, Settings{NoRenewal: true}, now)
	l.expire()
	require.NoError(t, l.ctx.Err())
	_, over := l.term.read()
	require.False(t, over)
}
