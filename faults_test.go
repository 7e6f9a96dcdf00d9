package lock_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// What asks for a key, and what gives it up, in both personalities of the memory backend.
var (
	opsTry     = []faultlock.Op{faultlock.OpTry, faultlock.OpEnqueue}
	opsRelease = []faultlock.Op{faultlock.OpRelease, faultlock.OpHandOver, faultlock.OpWithdraw}
)

// disturbedBackend opens a memory backend whose requests and answers the faults may lose
// (faultlock.Drop and FailAfter). It still answers at once, so faults must not hang or take time.
func disturbedBackend(t *testing.T, o *memlock.Options) (backend.Backend, *faultlock.Faults) {
	t.Helper()
	b, err := memlock.NewBackend(t.Context(), o)
	require.NoError(t, err)
	faults := faultlock.New(b, nil)
	return atOnce{faults.Backend()}, faults
}

// disturbed opens a Client on a disturbedBackend.
func disturbed(t *testing.T, o *memlock.Options) (*lock.Client, *faultlock.Faults) {
	t.Helper()
	b, faults := disturbedBackend(t, o)
	l, err := lock.New(b, &o.Lock)
	require.NoError(t, err)
	return l, faults
}

// atOnce is a backend that answers at once, as that in memory does without faults.
type atOnce struct{ backend.Backend }

func (a atOnce) Unwrap() backend.Backend { return a.Backend }
func (a atOnce) Immediate() bool         { return true }

// disturber returns a further Locker, which is disturbed.
type disturber = func(...func(*memlock.Options)) (lock.Locker, *faultlock.Faults)

// disturbedPersonalities is personalities with disturbed Lockers beside the others.
func disturbedPersonalities(t *testing.T, test func(t *testing.T, disturb disturber, open opener)) {
	eachPersonality(t, func(t *testing.T, o memlock.Options) {
		test(t, func(opts ...func(*memlock.Options)) (lock.Locker, *faultlock.Faults) {
			o := o
			for _, f := range opts {
				f(&o)
			}
			l, faults := disturbed(t, &o)
			t.Cleanup(func() { assert.NoError(t, l.Close()) })
			return l, faults
		}, openerOf(t, o))
	})
}
