package rules_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Mutants whose waits are the less attentive the longer the leases are.
var longLeases = map[string]waitMutant{
	"who asks for two minutes or more asks every third of them":   {rule: "WaiterWakes", says: "a TTL of 1h0m0s", change: patientFor(2*time.Minute, time.Hour)},
	"who asks for less than two minutes asks every third of them": {rule: "WaiterWakes", says: "a TTL of 1m0s", change: patientFor(31*time.Second, 2*time.Minute-1)},
	"who waits behind a long TTL asks every third of what remains": {rule: "WaiterWakes", says: "behind a TTL of 1h0m0s", change: alone(func(m *lockerMutant, b backend.Backend) {
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for {
				l, err := m.Client.TryAcquire(ctx, key, opts...)
				if err == nil {
					return l, nil
				}
				var held *lock.HeldError
				if ctx.Err() != nil || !errors.As(err, &held) || held.Remaining < 2*time.Minute {
					return m.Client.Acquire(ctx, key, opts...)
				}
				select {
				case <-ctx.Done():
					return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
				case <-time.After(held.Remaining / 3):
				}
			}
		})
	})},
}

// patientFor has those ask every third of the TTL who wait for a lease with one between the two.
func patientFor(least, most time.Duration) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, b backend.Backend) {
		behind(m, b, func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			if ttl := with(opts).TTL; ttl >= least && ttl <= most {
				return asksEvery(m, ttl/3)(ctx, key, opts...)
			}
			return m.Client.Acquire(ctx, key, opts...)
		})
	})
}

func TestMutantsOfLongLeases(t *testing.T) {
	t.Parallel()
	mustSayAll(t, longLeases)
}
