package rules_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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

// heldRecord is what a mutant knows of a record: its outermost hold, and all that were granted.
type heldRecord struct {
	outermost, owner string
	token            uint64
	ttl              time.Duration
	granted, until   time.Time // of the outermost hold
	first            time.Time // when that would have ended without a renewal
	holds            map[backend.ID]time.Time
	most             int  // holds at a time
	renewed          bool // the outermost hold was
	revoked          bool
	raised           bool // since its grant the floor was raised
}

// kept is what the clients of one store share.
type kept struct {
	last     sync.Map // what a mutant remembers of the last entry of an owner, by key
	mu       sync.Mutex
	now      map[string]*heldRecord // by key, also of what has run out
	of       map[backend.ID]string  // keys of acquisitions
	released map[backend.ID]bool
	revoked  map[backend.ID]uint64 // tokens
	handed   map[backend.ID]string // keys of what was handed over
	any      map[string]any
	floor    uint64
}

func newKept() *kept {
	return &kept{now: map[string]*heldRecord{}, of: map[backend.ID]string{}, released: map[backend.ID]bool{},
		revoked: map[backend.ID]uint64{}, handed: map[backend.ID]string{}, any: map[string]any{}}
}

// record is a copy of what is known of the key.
func (k *kept) record(key string) (heldRecord, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.now[key]
	if r == nil {
		return heldRecord{}, false
	}
	out := *r
	out.holds = maps.Clone(r.holds)
	return out, true
}

func (k *kept) took(req backend.Request, g backend.Grant, err error) {
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	r, until := k.now[req.Key], time.Now().Add(req.TTL)
	if r == nil || r.token != g.Token {
		r = &heldRecord{outermost: req.ID.Hex(), owner: req.Owner, token: g.Token, ttl: req.TTL, granted: time.Now(), until: until, first: until, holds: map[backend.ID]time.Time{}}
		k.now[req.Key] = r
	}
	r.holds[req.ID] = until
	k.of[req.ID] = req.Key
	delete(k.released, req.ID)
	r.most = max(r.most, g.Holds)
	if r.outermost == req.ID.Hex() {
		r.until = until
	}
}

func (k *kept) renewed(h backend.Hold, err error) {
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.now[h.Key]; r != nil && !r.holds[h.ID].IsZero() {
		r.holds[h.ID] = time.Now().Add(h.TTL)
		if r.outermost == h.ID.Hex() {
			r.until, r.renewed = r.holds[h.ID], true
		}
	}
}

func (k *kept) ended(h backend.Hold, err error) {
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.released[h.ID] = true
	if r := k.now[h.Key]; r != nil {
		if delete(r.holds, h.ID); len(r.holds) == 0 {
			delete(k.now, h.Key)
		}
	}
}

// note remembers something under a name.
func (k *kept) note(name string, v any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.any[name] = v
}

func (k *kept) noted(name string) any {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.any[name]
}

func (k *kept) wasReleased(id backend.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.released[id]
}

// holdsOf is how many holds the owner has on other keys.
func (k *kept) holdsOf(owner, key string) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for other, r := range k.now {
		if other != key && r.owner == owner {
			n += len(r.holds)
		}
	}
	return n
}

// keyOf is empty for an acquisition that the store does not know.
func (k *kept) keyOf(id backend.ID) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of[id]
}

func (k *kept) wasHanded(id backend.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.handed[id]
	return ok
}

func (k *kept) handedKeys() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.handed))
}

func (k *kept) wasRevoked(id backend.ID) (uint64, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	token, ok := k.revoked[id]
	return token, ok
}

// outermostRanOut reports that the outermost hold has run out, and another one has not.
func (k *kept) outermostRanOut(key string) bool {
	r, ok := k.record(key)
	if !ok || r.most < 2 || time.Now().Before(r.until) {
		return false
	}
	for id, until := range r.holds {
		if id.Hex() == r.outermost && k.wasReleased(id) {
			return false
		}
		if time.Now().Before(until) {
			return true
		}
	}
	return false
}

// bent is a backend in memory of which the methods may be replaced.
type bent struct {
	able
	k       *kept
	try     func(ctx context.Context, req backend.Request) (backend.Grant, error)
	renew   func(ctx context.Context, hold backend.Hold) (backend.Validity, error)
	release func(ctx context.Context, hold backend.Hold) error
	tell    func(ctx context.Context, hold backend.Hold) (int, error)
	batch   func(ctx context.Context, hold backend.Hold) backend.Renewal
	ttl     func(h backend.Hold, all []backend.Hold) time.Duration // by which a batch renews the hold, if not by its own
	hand    func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error)
	watch   func(ctx context.Context, key string) (<-chan backend.Hint, error)
	inspect func(ctx context.Context, key string) (backend.Record, error)
	list    func(ctx context.Context, prefix string, visit func(backend.Record) bool) error
	force   func(ctx context.Context, key string, token uint64) error
	revoke  func(ctx context.Context, key string, token uint64) error
	forget  func(ctx context.Context, prefix string) error
	raise   func(ctx context.Context, above uint64) error
	last    func(ctx context.Context) (uint64, error)
	close   func() error
}

func (m *bent) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := m.try(ctx, req)
	m.k.took(req, g, err)
	return g, err
}

func (m *bent) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v, err := m.renew(ctx, h)
	m.k.renewed(h, err)
	return v, err
}

func (m *bent) Release(ctx context.Context, h backend.Hold) error {
	err := m.release(ctx, h)
	m.k.ended(h, err)
	return err
}

func (m *bent) ReleaseTelling(ctx context.Context, h backend.Hold) (int, error) {
	n, err := m.tell(ctx, h)
	m.k.ended(h, err)
	return n, err
}

func (m *bent) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	for i, h := range holds {
		asked := h
		if m.ttl != nil {
			asked.TTL = m.ttl(h, holds)
		}
		if out[i] = m.batch(ctx, asked); out[i].Err == nil && asked.TTL != h.TTL {
			out[i].Validity.For = backend.ValidFor(h.TTL)
		}
		m.k.renewed(asked, out[i].Err)
	}
	return out
}

func (m *bent) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	g, err := m.hand(ctx, from, to)
	if err == nil {
		m.k.ended(from, nil)
		m.k.took(to, g, nil)
		m.k.mu.Lock()
		m.k.handed[from.ID] = from.Key
		m.k.mu.Unlock()
	}
	return g, err
}

func (m *bent) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	return m.watch(ctx, key)
}
func (m *bent) Inspect(ctx context.Context, key string) (backend.Record, error) {
	return m.inspect(ctx, key)
}
func (m *bent) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return m.list(ctx, prefix, visit)
}

func (m *bent) ForceRelease(ctx context.Context, key string, token uint64) error {
	err := m.force(ctx, key, token)
	if err == nil {
		m.k.mu.Lock()
		delete(m.k.now, key)
		m.k.mu.Unlock()
	}
	return err
}

func (m *bent) Revoke(ctx context.Context, key string, token uint64) error {
	err := m.revoke(ctx, key, token)
	if err == nil {
		m.k.mu.Lock()
		if r := m.k.now[key]; r != nil {
			r.revoked = true
			for id := range r.holds {
				m.k.revoked[id] = token
			}
		}
		m.k.mu.Unlock()
	}
	return err
}

func (m *bent) Forget(ctx context.Context, prefix string) error { return m.forget(ctx, prefix) }

func (m *bent) RaiseFloor(ctx context.Context, above uint64) error {
	err := m.raise(ctx, above)
	if err == nil {
		m.k.mu.Lock()
		m.k.floor = max(m.k.floor, above)
		for _, r := range m.k.now {
			r.raised = true
		}
		m.k.mu.Unlock()
	}
	return err
}

func (m *bent) LastToken(ctx context.Context) (uint64, error) { return m.last(ctx) }
func (m *bent) Close() error                                  { return m.close() }

// bending is a lock of bent backends.
func bending(change func(m *bent)) conformance.Config {
	cfg, store, k := memory(), memlock.NewStore(nil), newKept()
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		if err != nil {
			return nil, err
		}
		a := b.(able)
		m := &bent{able: a, k: k, try: a.Try, renew: a.Renew, release: a.Release, tell: a.ReleaseTelling, hand: a.HandOver, watch: a.Watch,
			inspect: a.Inspect, list: a.List, force: a.ForceRelease, revoke: a.Revoke, raise: a.RaiseFloor, last: a.LastToken, close: a.Close}
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			out.Validity, out.Err = a.Renew(ctx, h)
			return out
		}
		m.forget = func(ctx context.Context, prefix string) error {
			if prefix == "" {
				return backend.ErrInvalid
			}
			return ctx.Err()
		}
		change(m)
		return m, nil
	}
	cfg.Remove = func(_ context.Context, key string) error { store.Remove(key); return nil }
	return cfg
}

