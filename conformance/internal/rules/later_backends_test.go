package rules_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// Mutants of backends that are right with a hold that is neither revoked nor its owner's inner one.

// shownElse changes what is shown of a key.
type shownElse struct {
	wrapper
	inspect, list func(rec *backend.Record)
	refuse        func(rec backend.Record, held *backend.HeldError)
}

func (b shownElse) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := ability[backend.Inspector](b.Backend).Inspect(ctx, key)
	if b.inspect != nil && err == nil {
		b.inspect(&rec)
	}
	return rec, err
}

func (b shownElse) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return ability[backend.Lister](b.Backend).List(ctx, prefix, func(rec backend.Record) bool {
		if b.list != nil {
			b.list(&rec)
		}
		return visit(rec)
	})
}

func (b shownElse) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	rec, known := ability[backend.Inspector](b.Backend).Inspect(context.Background(), req.Key)
	g, err := b.Backend.Try(ctx, req)
	var held *backend.HeldError
	if b.refuse == nil || known != nil || !errors.As(err, &held) {
		return g, err
	}
	other := *held
	b.refuse(rec, &other)
	return g, &other
}

func showing(change shownElse) func() around {
	return func() around {
		return func(b backend.Backend) backend.Backend {
			change.wrapper = wrapper{b}
			return change
		}
	}
}

// revokedAsExpired tells the holder of a revoked hold that it has run out.
type revokedAsExpired struct{ wrapper }

func (b revokedAsExpired) told(ctx context.Context, h backend.Hold, err error) error {
	if rec, free := ability[backend.Inspector](b.Backend).Inspect(ctx, h.Key); err != nil && free == nil && rec.Revoked && rec.Token == h.Token {
		return backend.ErrExpired
	}
	return err
}

func (b revokedAsExpired) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	v, err := b.Backend.Renew(ctx, h)
	return v, b.told(ctx, h, err)
}

func (b revokedAsExpired) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := ability[backend.BatchRenewer](b.Backend).RenewBatch(ctx, holds)
	for i, h := range holds {
		out[i].Err = b.told(ctx, h, out[i].Err)
	}
	return out
}

// outermostShown shows otherwise what is held after the release of the outermost hold.
type outermostShown struct {
	wrapper
	outermost *sync.Map // ids, by key
	change    func(h *backend.Holder)
}

func (b outermostShown) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if err == nil && g.Holds == 1 {
		b.outermost.Store(req.Key, req.ID)
	}
	return g, err
}

func (b outermostShown) ReleaseTelling(ctx context.Context, h backend.Hold) (int, error) {
	n, err := ability[backend.ReleaseTeller](b.Backend).ReleaseTelling(ctx, h)
	b.outermost.CompareAndSwap(h.Key, h.ID, backend.ID{})
	return n, err
}

func (b outermostShown) shown(rec backend.Record) backend.Record {
	if id, ok := b.outermost.Load(rec.Key); ok && id == (backend.ID{}) {
		b.change(&rec.Holder)
	}
	return rec
}

func (b outermostShown) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := ability[backend.Inspector](b.Backend).Inspect(ctx, key)
	return b.shown(rec), err
}

func (b outermostShown) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return ability[backend.Lister](b.Backend).List(ctx, prefix, func(rec backend.Record) bool { return visit(b.shown(rec)) })
}

func afterOutermost(change func(h *backend.Holder)) func() around {
	return func() around {
		var outermost sync.Map
		return func(b backend.Backend) backend.Backend { return outermostShown{wrapper{b}, &outermost, change} }
	}
}

// forcesInTime does nothing for who has no time, and says nothing of it.
type forcesInTime struct{ wrapper }

func (b forcesInTime) ForceRelease(ctx context.Context, key string, token uint64) error {
	if ctx.Err() == nil {
		return ability[backend.ForceReleaser](b.Backend).ForceRelease(ctx, key, token)
	}
	return nil
}

// lastingPlaces keeps places for longer than asked for.
type lastingPlaces struct{ wrapper }

func (b lastingPlaces) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	req.TTL *= 8
	return ability[backend.Queuer](b.Backend).Enqueue(ctx, req)
}

// lookKeepsPlaces keeps the places of a key for who looks at it.
type lookKeepsPlaces struct {
	wrapper
	tickets     *sync.Map // each with its key
	list, shown bool      // what keeps them
}

func (b lookKeepsPlaces) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t, err := ability[backend.Queuer](b.Backend).Enqueue(ctx, req)
	if err == nil {
		b.tickets.Store(t, req.Key)
	}
	return t, err
}

