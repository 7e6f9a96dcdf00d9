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
	"unicode/utf8"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// Mutants of backends that are right while nothing else goes on: nobody comes to a queue, no
// client closes, no list is being made.

// hooks is a backend of whose methods some are replaced.
type hooks struct {
	wrapper
	try     func(ctx context.Context, req backend.Request) (backend.Grant, error)
	tell    func(ctx context.Context, h backend.Hold) (int, error)
	watch   func(ctx context.Context, key string) (<-chan backend.Hint, error)
	inspect func(ctx context.Context, key string) (backend.Record, error)
	list    func(ctx context.Context, prefix string, visit func(backend.Record) bool) error
	force   func(ctx context.Context, key string, token uint64) error
	close   func() error
}

// hooked is for a store: change makes what its clients share, and returns what changes each of
// them.
func hooked(change func() func(h *hooks)) func() around {
	return func() around {
		each := change()
		return func(b backend.Backend) backend.Backend {
			h := &hooks{
				wrapper: wrapper{b}, try: b.Try, close: b.Close,
				tell:    ability[backend.ReleaseTeller](b).ReleaseTelling,
				watch:   ability[backend.Watcher](b).Watch,
				inspect: ability[backend.Inspector](b).Inspect,
				list:    ability[backend.Lister](b).List,
				force:   ability[backend.ForceReleaser](b).ForceRelease,
			}
			each(h)
			return h
		}
	}
}

func (h *hooks) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	return h.try(ctx, req)
}

func (h *hooks) Release(ctx context.Context, o backend.Hold) error {
	_, err := h.tell(ctx, o)
	return err
}

func (h *hooks) ReleaseTelling(ctx context.Context, o backend.Hold) (int, error) {
	return h.tell(ctx, o)
}

func (h *hooks) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	return h.watch(ctx, key)
}

func (h *hooks) Inspect(ctx context.Context, key string) (backend.Record, error) {
	return h.inspect(ctx, key)
}

func (h *hooks) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return h.list(ctx, prefix, visit)
}

func (h *hooks) ForceRelease(ctx context.Context, key string, token uint64) error {
	return h.force(ctx, key, token)
}

func (h *hooks) Close() error { return h.close() }

// filtered hands on the signals of a watch for which pass says so.
func filtered(ctx context.Context, in <-chan backend.Hint, pass func() bool) <-chan backend.Hint {
	out := make(chan backend.Hint, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case hint, ok := <-in:
				if !ok {
					close(out)
					return
				}
				if !pass() {
					continue
				}
				select {
				case out <- hint:
				default: // a signal is already waiting
				}
			}
		}
	}()
	return out
}

// ownersAs has the store keep owners in another form.
func ownersAs(change func(owner string) string) func() around {
	return hooked(func() func(*hooks) {
		return func(h *hooks) {
			try := h.try
			h.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if req.Owner != "" {
					req.Owner = change(req.Owner)
				}
				return try(ctx, req)
			}
		}
	})
}

// keptPlaces are the places of a queue that anybody's request keeps, by key.
type keptPlaces struct {
	mu     sync.Mutex
	places map[string][]backend.Ticket
}

// keptPlace is a ticket that is kept until it is granted or withdrawn.
type keptPlace struct {
	backend.Ticket
	key  string
	kept *keptPlaces
}

func (p *keptPlace) Wait(ctx context.Context) (backend.Grant, error) {
	g, err := p.Ticket.Wait(ctx)
	if err == nil {
		p.kept.drop(p.key, p.Ticket)
	}
	return g, err
}

func (p *keptPlace) Withdraw(ctx context.Context) error {
	p.kept.drop(p.key, p.Ticket)
	return p.Ticket.Withdraw(ctx)
}

func (k *keptPlaces) drop(key string, t backend.Ticket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.places[key] = slices.DeleteFunc(k.places[key], func(other backend.Ticket) bool { return other == t })
}