// outerLeft reports that an owner has released the outermost hold, and has another one.
func (m *bent) outerLeft(key string) bool {
	r, ok := m.k.record(key)
	if !ok || r.owner == "" || r.most < 2 || r.revoked {
		return false
	}
	id, err := backend.ParseID(r.outermost)
	rec, live := m.live(key)
	return err == nil && m.k.wasReleased(id) && live && rec.Token == r.token
}

// textual takes the largest text of a token for that of the largest one.
func textual(m *bent) {
	m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		g, err := m.able.Try(ctx, req)
		if err == nil {
			m.k.note("token of "+req.Key, g.Token)
		}
		return g, err
	}
	m.last = func(ctx context.Context) (uint64, error) {
		last, err := m.able.LastToken(ctx)
		m.k.mu.Lock()
		defer m.k.mu.Unlock()
		for name, v := range m.k.any {
			if token, ok := v.(uint64); ok && strings.HasPrefix(name, "token of ") && fmt.Sprint(token) > fmt.Sprint(last) {
				last = token
			}
		}
		return last, err
	}
}

// bendingOwn has stores of its own, too.
func bendingOwn(change func(m *bent)) conformance.Config {
	cfg := bending(change)
	cfg.Untouched = func(context.Context) (conformance.Store, error) {
		return conformance.Store{Open: bending(change).OpenBackend, Contents: func(context.Context) (string, error) { return "", nil }}, nil
	}
	return cfg
}

// inWords is the answer to a renewal that does nothing.
func (m *bent) inWords(h backend.Hold) backend.Validity {
	return backend.Validity{Sent: m.Clock().Now(), For: backend.ValidFor(h.TTL)}
}

func (m *bent) live(key string) (backend.Record, bool) {
	rec, err := m.able.Inspect(context.Background(), key)
	return rec, err == nil
}

// releases replaces both forms of a release.
func (m *bent) releases(f func(ctx context.Context, h backend.Hold, err error) error) {
	m.release = func(ctx context.Context, h backend.Hold) error { return f(ctx, h, m.able.Release(ctx, h)) }
	m.tell = func(ctx context.Context, h backend.Hold) (int, error) {
		n, err := m.able.ReleaseTelling(ctx, h)
		return n, f(ctx, h, err)
	}
}

// renews replaces both forms of a renewal.
func (m *bent) renews(f func(ctx context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error)) {
	m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
		v, err := m.able.Renew(ctx, h)
		return f(ctx, h, v, err)
	}
	m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
		out.Validity, out.Err = m.renew(ctx, h)
		return out
	}
}

// shows replaces what is shown of a record that is held.
func (m *bent) listed(f func(rec backend.Record) (backend.Record, bool)) {
	m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
		return m.able.List(ctx, prefix, func(rec backend.Record) bool {
			rec, shown := f(rec)
			return !shown || visit(rec)
		})
	}
}

func (m *bent) inspected(f func(rec backend.Record) (backend.Record, bool)) {
	m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
		rec, err := m.able.Inspect(ctx, key)
		if err != nil {
			return rec, err
		}
		rec, shown := f(rec)
		if !shown {
			return backend.Record{}, backend.ErrNotHeld
		}
		return rec, nil
	}
}

func (m *bent) refusals(f func(held *backend.HeldError, req backend.Request)) {
	m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		g, err := m.able.Try(ctx, req)
		if held := (*backend.HeldError)(nil); errors.As(err, &held) {
			said := *held
			f(&said, req)
			return g, &said
		}
		return g, err
	}
}

func (m *bent) sinceGrant(rec backend.Record) (backend.Record, bool) {
	if r, ok := m.k.record(rec.Key); ok && r.renewed && r.most == 1 {
		rec.Remaining = max(time.Until(r.first), time.Nanosecond)
	}
	return rec, true
}

func anHourAtMost(rec backend.Record) (backend.Record, bool) {
	rec.Remaining = min(rec.Remaining, time.Hour)
	return rec, true
}

// ofRevoked changes what is shown of revoked holds.
func ofRevoked(change func(rec *backend.Record)) func(rec backend.Record) (backend.Record, bool) {
	return func(rec backend.Record) (backend.Record, bool) {
		if rec.Revoked {
			change(&rec)
		}
		return rec, true
	}
}

// notAtLast has a renewal do nothing in the last tenth of the TTL, and say so or not.
func notAtLast(silent bool) func(m *bent) {
	return func(m *bent) {
		m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
			rec, live := m.live(h.Key)
			switch {
			case !live || rec.Remaining > h.TTL/10:
				return m.able.Renew(ctx, h)
			case silent:
				return m.inWords(h), nil
			}
			return backend.Validity{Sent: m.Clock().Now()}, nil
		}
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			out.Validity, out.Err = m.renew(ctx, h)
			return out
		}
	}
}

