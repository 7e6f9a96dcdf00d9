package rules_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// operated is what the rules about operators need of a backend.
type operated interface {
	backend.Backend
	backend.Clocked
	backend.Inspector
	backend.ForceReleaser
	backend.Revoker
	backend.Lister
	backend.FloorRaiser
	backend.TokenTeller
}

// operateMutant breaks what operators use.
type operateMutant struct {
	operated
	waited  *sync.Map // keys that somebody was refused
	revoke  func(ctx context.Context, key string, token uint64) error
	list    func(ctx context.Context, prefix string, visit func(backend.Record) bool) error
	try     func(ctx context.Context, req backend.Request) (backend.Grant, error)
	renew   func(ctx context.Context, hold backend.Hold) (backend.Validity, error)
	release func(ctx context.Context, hold backend.Hold) error
	inspect func(ctx context.Context, key string) (backend.Record, error)
	forget  func(ctx context.Context, prefix string) error
	raise   func(ctx context.Context, above uint64) error
	last    func(ctx context.Context) (uint64, error)
	force   func(ctx context.Context, key string, token uint64) error
	close   func() error
}

// floors is what the clients that are open have raised the floor to.
type floors struct {
	mu sync.Mutex
	of map[backend.Backend]uint64
}

// raise takes note of the floor of a client, or with zero forgets it.
func (f *floors) raise(b backend.Backend, to uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of[b] = max(f.of[b], to); to == 0 {
		delete(f.of, b)
	}
}

func (f *floors) most() (most uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, to := range f.of {
		most = max(most, to)
	}
	return most
}

func (m operateMutant) floors() *floors {
	stored, _ := m.waited.LoadOrStore("floors", &floors{of: map[backend.Backend]uint64{}})
	return stored.(*floors)
}

func (m operateMutant) ForceRelease(ctx context.Context, key string, token uint64) error {
	if m.force != nil {
		return m.force(ctx, key, token)
	}
	return m.operated.ForceRelease(ctx, key, token)
}

func (m operateMutant) Close() error {
	if m.close != nil {
		return m.close()
	}
	return m.operated.Close()
}

func (m operateMutant) LastToken(ctx context.Context) (uint64, error) {
	if m.last != nil {
		return m.last(ctx)
	}
	return m.operated.LastToken(ctx)
}

// counters are those of a store with one for each group of keys, which all clients share.
type counters struct {
	mu   sync.Mutex
	last [4]uint64
}

// split has the tokens counted by groups of keys. It returns the counters, and all that is
// right.
func (m *operateMutant) split() *counters {
	stored, _ := m.waited.LoadOrStore("counters", &counters{})
	c := stored.(*counters)
	m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		g, err := m.operated.Try(ctx, req)
		if err != nil {
			return g, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if token, ok := m.waited.Load(req.ID); ok {
			g.Token = token.(uint64)
			return g, nil
		}
		if token, ok := m.waited.Load("of " + req.Key); ok && g.Holds > 1 {
			g.Token = token.(uint64)
			return g, nil
		}
		last := &c.last[crc32.ChecksumIEEE([]byte(req.Key))%uint32(len(c.last))]
		*last = max(*last+1, uint64(time.Now().UnixMicro()))
		m.waited.Store(req.ID, *last)
		m.waited.Store("of "+req.Key, *last)
		g.Token = *last
		return g, nil
	}
	counted := func(rec backend.Record) backend.Record {
		if token, ok := m.waited.Load("of " + rec.Key); ok {
			rec.Token = token.(uint64)
		}
		return rec
	}
	m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
		rec, err := m.operated.Inspect(ctx, key)
		return counted(rec), err
	}
	m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
		return m.operated.List(ctx, prefix, func(rec backend.Record) bool { return visit(counted(rec)) })
	}
	byToken := func(end func(ctx context.Context, key string, token uint64) error) func(ctx context.Context, key string, token uint64) error {
		return func(ctx context.Context, key string, token uint64) error {
			rec, err := m.operated.Inspect(ctx, key)
			if err != nil {
				return err
			}
			if granted, ok := m.waited.Load("of " + key); !ok || granted.(uint64) != token {
				return backend.ErrNotHeld
			}
			return end(ctx, key, rec.Token)
		}
	}
	m.force, m.revoke = byToken(m.operated.ForceRelease), byToken(m.operated.Revoke)
	m.raise = func(_ context.Context, above uint64) error { return c.raise(above, len(c.last)) }
	m.last = func(context.Context) (uint64, error) { return c.most(len(c.last)), nil }
	return c
}

