package lock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// members is a cluster in memory whose keys begin with the name of the member that
// serves them. A request to a member that is frozen hangs, and so does a batch with a
// part for it.
type members struct {
	stuckFor
	mu    sync.Mutex
	mixed int // batches with keys of several members
}

func (m *members) Partition(key string) string {
	member, _, _ := strings.Cut(key, "/")
	return member
}

func (m *members) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	for _, h := range holds {
		if m.Partition(h.Key) != m.Partition(holds[0].Key) {
			m.mu.Lock()
			m.mixed++
			m.mu.Unlock()
			break
		}
	}
	out := make([]backend.Renewal, len(holds))
	for i, h := range holds {
		out[i].Validity, out[i].Err = m.Renew(ctx, h)
	}
	if ctx.Err() != nil {
		for i := range out {
			out[i] = backend.Renewal{Err: ctx.Err()}
		}
	}
	return out
}

func TestAFrozenMemberCostsNoLeaseOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		m := &members{stuckFor: stuckFor{inner, func(key string) bool { return strings.HasPrefix(key, "frozen") }}}
		l, err := lock.New(m, &lock.Options{TTL: 6 * time.Second})
		require.NoError(t, err)
		var leases []lock.Lease
		for i := range 3000 {
			member := []string{"one", "frozen", "two"}[i%3]
			lease, err := l.TryAcquire(t.Context(), fmt.Sprint(member, "/", i))
			require.NoError(t, err)
			leases = append(leases, lease)
			time.Sleep(2 * time.Second / 3000)
		}
		time.Sleep(30 * time.Second)
		lost := map[string]int{}
		for _, lease := range leases {
			if lease.Context().Err() != nil {
				lost[m.Partition(lease.Key())]++
			}
		}
		assert.Equal(t, map[string]int{"frozen": 1000}, lost)
		assert.Zero(t, m.mixed, "no batch waits for two members")
		require.NoError(t, l.Close())
	})
}

// Without a word of the backend on what serves which key, and without batches, hung
// renewals hold up the others for a moment only.
func TestManyRenewalsThatHangDoNotFillThePool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
		require.NoError(t, err)
		l, err := lock.New(stuckFor{m, func(key string) bool { return !strings.HasPrefix(key, "good") }}, &lock.Options{TTL: 3 * time.Second})
		require.NoError(t, err)
		for i := range 1500 {
			_, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		var good []lock.Lease
		for i := range 100 {
			lease, err := l.TryAcquire(t.Context(), fmt.Sprint("good ", i))
			require.NoError(t, err)
			good = append(good, lease)
		}
		time.Sleep(12 * time.Second)
		lost := 0
		for _, lease := range good {
			if lease.Context().Err() != nil {
				lost++
			}
		}
		assert.Zero(t, lost)
		require.NoError(t, l.Close())
	})
}
