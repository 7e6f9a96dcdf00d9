package memlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Store is the "server" that Lockers in memory share. It is safe for concurrent
// use. Its methods do to it what operators and outages do, for tests. Faults of the network
// between it and a Locker are those of package faultlock.
type Store struct {
	clock backend.Clock

	mu      sync.Mutex
	records map[string]*record
	queues  map[string]*queue
	watches map[string]map[chan backend.Hint]*recordBackend
	token   uint64
}

// NewStore returns an empty store. The clock decides about expiry; nil means the
// clock of the Go runtime, which is virtual inside a testing/synctest bubble.
func NewStore(clock backend.Clock) *Store {
	if clock == nil {
		clock = backend.RuntimeClock()
	}
	return &Store{
		clock:   clock,
		records: map[string]*record{},
		queues:  map[string]*queue{},
		watches: map[string]map[chan backend.Hint]*recordBackend{},
	}
}

// record is the state of one key in the personality with expiry.
type record struct {
	owner  string // explicit owner, or empty
	token  uint64
	holder backend.Holder
	holds  []hold
	// revoked: it is that of nobody, until it runs out.
	revoked bool

	first [1]hold // where holds begin: there is only one as a rule
}

// hold is one acquisition, and when it ends.
type hold struct {
	id     backend.ID
	expiry backend.Instant
}

// has reports whether the acquisition holds the key.
func (r *record) has(id backend.ID) bool { return r.find(id) >= 0 }

func (r *record) find(id backend.ID) int {
	return slices.IndexFunc(r.holds, func(h hold) bool { return h.id == id })
}

// extend adds a hold, or moves its expiry, never back.
func (r *record) extend(id backend.ID, to backend.Instant) {
	if i := r.find(id); i >= 0 {
		r.holds[i].expiry = max(r.holds[i].expiry, to)
		return
	}
	r.holds = append(r.holds, hold{id, to})
}

func (r *record) end(id backend.ID) {
	r.holds = slices.DeleteFunc(r.holds, func(h hold) bool { return h.id == id })
}

// remaining is how long the last hold lasts.
func (r *record) remaining(now backend.Instant) time.Duration {
	var d time.Duration
	for _, h := range r.holds {
		d = max(d, h.expiry.Sub(now))
	}
	return d
}

// nextToken returns a token larger than all before it, in this process and, by
// the wall clock, in the process before it. The mutex is held.
func (s *Store) nextToken(wall time.Time) uint64 {
	s.token = max(s.token+1, uint64(wall.UnixMicro()))
	return s.token
}

// maxToken is the largest one, as in every backend: from 2^53 on, floating point numbers
// don't tell neighbours apart.
const maxToken = 1<<53 - 1

func (s *Store) raiseFloor(ctx context.Context, above uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if above >= maxToken {
		return fmt.Errorf("memlock: %w: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(maxToken-1))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = max(s.token, above)
	return nil
}

func (s *Store) lastToken(ctx context.Context) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token, nil
}

// live returns the record of the key without its expired holds, or nil when the
// key is free. The mutex is held.
func (s *Store) live(key string, now backend.Instant) *record {
	r := s.records[key]
	if r == nil {
		return nil
	}
	r.holds = slices.DeleteFunc(r.holds, func(h hold) bool { return now >= h.expiry })
	if len(r.holds) == 0 {
		delete(s.records, key)
		return nil
	}
	return r
}

// signal tells the watchers of a key that it may be free. The mutex is held.
func (s *Store) signal(key string) {
	for ch := range s.watches[key] {
		select {
		case ch <- backend.Hint{Watchers: len(s.watches[key])}:
		default: // a signal is already waiting
		}
	}
}

// others counts the clients other than b that watch a key. The mutex is held.
func (s *Store) others(key string, b *recordBackend) int {
	n := 0
	for _, by := range s.watches[key] {
		if by != b {
			n++
		}
	}
	return n
}

func (s *Store) watch(key string, b *recordBackend) chan backend.Hint {
	ch := make(chan backend.Hint, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[key] == nil {
		s.watches[key] = map[chan backend.Hint]*recordBackend{}
	}
	s.watches[key][ch] = b
	return ch
}

func (s *Store) unwatch(key string, ch chan backend.Hint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches[key], ch)
	if len(s.watches[key]) == 0 {
		delete(s.watches, key)
	}
}

// Len is the number of keys that are held or waited for, for tests of what is
// left behind.
func (s *Store) Len() int {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for key := range s.records {
		if s.live(key, now) != nil {
			n++
		}
	}
	for key := range s.queues {
		if s.liveQueue(key, now) != nil {
			n++
		}
	}
	return n + len(s.watches)
}

// list visits the records of the keys, without the mutex, so that visit may use
// the store.
func (s *Store) list(ctx context.Context, prefix string, keys func(*Store) []string, inspect func(context.Context, string) (backend.Record, error), visit func(backend.Record) bool) error {
	s.mu.Lock()
	found := keys(s)
	s.mu.Unlock()
	for _, key := range found {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		rec, err := inspect(ctx, key)
		switch {
		case errors.Is(err, backend.ErrNotHeld):
			continue // since a moment ago
		case err != nil:
			return err
		case !visit(rec):
			return nil
		}
	}
	return ctx.Err()
}

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