// refresh asks for each place of the key once, without waiting.
func (k *keptPlaces) refresh(key string) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	k.mu.Lock()
	all := slices.Clone(k.places[key])
	k.mu.Unlock()
	for _, t := range all {
		if _, err := t.Wait(now); err == nil {
			k.drop(key, t)
		}
	}
}

// keepsPlaces has requests keep all places of their key, each kind of them if it is named.
type keepsPlaces struct {
	wrapper
	kept                    *keptPlaces
	enqueues, tries, renews bool
}

func (b keepsPlaces) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	if b.enqueues {
		b.kept.refresh(req.Key)
	}
	t, err := ability[backend.Queuer](b.Backend).Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	b.kept.mu.Lock()
	defer b.kept.mu.Unlock()
	b.kept.places[req.Key] = append(b.kept.places[req.Key], t)
	return &keptPlace{t, req.Key, b.kept}, nil
}

func (b keepsPlaces) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if b.tries && errors.Is(err, backend.ErrHeld) {
		b.kept.refresh(req.Key)
	}
	return g, err
}

func (b keepsPlaces) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v, err := b.Backend.Renew(ctx, h)
	if b.renews && err == nil {
		b.kept.refresh(h.Key)
	}
	return v, err
}

func keepingPlaces(change keepsPlaces) func() around {
	return func() around {
		change := change
		change.kept = &keptPlaces{places: map[string][]backend.Ticket{}}
		return func(b backend.Backend) backend.Backend {
			change := change
			change.wrapper = wrapper{b}
			return change
		}
	}
}

// closeUnsubscribes has a client that closes end the watches of all clients, of the keys that it
// has watched.
func closeUnsubscribes() func(*hooks) {
	var off sync.Map // keys
	return func(h *hooks) {
		var mine sync.Map
		watch, closing := h.watch, h.close
		h.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
			in, err := watch(ctx, key)
			if err != nil {
				return nil, err
			}
			mine.Store(key, true)
			off.Delete(key)
			return filtered(ctx, in, func() bool { _, is := off.Load(key); return !is }), nil
		}
		h.close = func() error {
			mine.Range(func(key, _ any) bool { off.Store(key, true); return true })
			return closing()
		}
	}
}

// labelOfAny shows the first label of those who hold the key, where the outermost hold has none.
func labelOfAny() func(*hooks) {
	var labels sync.Map // by key
	return func(h *hooks) {
		try, inspect, list := h.try, h.inspect, h.list
		shown := func(key string, o *backend.Holder) {
			if label, ok := labels.Load(key); ok && o.Label == "" {
				o.Label = label.(string)
			}
		}
		h.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := try(ctx, req)
			var held *backend.HeldError
			switch {
			case err == nil:
				if label, _ := labels.Load(req.Key); g.Holds == 1 || label == "" {
					labels.Store(req.Key, req.Holder.Label)
				}
			case errors.As(err, &held):
				other := *held
				shown(req.Key, &other.Holder)
				err = &other
			}
			return g, err
		}
		h.inspect = func(ctx context.Context, key string) (backend.Record, error) {
			rec, err := inspect(ctx, key)
			if err == nil {
				shown(key, &rec.Holder)
			}
			return rec, err
		}
		h.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
			return list(ctx, prefix, func(rec backend.Record) bool { shown(rec.Key, &rec.Holder); return visit(rec) })
		}
	}
}

