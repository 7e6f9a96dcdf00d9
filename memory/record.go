package memlock

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

// recordBackend is one client of the personality with records that expire.
type recordBackend struct{ s *Store }

func newRecordBackend(s *Store) (backend.Backend, error) { return &recordBackend{s}, nil }

func (b *recordBackend) Guarantees() backend.Guarantees { return guarantees() }
func (b *recordBackend) Clock() backend.Clock           { return b.s.clock }
func (b *recordBackend) Immediate() bool                { return true }
func (b *recordBackend) Close() error                   { return nil }

func (b *recordBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	r := s.live(req.Key, now)
	switch {
	case r == nil:
		return s.grant(req, now), nil
	case r.has(req.ID):
	case req.Owner == "" || r.owner != req.Owner:
		return backend.Grant{}, r.refuse(req.Key, now)
	case len(r.holds) >= backend.MaxHolds:
		return backend.Grant{}, backend.ErrTooManyHolds
	}
	r.extend(req.ID, now.Add(req.TTL))
	return r.grant(now, req.TTL), nil
}

// grant makes the record of a free key. The mutex is held.
func (s *Store) grant(req backend.Request, now backend.Instant) backend.Grant {
	holder := req.Holder
	holder.Since = time.Now()
	r := &record{owner: req.Owner, token: s.nextToken(holder.Since), holder: holder}
	r.holds = append(r.first[:0], hold{req.ID, now.Add(req.TTL)})
	s.records[req.Key] = r
	return r.grant(now, req.TTL)
}

func (r *record) grant(now backend.Instant, ttl time.Duration) backend.Grant {
	return backend.Grant{
		Token: r.token, Holds: len(r.holds),
		Validity: backend.Validity{Sent: now, For: backend.ValidFor(ttl)},
	}
}

func (r *record) refuse(key string, now backend.Instant) error {
	return &backend.HeldError{Key: key, Holder: r.holder, Remaining: r.remaining(now)}
}

func (b *recordBackend) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if err := ctx.Err(); err != nil {
		return backend.Validity{}, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	r := s.live(h.Key, now)
	if r == nil || !r.has(h.ID) {
		return backend.Validity{}, backend.ErrNotHeld
	}
	r.extend(h.ID, now.Add(h.TTL))
	return backend.Validity{Sent: now, For: backend.ValidFor(h.TTL)}, nil
}

// RenewBatch implements backend.BatchRenewer.
func (b *recordBackend) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	for i, h := range holds {
		out[i].Validity, out[i].Err = b.Renew(ctx, h)
	}
	return out
}

func (b *recordBackend) Release(ctx context.Context, h backend.Hold) error {
	_, err := b.ReleaseTelling(ctx, h)
	return err
}

// ReleaseTelling implements backend.ReleaseTeller.
func (b *recordBackend) ReleaseTelling(ctx context.Context, h backend.Hold) (others int, _ error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.live(h.Key, s.clock.Now())
	if r == nil || !r.has(h.ID) {
		return 0, backend.ErrNotHeld
	}
	r.end(h.ID)
	if len(r.holds) == 0 {
		delete(s.records, h.Key)
		s.signal(h.Key)
		others = s.others(h.Key, b)
	}
	return others, nil
}

// HandOver implements backend.HandOverer.
func (b *recordBackend) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	r := s.live(from.Key, now)
	if r == nil || !r.has(from.ID) {
		return backend.Grant{}, backend.ErrNotHeld
	}
	r.end(from.ID)
	if len(r.holds) > 0 {
		return backend.Grant{}, r.refuse(from.Key, now)
	}
	delete(s.records, from.Key)
	return s.grant(to, now), nil
}

// Watch implements backend.Watcher.
func (b *recordBackend) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ch := b.s.watch(key, b)
	context.AfterFunc(ctx, func() { b.s.unwatch(key, ch) })
	return ch, nil
}

// Inspect implements backend.Inspector.
func (b *recordBackend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	if err := ctx.Err(); err != nil {
		return backend.Record{}, err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	r := s.live(key, now)
	if r == nil {
		return backend.Record{}, backend.ErrNotHeld
	}
	return backend.Record{
		Key: key, Token: r.token, Holds: len(r.holds), Waiters: -1,
		Remaining: r.remaining(now), Holder: r.holder, Revoked: r.revoked,
	}, nil
}

// ForceRelease implements backend.ForceReleaser.
func (b *recordBackend) ForceRelease(ctx context.Context, key string, token uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.live(key, s.clock.Now()); r == nil || r.token != token {
		return backend.ErrNotHeld
	}
	delete(s.records, key)
	s.signal(key)
	return nil
}

// Revoke implements backend.Revoker.
func (b *recordBackend) Revoke(ctx context.Context, key string, token uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	r := s.live(key, now)
	if r == nil || r.token != token {
		return backend.ErrNotHeld
	}
	r.owner, r.revoked = "", true
	r.holds = []hold{{backend.NewID(), now.Add(r.remaining(now))}} // by an id that nobody knows
	return nil
}

// RaiseFloor implements backend.FloorRaiser.
func (b *recordBackend) RaiseFloor(ctx context.Context, above uint64) error {
	return b.s.raiseFloor(ctx, above)
}

// LastToken implements backend.TokenTeller.
func (b *recordBackend) LastToken(ctx context.Context) (uint64, error) { return b.s.lastToken(ctx) }

// List implements backend.Lister.
func (b *recordBackend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return b.s.list(ctx, prefix, func(s *Store) []string { return keysOf(s.records) }, b.Inspect, visit)
}
