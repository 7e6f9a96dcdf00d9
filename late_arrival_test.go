package lock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// doubtful has tickets of which a request may be under way still, or not.
type doubtful struct {
	backend.Backend
	mayArrive bool
	mu        sync.Mutex
	withdrawn int
}

func (d *doubtful) Clock() backend.Clock { return backend.RuntimeClock() }

func (d *doubtful) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := d.Backend.(backend.Queuer).Enqueue(ctx, req)
	return doubtfulTicket{t, d}, err
}

type doubtfulTicket struct {
	backend.Ticket
	d *doubtful
}

func (t doubtfulTicket) MayArrive() bool { return t.d.mayArrive }

func (t doubtfulTicket) Withdraw(ctx context.Context) error {
	t.d.mu.Lock()
	t.d.withdrawn++
	t.d.mu.Unlock()
	return t.Ticket.Withdraw(ctx)
}

// TestLateTicketIsWithdrawnAgain: a place that a request may take after it was given up is
// given up a few times more within the TTL, and any other is not. Wrappers of tickets
// don't hide it.
func TestLateTicketIsWithdrawnAgain(t *testing.T) {
	t.Parallel()
	for _, wrapped := range []bool{false, true} {
		for _, mayArrive := range []bool{false, true} {
			t.Run(fmt.Sprintf("wrapped=%t/may arrive=%t", wrapped, mayArrive), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil), Queue: true})
					require.NoError(t, err)
					d := &doubtful{Backend: inner, mayArrive: mayArrive}
					var b backend.Backend = d
					if wrapped {
						b = faultlock.New(d, nil).Backend()
					}
					l, err := lock.New(b, nil)
					require.NoError(t, err)
					held, err := l.TryAcquire(t.Context(), "k")
					require.NoError(t, err)
					ctx, giveUp := context.WithTimeout(t.Context(), time.Second)
					defer giveUp()
					_, err = l.Acquire(ctx, "k")
					require.ErrorIs(t, err, lock.ErrHeld)
					synctest.Wait()
					d.mu.Lock()
					first := d.withdrawn
					d.mu.Unlock()
					assert.Positive(t, first)
					time.Sleep(lock.DefaultTTL)
					d.mu.Lock()
					more := d.withdrawn - first
					d.mu.Unlock()
					assert.Equal(t, mayArrive, more > 0, "%d times more", more)
					assert.LessOrEqual(t, more, 20)
					require.NoError(t, held.Release(t.Context()))
					require.NoError(t, l.Close())
				})
			})
		}
	}
}

// repeating grants at the repeat of a request whose answer was lost, or at once.
type repeating struct {
	backend.Backend
	mayArrive bool
	mu        sync.Mutex
	released  int
}

func (r *repeating) Clock() backend.Clock { return backend.RuntimeClock() }

func (r *repeating) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := r.Backend.Try(ctx, req)
	g.MayArrive = r.mayArrive
	return g, err
}

func (r *repeating) Release(ctx context.Context, h backend.Hold) error {
	r.mu.Lock()
	r.released++
	r.mu.Unlock()
	return r.Backend.Release(ctx, h)
}

// TestLateRequestOfALeaseIsGivenBack: a hold that a late request may be granted again is
// released a few times more within the TTL from its end on, however it ends, and any other
// is not.
func TestLateRequestOfALeaseIsGivenBack(t *testing.T) {
	t.Parallel()
	for _, mayArrive := range []bool{false, true} {
		for _, expires := range []bool{false, true} {
			t.Run(fmt.Sprintf("may arrive=%t/expires=%t", mayArrive, expires), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					inner, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
					require.NoError(t, err)
					r := &repeating{Backend: inner, mayArrive: mayArrive}
					l, err := lock.New(r, nil)
					require.NoError(t, err)
					lease, err := l.TryAcquire(t.Context(), "k", lock.WithMaxHold(time.Minute))
					require.NoError(t, err)
					if expires {
						<-lease.Context().Done()
					} else {
						require.NoError(t, lease.Release(t.Context()))
					}
					time.Sleep(lock.DefaultTTL)
					r.mu.Lock()
					n := r.released
					r.mu.Unlock()
					if mayArrive {
						assert.Greater(t, n, 3)
						assert.LessOrEqual(t, n, 20)
					} else {
						assert.Equal(t, 1, n)
					}
					require.NoError(t, l.Close())
				})
			})
		}
	}
}
