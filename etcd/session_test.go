package etcdlock

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestGrantWithoutAnswerIsToldToItsCaller: when the time for a lease of one's own is over,
// the caller learns of it then, and not when its context ends.
func TestGrantWithoutAnswerIsToldToItsCaller(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	b := backendOn(t, clientOf(t, server), nil)
	server.Freeze(t)
	defer server.Resume(t)
	ctx := backendtest.Short(t, time.Minute)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := b.ownSession(ctx, 3*time.Second)
			assert.ErrorIs(t, err, backend.ErrUnavailable)
		})
	}
	wg.Wait()
	require.NoError(t, ctx.Err(), "a caller waited on after the request had ended")
}
