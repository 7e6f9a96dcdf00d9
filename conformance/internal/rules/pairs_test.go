package rules_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// Mutants that are right for each option alone, and wrong for two of them together.

func labelledAnd(also func(s lock.Settings) bool) func(s lock.Settings) bool {
	return func(s lock.Settings) bool { return s.Label != "" && s.Owner == "" && also(s) }
}

func isUnrenewed(s lock.Settings) bool { return s.NoRenewal }
func isLimited(s lock.Settings) bool   { return s.MaxHold > 0 }

func ownedAndUnrenewed(s lock.Settings) bool { return s.Owner != "" && s.NoRenewal }
func ownedAndLabelled(s lock.Settings) bool {
	return s.Owner != "" && s.Label != "" && s.MaxHold == 0
}

// takesFor has what matches be asked for with other settings.
func takesFor(matches func(s lock.Settings) bool, change func(s *lock.Settings)) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		m.both(func(get engine.Getter) engine.Getter {
			return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				return get(ctx, key, rewritten(opts, func(s *lock.Settings) {
					if matches(*s) {
						change(s)
					}
				})...)
			}
		})
	})
}

// outlivesClose has the contexts of what matches end a while after Close.
func outlivesClose(matches func(s lock.Settings) bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			if !matches(l.set) {
				return
			}
			inner := l.Lease.Context()
			ctx, cancel := context.WithCancelCause(context.Background())
			end := func() {
				if !errors.Is(context.Cause(inner), lock.ErrClosed) {
					cancel(context.Cause(inner))
				}
			}
			context.AfterFunc(inner, func() {
				end()
				time.AfterFunc(100*time.Millisecond, func() { cancel(context.Cause(inner)) })
			})
			l.now = func() context.Context {
				if inner.Err() != nil {
					end()
				}
				return ctx
			}
			l.release = func(c context.Context) error {
				err := l.Lease.Release(c)
				end()
				return err
			}
		}
	})
}

// deadlineOutlivesClose keeps the last deadline of what Close has ended.
func deadlineOutlivesClose(m *lockerMutant, _ backend.Backend) {
	m.lease = func(_ context.Context, l *leaseMutant) {
		var mu sync.Mutex
		last, _ := l.Lease.Deadline()
		l.deadline = func() (time.Time, bool) {
			mu.Lock()
			defer mu.Unlock()
			d, ok := l.Lease.Deadline()
			if l.Lease.Context().Err() == nil {
				last = d
			} else if ownedAndUnrenewed(l.set) && errors.Is(context.Cause(l.Lease.Context()), lock.ErrClosed) {
				d = last
			}
			return d, ok
		}
	}
}

// closesLate has a Close take six seconds if a lease was renewed by hand.
func closesLate(m *lockerMutant, _ backend.Backend) {
	var renewed sync.Map
	m.lease = func(_ context.Context, l *leaseMutant) {
		l.renew = func(ctx context.Context) error {
			renewed.Store(l, true)
			return l.Lease.Renew(ctx)
		}
		l.release = func(ctx context.Context) error {
			renewed.Delete(l)
			return l.Lease.Release(ctx)
		}
	}
	m.close = func() error {
		for range renewed.Range {
			time.Sleep(6 * time.Second)
			break
		}
		return m.Client.Close()
	}
}

// maximumOfTwo leaves out the maximum of an owner's third hold of a key.
func maximumOfTwo(m *lockerMutant, _ backend.Backend) {
	var mu sync.Mutex
	holds := map[string]int{}
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			set := with(opts)
			if set.Owner == "" || set.MaxHold == 0 {
				return get(ctx, key, opts...)
			}
			id := key + "\x00" + set.Owner
			mu.Lock()
			if holds[id] > 1 {
				opts = rewritten(opts, func(s *lock.Settings) { s.MaxHold = 0 })
			}
			mu.Unlock()
			l, err := get(ctx, key, opts...)
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				holds[id] += n
			}
			if err == nil {
				count(1)
				context.AfterFunc(l.Context(), func() { count(-1) })
			}
			return l, err
		}
	})
}

