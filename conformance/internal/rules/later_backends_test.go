package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// get, set and count are for what the mutants of one store remember by name.
func (k *kept) get(name string) (v any, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok = k.any[name]
	return v, ok
}

func (k *kept) set(name string, v any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.any[name] = v
}

func (k *kept) count(name string) int {
	v, _ := k.get(name)
	n, _ := v.(int)
	return n
}

// bentLater are mutants of records that are right with a hold as it was granted.
var bentLater = map[string]struct {
	rule, says string
	change     func(m *bent)
}{
	"a release without a token does not find what was renewed": {"ReleaseByID", "that was renewed, and whose token is not told", func(m *bent) {
		m.renews(func(_ context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			m.k.set("renewed "+h.ID.Hex(), err == nil)
			return v, err
		})
		m.release = func(ctx context.Context, h backend.Hold) error {
			if renewed, _ := m.k.get("renewed " + h.ID.Hex()); renewed == true && h.Token == 0 {
				return backend.ErrNotHeld
			}
			return m.able.Release(ctx, h)
		}
	}},
	"what was removed by force counts in its owner's next record": {"ForceReleaseByToken", "since nothing is left of what was removed", func(m *bent) {
		m.force = func(ctx context.Context, key string, token uint64) error {
			r, ok := m.k.record(key)
			err := m.able.ForceRelease(ctx, key, token)
			if err == nil && ok {
				m.k.set("removed "+key+" of "+r.owner, len(r.holds))
			}
			return err
		}
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.able.Try(ctx, req)
			if err == nil && req.Owner != "" {
				g.Holds += m.k.count("removed " + req.Key + " of " + req.Owner)
			}
			return g, err
		}
	}},
	"a renewal by a shorter TTL is valid for that of the grant": {"RenewByID", "before the end that a renewal by", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := m.able.Try(ctx, req)
			if err == nil {
				m.k.set("ttl "+req.ID.Hex(), req.TTL)
			}
			return g, err
		}
		m.renews(func(_ context.Context, h backend.Hold, v backend.Validity, err error) (backend.Validity, error) {
			if ttl, ok := m.k.get("ttl " + h.ID.Hex()); err == nil && ok && ttl.(time.Duration) > h.TTL {
				v.For = backend.ValidFor(ttl.(time.Duration))
			}
			return v, err
		})
	}},
	"an owner enters with a TTL of 32 bits": {"AbilitiesTakeAnyValue", "a hold by which an owner entered a key", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			_, held := m.live(req.Key)
			cut := req
			if ms := req.TTL.Milliseconds(); held && req.Owner != "" && ms > 1<<32-1 {
				cut.TTL = time.Duration(uint32(ms)) * time.Millisecond //nolint:gosec // the mistake
			}
			g, err := m.able.Try(ctx, cut)
			g.For = backend.ValidFor(req.TTL)
			return g, err
		}
	}},
	"the repeat of an inner request counts twice after the release of the outermost hold": {"TryIdempotent", "sent again after the release of the outermost one", func(m *bent) {
		m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			r, ok := m.k.record(req.Key)
			g, err := m.able.Try(ctx, req)
			if outermost, bad := backend.ParseID(r.outermost); err == nil && ok && bad == nil && !r.holds[req.ID].IsZero() && r.holds[outermost].IsZero() {
				g.Holds++
			}
			return g, err
		}
	}},
	"what is handed over to one who renews it lasts for 20 TTLs": {"HandOverIsOneStep", "a request of a hold that is renewed, with a TTL of", func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			long := to
			if to.Renewed {
				long.TTL = 20 * to.TTL
			}
			g, err := m.able.HandOver(ctx, from, long)
			g.For = backend.ValidFor(to.TTL)
			return g, err
		}
	}},
	"a renewal that was not sent does not say that its context has ended": {"CancelledSendsNothing", "expected that ErrNotSent comes with the error of the context", func(m *bent) {
		m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
			if ctx.Err() != nil {
				return backend.Validity{}, backend.ErrNotSent
			}
			return m.able.Renew(ctx, h)
		}
	}},
	"a batch that was not sent does not say that its context has ended": {"CancelledSendsNothing", "RenewBatch with a context that had ended (context", func(m *bent) {
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			if ctx.Err() != nil {
				return backend.Renewal{Err: backend.ErrNotSent}
			}
			out.Validity, out.Err = m.able.Renew(ctx, h)
			return out
		}
	}},
}

func TestMutantsOfLaterRecords(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range bentLater {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, bending(c.change), c.rule, c.says) })
	}
	all.Wait()
	for _, c := range bentLater {
		mustPass(t, bending(func(*bent) {}), c.rule)
	}
}

// laterQueue is a client of a queue in memory, which knows the places of all clients.
type laterQueue struct {
	placed
	k      *kept
	line   *laterLine
	change func(p *laterPlace)
	has    *sync.Map // ids of what the client holds by a try, by key
	closes func()
}

type laterLine struct {
	mu     sync.Mutex
	places []*laterPlace
}

// laterPlace is a place in the queue, of which the methods may be replaced.
type laterPlace struct {
	q             *laterQueue
	req           backend.Request
	inner         backend.Ticket
	granted, over bool
	wait          func(ctx context.Context) (backend.Grant, error)
	behind        func() bool
	withdraw      func(ctx context.Context) error
}

func (q *laterQueue) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := q.placed.Try(ctx, req)
	if err == nil {
		q.k.set("tried "+req.ID.Hex(), true)
		q.has.Store(req.Key, req.ID)
	}
	return g, err
}