// busyWhileListing lets a client make no requests from within its list, of the kinds named.
func busyWhileListing(kinds string) func() around {
	return hooked(func() func(*hooks) {
		return func(h *hooks) {
			var lists atomic.Int32
			busy := func(kind string) error {
				if lists.Load() > 0 && strings.Contains(kinds, kind) {
					return fmt.Errorf("%w: commands out of sync", backend.ErrUnavailable)
				}
				return nil
			}
			list, try, tell, inspect := h.list, h.try, h.tell, h.inspect
			h.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
				return list(ctx, prefix, func(rec backend.Record) bool {
					lists.Add(1)
					defer lists.Add(-1)
					return visit(rec)
				})
			}
			h.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if err := busy("try"); err != nil {
					return backend.Grant{}, err
				}
				return try(ctx, req)
			}
			h.tell = func(ctx context.Context, o backend.Hold) (int, error) {
				if err := busy("release"); err != nil {
					return 0, err
				}
				return tell(ctx, o)
			}
			h.inspect = func(ctx context.Context, key string) (backend.Record, error) {
				if err := busy("inspect"); err != nil {
					return backend.Record{}, err
				}
				return inspect(ctx, key)
			}
		}
	})
}

// keepsBeside has the store keep something of a key under that key with an end.
func keepsBeside(end string) func() around {
	return hooked(func() func(*hooks) {
		return func(h *hooks) {
			try := h.try
			h.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if base, ok := strings.CutSuffix(req.Key, end); ok {
					if _, err := h.inspect(context.Background(), base); err == nil {
						return backend.Grant{}, &backend.HeldError{Key: req.Key}
					}
				}
				return try(ctx, req)
			}
		}
	})
}

// listsOn has the next list of a prefix go on where the visitor of the last one ended it.
func listsOn() func(h *hooks) {
	return func(h *hooks) {
		var stopped sync.Map // keys, by prefix
		list := h.list
		h.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
			from, _ := stopped.LoadAndDelete(prefix)
			return list(ctx, prefix, func(rec backend.Record) bool {
				if from != nil && rec.Key <= from.(string) || visit(rec) {
					return true
				}
				stopped.Store(prefix, rec.Key)
				return false
			})
		}
	}
}

// listsOnce has a client make one list at a time, and another one show nothing.
func listsOnce() func(h *hooks) {
	return func(h *hooks) {
		var busy atomic.Bool
		list := h.list
		h.list = func(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
			if busy.Swap(true) {
				return ctx.Err()
			}
			defer busy.Store(false)
			return list(ctx, prefix, visit)
		}
	}
}

// clearsLate has a store look for expired records every three seconds, and remove what it has found
// 20 ms later, whoever's it is by then.
func clearsLate() func(h *hooks) {
	var mu sync.Mutex
	ends := map[string]time.Time{}
	var last time.Time
	return func(h *hooks) {
		try, tell := h.try, h.tell
		clear := func(key string) {
			if rec, err := h.inspect(context.Background(), key); err == nil {
				_ = h.force(context.Background(), key, rec.Token)
			}
		}
		h.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			mu.Lock()
			if time.Since(last) > 3*time.Second {
				last = time.Now()
				for key, end := range ends {
					if !last.Before(end) {
						delete(ends, key)
						time.AfterFunc(20*time.Millisecond, func() { clear(key) })
					}
				}
			}
			mu.Unlock()
			g, err := try(ctx, req)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				ends[req.Key] = time.Now().Add(req.TTL)
			}
			return g, err
		}
		h.tell = func(ctx context.Context, o backend.Hold) (int, error) {
			n, err := tell(ctx, o)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				delete(ends, o.Key)
			}
			return n, err
		}
	}
}

// cutAtFourBytes is what is before the first character of four bytes, which MySQL's utf8 does not
// have, and that character.
func cutAtFourBytes(s string) (before, char string) {
	for i, r := range s {
		if n := utf8.RuneLen(r); n == utf8.UTFMax {
			return s[:i], s[i : i+n]
		}
	}
	return s, ""
}