// maximumUntold has nobody be told of a maximum once a renewal was asked for with a context that had
// ended.
func maximumUntold(m *lockerMutant, _ backend.Backend) {
	m.lease = func(_ context.Context, l *leaseMutant) {
		if l.set.MaxHold == 0 {
			return
		}
		var off atomic.Bool
		inner := l.Lease.Context()
		ctx, cancel := context.WithCancelCause(context.Background())
		end := func() {
			if !off.Load() || !errors.Is(context.Cause(inner), lock.ErrMaxHold) {
				cancel(context.Cause(inner))
			}
		}
		context.AfterFunc(inner, end)
		l.now = func() context.Context {
			if inner.Err() != nil {
				end()
			}
			return ctx
		}
		l.release = func(c context.Context) error {
			err := l.Lease.Release(c)
			end()
			return err
		}
		l.renew = func(c context.Context) error {
			if c.Err() != nil {
				off.Store(true)
			}
			return l.Lease.Renew(c)
		}
	}
}

// renewsNothing has a renewal by hand of what matches do nothing.
func renewsNothing(matches func(s lock.Settings) bool) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		m.lease = func(_ context.Context, l *leaseMutant) {
			l.renew = func(ctx context.Context) error {
				if matches(l.set) && l.Lease.Context().Err() == nil {
					return nil
				}
				return l.Lease.Renew(ctx)
			}
		}
	})
}

// keepsNoRenewal gives WithoutRenewal of a wait that was given up to the next call for the key.
func keepsNoRenewal(m *lockerMutant, _ backend.Backend) {
	var left sync.Map
	m.both(func(get engine.Getter) engine.Getter {
		return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			id := key + "\x00" + with(opts).Owner
			if _, kept := left.Load(id); kept {
				opts = rewritten(opts, func(s *lock.Settings) { s.NoRenewal = true })
			}
			l, err := get(ctx, key, opts...)
			switch {
			case err == nil:
				left.Delete(id)
			case errors.Is(err, lock.ErrHeld) && ctx.Err() != nil && with(opts).NoRenewal:
				left.Store(id, true)
			}
			return l, err
		}
	})
}

// waitsTold changes what those are told who wait in vain.
func waitsTold(change func(ctx context.Context, s lock.Settings, err error) error) func() func(*lockerMutant, backend.Backend) {
	return alone(func(m *lockerMutant, _ backend.Backend) {
		m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
			l, err := m.Client.Acquire(ctx, key, opts...)
			if err != nil {
				err = change(ctx, with(opts), err)
			}
			return l, err
		}
	})
}

// tellsContextOnly has who gave up be told nothing else if the error matches.
func tellsContextOnly(kind error) func(ctx context.Context, s lock.Settings, err error) error {
	return func(ctx context.Context, s lock.Settings, err error) error {
		if ctx.Err() != nil && errors.Is(err, kind) && ownedAndUnrenewed(s) {
			return ctx.Err()
		}
		return err
	}
}