// bentRecords are right with a hold that was just granted, and wrong with one to which
// something has happened: it was renewed, entered, handed over or revoked, its outermost hold has
// run out, or the floor was raised.
var bentRecords = map[string]struct {
	rule, says string
	change     func(m *bent)
}{
	"what was handed over is not released without its token": {"HandOverIsOneStep", "that was handed over, whose token is not known", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := m.able.HandOver(ctx, from, to)
			if err == nil {
				m.k.note("to "+to.ID.Hex(), true)
			}
			return g, err
		}
		m.release = func(ctx context.Context, h backend.Hold) error {
			if h.Token == 0 && m.k.noted("to "+h.ID.Hex()) != nil {
				return backend.ErrNotHeld
			}
			return m.able.Release(ctx, h)
		}
	}},
	"a large batch renews by its smallest TTL": {"BatchRenewMixed", "a batch of 101 has renewed it by its own TTL", func(m *bent) {
		m.ttl = func(h backend.Hold, all []backend.Hold) time.Duration {
			if len(all) <= 16 {
				return h.TTL
			}
			return slices.MinFunc(all, func(a, b backend.Hold) int { return cmp.Compare(a.TTL, b.TTL) }).TTL
		}
	}},
	"a batch finds holds by their ids alone": {"BatchRenewMixed", "a key that was never held, with the id of", func(m *bent) {
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			if key := m.k.keyOf(h.ID); key != "" {
				h.Key = key
			}
			out.Validity, out.Err = m.able.Renew(ctx, h)
			return out
		}
	}},
	"a release that tells finds the hold by its id alone": {"ReleaseByID", "ReleaseTelling of a key that was never held", func(m *bent) {
		m.tell = func(ctx context.Context, h backend.Hold) (int, error) {
			if key := m.k.keyOf(h.ID); key != "" {
				h.Key = key
			}
			return m.able.ReleaseTelling(ctx, h)
		}
	}},
	"the request of a hold that ran out is granted with its old token": {"TryIdempotent", "came once more when that had run out", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			_, live := m.live(req.Key)
			r, ok := m.k.record(req.Key)
			g, err := m.able.Try(ctx, req)
			if err == nil && !live && ok && !r.holds[req.ID].IsZero() {
				g.Token = r.token
			}
			return g, err
		}
	}},
	"a list shows what was renewed meanwhile again": {"ListShowsHeldKeys", "whose hold was renewed meanwhile", func(m *bent) {
		m.renews(func(_ context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			m.k.note("renewed "+h.Key, h.ID)
			return v, err
		})
		m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
			var again []backend.Record
			err := m.able.List(ctx, prefix, func(rec backend.Record) bool {
				before := m.k.noted("renewed " + rec.Key)
				goOn := visit(rec)
				if goOn && before == nil && m.k.noted("renewed "+rec.Key) != nil {
					again = append(again, rec)
				}
				return goOn
			})
			for _, rec := range again {
				visit(rec)
			}
			return err
		}
	}},
	"inspect shows what was left of an owner's longest hold, which was released": {"InspectShows", "after the longer of its owner's two holds was released", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.able.Try(ctx, req)
			name, until := fmt.Sprint("longest ", req.Key, g.Token), time.Now().Add(req.TTL)
			if was, ok := m.k.noted(name).(time.Time); err == nil && (!ok || was.Before(until)) {
				m.k.note(name, until)
			}
			return g, err
		}
		m.inspected(func(rec backend.Record) (backend.Record, bool) {
			if until, ok := m.k.noted(fmt.Sprint("longest ", rec.Key, rec.Token)).(time.Time); ok && !rec.Revoked {
				rec.Remaining = max(rec.Remaining, time.Until(until))
			}
			return rec, true
		})
	}},
	"an owner's inner hold is renewed after a forced release": {"ForceReleaseByToken", "Renew of hold 2 of a key that its owner holds twice", func(m *bent) {
		m.force = func(ctx context.Context, key string, token uint64) error {
			r, ok := m.k.record(key)
			err := m.able.ForceRelease(ctx, key, token)
			for id := range r.holds {
				if err == nil && ok && id.Hex() != r.outermost {
					m.k.note("forced "+id.Hex(), true)
				}
			}
			return err
		}
		m.renews(func(_ context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			if m.k.noted("forced "+h.ID.Hex()) != nil && errors.Is(err, backend.ErrNotHeld) {
				return m.inWords(h), nil
			}
			return v, err
		})
	}},
	"the request of an owner's inner hold, which was revoked, gets it back": {"RevokeByToken", "the request of an owner's revoked hold", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			token, revoked := m.k.wasRevoked(req.ID)
			rec, live := m.live(req.Key)
			if r, ok := m.k.record(req.Key); revoked && ok && req.Owner != "" && live && rec.Revoked && rec.Token == token && r.outermost != req.ID.Hex() {
				return backend.Grant{Token: token, Holds: 1, Validity: m.inWords(backend.HoldOf(req))}, nil
			}
			return m.able.Try(ctx, req)
		}
	}},
	"what a batch has renewed is revoked until the end of its grant only": {"RevokeByToken", "whose hold was renewed in a batch, and revoked", func(m *bent) {
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			if out.Validity, out.Err = m.able.Renew(ctx, h); out.Err == nil {
				m.k.note("batched "+h.Key, h.ID)
			}
			return out
		}
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			r, ok := m.k.record(key)
			err := m.able.Revoke(ctx, key, token)
			if id, batched := m.k.noted("batched " + key).(backend.ID); err == nil && ok && batched && r.outermost == id.Hex() {
				time.AfterFunc(max(time.Until(r.first), 0), func() { _ = m.able.ForceRelease(context.Background(), key, token) })
			}
			return err
		}
	}},
	"revoke ends with the release of the outermost hold": {"RevokeByToken", "Revoke of a key whose outermost hold was released", func(m *bent) {
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			if m.outerLeft(key) {
				return backend.ErrNotHeld
			}
			return m.able.Revoke(ctx, key, token)
		}
	}},
	"a raised floor does not count for who follows a revoked hold": {"RaisedFloorCounts", "a key whose hold was revoked before RaiseFloor", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(req.Key)
			_, live := m.live(req.Key)
			g, err := m.able.Try(ctx, req)
			if err == nil && ok && r.revoked && r.raised && !live {
				g.Token = r.token + 1
			}
			return g, err
		}
	}},
	"a raised floor does not count for a key that an owner held then": {"RaisedFloorCounts", "a key that an owner held during RaiseFloor", func(m *bent) {
		m.raise = func(ctx context.Context, above uint64) error {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			for key, r := range m.k.now {
				if r.owner != "" {
					m.k.any["skipped "+key] = r.token
				}
			}
			return m.able.RaiseFloor(ctx, above)
		}
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			_, live := m.live(req.Key)
			g, err := m.able.Try(ctx, req)
			if token, skipped := m.k.noted("skipped " + req.Key).(uint64); err == nil && skipped && !live {
				g.Token = token + 1
			}
			return g, err
		}
	}},
	"a floor that is lower moves the tokens ahead": {"RaisedFloorCounts", "expected that to change nothing", func(m *bent) {
		m.raise = func(ctx context.Context, above uint64) error {
			if last, err := m.able.LastToken(ctx); err == nil && above <= last {
				return m.able.RaiseFloor(ctx, last+1<<32)
			}
			return m.able.RaiseFloor(ctx, above)
		}
	}},
	"what an owner holds by an inner hold, having released the outermost, is forgotten": {"ForgetLeavesOthers", "its outermost hold was released and its owner has another one", func(m *bent) {
		m.forgetsHeld(func(rec backend.Record) bool { return m.outerLeft(rec.Key) })
	}},
	"holds that have run out count for the most that an owner has": {"ReentrantLimit", "by an owner of whose", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(req.Key)
			if _, live := m.live(req.Key); live && ok && req.Owner != "" && r.owner == req.Owner && len(r.holds) >= backend.MaxHolds && r.holds[req.ID].IsZero() {
				return backend.Grant{}, backend.ErrTooManyHolds
			}
			return m.able.Try(ctx, req)
		}
	}},
	"an owner's holds are counted over all keys": {"ReentrantLimit", "holds are counted by key", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if req.Owner != "" && m.k.holdsOf(req.Owner, req.Key) >= backend.MaxHolds {
				return backend.Grant{}, backend.ErrTooManyHolds
			}
			return m.able.Try(ctx, req)
		}
	}},
	"a key is kept while its owner holds another one": {"ReentrantCount", "who has held another key at the time", func(m *bent) {
		keeps := func(ctx context.Context, h backend.Hold) error {
			if rec, live := m.live(h.Key); h.Owner == "" || !live || rec.Holds > 1 || m.k.holdsOf(h.Owner, h.Key) == 0 {
				return m.able.Release(ctx, h)
			}
			return nil
		}
		m.release = keeps
		m.tell = func(ctx context.Context, h backend.Hold) (int, error) { return -1, keeps(ctx, h) }
	}},
	"an owner's hold that ran out is renewed by its next record": {"RenewByID", "of a key that its owner holds again", func(m *bent) {
		m.renews(func(ctx context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			if r, ok := m.k.record(h.Key); errors.Is(err, backend.ErrNotHeld) && ok && h.Owner != "" && r.owner == h.Owner && h.Token != 0 && r.token != h.Token && !m.k.wasReleased(h.ID) && m.k.keyOf(h.ID) == h.Key {
				if _, live := m.live(h.Key); live {
					return m.inWords(h), nil
				}
			}
			return v, err
		})
	}},
	"the release of an owner's hold that ran out ends its next record": {"ReleaseByID", "of a key that its owner holds again", func(m *bent) {
		m.releases(func(ctx context.Context, h backend.Hold, err error) error {
			if r, ok := m.k.record(h.Key); errors.Is(err, backend.ErrNotHeld) && ok && h.Owner != "" && r.owner == h.Owner && r.token != h.Token && !m.k.wasReleased(h.ID) && m.k.keyOf(h.ID) == h.Key {
				return m.able.ForceRelease(ctx, h.Key, r.token)
			}
			return err
		})
	}},
	"the release of what ran out is content when another holds the key": {"ReleaseByID", "of a key that is held again", func(m *bent) {
		m.releases(func(ctx context.Context, h backend.Hold, err error) error {
			if rec, live := m.live(h.Key); errors.Is(err, backend.ErrNotHeld) && live && h.Token != 0 && rec.Token > h.Token && !m.k.wasReleased(h.ID) && m.k.keyOf(h.ID) == h.Key {
				return nil
			}
			return err
		})
	}},
	"renew finds the hold by its id alone": {"RenewByID", "with the id of another key's hold", func(m *bent) {
		m.renews(func(ctx context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			if key := m.k.keyOf(h.ID); key != "" && errors.Is(err, backend.ErrNotHeld) && key != h.Key {
				h.Key = key
				return m.able.Renew(ctx, h)
			}
			return v, err
		})
	}},
	"a release that tells compares the token, also where there is none": {"ReleaseTells", "whose token is not known", func(m *bent) {
		m.tell = func(ctx context.Context, h backend.Hold) (int, error) {
			if h.Token == 0 {
				return 0, backend.ErrNotHeld
			}
			return m.able.ReleaseTelling(ctx, h)
		}
	}},
	"a renewal in the last tenth of the TTL extends nothing": {"RenewByHand", "before its deadline; expected it to move", notAtLast(false)},
	"a renewal in the last tenth of the TTL is words":        {"RenewByHand", "Renew of a lease that was held", notAtLast(true)},
	"a batch in the last tenth of the TTL is words":          {"BatchRenewMixed", "a batch renewed it", notAtLast(true)},
	"inspect shows an hour at most":                          {"InspectShows", "Inspect of a hold with a TTL of", func(m *bent) { m.inspected(anHourAtMost) }},
	"list shows an hour at most":                             {"ListShowsHeldKeys", "List of a hold with a TTL of", func(m *bent) { m.listed(anHourAtMost) }},
	"the watches from the 33rd on are silent": {"WatchBeforeReturn", "that one client watched at once", func(m *bent) {
		var watches atomic.Int64
		m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
			n := watches.Add(1)
			context.AfterFunc(ctx, func() { watches.Add(-1) })
			if n > 32 {
				return make(chan backend.Hint), nil
			}
			return m.able.Watch(ctx, key)
		}
	}},
	"what is handed over when it was released is granted": {"HandOverIsOneStep", "of a hold that was released, which was refused, Try of the key", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := m.able.HandOver(ctx, from, to)
			if errors.Is(err, backend.ErrNotHeld) && m.k.wasReleased(from.ID) {
				_, _ = m.able.Try(ctx, to)
			}
			return g, err
		}
	}},
	"what was handed over is renewed": {"HandOverIsOneStep", "Renew of the hold from which the key was handed over", func(m *bent) {
		m.renews(func(ctx context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			if m.k.wasHanded(h.ID) && errors.Is(err, backend.ErrNotHeld) {
				if _, live := m.live(h.Key); live {
					return m.inWords(h), nil
				}
			}
			return v, err
		})
	}},
	"what was handed over is renewed in a batch": {"HandOverIsOneStep", "RenewBatch for the hold from which the key was handed over", func(m *bent) {
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			out.Validity, out.Err = m.able.Renew(ctx, h)
			if m.k.wasHanded(h.ID) && errors.Is(out.Err, backend.ErrNotHeld) {
				if _, live := m.live(h.Key); live {
					return backend.Renewal{Validity: m.inWords(h)}
				}
			}
			return out
		}
	}},
	"a hand-over to the same owner keeps the token": {"HandOverIsOneStep", "the token after HandOver", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			if from.Owner == "" || from.Owner != to.Owner {
				return m.able.HandOver(ctx, from, to)
			}
			if _, err := m.able.Renew(ctx, from); err != nil {
				return backend.Grant{}, err
			}
			g, err := m.able.Try(ctx, to)
			if err == nil {
				_ = m.able.Release(ctx, from)
				g.Holds--
			}
			return g, err
		}
	}},
	"a hand-over never shortens what is left": {"HandOverIsOneStep", "a try after the end of that returned", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			long := to
			if r, ok := m.k.record(from.Key); ok {
				long.TTL = max(to.TTL, time.Until(r.until))
			}
			g, err := m.able.HandOver(ctx, from, long)
			if err == nil {
				g.For = backend.ValidFor(to.TTL)
			}
			return g, err
		}
	}},
	"one revoked hold is the answer of a whole batch": {"RevokeByToken", "for a hold beside one that was revoked", func(m *bent) {
		var at atomic.Int64
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			rec, live := m.live(h.Key)
			if live && rec.Revoked {
				at.Store(int64(m.Clock().Now()))
			}
			if out.Validity, out.Err = m.renew(ctx, h); at.Load() == int64(m.Clock().Now()) {
				out.Validity, out.Err = backend.Validity{}, backend.ErrNotHeld
			}
			return out
		}
	}},
	"a revoked hold lasts as long as its owner's last": {"RevokeByToken", "before the longer of them would have expired", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if rec, live := m.live(req.Key); live && rec.Revoked {
				if end, ok := m.k.last.Load(req.Key); ok && m.Clock().Now() > end.(backend.Instant) {
					_ = m.able.ForceRelease(ctx, req.Key, rec.Token)
				}
			}
			g, err := m.able.Try(ctx, req)
			if err == nil && req.Owner != "" {
				m.k.last.Store(req.Key, m.Clock().Now().Add(req.TTL))
			}
			return g, err
		}
	}},
	"a hold too many extends the others": {"HoldCount", "its owner had asked for one more", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.able.Try(ctx, req)
			if err == nil && req.Owner != "" {
				m.k.last.Store(req.Key, backend.HoldOf(req))
			}
			if h, ok := m.k.last.Load(req.Key); ok && errors.Is(err, backend.ErrTooManyHolds) {
				h := h.(backend.Hold)
				h.TTL = req.TTL
				_, _ = m.able.Renew(ctx, h)
			}
			return g, err
		}
	}},
	"inspect shows what was left without renewals": {"InspectShows", "Inspect of a hold that was renewed shows", func(m *bent) { m.inspected(m.sinceGrant) }},
	"list shows what was left without renewals":    {"ListShowsHeldKeys", "List of a key whose hold was renewed shows", func(m *bent) { m.listed(m.sinceGrant) }},
	"a refusal shows what was left without renewals": {"InspectShows", "a refusal because of a hold that was renewed shows", func(m *bent) {
		m.refusals(func(held *backend.HeldError, _ backend.Request) {
			rec, _ := m.sinceGrant(backend.Record{Key: held.Key, Remaining: held.Remaining})
			held.Remaining = rec.Remaining
		})
	}},
	"inspect ends with the outermost hold": {"InspectShows", "whose outermost hold has run out", func(m *bent) {
		m.inspected(func(rec backend.Record) (backend.Record, bool) { return rec, !m.k.outermostRanOut(rec.Key) })
	}},
	"list ends with the outermost hold": {"ListShowsHeldKeys", "whose outermost hold has run out", func(m *bent) {
		m.listed(func(rec backend.Record) (backend.Record, bool) { return rec, !m.k.outermostRanOut(rec.Key) })
	}},
	"force ends with the outermost hold": {"ForceReleaseByToken", "whose outermost hold has run out", func(m *bent) {
		m.force = func(ctx context.Context, key string, token uint64) error {
			if m.k.outermostRanOut(key) {
				return backend.ErrNotHeld
			}
			return m.able.ForceRelease(ctx, key, token)
		}
	}},
	"revoke ends with the outermost hold": {"RevokeByToken", "whose outermost hold has run out", func(m *bent) {
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			if m.k.outermostRanOut(key) {
				return backend.ErrNotHeld
			}
			return m.able.Revoke(ctx, key, token)
		}
	}},
	"what is held is forgotten with the outermost hold": {"ForgetLeavesOthers", "its outermost hold has run out", func(m *bent) {
		m.forgetsHeld(func(rec backend.Record) bool { return m.k.outermostRanOut(rec.Key) })
	}},
	"what was renewed is forgotten when its first TTL has passed": {"ForgetLeavesOthers", "its hold was renewed in time", func(m *bent) {
		m.forgetsHeld(func(rec backend.Record) bool {
			r, ok := m.k.record(rec.Key)
			return ok && r.most == 1 && r.renewed && time.Now().After(r.first)
		})
	}},
	"what was handed over is forgotten": {"ForgetLeavesOthers", "it was handed over", func(m *bent) {
		m.forgetsHeld(func(rec backend.Record) bool {
			for _, key := range m.k.handedKeys() {
				if key == rec.Key {
					return true
				}
			}
			return false
		})
	}},
	"the label ends with the outermost hold": {"HolderIsShown", "after the outermost hold had run out", func(m *bent) {
		drop := func(rec backend.Record) (backend.Record, bool) {
			if m.k.outermostRanOut(rec.Key) {
				rec.Holder.Label = ""
			}
			return rec, true
		}
		m.inspected(drop)
		m.listed(drop)
		m.refusals(func(held *backend.HeldError, _ backend.Request) {
			if m.k.outermostRanOut(held.Key) {
				held.Holder.Label = ""
			}
		})
	}},
	"watches end with the outermost hold": {"WatchBeforeReturn", "of keys whose outermost hold had run out", func(m *bent) { m.deafTo(m.k.outermostRanOut) }},
	"a key that was held twice is not signalled": {"WatchBeforeReturn", "were not signalled", func(m *bent) {
		m.deafTo(func(key string) bool { r, ok := m.k.record(key); return ok && r.most > 1 })
	}},
	"list counts holds that have run out": {"ListShowsHeldKeys", "List shows 2 holds of a key whose outermost", func(m *bent) {
		m.listed(func(rec backend.Record) (backend.Record, bool) {
			if r, ok := m.k.record(rec.Key); ok && r.token == rec.Token && !r.revoked {
				rec.Holds = len(r.holds)
			}
			return rec, true
		})
	}},
	"list leaves out what was revoked": {"ListShowsHeldKeys", "whose hold was revoked, and keeps others out", func(m *bent) {
		m.listed(func(rec backend.Record) (backend.Record, bool) { return rec, !rec.Revoked })
	}},
	"list folds accents": {"ListShowsHeldKeys", "which has another prefix", func(m *bent) {
		fold := strings.NewReplacer("\u00e9", "e")
		m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
			return m.able.List(ctx, "", func(rec backend.Record) bool {
				return !strings.HasPrefix(fold.Replace(rec.Key), fold.Replace(prefix)) || visit(rec)
			})
		}
	}},
	"list trims the prefix": {"ListShowsHeldKeys", "which has another prefix", func(m *bent) {
		m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
			return m.able.List(ctx, strings.TrimRight(prefix, " "), visit)
		}
	}},
	"forget trims the prefix": {"ForgetLeavesOthers", "or has another prefix, when keys were forgotten", func(m *bent) {
		m.forgetsTokens(func(prefix, key string) bool { return strings.HasPrefix(key, strings.TrimRight(prefix, " /")) })
	}},
	"forget folds accents": {"ForgetLeavesOthers", "or has another prefix, when keys were forgotten", func(m *bent) {
		fold := strings.NewReplacer("\u00e9", "e")
		m.forgetsTokens(func(prefix, key string) bool { return strings.HasPrefix(fold.Replace(key), fold.Replace(prefix)) })
	}},
	"what was revoked lasts until the TTL of its grant": {"RevokeByToken", "before the deadline of a holder that did not know of the revocation", func(m *bent) {
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			r, ok := m.k.record(key)
			err := m.able.Revoke(ctx, key, token)
			if err == nil && ok && r.renewed && r.most == 1 {
				time.AfterFunc(max(time.Until(r.first), 0), func() { _ = m.able.ForceRelease(context.Background(), key, token) })
			}
			return err
		}
	}},
	"a batch renews what was revoked of an owner": {"RevokeByToken", "the answer of RenewBatch for hold 2 of an owner", func(m *bent) {
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			out.Validity, out.Err = m.able.Renew(ctx, h)
			if _, revoked := m.k.wasRevoked(h.ID); revoked && h.Owner != "" && errors.Is(out.Err, backend.ErrNotHeld) {
				return backend.Renewal{Validity: m.inWords(h)}
			}
			return out
		}
	}},
	"a release that tells ends what was revoked of an owner": {"RevokeByToken", "a key whose owner had two holds", func(m *bent) {
		m.tell = func(ctx context.Context, h backend.Hold) (int, error) {
			if token, revoked := m.k.wasRevoked(h.ID); revoked && h.Owner != "" {
				return 0, m.able.ForceRelease(ctx, h.Key, token)
			}
			return m.able.ReleaseTelling(ctx, h)
		}
	}},
	"what was revoked of an owner can be handed over": {"RevokeByToken", "HandOver of hold 2 of an owner", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			if token, revoked := m.k.wasRevoked(from.ID); revoked && from.Owner != "" && m.able.ForceRelease(ctx, from.Key, token) == nil {
				return m.able.Try(ctx, to)
			}
			return m.able.HandOver(ctx, from, to)
		}
	}},
	"the release of what was revoked ends the next hold": {"RevokeByToken", "Release of a revoked hold, of a key that another client holds by now", func(m *bent) {
		m.releases(func(ctx context.Context, h backend.Hold, err error) error {
			rec, live := m.live(h.Key)
			if token, revoked := m.k.wasRevoked(h.ID); revoked && live && rec.Token != token {
				return m.able.ForceRelease(ctx, h.Key, rec.Token)
			}
			return err
		})
	}},
	"what was revoked is renewed when another holds the key": {"RevokeByToken", "Renew of a revoked hold, of a key that another client holds by now", func(m *bent) {
		m.renews(func(ctx context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			rec, live := m.live(h.Key)
			if token, revoked := m.k.wasRevoked(h.ID); revoked && live && rec.Token != token {
				return m.inWords(h), nil
			}
			return v, err
		})
	}},
	"a release without a token ends what was revoked": {"RevokeByToken", "may still be stopping its work", func(m *bent) {
		m.releases(func(ctx context.Context, h backend.Hold, err error) error {
			if token, revoked := m.k.wasRevoked(h.ID); revoked && h.Token == 0 {
				return m.able.ForceRelease(ctx, h.Key, token)
			}
			return err
		})
	}},
	"a repeat of what is held has a larger token after the floor was raised": {"RaisedFloorCounts", "came once more after RaiseFloor", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(req.Key)
			g, err := m.able.Try(ctx, req)
			if err == nil && ok && r.raised && !r.holds[req.ID].IsZero() {
				g.Token = max(g.Token, m.k.floor+1)
			}
			return g, err
		}
	}},
	"list shows tokens above the floor": {"RaisedFloorCounts", "List shows the token", func(m *bent) {
		m.listed(func(rec backend.Record) (backend.Record, bool) {
			if r, ok := m.k.record(rec.Key); ok && r.raised {
				rec.Token = max(rec.Token, m.k.floor)
			}
			return rec, true
		})
	}},
	"force knows no tokens below the floor": {"RaisedFloorCounts", "which was granted before the floor was raised", func(m *bent) {
		m.force = func(ctx context.Context, key string, token uint64) error {
			if r, ok := m.k.record(key); ok && r.raised && token < m.k.floor {
				return backend.ErrNotHeld
			}
			return m.able.ForceRelease(ctx, key, token)
		}
	}},
	"a raised floor does not count for who follows one that ran out": {"RaisedFloorCounts", "a key whose hold ran out after RaiseFloor", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(req.Key)
			_, live := m.live(req.Key)
			g, err := m.able.Try(ctx, req)
			if err == nil && ok && r.raised && !live {
				g.Token = r.token + 1
			}
			return g, err
		}
	}},
	"the largest token is of what has not run out": {"LastTokenCoversAll", "after a key whose hold has run out", func(m *bent) {
		m.last = func(ctx context.Context) (uint64, error) {
			last, err := m.able.LastToken(ctx)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			for key, r := range m.k.now {
				if _, live := m.live(key); !live && last == r.token {
					last = r.token - 1
				}
			}
			return last, err
		}
	}},
	"a client that closes ends the holds of its owners": {"HoldCount", "another client of", func(m *bent) {
		owned := map[string]string{}
		var mu sync.Mutex
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.able.Try(ctx, req)
			if err == nil && req.Owner != "" {
				mu.Lock()
				owned[req.Key] = req.Owner
				mu.Unlock()
			}
			return g, err
		}
		m.close = func() error {
			mu.Lock()
			defer mu.Unlock()
			for key, owner := range owned {
				if r, ok := m.k.record(key); ok && r.owner == owner {
					_ = m.able.ForceRelease(context.Background(), key, r.token)
				}
			}
			return m.able.Close()
		}
	}},
	"a repeat begins the hold anew": {"HolderIsShown", "before the same request came once more", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(req.Key)
			g, err := m.able.Try(ctx, req)
			if err == nil && ok && r.outermost == req.ID.Hex() && r.token == g.Token {
				m.k.mu.Lock()
				m.k.any["since "+req.Key] = time.Now()
				m.k.mu.Unlock()
			} else if err == nil && g.Holds == 1 {
				m.k.mu.Lock()
				delete(m.k.any, "since "+req.Key)
				m.k.mu.Unlock()
			}
			return g, err
		}
		since := func(rec backend.Record) (backend.Record, bool) {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if at, ok := m.k.any["since "+rec.Key].(time.Time); ok {
				rec.Holder.Since = at
			}
			return rec, true
		}
		m.inspected(since)
		m.listed(since)
	}},
	"a repeat changes the label": {"HolderIsShown", "before the same request came once more", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(req.Key)
			g, err := m.able.Try(ctx, req)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if err == nil && ok && r.token == g.Token && !r.holds[req.ID].IsZero() {
				m.k.any["label "+req.Key] = req.Holder.Label
			} else if err == nil && g.Holds == 1 {
				delete(m.k.any, "label "+req.Key)
			}
			return g, err
		}
		label := func(rec backend.Record) (backend.Record, bool) {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if label, ok := m.k.any["label "+rec.Key].(string); ok {
				rec.Holder.Label = label
			}
			return rec, true
		}
		m.inspected(label)
		m.listed(label)
	}},
	"an owner that is refused is not told of the holder": {"BackendErrors", "the refusal of another owner names", func(m *bent) {
		m.refusals(func(held *backend.HeldError, req backend.Request) {
			if req.Owner != "" {
				held.Holder = backend.Holder{}
			}
		})
	}},
	"an owner that is refused is told nothing of the time": {"BackendErrors", "the refusal of another owner says", func(m *bent) {
		m.refusals(func(held *backend.HeldError, req backend.Request) {
			if req.Owner != "" {
				held.Remaining = 0
			}
		})
	}},
	"a refusal shows more than is left of an owner's holds": {"InspectShows", "expected at most", func(m *bent) {
		m.refusals(func(held *backend.HeldError, _ backend.Request) {
			if r, ok := m.k.record(held.Key); ok && r.most > 1 {
				held.Remaining *= 2
			}
		})
	}},
	"list shows what its range ends with": {"ListShowsHeldKeys", "which has another prefix", func(m *bent) {
		m.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
			end, stopped := rangeEnd(prefix), false
			err := m.able.List(ctx, prefix, func(rec backend.Record) bool { stopped = !visit(rec); return !stopped })
			if rec, live := m.live(end); live && err == nil && !stopped {
				visit(rec)
			}
			return err
		}
	}},
	"forget of a prefix takes what its range ends with": {"ForgetLeavesOthers", "or has another prefix, when keys were forgotten", func(m *bent) {
		m.forgetsTokens(func(prefix, key string) bool { return strings.HasPrefix(key, prefix) || key == rangeEnd(prefix) })
	}},
	"a release counts the clients that watch longer keys": {"ReleaseTells", "and another one a longer key", func(m *bent) {
		m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
			hints, err := m.able.Watch(ctx, key)
			if err == nil {
				name := fmt.Sprintf("longer %p %s", m, key)
				m.k.mu.Lock()
				m.k.any[name] = key
				m.k.mu.Unlock()
				context.AfterFunc(ctx, func() { m.k.mu.Lock(); defer m.k.mu.Unlock(); delete(m.k.any, name) })
			}
			return hints, err
		}
		m.tell = func(ctx context.Context, h backend.Hold) (int, error) {
			n, err := m.able.ReleaseTelling(ctx, h)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			for name, key := range m.k.any {
				if s, ok := key.(string); ok && err == nil && n >= 0 && strings.HasPrefix(s, h.Key) && s != h.Key && !strings.Contains(name, fmt.Sprintf("%p", m)) {
					n++
				}
			}
			return n, err
		}
	}},
	"a renewal never lasts longer than the first TTL": {"RenewByID", "before the end of a renewal by", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.able.Try(ctx, req)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if name := "ttl " + req.ID.Hex(); err == nil && m.k.any[name] == nil {
				m.k.any[name] = req.TTL
			}
			return g, err
		}
		renew := func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
			m.k.mu.Lock()
			first, ok := m.k.any["ttl "+h.ID.Hex()]
			m.k.mu.Unlock()
			cut := h
			if ok {
				cut.TTL = min(h.TTL, first.(time.Duration))
			}
			v, err := m.able.Renew(ctx, cut)
			if err == nil {
				v.For = backend.ValidFor(h.TTL)
			}
			return v, err
		}
		m.renew = renew
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			out.Validity, out.Err = renew(ctx, h)
			return out
		}
	}},
	"nothing is handed over from an inner hold": {"HandOverIsOneStep", "an owner's inner hold, when the outermost had been released", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			if r, ok := m.k.record(from.Key); ok && r.outermost != from.ID.Hex() && len(r.holds) > 0 && !r.holds[from.ID].IsZero() {
				return backend.Grant{}, backend.ErrNotHeld
			}
			return m.able.HandOver(ctx, from, to)
		}
	}},
	"a forced release leaves the label to the next": {"HolderIsShown", "after the hold before it was removed by force", func(m *bent) {
		m.force = func(ctx context.Context, key string, token uint64) error {
			rec, live := m.live(key)
			err := m.able.ForceRelease(ctx, key, token)
			if err == nil && live {
				m.k.mu.Lock()
				m.k.any["label "+key] = rec.Holder.Label
				m.k.mu.Unlock()
			}
			return err
		}
		label := func(h *backend.Holder, key string) {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if was, ok := m.k.any["label "+key]; ok && h.Label == "" {
				h.Label = was.(string)
			}
		}
		shown := func(rec backend.Record) (backend.Record, bool) { label(&rec.Holder, rec.Key); return rec, true }
		m.inspected(shown)
		m.listed(shown)
		m.refusals(func(held *backend.HeldError, _ backend.Request) { label(&held.Holder, held.Key) })
	}},
	"the largest token forgets clients that have closed": {"LastTokenCoversAll", "of a client that was closed", func(m *bent) {
		me := fmt.Sprintf("most %p", m)
		counts := func(g backend.Grant, err error) (backend.Grant, error) {
			if err == nil {
				m.k.mu.Lock()
				defer m.k.mu.Unlock()
				was, _ := m.k.any[me].(uint64)
				m.k.any[me] = max(was, g.Token)
			}
			return g, err
		}
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			return counts(m.able.Try(ctx, req))
		}
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			return counts(m.able.HandOver(ctx, from, to))
		}
		m.close = func() error {
			m.k.mu.Lock()
			delete(m.k.any, me)
			m.k.mu.Unlock()
			return m.able.Close()
		}
		m.last = func(ctx context.Context) (uint64, error) {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			most := m.k.floor
			for name, v := range m.k.any {
				if strings.HasPrefix(name, "most ") {
					most = max(most, v.(uint64))
				}
			}
			return most, ctx.Err()
		}
	}},
	"a revocation whose context has ended is content": {"CancelledSendsNothing", "Revoke of a hold, with a context that had ended, returned no error", func(m *bent) {
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			if ctx.Err() != nil {
				return nil
			}
			return m.able.Revoke(ctx, key, token)
		}
	}},
	"the largest token is zero when the context has ended": {"LastTokenCoversAll", "LastToken with a context that had ended", func(m *bent) {
		m.last = func(ctx context.Context) (uint64, error) {
			if ctx.Err() != nil {
				return 0, nil
			}
			return m.able.LastToken(ctx)
		}
	}},
	"a floor is raised by who has no time in words": {"RaisedFloorCounts", "with a context that had ended, had returned no error", func(m *bent) {
		m.raise = func(ctx context.Context, above uint64) error {
			if ctx.Err() != nil {
				return nil
			}
			return m.able.RaiseFloor(ctx, above)
		}
	}},
	"of two hand-overs of a hold the second is granted too": {"HandOverIsOneStep", "a second HandOver of the same hold", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := m.able.HandOver(ctx, from, to)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if err == nil {
				m.k.any["grant "+from.ID.Hex()] = g
			} else if before, ok := m.k.any["grant "+from.ID.Hex()]; ok && errors.Is(err, backend.ErrNotHeld) {
				return before.(backend.Grant), nil
			}
			return g, err
		}
	}},
	"a hand-over to the same owner keeps the label": {"HandOverIsOneStep", "shows the label", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			if rec, live := m.live(from.Key); live && from.Owner != "" && from.Owner == to.Owner {
				to.Holder.Label = rec.Holder.Label
			}
			return m.able.HandOver(ctx, from, to)
		}
	}},
	"what was handed over twice is held since the first time": {"HandOverIsOneStep", "(hand-over 2 in a row)", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			rec, _ := m.live(from.Key)
			g, err := m.able.HandOver(ctx, from, to)
			if err == nil {
				m.k.mu.Lock()
				defer m.k.mu.Unlock()
				if m.k.any["handed "+from.ID.Hex()] != nil {
					m.k.any[fmt.Sprint("since ", to.Key, g.Token)] = rec.Holder.Since
				}
				m.k.any["handed "+to.ID.Hex()] = true
			}
			return g, err
		}
		m.inspected(func(rec backend.Record) (backend.Record, bool) {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if since, ok := m.k.any[fmt.Sprint("since ", rec.Key, rec.Token)]; ok {
				rec.Holder.Since = since.(time.Time)
			}
			return rec, true
		})
	}},
	"a refusal shows what was left of who handed the key over": {"HandOverIsOneStep", "a refusal because of a hold that was handed over shows", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			rec, _ := m.live(from.Key)
			g, err := m.able.HandOver(ctx, from, to)
			if err == nil {
				m.k.mu.Lock()
				m.k.any["end "+from.Key] = time.Now().Add(rec.Remaining)
				m.k.mu.Unlock()
			}
			return g, err
		}
		m.refusals(func(held *backend.HeldError, _ backend.Request) {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if end, ok := m.k.any["end "+held.Key]; ok {
				held.Remaining = max(1, min(held.Remaining, time.Until(end.(time.Time))))
			}
		})
	}},
	"of revoked keys the last is remembered": {"RevokeByToken", "revoked hold", func(m *bent) { // two cases meet it, at the same instant
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			err := m.able.Revoke(ctx, key, token)
			if err == nil {
				m.k.mu.Lock()
				m.k.any["last revoked"] = key
				m.k.mu.Unlock()
			}
			return err
		}
		m.renews(func(_ context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			rec, live := m.live(h.Key)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if live && rec.Revoked && rec.Token == h.Token && m.k.any["last revoked"] != h.Key {
				return backend.Validity{}, nil
			}
			return v, err
		})
	}},
	"the owner of a revoked key is refused for good": {"RevokeByToken", "Try by the owner of a revoked hold", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.able.Try(ctx, req)
			if rec, live := m.live(req.Key); errors.Is(err, backend.ErrHeld) && live && rec.Revoked && req.Owner != "" {
				return g, fmt.Errorf("%w: revoked", backend.ErrPermanent)
			}
			return g, err
		}
	}},
	"a refusal of a revoked key tells of no end": {"RevokeByToken", "a refusal because of a hold that was revoked says", func(m *bent) {
		m.refusals(func(held *backend.HeldError, _ backend.Request) {
			if rec, live := m.live(held.Key); live && rec.Revoked {
				held.Remaining = 0
			}
		})
	}},
	"what was revoked is shown when it has run out": {"RevokeByToken", "and nobody has taken the key", func(m *bent) {
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			rec, _ := m.live(key)
			err := m.able.Revoke(ctx, key, token)
			if err == nil {
				m.k.mu.Lock()
				defer m.k.mu.Unlock()
				rec.Revoked, rec.Remaining = true, 1
				m.k.any["revoked "+key] = rec
			}
			return err
		}
		m.inspect = func(ctx context.Context, key string) (backend.Record, error) {
			rec, err := m.able.Inspect(ctx, key)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if old, ok := m.k.any["revoked "+key]; ok && errors.Is(err, backend.ErrNotHeld) {
				return old.(backend.Record), nil
			}
			return rec, err
		}
	}},
	"a revoked key shows no holds": {"RevokeByToken", "Inspect of a revoked hold shows", func(m *bent) {
		m.inspected(ofRevoked(func(rec *backend.Record) { rec.Holds = 0 }))
	}},
	"a revoked key shows no token": {"RevokeByToken", "Inspect of a revoked hold shows", func(m *bent) {
		m.inspected(ofRevoked(func(rec *backend.Record) { rec.Token = 0 }))
	}},
	"a revoked key shows less than no waiters": {"RevokeByToken", "Inspect of a revoked hold shows", func(m *bent) {
		m.inspected(ofRevoked(func(rec *backend.Record) { rec.Waiters = -3 }))
	}},
	"a list shows no holds of a revoked key": {"RevokeByToken", "List shows a revoked hold", func(m *bent) {
		m.listed(ofRevoked(func(rec *backend.Record) { rec.Holds = 0 }))
	}},
	"the largest token is not that of what was revoked": {"LastTokenCoversAll", "after a key whose hold was revoked", func(m *bent) {
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			err := m.able.Revoke(ctx, key, token)
			if err == nil {
				m.k.mu.Lock()
				m.k.any["revoked last"] = token
				m.k.mu.Unlock()
			}
			return err
		}
		m.last = func(ctx context.Context) (uint64, error) {
			n, err := m.able.LastToken(ctx)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			if m.k.any["revoked last"] == n {
				n--
			}
			return n, err
		}
	}},
	"who ceased to watch a moment ago counts as another": {"ReleaseTells", "ceased to watch", func(m *bent) {
		m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
			context.AfterFunc(ctx, func() {
				m.k.mu.Lock()
				m.k.any["ceased "+key] = time.Now()
				m.k.mu.Unlock()
			})
			return m.able.Watch(ctx, key)
		}
		m.tell = func(ctx context.Context, h backend.Hold) (int, error) {
			n, err := m.able.ReleaseTelling(ctx, h)
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			at, ok := m.k.any["ceased "+h.Key].(time.Time)
			delete(m.k.any, "ceased "+h.Key)
			if ok && err == nil && n == 0 && time.Since(at) < 100*time.Millisecond {
				n = 1
			}
			return n, err
		}
	}},
	"a hand-over that was cut off counts as unsent": {"NotSentIsTrue", "HandOver said that nothing was sent", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			g, err := m.able.HandOver(ctx, from, to)
			return g, cutIsUnsent(ctx, err)
		}
	}},
	"a revocation that was cut off counts as unsent": {"NotSentIsTrue", "Revoke said that nothing was sent", func(m *bent) {
		m.revoke = func(ctx context.Context, key string, token uint64) error {
			return cutIsUnsent(ctx, m.able.Revoke(ctx, key, token))
		}
	}},
	"a forced release that was cut off counts as unsent": {"NotSentIsTrue", "ForceRelease said that nothing was sent", func(m *bent) {
		m.force = func(ctx context.Context, key string, token uint64) error {
			return cutIsUnsent(ctx, m.able.ForceRelease(ctx, key, token))
		}
	}},
	"inspect ends when what was handed over would have": {"HandOverIsOneStep", "when the hold before would have ended", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(from.Key)
			g, err := m.able.HandOver(ctx, from, to)
			if err == nil && ok {
				m.k.mu.Lock()
				m.k.any[fmt.Sprint("ends ", from.Key, g.Token)] = r.until
				m.k.mu.Unlock()
			}
			return g, err
		}
		m.inspected(func(rec backend.Record) (backend.Record, bool) {
			m.k.mu.Lock()
			defer m.k.mu.Unlock()
			end, ok := m.k.any[fmt.Sprint("ends ", rec.Key, rec.Token)]
			return rec, !ok || time.Now().Before(end.(time.Time))
		})
	}},
	"an owner's release without a token ends all its holds": {"ReleaseByID", "because there is another hold", func(m *bent) {
		m.release = func(ctx context.Context, h backend.Hold) error {
			err := m.able.Release(ctx, h)
			if rec, live := m.live(h.Key); err == nil && h.Token == 0 && h.Owner != "" && live && !rec.Revoked {
				_ = m.able.ForceRelease(ctx, h.Key, rec.Token)
			}
			return err
		}
	}},
}