func (b lookKeepsPlaces) keep(key string) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	b.tickets.Range(func(t, of any) bool {
		if t := t.(backend.Ticket); of == key && t.Behind() {
			_, _ = t.Wait(ended)
		}
		return true
	})
}

func (b lookKeepsPlaces) Inspect(ctx context.Context, key string) (backend.Record, error) {
	if b.shown {
		b.keep(key)
	}
	return ability[backend.Inspector](b.Backend).Inspect(ctx, key)
}

func (b lookKeepsPlaces) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return ability[backend.Lister](b.Backend).List(ctx, prefix, func(rec backend.Record) bool {
		if b.list {
			b.keep(rec.Key)
		}
		return visit(rec)
	})
}

func looksKeep(list, shown bool) func() around {
	return func() around {
		var tickets sync.Map
		return func(b backend.Backend) backend.Backend { return lookKeepsPlaces{wrapper{b}, &tickets, list, shown} }
	}
}

// againOperated is right the first time that an operator does something to a key.
type againOperated struct {
	wrapper
	renews, revokes, forces bool // what goes wrong
	revoked, forced         *sync.Map
}

func operatedAgain(change func(b *againOperated)) func() around {
	return func() around {
		var revoked, forced sync.Map
		return func(b backend.Backend) backend.Backend {
			m := &againOperated{wrapper: wrapper{b}, revoked: &revoked, forced: &forced}
			change(m)
			return m
		}
	}
}

// forcedTokens are those of a key that were ended by force: the first one is left in the store.
type forcedTokens struct {
	first uint64
	more  bool
}

func (b *againOperated) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if left, ok := b.forced.Load(req.Key); ok && err == nil && b.forces && left.(forcedTokens).more {
		g.Token = left.(forcedTokens).first + 1
	}
	return g, err
}

func (b *againOperated) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	if _, ok := b.revoked.Load(h.Key); ok && b.renews {
		return backend.Validity{}, backend.ErrNotHeld
	}
	return b.Backend.Renew(ctx, h)
}

func (b *againOperated) Revoke(ctx context.Context, key string, token uint64) error {
	if before, ok := b.revoked.Load(key); ok && b.revokes && before != token {
		return backend.ErrNotHeld
	}
	err := ability[backend.Revoker](b.Backend).Revoke(ctx, key, token)
	if err == nil {
		b.revoked.Store(key, token)
	}
	return err
}

func (b *againOperated) ForceRelease(ctx context.Context, key string, token uint64) error {
	err := ability[backend.ForceReleaser](b.Backend).ForceRelease(ctx, key, token)
	if left, ok := b.forced.LoadOrStore(key, forcedTokens{first: token}); err == nil && ok {
		b.forced.Store(key, forcedTokens{left.(forcedTokens).first, true})
	}
	return err
}

// revokesAboveFloor compares a token with the floor first.
type revokesAboveFloor struct {
	wrapper
	floor *atomic.Uint64
}

func (b revokesAboveFloor) RaiseFloor(ctx context.Context, above uint64) error {
	err := ability[backend.FloorRaiser](b.Backend).RaiseFloor(ctx, above)
	if err == nil {
		b.floor.Store(max(b.floor.Load(), above))
	}
	return err
}

func (b revokesAboveFloor) Revoke(ctx context.Context, key string, token uint64) error {
	if token <= b.floor.Load() {
		return backend.ErrNotHeld
	}
	return ability[backend.Revoker](b.Backend).Revoke(ctx, key, token)
}

// tokensOfTenMinutes forgets the counter of a key that was not granted for so long.
type tokensOfTenMinutes struct {
	wrapper
	mu   *sync.Mutex
	keys map[string]*tokensSince
}

type tokensSince struct {
	before uint64
	last   time.Time
}

func (b tokensOfTenMinutes) Unwrap() backend.Backend { return nil }

func (b tokensOfTenMinutes) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if err != nil {
		return g, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.keys[req.Key]
	if k == nil || time.Since(k.last) > 10*time.Minute {
		k = &tokensSince{before: g.Token - 1}
		b.keys[req.Key] = k
	}
	k.last = time.Now()
	g.Token -= k.before
	return g, nil
}