// waitsForItsTurn has a release beside another one wait for that or for the end of its context.
func waitsForItsTurn(m *lockerMutant, _ backend.Backend) {
	m.lease = func(_ context.Context, l *leaseMutant) {
		done := make(chan struct{})
		var begun atomic.Bool
		l.release = func(ctx context.Context) error {
			if begun.CompareAndSwap(false, true) {
				defer close(done)
				return l.Lease.Release(ctx)
			}
			select {
			case <-done:
				return l.Lease.Release(ctx)
			default:
			}
			select {
			case <-done:
				return l.Lease.Release(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// tellsOwnerAfterClose shows the owner in the error of a renewal after Close.
func tellsOwnerAfterClose(m *lockerMutant, _ backend.Backend) {
	m.lease = func(_ context.Context, l *leaseMutant) {
		l.renew = func(ctx context.Context) error {
			err := l.Lease.Renew(ctx)
			if err != nil && errors.Is(context.Cause(l.Lease.Context()), lock.ErrClosed) {
				err = fmt.Errorf("%s: %w", l.set.Owner, err)
			}
			return err
		}
	}
}

func TestMutantsOfPairs(t *testing.T) {
	t.Parallel()
	mustSayAll(t, map[string]waitMutant{
		"an unrenewed lease with a label outlives Close": {rule: "CloseEndsHolds", says: "was alive after the Close", change: outlivesClose(labelledAnd(isUnrenewed))},
		"a limited lease with a label outlives Close":    {rule: "CloseEndsHolds", says: "was alive after the Close", change: outlivesClose(labelledAnd(isLimited))},
		"the deadline of an owner's unrenewed lease outlives Close": {
			rule: "CloseEndsHolds", says: "not in the future", change: alone(deadlineOutlivesClose),
		},
		"Close takes longer after a renewal by hand": {rule: "CloseEndsHolds", says: "Close had not returned", change: alone(closesLate)},
		"an owner's unrenewed lease has no maximum": {rule: "MaxHoldEnds", says: "no renewal", change: takesFor(ownedAndUnrenewed, func(s *lock.Settings) {
			s.MaxHold = 0
		})},
		"an owner's third hold has no maximum": {rule: "MaxHoldEnds", says: "the third hold of an owner", change: alone(maximumOfTwo)},
		"a maximum is not told after a renewal whose context had ended": {
			rule: "MaxHoldEnds", says: "maximum hold", change: alone(maximumUntold),
		},
		"a limited lease with a label is not renewed": {rule: "RenewKeeps", says: "it has a maximum hold, and a label", change: takesFor(labelledAnd(isLimited), func(s *lock.Settings) {
			s.NoRenewal = true
		})},
		"a renewal of a limited, unrenewed lease with a label does nothing": {
			rule: "RenewByHand", says: "a maximum hold, and a label", change: renewsNothing(labelledAnd(func(s lock.Settings) bool { return isLimited(s) && isUnrenewed(s) })),
		},
		"no renewal stays for the key after a wait that was given up": {
			rule: "OptionsOfOneCall", says: "or no renewal, was that of an earlier call", change: alone(keepsNoRenewal),
		},
		"an owner's wait with a label is cancelled by Close": {rule: "CloseEndsWaits", says: "while its Locker was closed", change: waitsTold(func(_ context.Context, s lock.Settings, err error) error {
			if errors.Is(err, lock.ErrClosed) && ownedAndLabelled(s) {
				return context.Canceled
			}
			return err
		})},
		"an owner who gives up a wait without renewal is not told that the key is held": {
			rule: "WaiterGivesUp", says: "expected an error that matches ErrHeld", change: waitsTold(tellsContextOnly(lock.ErrHeld)),
		},
		"an owner who waits without renewal is not told that the server is away": {
			rule: "UnavailableIsTold", says: "and no renewal", change: waitsTold(tellsContextOnly(lock.ErrUnavailable)),
		},
		"who gives up with an owner and a label is told both": {rule: "NoSecretsInErrors", says: "a label", change: waitsTold(func(ctx context.Context, s lock.Settings, err error) error {
			if ctx.Err() != nil && ownedAndLabelled(s) {
				return fmt.Errorf("%s (%s): %w", s.Owner, s.Label, err)
			}
			return err
		})},
		"a renewal after Close tells the owner": {rule: "NoSecretsInErrors", says: "Renew after Close", change: alone(tellsOwnerAfterClose)},
		"who gives up is told of the key as it is in quotes": {rule: "HeldDetails", says: "Acquire whose context ended", change: waitsTold(func(ctx context.Context, _ lock.Settings, err error) error {
			if held := (*lock.HeldError)(nil); ctx.Err() != nil && errors.As(err, &held) {
				quoted := *held
				quoted.Key = strconv.Quote(held.Key)
				quoted.Key = quoted.Key[1 : len(quoted.Key)-1]
				return fmt.Errorf("%w: %w", ctx.Err(), &quoted)
			}
			return err
		})},
		"a release beside another one returns the error of its context": {
			rule: "ReleaseTwice", says: "with a context that had ended, beside another one", change: alone(waitsForItsTurn),
		},
	})
}