// rangeEnd is the first key after all that begin with the prefix, which ends with an ASCII character.
func rangeEnd(prefix string) string {
	if prefix == "" {
		return ""
	}
	last := len(prefix) - 1
	return prefix[:last] + string(rune(prefix[last]+1))
}

func (m *bent) deafTo(deaf func(key string) bool) {
	m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
		hints, err := m.able.Watch(ctx, key)
		if err == nil && deaf(key) {
			return make(chan backend.Hint), nil
		}
		return hints, err
	}
}

func (m *bent) forgetsHeld(which func(rec backend.Record) bool) {
	m.forget = func(ctx context.Context, prefix string) error {
		if prefix == "" {
			return backend.ErrInvalid
		}
		return m.able.List(ctx, prefix, func(rec backend.Record) bool {
			if which(rec) {
				_ = m.able.ForceRelease(ctx, rec.Key, rec.Token)
			}
			return true
		})
	}
}

func (m *bent) forgetsTokens(which func(prefix, key string) bool) {
	m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		g, err := m.able.Try(ctx, req)
		m.k.mu.Lock()
		defer m.k.mu.Unlock()
		if err == nil && m.k.any["anew "+req.Key] == true {
			g.Token = 1
		}
		if err == nil {
			m.k.any["used "+req.Key] = true
		}
		return g, err
	}
	m.forget = func(ctx context.Context, prefix string) error {
		if prefix == "" {
			return backend.ErrInvalid
		}
		m.k.mu.Lock()
		defer m.k.mu.Unlock()
		for name := range m.k.any {
			key, used := strings.CutPrefix(name, "used ")
			if _, live := m.live(key); used && !live && which(prefix, key) {
				m.k.any["anew "+key] = true
			}
		}
		return nil
	}
}

