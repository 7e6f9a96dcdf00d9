package conformance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Mutants of the policy over a backend, which Config.Wrap puts between the suite and
// its faults.
func TestMutantPolicies(t *testing.T) {
	t.Parallel()
	// again asks until the key is granted, with a pause between the requests.
	again := func(m *lockerMutant, pause func(ctx context.Context, key string)) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			for {
				l, err := m.Locker.TryAcquire(ctx, key, opts...)
				if err == nil || ctx.Err() != nil || !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) {
					return l, err
				}
				pause(ctx, key)
			}
		}
	}
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *lockerMutant, b backend.Backend)
	}{
		"asks without a pause": {"WaitIsCalm", func(m *lockerMutant, _ backend.Backend) {
			again(m, func(context.Context, string) { time.Sleep(50 * time.Microsecond) })
		}},
		"believes in signals": {"WaiterPolls", func(m *lockerMutant, b backend.Backend) {
			w, ok := b.(backend.Watcher)
			if !ok {
				return
			}
			again(m, func(ctx context.Context, key string) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				if hints, err := w.Watch(ctx, key); err == nil {
					select {
					case <-hints:
					case <-ctx.Done():
					}
				}
			})
		}},
		"goes on renewing": {"ReleaseEndsRequests", func(m *lockerMutant, b backend.Backend) {
			closed := make(chan struct{})
			m.close = func() error { close(closed); return m.Locker.Close() }
			m.lease = func(_ context.Context, l *leaseMutant) {
				_, hold, ok := lock.HoldOf(l.Lease)
				if !ok {
					return
				}
				go func() {
					for {
						select {
						case <-closed:
							return
						case <-time.After(hold.TTL / 3):
							_, _ = b.Renew(context.Background(), hold)
						}
					}
				}()
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			cfg := memory()
			cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
				l, err := lock.New(b, &lock.Options{TTL: ttl})
				if err != nil {
					return nil, err
				}
				m := &lockerMutant{Locker: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
				c.change(m, b)
				return m, nil
			}
			mustFail(t, cfg, c.rules)
		})
	}
	all.Wait()
}

func TestWrapIsChecked(t *testing.T) {
	t.Parallel()
	cfg := memory()
	cfg.Wrap = func(backend.Backend, time.Duration) (lock.Locker, error) { return nil, nil }
	cfg.Only = []string{"HandsOut"}
	rep, err := Check(t.Context(), cfg)
	assert.NoError(t, err)
	assert.Contains(t, rep.Results[0].Evidence, "Config.Wrap returned neither a Locker nor an error")
	cfg.Open, cfg.OpenBackend = func(ctx context.Context) (lock.Locker, error) { return nil, nil }, nil
	_, err = Check(t.Context(), cfg)
	assert.ErrorContains(t, err, "Config.Wrap needs OpenBackend")
}
