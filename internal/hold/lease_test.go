package hold

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/call"
)

// granting is a server that grants everything.
type granting struct{}

func (granting) Try(_ context.Context, req backend.Request) (backend.Grant, error) {
	return backend.Grant{Token: 1, Validity: backend.Validity{Sent: backend.SystemClock().Now(), For: req.TTL}}, nil
}
func (granting) Renew(context.Context, backend.Hold) (backend.Validity, error) {
	return backend.Validity{}, backend.ErrUnavailable
}
func (granting) Release(context.Context, backend.Hold) error { return nil }
func (granting) Guarantees() backend.Guarantees {
	return backend.Guarantees{Name: "granting", WithoutRenewal: true}
}
func (granting) Close() error { return nil }

// begin begins a hold on a server that grants everything.
func begin(clock backend.Clock, ttl time.Duration, terms Terms) (*Leases, *Lease) {
	leases, l := NewLeases(call.NewServer(granting{}, clock, slog.New(slog.DiscardHandler))), &Lease{}
	now := clock.Now()
	leases.Begin(l, backend.Hold{Key: "k", TTL: ttl}, backend.Grant{Validity: backend.Validity{Sent: now, For: ttl}}, terms, now)
	return leases, l
}

// TestFirstLookTellsWhileTheTimerIsStillAtIt: the timer has found the hold lost and
// is stopped before it ends the context, as a process may be at any instruction.
func TestFirstLookTellsWhileTheTimerIsStillAtIt(t *testing.T) {
	leases, l := begin(backend.SystemClock(), time.Hour, Terms{})
	require.True(t, leases.Admit(l))
	past := l.c.server.Clock.Now()
	l.c.server.Sched.Lock()
	l.state.deadline = past
	l.c.server.Sched.Unlock()
	l.term.begin(past)
	at, _ := l.term.read()
	require.True(t, l.term.end(at, past))

	assert.Error(t, l.Context().Err())
	assert.ErrorIs(t, context.Cause(l.Context()), backend.ErrExpired)
	endAll([]*Lease{l})
	l.c.expiries.begin()
	l.c.afterExpiry([]*Lease{l})
	assert.ErrorIs(t, context.Cause(l.Context()), backend.ErrExpired)
	leases.EndAll()
	<-leases.server.Calls.Idle()
}

func TestLongestMaximumHoldIsNoLimit(t *testing.T) {
	_, l := begin(backend.SystemClock(), time.Hour, Terms{Renewed: true, Longest: 1<<63 - 1})
	assert.NoError(t, l.Context().Err())
}
