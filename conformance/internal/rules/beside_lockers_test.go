package rules_test

import (
	"context"
	"sync"
	"testing"

	"github.com/mortiselock/lock/backend"
)

// Mutants of Lockers that are right with one lease and one call, and wrong beside an earlier
// lease, another Locker, or a call that hangs.

// oldCallStops has a call of a lease that has ended stop the renewals of the next one of its key.
func oldCallStops(release, renew bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		var stopped sync.Map
		newest(func(l *leaseMutant, newer func() *leaseMutant) {
			stop := func(does bool) {
				if next := newer(); does && next != nil && l.Lease.Context().Err() != nil {
					stopped.Store(next, true)
				}
			}
			l.release = func(ctx context.Context) error {
				stop(release)
				return l.Lease.Release(ctx)
			}
			l.renew = func(ctx context.Context) error {
				stop(renew)
				return l.Lease.Renew(ctx)
			}
		})(m)
		changed := m.lease
		renewing(m, func(l *leaseMutant) bool { _, ok := stopped.Load(l); return ok })
		renewed := m.lease
		m.lease = func(ctx context.Context, l *leaseMutant) {
			changed(ctx, l)
			renewed(ctx, l)
		}
	})
}

var besideLockers = map[string]waitMutant{
	"the release of a lost lease stops the renewals of its key": {rule: "LossEndsUse", says: "only Release of an earlier lease of its Locker", change: oldCallStops(true, false)},
	"a Renew of a lost lease stops the renewals of its key":     {rule: "LossEndsUse", says: "only Renew of an earlier lease of its Locker", change: oldCallStops(false, true)},
}

func TestMutantsBeside(t *testing.T) {
	t.Parallel()
	mustSayAll(t, besideLockers)
}