func TestMutantsOfChangedRecords(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range bentRecords {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, bending(c.change), c.rule, c.says) })
	}
	atOnce(t, &all, "the largest token is the largest text", func(t *testing.T) {
		mustSay(t, bendingOwn(textual), "LastTokenCoversAll", "the first with one digit more")
	})
	mustPass(t, bendingOwn(func(*bent) {}), "LastTokenCoversAll")
	rules := map[string]bool{}
	for _, c := range bentRecords {
		rules[c.rule] = true
	}
	atOnce(t, &all, "nothing is wrong", func(t *testing.T) {
		virtually(t, func(t *testing.T) {
			rep, err := conformance.Check(t.Context(), withOnly(bending(func(*bent) {}), slices.Collect(maps.Keys(rules))...))
			if err != nil || !rep.OK() {
				t.Fatal(err, rep)
			}
		})
	})
	all.Wait()
}

// bentQueue is a backend with a queue in memory, of which the tickets may be replaced.
type bentQueue struct {
	placed
	ttls    *sync.Map // of the last try, by key
	refuses *sync.Map // ids, or the grants that they are told
	renewed *sync.Map // ids
	change  func(t *bentTicket)
}

func (q bentQueue) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v, err := q.placed.Renew(ctx, h)
	if err == nil {
		q.renewed.Store(h.ID, true)
	}
	return v, err
}

