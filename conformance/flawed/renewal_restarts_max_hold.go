package flawed

import (
	"cmp"
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z84 = Lock{
	ID: "Z84", Title: "a maximum hold that each renewal starts anew",
	Summary: "A stuck holder whose watchdog lives keeps the lock for ever.",
	Seen:    "Idle timers taken for a limit; samcook/RedLock.net#68, spinnaker/kork#175.",
	Instead: "One timer, which only the end of the hold stops.",
	File:    "renewal_restarts_max_hold.go", Over: Memory,
	Rule: "MaxHoldEnds",
	Also: []string{"ReleaseEndsRequests", "LostByDeadline", "WithoutRenewalEnds", "ServerOutlivesD", "LossEndsUse"},
	On:   onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker { return restarted{policy{l}} }),
}

// restarted looks at the maximum in the loop that renews, and counts from the last
// renewal.
//
//	A: Acquire("sync", WithTTL(15*time.Second), WithMaxHold(time.Minute)) -> granted
//	A: its worker is stuck; the watchdog renews every 3 s
//	the maximum is a minute away, each time
//
// With a TTL that is much longer than the maximum all is well, since nothing is renewed
// before it. Caught by MaxHoldEnds, which has a lease renewed several times first.
//
// Instead: count from the grant.
type restarted struct{ policy }

// Acquire implements lock.Locker.
func (l restarted) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return limitIdle(opts)(l.policy.Acquire(ctx, key, own(opts)...))
}

// TryAcquire implements lock.Locker.
func (l restarted) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return limitIdle(opts)(l.policy.TryAcquire(ctx, key, own(opts)...))
}

// own is the options without what this lock does itself.
func own(opts []lock.Option) []lock.Option {
	return but(opts, func(s *lock.Settings) { s.MaxHold, s.NoRenewal = 0, s.MaxHold > 0 || s.NoRenewal })
}

func limitIdle(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	set, _ := lock.ResolveOptions(opts...)
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		if err != nil || set.MaxHold == 0 {
			return lease, err
		}
		lease, end := limitable(lease)
		idle := time.AfterFunc(set.MaxHold, end)
		go func() {
			defer idle.Stop()
			for rest(lease.Context(), cmp.Or(set.TTL, TTL)/5) {
				if renewal(lease, cmp.Or(set.TTL, TTL)) == nil {
					idle.Reset(set.MaxHold)
				}
			}
		}()
		return lease, nil
	}
}