// raise raises so many of them.
func (c *counters) raise(above uint64, many int) error {
	if above >= 1<<53-1 {
		return backend.ErrInvalid
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range many {
		c.last[i] = max(c.last[i], above)
	}
	return nil
}

// most is the largest of so many of them.
func (c *counters) most(many int) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Max(c.last[:many])
}

func (m operateMutant) RaiseFloor(ctx context.Context, above uint64) error {
	if m.raise != nil {
		return m.raise(ctx, above)
	}
	return m.operated.RaiseFloor(ctx, above)
}

// Forget implements backend.Forgetter. A store in memory keeps nothing of unused keys
// but its counter.
func (m operateMutant) Forget(ctx context.Context, prefix string) error {
	if m.forget != nil {
		return m.forget(ctx, prefix)
	}
	if prefix == "" {
		return backend.ErrInvalid
	}
	return nil
}

// forgetting does something to what is held when keys are forgotten.
func (m *operateMutant) forgetting(held func(rec backend.Record)) {
	m.forget = func(ctx context.Context, prefix string) error {
		if prefix == "" {
			return backend.ErrInvalid
		}
		var found []backend.Record
		err := m.operated.List(ctx, prefix, func(rec backend.Record) bool { found = append(found, rec); return true })
		for _, rec := range found {
			held(rec)
		}
		return err
	}
}

func (m operateMutant) Inspect(ctx context.Context, key string) (backend.Record, error) {
	if m.inspect != nil {
		return m.inspect(ctx, key)
	}
	return m.operated.Inspect(ctx, key)
}

func (m operateMutant) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if m.try != nil {
		return m.try(ctx, req)
	}
	return m.operated.Try(ctx, req)
}

func (m operateMutant) Release(ctx context.Context, hold backend.Hold) error {
	if m.release != nil {
		return m.release(ctx, hold)
	}
	return m.operated.Release(ctx, hold)
}

func (m operateMutant) Revoke(ctx context.Context, key string, token uint64) error {
	if m.revoke != nil {
		return m.revoke(ctx, key, token)
	}
	return m.operated.Revoke(ctx, key, token)
}

func (m operateMutant) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	if m.list != nil {
		return m.list(ctx, prefix, visit)
	}
	return m.operated.List(ctx, prefix, visit)
}

func (m operateMutant) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if m.renew != nil {
		return m.renew(ctx, hold)
	}
	return m.operated.Renew(ctx, hold)
}

// splitCounters is the name of what is right, too.
const splitCounters = "nothing is wrong with counters for groups of keys"