func (q bentQueue) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if x, ok := q.refuses.Load(req.ID); ok {
		if g, ok := x.(backend.Grant); ok {
			g.Sent = q.Clock().Now()
			return g, nil
		}
		return backend.Grant{}, &backend.HeldError{Key: req.Key}
	}
	g, err := q.placed.Try(ctx, req)
	if err == nil {
		q.ttls.Store(req.Key, req.TTL)
	}
	return g, err
}

func (q bentQueue) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	inner, err := q.placed.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	t := &bentTicket{Ticket: inner, q: q, req: req, granted: func(backend.Grant) {}, behind: inner.Behind, withdraw: inner.Withdraw}
	q.change(t)
	return t, nil
}

// bentTicket is a place in the queue.
type bentTicket struct {
	backend.Ticket
	q        bentQueue
	req      backend.Request
	mu       sync.Mutex
	token    uint64 // of its grant
	first    *backend.Grant
	granted  func(g backend.Grant)
	behind   func() bool
	withdraw func(ctx context.Context) error
}

func (t *bentTicket) Behind() bool                       { return t.behind() }
func (t *bentTicket) Withdraw(ctx context.Context) error { return t.withdraw(ctx) }

func (t *bentTicket) Wait(ctx context.Context) (backend.Grant, error) {
	var g backend.Grant
	err := ctx.Err()
	if t.first != nil {
		g, g.Sent = *t.first, t.q.Clock().Now()
	} else {
		g, err = t.Ticket.Wait(ctx)
	}
	if err == nil {
		t.mu.Lock()
		t.token = g.Token
		t.mu.Unlock()
		t.granted(g)
	}
	return g, err
}