var elsewhereBackends = map[string]struct {
	rule, says string
	queue      bool
	around     func() around
}{
	"whoever comes to a queue keeps the places of those who have gone":  {rule: "QueueAbandoned", says: "behind places whose client had gone", queue: true, around: keepingPlaces(keepsPlaces{enqueues: true})},
	"a try that is refused keeps the places of those who have gone":     {rule: "QueueAbandoned", says: "behind places whose client had gone", queue: true, around: keepingPlaces(keepsPlaces{tries: true})},
	"the renewal of the holder keeps the places of those who have gone": {rule: "QueueAbandoned", says: "behind places whose client had gone", queue: true, around: keepingPlaces(keepsPlaces{renews: true})},
	"owners are their checksums": {rule: "ReentrantExplicit", says: `its owner is "plumless"`, around: ownersAs(func(owner string) string {
		return fmt.Sprint(crc32.ChecksumIEEE([]byte(owner)))
	})},
	"owners are their hashes, as in Java": {rule: "ReentrantExplicit", says: `its owner is "Aa"`, around: ownersAs(func(owner string) string {
		var hash int32
		for _, r := range owner {
			hash = 31*hash + r
		}
		return fmt.Sprint(hash)
	})},
	"owners end at the first character of four bytes": {rule: "ReentrantExplicit", says: `its owner is "x🔒a"`, around: ownersAs(func(owner string) string {
		kept, _ := cutAtFourBytes(owner)
		return kept
	})},
	"keys end with the first character of four bytes": {rule: "IndependentKeys", says: "although only other keys are held", around: hooked(func() func(*hooks) {
		return func(h *hooks) {
			try := h.try
			h.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				before, char := cutAtFourBytes(req.Key)
				req.Key = before + char
				return try(ctx, req)
			}
		}
	})},
	"owners are paths":           {rule: "ReentrantExplicit", says: `its owner is "a//b"`, around: ownersAs(func(owner string) string { return strings.ReplaceAll(owner, "//", "/") })},
	"owners are percent-decoded": {rule: "ReentrantExplicit", says: `its owner is "a%25"`, around: ownersAs(func(owner string) string { return strings.ReplaceAll(owner, "%25", "%") })},
	"the label of an inner hold is shown where the outermost has none":      {rule: "HolderIsShown", says: `shows the label "inner"; expected ""`, around: hooked(labelOfAny)},
	"who lists a key can't inspect it meanwhile":                            {rule: "ListShowsHeldKeys", says: "from within a list", around: busyWhileListing("inspect")},
	"who lists a key can't try another meanwhile":                           {rule: "ListShowsHeldKeys", says: "from within a list", around: busyWhileListing("try")},
	"who lists a key can't release another meanwhile":                       {rule: "ListShowsHeldKeys", says: "from within a list", around: busyWhileListing("release")},
	"a list begins where one stopped that was ended early":                  {rule: "ListShowsHeldKeys", says: "a List after one that was ended early shows", around: hooked(listsOn)},
	"a list beside another one is empty":                                    {rule: "ListShowsHeldKeys", says: "a List beside another List shows", around: hooked(listsOnce)},
	"what clears away expired records does so a moment after it has looked": {rule: "ExclusiveAcrossTakeover", says: "another client has taken it over", around: hooked(clearsLate)},
	"a client that closes ends the watches of others":                       {rule: "WatchEndsWithContext", says: "when another client that watched them had been closed", around: hooked(closeUnsubscribes)},
	"the token of a key is kept under the key with :token":                  {rule: "IndependentKeys", says: "although only other keys are held", around: keepsBeside(":token")},
	"the queue of a key is kept under the key with :queue":                  {rule: "IndependentKeys", says: "although only other keys are held", around: keepsBeside(":queue")},
}

func TestMutantsWhereOthersComeAndGo(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range elsewhereBackends {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, onMemory(c.queue, c.around()), c.rule, c.says) })
	}
	all.Wait()
	for _, c := range elsewhereBackends {
		healthy := hooked(func() func(*hooks) { return func(*hooks) {} })
		if c.queue {
			healthy = keepingPlaces(keepsPlaces{})
		}
		mustPass(t, onMemory(c.queue, healthy()), c.rule)
	}
}

