package reentry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// oneHold has one key, and answers renewals a second after they were carried out.
type oneHold struct {
	backend.Backend
	holder backend.ID
}

func (o *oneHold) Try(_ context.Context, req backend.Request) (backend.Grant, error) {
	if !o.holder.IsZero() {
		return backend.Grant{}, backend.ErrHeld
	}
	o.holder = req.ID
	return backend.Grant{Token: 1, Holds: 1, Validity: o.valid(req.TTL)}, nil
}

func (o *oneHold) Renew(_ context.Context, h backend.Hold) (backend.Validity, error) {
	if o.holder != h.ID {
		return backend.Validity{}, backend.ErrNotHeld
	}
	v := o.valid(h.TTL)
	time.Sleep(time.Second)
	return v, nil
}

func (o *oneHold) Release(_ context.Context, h backend.Hold) error {
	if o.holder != h.ID {
		return backend.ErrNotHeld
	}
	o.holder = backend.ID{}
	return nil
}

func (o *oneHold) valid(ttl time.Duration) backend.Validity {
	return backend.Validity{Sent: backend.RuntimeClock().Now(), For: backend.ValidFor(ttl)}
}

// A renewal waits behind the release of its own hold, which must not come to life
// again, neither when it has the turn nor when another renews for it.
func TestRenewalBehindTheReleaseOfItsHold(t *testing.T) {
	for name, order := range map[string][]int{"has the turn": {1, 2}, "renewed by another": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				r := New(ctx, &oneHold{}, backend.RuntimeClock())
				r.NotifyLoss(func(backend.ID, error) {})
				var holds []backend.Hold
				for range 3 {
					req := backend.Request{Key: "k", ID: backend.NewID(), Owner: "me", TTL: time.Minute}
					g, err := r.Try(ctx, req)
					require.NoError(t, err)
					hold := backend.HoldOf(req)
					hold.Token = g.Token
					holds = append(holds, hold)
				}
				go func() { _, _ = r.Renew(ctx, holds[0]) }()
				synctest.Wait()
				go func() { _ = r.Release(ctx, holds[1]) }()
				synctest.Wait()
				answers := [3]error{}
				for _, i := range order {
					go func() { _, answers[i] = r.Renew(ctx, holds[i]) }()
					synctest.Wait()
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				require.ErrorIs(t, answers[1], backend.ErrNotHeld)
				require.NoError(t, answers[2])
				require.NoError(t, r.Release(ctx, holds[0]))
				require.NoError(t, r.Release(ctx, holds[2]))
				_, err := r.Try(ctx, backend.Request{Key: "k", ID: backend.NewID(), TTL: time.Minute})
				require.NoError(t, err, "a hold that was released is counted")
			})
		})
	}
}