// before is the TTL of the hold before.
func (t *bentTicket) before() time.Duration {
	if ttl, ok := t.q.ttls.Load(t.req.Key); ok {
		return ttl.(time.Duration)
	}
	return t.req.TTL
}

func TestMutantsOfPlaces(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule, says string
		change     func(t *bentTicket)
	}{
		"a withdrawn place takes whoever holds the key along": {"QueueWithdraw", "expected that Withdraw ends nothing else", func(t *bentTicket) {
			t.withdraw = func(ctx context.Context) error {
				t.mu.Lock()
				token := t.token
				t.token = 0
				t.mu.Unlock()
				if rec, held := t.q.Inspect(ctx, t.req.Key); held == nil && token != 0 && rec.Token > token {
					_ = t.q.placed.ForceRelease(ctx, t.req.Key, rec.Token)
				}
				return t.Ticket.Withdraw(ctx)
			}
		}},
		"a withdrawal whose context has ended is content": {"QueueWithdraw", "with a context that had ended, returned no error", func(t *bentTicket) {
			t.withdraw = func(ctx context.Context) error {
				if ctx.Err() != nil {
					return nil //nolint:nilerr // the mistake
				}
				return t.Ticket.Withdraw(ctx)
			}
		}},
		"a place whose grant was renewed is withdrawn in words": {"QueueWithdraw", "whose grant had been renewed", func(t *bentTicket) {
			t.withdraw = func(ctx context.Context) error {
				if _, ok := t.q.renewed.Load(t.req.ID); ok {
					return ctx.Err()
				}
				return t.Ticket.Withdraw(ctx)
			}
		}},
		"a place that was the first at once, and not waited at, is withdrawn in words": {"QueueWithdraw", "at which nobody had waited", func(t *bentTicket) {
			t.withdraw = func(ctx context.Context) error {
				t.mu.Lock()
				waited := t.token != 0
				t.mu.Unlock()
				if !waited && !t.Ticket.Behind() {
					return ctx.Err()
				}
				return t.Ticket.Withdraw(ctx)
			}
		}},
		"every place is behind another": {"QueueWithdraw", "Behind of a place for a free key is true", func(t *bentTicket) {
			t.behind = func() bool { return true }
		}},
		"the request of a place is refused when it comes once more": {"QueueWithdraw", "came once more, as a try", func(t *bentTicket) {
			t.granted = func(backend.Grant) { t.q.refuses.Store(t.req.ID, true) }
		}},
		"what a place is granted ends when the hold before would have": {"QueueWithdraw", "before the end of that", func(t *bentTicket) {
			t.granted = func(g backend.Grant) {
				if before := t.before(); before < t.req.TTL {
					time.AfterFunc(before, func() { _ = t.q.placed.ForceRelease(context.Background(), t.req.Key, g.Token) })
				}
			}
		}},
		"what a place is granted lasts until the hold before would have ended": {"QueueWithdraw", "when the shorter one had passed", func(t *bentTicket) {
			t.granted = func(backend.Grant) {
				if h := backend.HoldOf(t.req); t.before() > h.TTL {
					h.TTL = t.before()
					_, _ = t.q.placed.Renew(context.Background(), h)
				}
			}
		}},
		"a place that comes to a revoked hold is granted the key": {"RevokeByToken", "the hold was revoked before it came", func(t *bentTicket) {
			if rec, held := t.q.Inspect(context.Background(), t.req.Key); held == nil && rec.Revoked && rec.Waiters == 1 {
				_ = t.q.placed.ForceRelease(context.Background(), t.req.Key, rec.Token)
			}
		}},
		"the request of a place, once more, dates its grant anew": {"QueueWithdraw", "what the repeat of the request of a place", func(t *bentTicket) {
			t.granted = func(g backend.Grant) { t.q.refuses.Store(t.req.ID, g) }
		}},
		"a place that is first at once is granted when it is waited at": {"QueueWithdraw", "what the grant of a place that was waited at later", func(t *bentTicket) {
			if t.Behind() {
				return
			}
			if g, err := t.Ticket.Wait(context.Background()); err == nil {
				t.first = &g
			}
		}},
		"nothing is wrong": {"", "", func(*bentTicket) {}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			store, cfg := memlock.NewStore(nil), memory()
			ttls, refuses, renewed := &sync.Map{}, &sync.Map{}, &sync.Map{}
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
				if err != nil {
					return nil, err
				}
				return bentQueue{b.(placed), ttls, refuses, renewed, c.change}, nil
			}
			if c.says != "" {
				mustSay(t, cfg, c.rule, c.says)
				return
			}
			virtually(t, func(t *testing.T) {
				rep, err := conformance.Check(t.Context(), withOnly(cfg, "backend"))
				if err != nil || !rep.OK() {
					t.Fatal(err, rep)
				}
			})
		})
	}
	all.Wait()
}