// A backend that has the method, and declines, forces nothing.
func TestDeclinedForceIsNotUsed(t *testing.T) {
	t.Parallel()
	mustPass(t, onMemory(false, hooked(func() func(*hooks) {
		return func(h *hooks) {
			h.force = func(context.Context, string, uint64) error { return backend.ErrUnsupported }
		}
	})()), "RaisedFloorCounts LastTokenCoversAll")
}

// byFirstUse counts the age of a key from its first use.
type byFirstUse struct{ wrapper }

func (b byFirstUse) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	keys := b.Backend.(*cleanMutant).keys
	keys.mu.Lock()
	first, known := keys.last[req.Key]
	keys.mu.Unlock()
	g, err := b.Backend.Try(ctx, req)
	if known {
		keys.mu.Lock()
		defer keys.mu.Unlock()
		keys.last[req.Key] = first
	}
	return g, err
}

// cleaningAround changes the clients of stores that clean up.
func cleaningAround(change around) conformance.Config {
	cfg := cleaning(func(*cleanMutant) {})
	changed := func(open func(context.Context) (backend.Backend, error)) func(context.Context) (backend.Backend, error) {
		return func(ctx context.Context) (backend.Backend, error) {
			b, err := open(ctx)
			if err != nil {
				return nil, err
			}
			return change(b), nil
		}
	}
	untouched := cfg.Untouched
	cfg.OpenBackend = changed(cfg.OpenBackend)
	cfg.Untouched = func(ctx context.Context) (conformance.Store, error) {
		s, err := untouched(ctx)
		s.Open = changed(s.Open)
		return s, err
	}
	return cfg
}

// oldBy is a Config for a lock that takes what nobody holds for old if it says so.
func oldBy(is func(age, olderThan time.Duration) bool) func() conformance.Config {
	return func() conformance.Config {
		return cleaning(func(m *cleanMutant) {
			m.old = func(_ string, age, olderThan time.Duration, held *backend.Record) bool {
				return held == nil && is(age, olderThan)
			}
		})
	}
}

var otherAges = map[string]struct {
	rule, says string
	cfg        func() conformance.Config
}{
	"ages are whole minutes": {"CleanupByAge", "of what was not used for 800ms", oldBy(func(age, olderThan time.Duration) bool {
		return age.Truncate(time.Minute) >= olderThan.Truncate(time.Minute)
	})},
	"ages are whole minutes, and more than that": {"CleanupByAge", "of what was not used for 200ms", oldBy(func(age, olderThan time.Duration) bool {
		return age.Truncate(time.Minute) > olderThan.Truncate(time.Minute) || olderThan < 100*time.Millisecond
	})},
	"ages are whole seconds": {"CleanupByAge", "of what was not used for 800ms", oldBy(func(age, olderThan time.Duration) bool {
		return age.Truncate(time.Second) >= olderThan.Truncate(time.Second)
	})},
	"ages of more than a second are whole minutes": {"CleanupByAge", "of what was not used for 40s", oldBy(func(age, olderThan time.Duration) bool {
		if olderThan > time.Second {
			return age.Truncate(time.Minute) >= olderThan.Truncate(time.Minute)
		}
		return age > olderThan
	})},
	"an age of centuries is none": {"CleanupByAge", "was used since the case began", oldBy(func(age, olderThan time.Duration) bool {
		return age > olderThan || olderThan > 200*365*24*time.Hour
	})},
	"an age is rounded up to microseconds, and overflows": {"CleanupByAge", "was used since the case began", oldBy(func(age, olderThan time.Duration) bool {
		return age.Microseconds() > (olderThan + time.Microsecond - 1).Microseconds()
	})},
	"the age of a key counts from its first use": {"CleanupByAge", "used again", func() conformance.Config {
		return cleaningAround(func(b backend.Backend) backend.Backend { return byFirstUse{wrapper{b}} })
	}},
}

func TestMutantsOfAges(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range otherAges {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, c.cfg(), c.rule, c.says) })
	}
	all.Wait()
}
