package lock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// granting is a server that grants everything.
type granting struct{}

func (granting) Try(_ context.Context, req backend.Request) (backend.Grant, error) {
	return backend.Grant{Token: 1, Validity: backend.Validity{Sent: backend.SystemClock().Now(), For: req.TTL}}, nil
}
func (granting) Renew(context.Context, backend.Hold) (backend.Validity, error) {
	return backend.Validity{}, ErrUnavailable
}
func (granting) Release(context.Context, backend.Hold) error { return nil }
func (granting) Guarantees() backend.Guarantees {
	return backend.Guarantees{Name: "granting", WithoutRenewal: true}
}
func (granting) Close() error { return nil }

// TestFirstLookTellsWhileTheTimerIsStillAtIt: the timer has found the hold lost and
// is stopped before it ends the context, as a process may be at any instruction.
func TestFirstLookTellsWhileTheTimerIsStillAtIt(t *testing.T) {
	locker, err := New(granting{}, nil)
	require.NoError(t, err)
	held, err := locker.TryAcquire(t.Context(), "k", WithTTL(time.Hour), WithoutRenewal())
	require.NoError(t, err)
	l := held.(*lease)
	past := l.c.server.Clock.Now()
	l.c.server.Sched.Lock()
	l.state.deadline = past
	l.c.server.Sched.Unlock()
	l.term.begin(past)
	at, _ := l.term.read()
	require.True(t, l.term.end(at))

	assert.Error(t, held.Context().Err())
	assert.ErrorIs(t, context.Cause(held.Context()), ErrExpired)
	endAll([]*lease{l})
	l.c.expiries.begin()
	l.c.afterExpiry([]*lease{l})
	assert.ErrorIs(t, context.Cause(held.Context()), ErrExpired)
	require.NoError(t, locker.Close())
}

func TestLongestMaximumHoldIsNoLimit(t *testing.T) {
	locker, err := New(granting{}, nil)
	require.NoError(t, err)
	held, err := locker.TryAcquire(t.Context(), "k", WithTTL(time.Hour), WithMaxHold(1<<63-1))
	require.NoError(t, err)
	assert.NoError(t, held.Context().Err())
	require.NoError(t, locker.Close())
}
