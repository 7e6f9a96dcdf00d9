package hold

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// batching is a backend that is not asked.
type batching struct{ backend.Backend }

func (batching) Guarantees() backend.Guarantees { return backend.Guarantees{} }

func (batching) RenewBatch(context.Context, []backend.Hold) []backend.Renewal { return nil }

// Renewals that wait to be sent while more become due are looked at once: with many leases on
// a busy machine all of them would be, again and again.
func TestBatchesAreFilledOnce(t *testing.T) {
	clock := backend.RuntimeClock()
	c := NewLeases(call.NewServer(batching{}, clock, slog.New(slog.DiscardHandler)))
	const ttl = time.Hour // so that nothing is due by itself
	now := clock.Now()
	lease := func(in time.Duration) *Lease {
		l := &Lease{}
		c.Begin(l, backend.Hold{ID: backend.NewID(), TTL: ttl}, backend.Grant{Validity: backend.Validity{Sent: now, For: ttl}}, Terms{Renewed: true}, now)
		l.state.renewAt = now.Add(in)
		return l
	}
	s := c.server.Sched
	s.Lock()
	defer s.Unlock()
	soonDue := func() { l := lease(ttl / 200); s.Set((*renewals)(l), l.state.renewal()) }

	assert.NotNil(t, c.renewSoon(lease(0)), "the first has them sent")
	soonDue()
	c.takeAlong(now)
	assert.Len(t, c.dueRenewals, 2)
	soonDue()
	c.takeAlong(now)
	assert.Len(t, c.dueRenewals, 2, "no renewal has become due since")
	assert.Nil(t, c.renewSoon(lease(0)))
	c.takeAlong(now)
	assert.Len(t, c.dueRenewals, 4, "one has")
}
