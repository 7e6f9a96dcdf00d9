package lock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	memlock "github.com/mortiselock/lock/backend/memory"
)

// TestContentionIsNoNews: what happens all day, to be refused, to wait and to give up,
// is not logged above the level of debugging. A loss is, once, without the owner.
func TestContentionIsNoNews(t *testing.T) {
	personalities(t, func(t *testing.T, store *memlock.Store, open opener) {
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelInfo}))
		logging := func(o *memlock.Options) { o.Lock.Logger = log }
		a, b := open(logging), open(logging)
		ctx := t.Context()
		held, err := a.Acquire(ctx, "k", lock.WithOwner("secret"))
		require.NoError(t, err)
		_, err = b.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, lock.ErrHeld)
		short, cancel := context.WithTimeout(ctx, time.Second)
		_, err = b.Acquire(short, "k")
		cancel()
		require.ErrorIs(t, err, lock.ErrHeld)
		got := make(chan lock.Lease)
		go func() {
			l, err := b.Acquire(ctx, "k")
			assert.NoError(t, err)
			got <- l
		}()
		time.Sleep(time.Minute)
		require.NoError(t, held.Release(ctx))
		next := <-got
		require.NoError(t, next.Release(ctx))
		require.ErrorIs(t, next.Release(ctx), lock.ErrNotHeld)
		synctest.Wait()
		require.Empty(t, text.String())

		held, err = a.Acquire(ctx, "k", lock.WithOwner("secret"))
		require.NoError(t, err)
		store.Remove("k")
		<-held.Context().Done()
		require.ErrorIs(t, cause(held), lock.ErrLost)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(text.String(), "level=WARN"), text.String())
		require.Contains(t, text.String(), "lock lost")
		require.NotContains(t, text.String(), "secret")
	})
}
