package lock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// What is printed in any way shows no owner and no acquisition id.
func TestPrintingShowsNoSecret(t *testing.T) {
	t.Parallel()
	const owner = "s3cret-owner"
	id := backend.NewID()
	l, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	lease, err := l.TryAcquire(t.Context(), "k", lock.WithOwner(owner), lock.WithTTL(30*time.Millisecond))
	require.NoError(t, err)
	var inDo context.Context
	require.NoError(t, lock.Do(t.Context(), l, "k2", func(ctx context.Context, _ lock.Lease) error {
		inDo = ctx
		return nil
	}, lock.WithOwner(owner)))
	set, err := lock.ResolveOptions(lock.WithOwner(owner))
	require.NoError(t, err)
	req := backend.Request{Key: "k", ID: id, Owner: owner}
	hold := backend.HoldOf(req)
	for name, what := range map[string]any{
		"a lease": lease, "its context": lease.Context(), "the context of Do": inDo, "a Locker": l, "settings": set, "their address": &set,
		"a request": req, "its address": &req, "a hold": hold, "its address ": &hold, "in a slice": []any{lease, req, hold, set},
	} {
		for range 200 { // while it is renewed
			var out bytes.Buffer
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				fmt.Fprintf(&out, verb, what)
			}
			slog.New(slog.NewTextHandler(&out, nil)).Info("m", "x", what)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "x", what)
			text, err := json.Marshal(what)
			require.NoError(t, err, name)
			out.Write(text)
			for _, secret := range []string{owner, fmt.Sprintf("%x", owner), id.Hex()} {
				require.NotContains(t, out.String(), secret, name)
			}
		}
	}
	assert.Equal(t, fmt.Sprintf(`lease of "k" with the token %d`, lease.Token()), fmt.Sprint(lease))
	assert.Equal(t, "Locker on memory", fmt.Sprintf("%+v", l))
	require.NoError(t, l.Close())
}

// told counts the records and events that come after Close.
type told struct {
	slog.Handler
	closed *atomic.Bool
	late   *atomic.Int64
}

func (h told) Enabled(context.Context, slog.Level) bool { return true }
func (h told) Handle(context.Context, slog.Record) error {
	if h.closed.Load() {
		h.late.Add(1)
	}
	return nil
}

func TestNobodyIsToldAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			var closed atomic.Bool
			var late, events atomic.Int64
			l, err := memlock.New(t.Context(), &memlock.Options{Store: memlock.NewStore(nil), Lock: lock.Options{
				Observer: func(_ context.Context, e lock.Event) {
					time.Sleep(time.Millisecond)
					if e.Kind == lock.EventReleased {
						events.Add(1)
					}
					if closed.Load() {
						late.Add(1)
					}
				},
				Logger: slog.New(told{slog.DiscardHandler, &closed, &late}),
			}})
			require.NoError(t, err)
			var leases []lock.Lease
			for i := range 50 {
				lease, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
				require.NoError(t, err)
				leases = append(leases, lease)
			}
			for _, lease := range leases[:10] {
				go lease.Release(t.Context())
			}
			require.NoError(t, l.Close())
			closed.Store(true)
			assert.GreaterOrEqual(t, events.Load(), int64(40), "the ends by Close are told before it returns")
			for _, lease := range leases {
				_ = lease.Release(t.Context())
			}
			time.Sleep(time.Minute)
			assert.Zero(t, late.Load())
		}
	})
}
