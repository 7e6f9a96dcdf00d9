package redislock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestFairTurmoil(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := redistest.Client(t, server)
	faults := []func(){
		func() { admin.ClientKillByFilter(context.Background(), "TYPE", "pubsub") },
		func() { admin.ScriptFlush(context.Background()) },
	}
	lockers := make([]lock.Locker, 3)
	for i := range lockers {
		p := servertest.Proxy(t, server.Addr())
		l, err := lock.Open(t.Context(), server.URLAt(p.Addr())+"?fair=true", &lock.Options{TTL: 2 * time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		lockers[i] = l
		faults = append(faults, redistest.Disturbing(p)...)
	}
	redistest.Turmoil(t, lockers, faults...)
}