var laterBackends = map[string]struct {
	rule, says string
	queue      bool
	around     func() around
}{
	"the holder of what was revoked is told that it has run out": {rule: "RevokeByToken", says: "long before its deadline", around: func() around {
		return func(b backend.Backend) backend.Backend { return revokedAsExpired{wrapper{b}} }
	}},
	"inspect shows little of what was revoked": {rule: "RevokeByToken", says: "Inspect of a hold that was revoked shows 1ns", around: showing(shownElse{inspect: func(rec *backend.Record) {
		if rec.Revoked {
			rec.Remaining = 1
		}
	}})},
	"a refusal shows half of what is left of what was revoked": {rule: "RevokeByToken", says: "a refusal because of a hold that was revoked shows", around: showing(shownElse{refuse: func(rec backend.Record, held *backend.HeldError) {
		if rec.Revoked {
			held.Remaining /= 2
		}
	}})},
	"a refusal does not name whose hold was revoked": {rule: "RevokeByToken", says: "a refusal because of a hold that was revoked shows the holder an unnamed", around: showing(shownElse{refuse: func(rec backend.Record, held *backend.HeldError) {
		if rec.Revoked {
			held.Holder = backend.Holder{}
		}
	}})},
	"list does not name whose hold was revoked": {rule: "RevokeByToken", says: "List of a hold that was revoked shows the holder an unnamed", around: showing(shownElse{list: func(rec *backend.Record) {
		if rec.Revoked {
			rec.Holder = backend.Holder{}
		}
	}})},
	"list shows no waiters":                                            {rule: "QueueWithdraw", says: "List shows 0 waiters", queue: true, around: showing(shownElse{list: func(rec *backend.Record) { rec.Waiters = 0 }})},
	"what follows a revoked hold is not renewed":                       {rule: "RevokeByToken", says: "of a hold that nobody has revoked", around: operatedAgain(func(b *againOperated) { b.renews = true })},
	"what follows a revoked hold can't be revoked":                     {rule: "RevokeByToken", says: "Revoke with the token of the holder", around: operatedAgain(func(b *againOperated) { b.revokes = true })},
	"the second forced release of a key leaves the token of the first": {rule: "ForceReleaseByToken", says: "were removed by force again and again", around: operatedAgain(func(b *againOperated) { b.forces = true })},
	"revoke knows no tokens below the floor": {rule: "RaisedFloorCounts", says: "Revoke with the token of a hold, which was granted before", around: func() around {
		var floor atomic.Uint64
		return func(b backend.Backend) backend.Backend { return revokesAboveFloor{wrapper{b}, &floor} }
	}},
	"places last for eight TTLs": {rule: "QueueAbandoned", says: "behind places whose client had gone", queue: true, around: func() around {
		return func(b backend.Backend) backend.Backend { return lastingPlaces{wrapper{b}} }
	}},
	"a list keeps places": {rule: "QueueAbandoned", says: "and looked at it", queue: true, around: looksKeep(true, false)},
	"a look keeps places": {rule: "QueueAbandoned", says: "and looked at it", queue: true, around: looksKeep(false, true)},
	"the time of the outermost hold goes with it": {rule: "HolderIsShown", says: "expected the time of the outermost grant", around: afterOutermost(func(h *backend.Holder) {
		h.Since = h.Since.Add(20 * time.Millisecond)
	})},
	"the host of the outermost hold goes with it": {rule: "HolderIsShown", says: "expected the process of the outermost hold", around: afterOutermost(func(h *backend.Holder) {
		h.Host, h.PID = "", 0
	})},
	"a forced release whose context has ended is content": {rule: "CancelledSendsNothing", says: "after all holds of the key had ended", around: func() around {
		return func(b backend.Backend) backend.Backend { return forcesInTime{wrapper{b}} }
	}},
	"tokens begin anew after ten minutes": {rule: "TokenSurvivesIdling", says: "was given twice", around: func() around {
		mu, keys := &sync.Mutex{}, map[string]*tokensSince{}
		return func(b backend.Backend) backend.Backend { return tokensOfTenMinutes{wrapper{b}, mu, keys} }
	}},
}

func TestMutantsOfWhatIsToldLater(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range laterBackends {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, onMemory(c.queue, c.around()), c.rule, c.says) })
	}
	all.Wait()
	for _, c := range laterBackends {
		mustPass(t, onMemory(c.queue, func(b backend.Backend) backend.Backend { return wrapper{b} }), c.rule)
	}
}

// onMemory is a Config on a memory store whose backends are changed.
func onMemory(queue bool, change around) conformance.Config {
	cfg, store := memory(), memlock.NewStore(nil)
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
		if err != nil {
			return nil, err
		}
		return change(b), nil
	}
	return cfg
}