func TestMutantsOfOperating(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule   string
		change func(m *operateMutant)
	}{
		"nothing is wrong": {"", func(*operateMutant) {}},
		splitCounters:      {"", func(m *operateMutant) { m.split() }},
		"who waits for a held key is forgotten with it": {"ForgetLeavesOthers", func(m *operateMutant) {
			var waits sync.Map // at this client
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				_, waiting := waits.Load(req.Key)
				if _, forgotten := m.waited.Load("forgotten " + req.Key); forgotten && waiting {
					return backend.Grant{}, &backend.HeldError{Key: req.Key}
				}
				g, err := m.operated.Try(ctx, req)
				if errors.Is(err, backend.ErrHeld) {
					waits.Store(req.Key, true)
				}
				return g, err
			}
			m.forgetting(func(rec backend.Record) { m.waited.Store("forgotten "+rec.Key, true) })
		}},
		"what was revoked is forgotten": {"ForgetLeavesOthers", func(m *operateMutant) {
			m.forgetting(func(rec backend.Record) {
				if rec.Revoked {
					_ = m.operated.ForceRelease(context.Background(), rec.Key, rec.Token)
				}
			})
		}},
		"what its owner holds twice is forgotten": {"ForgetLeavesOthers", func(m *operateMutant) {
			m.forgetting(func(rec backend.Record) {
				if rec.Holds > 1 {
					_ = m.operated.ForceRelease(context.Background(), rec.Key, rec.Token)
				}
			})
		}},
		"revoke does nothing": {"RevokeByToken", func(m *operateMutant) {
			m.revoke = func(context.Context, string, uint64) error { return nil }
		}},
		"revoke without looking at the token": {"RevokeByToken", func(m *operateMutant) {
			m.revoke = func(ctx context.Context, key string, _ uint64) error {
				rec, err := m.Inspect(ctx, key)
				if err != nil {
					return err
				}
				return m.operated.Revoke(ctx, key, rec.Token)
			}
		}},
		"revoke is content with what has run out": {"RevokeByToken", func(m *operateMutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if err == nil {
					m.waited.Store(req.Key, g.Token)
				}
				return g, err
			}
			m.release = func(ctx context.Context, hold backend.Hold) error {
				m.waited.Delete(hold.Key)
				return m.operated.Release(ctx, hold)
			}
			m.revoke = func(ctx context.Context, key string, token uint64) error {
				err := m.operated.Revoke(ctx, key, token)
				if last, ok := m.waited.Load(key); ok && last == token && errors.Is(err, backend.ErrNotHeld) {
					return nil
				}
				return err
			}
		}},
		"revoke lets others in at once": {"RevokeByToken", func(m *operateMutant) { m.revoke = m.ForceRelease }},
		"the clean-up of a holder that has learned of the revocation frees the key": {"RevokeByToken", func(m *operateMutant) {
			m.release = func(ctx context.Context, hold backend.Hold) error {
				err := m.operated.Release(ctx, hold)
				if errors.Is(err, backend.ErrNotHeld) && hold.Token != 0 {
					err = m.ForceRelease(ctx, hold.Key, hold.Token)
				}
				return err
			}
		}},
		"revoke lets those in who wait already": {"RevokeByToken", func(m *operateMutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if errors.Is(err, backend.ErrHeld) {
					m.waited.Store(req.Key, true)
				}
				return g, err
			}
			m.revoke = func(ctx context.Context, key string, token uint64) error {
				if _, waits := m.waited.Load(key); waits {
					return m.ForceRelease(ctx, key, token)
				}
				return m.operated.Revoke(ctx, key, token)
			}
		}},
		"a revoked hold is renewed": {"RevokeByToken", func(m *operateMutant) {
			m.renew = func(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
				v, err := m.operated.Renew(ctx, hold)
				if errors.Is(err, backend.ErrNotHeld) {
					v, err = backend.Validity{Sent: m.Clock().Now(), For: time.Second}, nil
				}
				return v, err
			}
		}},
		"inspect does not say of a hold that it was revoked": {"RevokeByToken", func(m *operateMutant) {
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				rec, err := m.operated.Inspect(ctx, key)
				rec.Revoked = false
				return rec, err
			}
		}},
		"inspect says of every hold that it was revoked": {"RevokeByToken", func(m *operateMutant) {
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				rec, err := m.operated.Inspect(ctx, key)
				rec.Revoked = true
				return rec, err
			}
		}},
		"a second revocation frees the key": {"RevokeByToken", func(m *operateMutant) {
			m.revoke = func(ctx context.Context, key string, token uint64) error {
				if rec, err := m.Inspect(ctx, key); err == nil && rec.Revoked && rec.Token == token {
					return m.ForceRelease(ctx, key, token)
				}
				return m.operated.Revoke(ctx, key, token)
			}
		}},
		"the inner hold of a revoked owner frees the key": {"RevokeByToken", func(m *operateMutant) {
			m.release = func(ctx context.Context, hold backend.Hold) error {
				err := m.operated.Release(ctx, hold)
				if errors.Is(err, backend.ErrNotHeld) && hold.Owner != "" {
					err = m.ForceRelease(ctx, hold.Key, hold.Token)
				}
				return err
			}
		}},
		"the inner hold of a revoked owner is renewed": {"RevokeByToken", func(m *operateMutant) {
			m.renew = func(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
				v, err := m.operated.Renew(ctx, hold)
				if errors.Is(err, backend.ErrNotHeld) && hold.Owner != "" {
					v, err = backend.Validity{Sent: m.Clock().Now(), For: time.Second}, nil
				}
				return v, err
			}
		}},
		"what was removed by force is shown once more": {"ForceReleaseByToken", func(m *operateMutant) {
			m.force = func(ctx context.Context, key string, token uint64) error {
				rec, _ := m.operated.Inspect(ctx, key)
				err := m.operated.ForceRelease(ctx, key, token)
				if err == nil {
					m.waited.Store("removed "+key, rec)
				}
				return err
			}
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				if rec, ok := m.waited.LoadAndDelete("removed " + key); ok {
					return rec.(backend.Record), nil
				}
				return m.operated.Inspect(ctx, key)
			}
		}},
		"tokens begin anew when a revoked key was released by force": {"ForceReleaseByToken", func(m *operateMutant) {
			m.force = func(ctx context.Context, key string, token uint64) error {
				if rec, err := m.operated.Inspect(ctx, key); err == nil && rec.Revoked {
					m.waited.Store("anew "+key, true)
				}
				return m.operated.ForceRelease(ctx, key, token)
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if _, anew := m.waited.Load("anew " + req.Key); anew && err == nil {
					g.Token = 1
				}
				return g, err
			}
		}},
		"the floor goes away with the client that raised it": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(_ context.Context, above uint64) error {
				if above >= 1<<53 {
					return backend.ErrInvalid
				}
				m.floors().raise(m.operated, above)
				return nil
			}
			m.close = func() error {
				m.floors().raise(m.operated, 0)
				return m.operated.Close()
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if err == nil {
					g.Token += m.floors().most()
				}
				return g, err
			}
		}},
		"a raised floor counts for those who enter again": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				err := m.operated.RaiseFloor(ctx, above)
				if err == nil {
					m.waited.Store("floor", above)
				}
				return err
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if above, ok := m.waited.Load("floor"); ok && err == nil && g.Holds > 1 {
					g.Token = max(g.Token, above.(uint64)+1)
				}
				return g, err
			}
		}},
		"the list of everything is empty": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				if prefix == "" {
					return nil
				}
				return m.operated.List(ctx, prefix, visit)
			}
		}},
		"a look in the last moment ends the hold": {"InspectShows", func(m *operateMutant) {
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				rec, err := m.operated.Inspect(ctx, key)
				if err == nil && rec.Remaining < 30*time.Millisecond {
					err = errors.Join(backend.ErrNotHeld, m.ForceRelease(ctx, key, rec.Token))
				}
				return rec, err
			}
		}},
		"the record shows since when the hold was renewed": {"InspectShows", func(m *operateMutant) {
			m.renew = func(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
				m.waited.Store(hold.Key, time.Now())
				return m.operated.Renew(ctx, hold)
			}
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				rec, err := m.operated.Inspect(ctx, key)
				if since, renewed := m.waited.Load(key); renewed && err == nil {
					rec.Holder.Since = since.(time.Time)
				}
				return rec, err
			}
		}},
		"a refusal shows since when the hold was renewed": {"HolderIsShown", func(m *operateMutant) {
			m.renew = func(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
				m.waited.Store(hold.Key, time.Now())
				return m.operated.Renew(ctx, hold)
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				since, renewed := m.waited.Load(req.Key)
				if held := (*backend.HeldError)(nil); renewed && errors.As(err, &held) {
					moved := *held
					moved.Holder.Since = since.(time.Time)
					err = &moved
				}
				return g, err
			}
		}},
		"what is shown is since when the holder has waited": {"HolderIsShown", func(m *operateMutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				asked, _ := m.waited.LoadOrStore(req.ID, time.Now())
				g, err := m.operated.Try(ctx, req)
				if err == nil && g.Holds == 1 {
					m.waited.Store("since "+req.Key, asked)
				}
				return g, err
			}
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				rec, err := m.operated.Inspect(ctx, key)
				if since, ok := m.waited.Load("since " + key); ok {
					rec.Holder.Since = since.(time.Time)
				}
				return rec, err
			}
		}},
		"the label stays that of a holder who ran out": {"HolderIsShown", func(m *operateMutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if err == nil {
					m.waited.LoadOrStore("label of "+req.Key, req.Holder.Label)
				}
				return g, err
			}
			m.release = func(ctx context.Context, hold backend.Hold) error {
				err := m.operated.Release(ctx, hold)
				if err == nil {
					m.waited.Delete("label of " + hold.Key)
				}
				return err
			}
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				rec, err := m.operated.Inspect(ctx, key)
				if label, ok := m.waited.Load("label of " + key); ok {
					rec.Holder.Label = label.(string)
				}
				return rec, err
			}
		}},
		"list does not say of a hold that it was revoked": {"RevokeByToken", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { r.Revoked = false; return visit(r) })
			}
		}},
		"list shows the same time for all": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { r.Remaining = time.Second; return visit(r) })
			}
		}},
		"list always shows the whole TTL": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { r.Remaining = 30300 * time.Millisecond; return visit(r) })
			}
		}},
		"list shows a page": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				n := 0
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { n++; return n <= 100 && visit(r) })
			}
		}},
		"list shows a page of the largest size": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				n := 0
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { n++; return n <= 1000 && visit(r) })
			}
		}},
		"list leaves out long keys": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { return len(r.Key) > 256 || visit(r) })
			}
		}},
		"list compares without regard to case": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, "", func(r backend.Record) bool {
					return len(r.Key) < len(prefix) || !strings.EqualFold(r.Key[:len(prefix)], prefix) || visit(r)
				})
			}
		}},
		"inspect takes the key for a moment": {"LookingChangesNothing", func(m *operateMutant) {
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				req := backend.Request{Key: key, ID: backend.NewID(), TTL: time.Minute}
				if _, err := m.operated.Try(ctx, req); err != nil {
					return m.operated.Inspect(ctx, key)
				}
				time.Sleep(time.Millisecond)
				return backend.Record{}, errors.Join(backend.ErrNotHeld, m.operated.Release(ctx, backend.HoldOf(req)))
			}
		}},
		"inspect leaves something behind": {"LookingChangesNothing", func(m *operateMutant) {
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				m.waited.Store(key, true)
				return m.operated.Inspect(ctx, key)
			}
		}},
		"list ignores the prefix": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, _ string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, "", visit)
			}
		}},
		"list shows keys twice": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { more := visit(r); return more && visit(r) })
			}
		}},
		"list does not stop": {"ListShowsHeldKeys", func(m *operateMutant) {
			m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return m.operated.List(ctx, prefix, func(r backend.Record) bool { visit(r); return true })
			}
		}},
		"a raised floor is known to its own client only": {"RaisedFloorCounts", func(m *operateMutant) {
			var own atomic.Uint64
			m.raise = func(_ context.Context, above uint64) error { own.Store(above); return nil }
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if err == nil {
					g.Token += own.Load()
				}
				return g, err
			}
		}},
		"a raised floor counts from the next opening on": {"RaisedFloorCounts", func(m *operateMutant) {
			raised, known := m.waited.Load("floor")
			m.raise = func(_ context.Context, above uint64) error { m.waited.Store("floor", above); return nil }
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if err == nil && known {
					g.Token += raised.(uint64)
				}
				return g, err
			}
		}},
		"a floor that is raised to less is lowered": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				m.waited.Store("lowered", above)
				return m.operated.RaiseFloor(ctx, above)
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if above, ok := m.waited.Load("lowered"); ok && err == nil {
					g.Token = above.(uint64) + 1
				}
				return g, err
			}
		}},
		"one counter of several is raised": {"RaisedFloorCounts", func(m *operateMutant) {
			c := m.split()
			m.raise = func(_ context.Context, above uint64) error { return c.raise(above, 1) }
		}},
		"all counters but one are raised": {"RaisedFloorCounts", func(m *operateMutant) {
			c := m.split()
			m.raise = func(_ context.Context, above uint64) error { return c.raise(above, len(c.last)-1) }
		}},
		"a floor of any size is accepted": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				if above >= 1<<53 {
					return nil
				}
				return m.operated.RaiseFloor(ctx, above)
			}
		}},
		"a floor of 2^53 is accepted": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				if above == 1<<53 {
					return nil
				}
				return m.operated.RaiseFloor(ctx, above)
			}
		}},
		"a floor that leaves no token is accepted": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				if above == 1<<53-1 {
					return nil
				}
				return m.operated.RaiseFloor(ctx, above)
			}
		}},
		"the largest floor is refused": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				if above >= 1<<53-2 {
					return backend.ErrInvalid
				}
				return m.operated.RaiseFloor(ctx, above)
			}
		}},
		"the largest floor is accepted, and lowered": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				if above == 1<<53-2 {
					above--
				}
				return m.operated.RaiseFloor(ctx, above)
			}
		}},
		"a floor with a sign is accepted": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				if int64(above) < 0 {
					return nil
				}
				return m.operated.RaiseFloor(ctx, above)
			}
		}},
		"the key that was held is not raised": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				_ = m.List(ctx, "", func(r backend.Record) bool { m.waited.Store("kept "+r.Key, r.Token); return true })
				return m.operated.RaiseFloor(ctx, above)
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if token, kept := m.waited.LoadAndDelete("kept " + req.Key); kept && err == nil {
					g.Token = token.(uint64) + 1
				}
				return g, err
			}
		}},
		"the last token is that of one counter": {"LastTokenCoversAll", func(m *operateMutant) {
			c := m.split()
			m.last = func(context.Context) (uint64, error) { return c.most(1), nil }
		}},
		"the last token is that of all counters but one": {"LastTokenCoversAll", func(m *operateMutant) {
			c := m.split()
			m.last = func(context.Context) (uint64, error) { return c.most(len(c.last) - 1), nil }
		}},
		"the last token is that of what is held": {"LastTokenCoversAll", func(m *operateMutant) {
			m.last = func(ctx context.Context) (last uint64, err error) {
				err = m.List(ctx, "", func(r backend.Record) bool { last = max(last, r.Token); return true })
				return last, err
			}
		}},
		"who asks for the last token ends what is held": {"LastTokenCoversAll", func(m *operateMutant) {
			m.last = func(ctx context.Context) (uint64, error) {
				var held []backend.Record
				err := m.operated.List(ctx, "", func(r backend.Record) bool { held = append(held, r); return true })
				for _, r := range held {
					err = errors.Join(err, m.ForceRelease(ctx, r.Key, r.Token))
				}
				last, e := m.operated.LastToken(ctx)
				return last, errors.Join(err, e)
			}
		}},
		"a raised floor ends what is held": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				var held []backend.Record
				err := m.operated.List(ctx, "", func(r backend.Record) bool { held = append(held, r); return true })
				for _, r := range held {
					err = errors.Join(err, m.ForceRelease(ctx, r.Key, r.Token))
				}
				return errors.Join(err, m.operated.RaiseFloor(ctx, above))
			}
		}},
		"an old token is granted while the floor moves": {"RaisedFloorCounts", func(m *operateMutant) {
			m.raise = func(ctx context.Context, above uint64) error {
				m.waited.Store("moving", true)
				time.Sleep(2 * time.Millisecond)
				defer m.waited.Delete("moving")
				return m.operated.RaiseFloor(ctx, above)
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if _, moving := m.waited.Load("moving"); moving {
					g.Token = 1
				}
				return g, err
			}
		}},
		"forget ends the holds on the keys": {"ForgetLeavesOthers", func(m *operateMutant) {
			m.forget = func(ctx context.Context, prefix string) error {
				if prefix == "" {
					return backend.ErrInvalid
				}
				var held []backend.Record
				err := m.operated.List(ctx, prefix, func(r backend.Record) bool { held = append(held, r); return true })
				for _, r := range held {
					err = errors.Join(err, m.ForceRelease(ctx, r.Key, r.Token))
				}
				return err
			}
		}},
		"forget removes the key that is the prefix, held or not": {"ForgetLeavesOthers", func(m *operateMutant) {
			m.forget = func(ctx context.Context, prefix string) error {
				if prefix == "" {
					return backend.ErrInvalid
				}
				rec, err := m.operated.Inspect(ctx, prefix)
				if errors.Is(err, backend.ErrNotHeld) {
					return nil
				}
				return errors.Join(err, m.ForceRelease(ctx, prefix, rec.Token))
			}
		}},
		"forget takes no prefix for every key": {"ForgetLeavesOthers", func(m *operateMutant) {
			m.forget = func(context.Context, string) error { return nil }
		}},
		"forget begins the tokens of all keys anew": {"ForgetLeavesOthers", func(m *operateMutant) {
			m.forget = func(_ context.Context, prefix string) error {
				if prefix == "" {
					return backend.ErrInvalid
				}
				m.waited.Store("", true)
				return nil
			}
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, err := m.operated.Try(ctx, req)
				if _, forgotten := m.waited.Load(""); forgotten {
					g.Token = 1
				}
				return g, err
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			on := func(store *memlock.Store, waited *sync.Map) func(ctx context.Context) (backend.Backend, error) {
				return func(ctx context.Context) (backend.Backend, error) {
					b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
					if err != nil {
						return nil, err
					}
					m := &operateMutant{operated: b.(operated), waited: waited}
					c.change(m)
					return m, nil
				}
			}
			cfg := conformance.Config{TTL: 300 * time.Millisecond, Budget: 5 * time.Second, OpenBackend: on(memlock.NewStore(nil), new(sync.Map))}
			cfg.Untouched = func(context.Context) (conformance.Store, error) {
				waited := new(sync.Map)
				return conformance.Store{Open: on(memlock.NewStore(nil), waited), Contents: func(context.Context) (string, error) {
					n := 0
					waited.Range(func(any, any) bool { n++; return true })
					return fmt.Sprint(n, " things"), nil
				}}, nil
			}
			cfg.Only = []string{"LookingChangesNothing", "RevokeByToken", "ListShowsHeldKeys", "ForgetLeavesOthers", "RaisedFloorCounts", "LastTokenCoversAll"}
			switch {
			case name == splitCounters: // which only keep their tokens right
				cfg.Only = []string{"RaisedFloorCounts", "LastTokenCoversAll"}
			case c.rule != "":
				cfg.Only = nil
				mustFail(t, cfg, c.rule)
				return
			}
			rep, err := conformance.Check(t.Context(), cfg)
			if err != nil || rep.Counts().Pass != len(cfg.Only) {
				t.Fatalf("%v\n%s", err, rep)
			}
		})
	}
	all.Wait()
}
