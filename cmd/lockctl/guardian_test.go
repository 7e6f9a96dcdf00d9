package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// lateReleases answers releases when the hold has run out.
type lateReleases struct{ backend.Backend }

func (b lateReleases) Release(ctx context.Context, hold backend.Hold) error {
	time.Sleep(hold.TTL)
	return b.Backend.Release(ctx, hold)
}

// A server that is slow has answered: it is not away.
func TestSlowIsNotAway(t *testing.T) {
	t.Parallel()
	b, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	g := &guardian{b: lateReleases{b}, keys: "alive/"}
	require.NoError(t, g.ask())
	require.NoError(t, b.Close())
}
