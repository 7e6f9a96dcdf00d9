package lock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
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

// TestRenewalsThatFailAreLoggedOnce: that they begin to fail, and that they work again or
// that the lease is lost, and none of those between.
func TestRenewalsThatFailAreLoggedOnce(t *testing.T) {
	t.Parallel()
	disturbedPersonalities(t, func(t *testing.T, disturb disturber, _ opener) {
		var text bytes.Buffer
		var failed atomic.Int32
		l, faults := disturb(func(o *memlock.Options) {
			o.Lock.Logger = slog.New(slog.NewTextHandler(&text, nil))
			o.Lock.Observer = func(_ context.Context, e lock.Event) {
				if e.Kind == lock.EventRenewalFailed {
					failed.Add(1)
				}
			}
		})
		logged := func() []string { return linesOf(&text) }
		lease, err := l.Acquire(t.Context(), "k", lock.WithTTL(30*time.Second))
		require.NoError(t, err)
		for range 2 {
			faults.All(faultlock.Drop(), faultlock.OpRenew)
			time.Sleep(15 * time.Second)
			require.GreaterOrEqual(t, failed.Swap(0), int32(2))
			faults.Heal()
			time.Sleep(time.Minute)
			require.NoError(t, lease.Context().Err())
			require.Equal(t, []string{"WARN lock renewal failed, trying again", "INFO lock renewed again"}, logged())
		}
		faults.All(faultlock.Drop(), faultlock.OpRenew)
		<-lease.Context().Done()
		require.Equal(t, []string{"WARN lock renewal failed, trying again", "WARN lock lost"}, logged())
		faults.Heal()
	})
}

// linesOf are the levels and messages that were logged since it was asked last.
func linesOf(text *bytes.Buffer) (lines []string) {
	synctest.Wait()
	for line := range strings.Lines(text.String()) {
		_, line, _ = strings.Cut(line, " ") // the time
		_, line, _ = strings.Cut(line, "level=")
		level, _, _ := strings.Cut(line, " ")
		_, line, _ = strings.Cut(line, `msg="`)
		message, _, _ := strings.Cut(line, `"`)
		lines = append(lines, level+" "+message)
	}
	text.Reset()
	return lines
}

// Whoever waits for a server that is away learns of it, and of its return; whoever waits for
// a holder has nothing to learn.
func TestWaitsWithoutAnswerAreLoggedOnce(t *testing.T) {
	t.Parallel()
	disturbedPersonalities(t, func(t *testing.T, disturb disturber, _ opener) {
		var text bytes.Buffer
		l, faults := disturb(func(o *memlock.Options) { o.Lock.Logger = slog.New(slog.NewTextHandler(&text, nil)) })
		for range 2 {
			faults.All(faultlock.FailBefore())
			got := make(chan lock.Lease)
			go func() {
				lease, err := l.Acquire(t.Context(), "k")
				assert.NoError(t, err)
				got <- lease
			}()
			time.Sleep(20 * time.Second)
			require.Equal(t, []string{"WARN lock wait without an answer, asking again"}, linesOf(&text))
			faults.Heal()
			lease := <-got
			require.Equal(t, []string{"INFO lock wait answered again"}, linesOf(&text))
			held, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := l.Acquire(held, "k")
			cancel()
			require.ErrorIs(t, err, lock.ErrHeld)
			require.NoError(t, lease.Release(t.Context()))
			require.Empty(t, linesOf(&text))
		}
	})
}

// talkative is a logger that uses the Locker which it logs for.
type talkative struct {
	slog.Handler
	called chan string
	use    func()
}

func (h talkative) Enabled(context.Context, slog.Level) bool { return true }

func (h talkative) Handle(_ context.Context, r slog.Record) error {
	h.use()
	select {
	case h.called <- r.Message:
	default:
	}
	return nil
}

// TestLoggerIsCalledWithoutAMutex: a logger that is slow, or uses the Locker, holds up
// nothing but what it was called by.
func TestLoggerIsCalledWithoutAMutex(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		ops     []faultlock.Op
		message string
		cause   func(t *testing.T, l lock.Locker, lease lock.Lease)
	}{
		"a clean-up fails": {opsRelease, "clean-up not confirmed", func(t *testing.T, _ lock.Locker, lease lock.Lease) {
			require.ErrorIs(t, lease.Release(t.Context()), lock.ErrOutcomeUnknown)
		}},
		"a renewal fails": {[]faultlock.Op{faultlock.OpRenew}, "renewal failed", func(*testing.T, lock.Locker, lock.Lease) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			called := make(chan string, 1)
			var l *lock.Client
			ready := make(chan struct{})
			log := slog.New(talkative{slog.DiscardHandler, called, func() {
				<-ready
				if lease, err := l.TryAcquire(context.Background(), "of the logger", lock.WithoutRenewal()); err == nil {
					_ = lease.Context().Err()
				}
			}})
			var faults *faultlock.Faults
			l, faults = disturbed(t, &memlock.Options{Store: memlock.NewStore(nil), Lock: lock.Options{TTL: 3 * time.Second, Logger: log}})
			close(ready)
			lease, err := l.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			faults.All(faultlock.Drop(), fault.ops...)
			fault.cause(t, l, lease)
			select {
			case message := <-called:
				require.Contains(t, message, fault.message)
			case <-time.After(time.Minute):
				t.Fatal("the logger is still waiting for the Locker")
			}
			faults.Heal()
			require.NoError(t, l.Close())
		})
	}
}