func (q *laterQueue) Close() error {
	if q.closes != nil {
		q.closes()
	}
	return q.placed.Close()
}

func (q *laterQueue) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	inner, err := q.placed.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	p := &laterPlace{q: q, req: req, inner: inner, behind: inner.Behind}
	p.wait, p.withdraw = p.waits, p.leaves
	q.line.mu.Lock()
	q.line.places = append(q.line.places, p)
	q.line.mu.Unlock()
	q.change(p)
	return p, nil
}

func (p *laterPlace) Wait(ctx context.Context) (backend.Grant, error) { return p.wait(ctx) }
func (p *laterPlace) Behind() bool                                    { return p.behind() }
func (p *laterPlace) Withdraw(ctx context.Context) error              { return p.withdraw(ctx) }

// waits goes on where the place was taken anew.
func (p *laterPlace) waits(ctx context.Context) (backend.Grant, error) {
	for {
		inner := p.now()
		g, err := inner.Wait(ctx)
		if err == nil || ctx.Err() != nil || p.now() == inner {
			p.q.line.mu.Lock()
			p.granted, p.over = err == nil, true
			p.q.line.mu.Unlock()
			return g, err
		}
	}
}

func (p *laterPlace) now() backend.Ticket {
	p.q.line.mu.Lock()
	defer p.q.line.mu.Unlock()
	return p.inner
}

func (p *laterPlace) leaves(ctx context.Context) error {
	p.q.line.mu.Lock()
	defer p.q.line.mu.Unlock()
	p.over = true
	return p.inner.Withdraw(ctx)
}

// each calls the function for the places that wait for the key.
func (l *laterLine) each(key string, f func(p *laterPlace) (more bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range slices.Clone(l.places) {
		if p.req.Key == key && !p.over && !f(p) {
			return
		}
	}
}

var laterPlaces = map[string]struct {
	rule, says string
	change     func(p *laterPlace)
}{
	"a place behind a revoked hold is behind nobody": {"RevokeByToken", "Behind of a place behind a revoked hold was false", func(p *laterPlace) {
		if rec, err := p.q.Inspect(context.Background(), p.req.Key); err == nil && rec.Revoked {
			p.behind = func() bool { return false }
		}
	}},
	"a place that is asked for twice is two places": {"QueueWithdraw", "a place was asked for twice", func(p *laterPlace) {
		name := "placed " + p.req.ID.Hex()
		if _, twice := p.q.k.get(name); twice {
			again := p.req
			again.ID = backend.NewID()
			_, _ = p.q.placed.Enqueue(context.Background(), again)
		}
		p.q.k.set(name, true)
	}},
	"who is next to a grant that is withdrawn goes to the end": {"QueueWithdraw", "were withdrawn with their grants", func(p *laterPlace) {
		p.withdraw = func(ctx context.Context) error {
			if p.granted {
				p.q.line.each(p.req.Key, func(next *laterPlace) bool {
					if next.inner.Withdraw(ctx) == nil {
						next.inner, _ = next.q.placed.Enqueue(ctx, next.req)
					}
					return false
				})
			}
			return p.leaves(ctx)
		}
	}},
	"a client that closes takes the places of others along": {"QueueWithdraw", "only another client was closed", func(p *laterPlace) {
		p.q.closes = func() {
			p.q.line.each(p.req.Key, func(other *laterPlace) bool { return other.inner.Withdraw(context.Background()) == nil })
		}
	}},
	"a wait that was given up tells the id of its place": {"NoSecretsShown", "shows the acquisition id of the waiter", func(p *laterPlace) {
		p.wait = func(ctx context.Context) (backend.Grant, error) {
			g, err := p.waits(ctx)
			if err != nil {
				err = fmt.Errorf("waiting at %s: %w", p.req.ID.Hex(), err)
			}
			return g, err
		}
	}},
	"a place whose request came once more as a try is withdrawn in words": {"QueueWithdraw", "whose request had come once more", func(p *laterPlace) {
		p.withdraw = func(ctx context.Context) error {
			if _, tried := p.q.k.get("tried " + p.req.ID.Hex()); tried {
				return ctx.Err()
			}
			return p.leaves(ctx)
		}
	}},
	"a withdrawn place takes along what its client holds by a try": {"QueueWithdraw", "has withdrawn a place only", func(p *laterPlace) {
		p.withdraw = func(ctx context.Context) error {
			err := p.leaves(ctx)
			if id, ok := p.q.has.Load(p.req.Key); err == nil && ok && p.granted && id != p.req.ID {
				_ = p.q.placed.Release(ctx, backend.Hold{Key: p.req.Key, ID: id.(backend.ID)})
			}
			return err
		}
	}},
	"the request of a hold that takes a place waits behind itself": {"QueueWithdraw", "came once more, as one for a place", func(p *laterPlace) {
		if _, tried := p.q.k.get("tried " + p.req.ID.Hex()); tried {
			p.wait = func(ctx context.Context) (backend.Grant, error) {
				<-ctx.Done()
				return backend.Grant{}, ctx.Err()
			}
		}
	}},
}

func TestMutantsOfLaterPlaces(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range laterPlaces {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, inLaterLine(c.change), c.rule, c.says) })
	}
	all.Wait()
	for _, c := range laterPlaces {
		mustPass(t, inLaterLine(func(*laterPlace) {}), c.rule)
	}
}

func inLaterLine(change func(p *laterPlace)) conformance.Config {
	k, line := newKept(), &laterLine{}
	return onMemory(true, func(b backend.Backend) backend.Backend {
		return &laterQueue{placed: b.(placed), k: k, line: line, change: change, has: &sync.Map{}}
	})
}
