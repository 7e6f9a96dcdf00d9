package redislock

import (
	"context"
	"crypto/sha256"
	_ "embed" // the scripts
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed fair_first.lua
var fairFirstText string

//go:embed fair.lua
var fairText string

//go:embed fair_leave.lua
var fairLeaveText string

//go:embed fair_inspect.lua
var fairInspectText string

var (
	fairTryScript     = queueScript(fairFirstText, "try(later)", tryText, fairText)
	fairReleaseScript = queueScript(fairFirstText, "remove()", releaseText, fairLeaveText)
	fairForceScript   = queueScript(fairFirstText, "remove()", forceText, fairLeaveText)
	fairInspectScript = queueScript("", "show()", inspectText, fairInspectText)
)

// queueScript is a script of the usual mode, as a function, and what the fair mode
// puts around it.
func queueScript(head, name, usual, end string) script {
	s := newScript(head + "local function " + name + "\n" + usual + "\nend\n" + end)
	s.queue = true
	return s
}

// placeLife is how long a place in a queue lasts after its waiter has asked for
// the key, at most. The waiter asks again at least three times meanwhile, and all
// that is behind a dead one gets on after the life and one pause: 1.5 s. The
// scripts know it too.
const placeLife = 1100 * time.Millisecond

// fairBackend is the backend with a queue on the server. It is no Watcher and no
// HandOverer: waiting is its own, and a release tells the first of the queue.
type fairBackend struct {
	b    *redisBackend
	name string // of its channel, and in its places
}

// newFair has one channel for all that its waiters are told: only the backend whose
// turn it is hears of a release, and waiting for a further key subscribes to nothing.
func newFair(b *redisBackend) *fairBackend {
	return &fairBackend{b: b, name: backend.NewID().Hex()[:16]}
}

var (
	_ backend.Queuer        = (*fairBackend)(nil)
	_ backend.BatchRenewer  = (*fairBackend)(nil)
	_ backend.Inspector     = (*fairBackend)(nil)
	_ backend.ForceReleaser = (*fairBackend)(nil)
	_ backend.Revoker       = (*fairBackend)(nil)
	_ backend.Lister        = (*fairBackend)(nil)
	_ backend.FloorRaiser   = (*fairBackend)(nil)
	_ backend.TokenTeller   = (*fairBackend)(nil)
	_ backend.Interruptible = (*fairBackend)(nil)
	_ backend.LateTicket    = (*fairTicket)(nil)
)

func fairly(g backend.Guarantees) backend.Guarantees {
	g.Name = "redis fair"
	g.Waiting = backend.WaitQueue
	g.Fair = true
	// A new slice: the other one may be shared.
	g.Assumptions = append(append([]string(nil), g.Assumptions...),
		"For first come, first served: every Locker of the key has fair=true, and the server keeps its data and clock.",
		"A waiter that can't ask the server for a second may be passed over until it can.")
	return g
}

func (f *fairBackend) Guarantees() backend.Guarantees { return fairly(f.b.Guarantees()) }

func (f *fairBackend) Close() error { return f.b.Close() }

func (f *fairBackend) Interruptible() bool { return f.b.Interruptible() }

func (f *fairBackend) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	return f.b.Renew(ctx, hold)
}

func (f *fairBackend) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	return f.b.RenewBatch(ctx, holds)
}

// Inspect also says how many places there are in the queue.
func (f *fairBackend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	return f.b.inspect(ctx, fairInspectScript, key)
}

// Revoke leaves the queue as it is, since the key stays taken.
func (f *fairBackend) Revoke(ctx context.Context, key string, token uint64) error {
	return f.b.Revoke(ctx, key, token)
}

func (f *fairBackend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return f.b.list(ctx, prefix, f.Inspect, visit)
}

// Try is refused while somebody waits, except for an owner that holds the key.
func (f *fairBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	r, err := f.ask(ctx, req, "try")
	if err != nil {
		return backend.Grant{}, err
	}
	return answerTo(req, f.b.buckets.namesOf(req.Key), r)
}

// ask sends the script with what it is to do about the queue.
func (f *fairBackend) ask(ctx context.Context, req backend.Request, place string) (reply, error) {
	n := f.b.buckets.namesOf(req.Key)
	return f.b.run(ctx, fairTryScript, n, append(f.b.trying(req), f.placeOf(req.ID), place, lifeOf(req).Milliseconds())...)
}

// Release also gives up the place of the acquisition, and tells the first of the
// queue.
func (f *fairBackend) Release(ctx context.Context, hold backend.Hold) error {
	n := f.b.buckets.namesOf(hold.Key)
	r, err := f.b.run(ctx, fairReleaseScript, n, f.leaving(hold.ID.Hex(), f.placeOf(hold.ID))...)
	if err != nil {
		return err
	}
	return removal(n, r)
}

// ForceRelease tells the first of the queue.
func (f *fairBackend) ForceRelease(ctx context.Context, key string, token uint64) error {
	n := f.b.buckets.namesOf(key)
	r, err := f.b.run(ctx, fairForceScript, n, f.leaving(strconv.FormatUint(token, 10), noPlace)...)
	if err != nil {
		return err
	}
	return removal(n, r)
}

// lifeOf is how long the place of a request lasts without its waiter.
func lifeOf(req backend.Request) time.Duration { return min(placeLife, req.TTL) }

// noPlace stands for the place where none is given up.
const noPlace = "-"

// leaving are the arguments of the scripts that remove a record.
func (f *fairBackend) leaving(what, place string) []any {
	return []any{what, "", "told", place, f.channelOf("")}
}

// channelOf is the channel of the backend with the name.
func (f *fairBackend) channelOf(name string) string { return f.b.prefix + "w:" + name }

// placeOf names an acquisition in the queue and on the channel, where its id, with
// which it could be released, must not be read.
func (f *fairBackend) placeOf(id backend.ID) string {
	sum := sha256.Sum256([]byte(id.Hex()))
	return f.name + hex.EncodeToString(sum[:16])
}

// Enqueue takes a place, or the key if it is free and nobody waits, in one script.
// A watch that other waiters of this client have set up is used from the start.
func (f *fairBackend) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	t := &fairTicket{f: f, req: req, names: f.b.buckets.namesOf(req.Key), place: f.placeOf(req.ID)}
	w := newWatcher(false, t.place)
	w.answered = true // by the channel, if it is subscribed to
	if f.b.hub.Join(f.channelOf(f.name), w) {
		t.watch.Store(w)
	}
	if err := t.ask(ctx, "join"); err != nil {
		t.unwatch()
		return nil, err
	}
	if t.granted {
		t.unwatch()
	}
	return t, nil
}

// fairTicket is a place in a queue. It is kept alive by asking for the key.
type fairTicket struct {
	f       *fairBackend
	req     backend.Request
	names   names
	place   string
	arrival string // by the server's clock; a place that was lost comes back here
	watch   atomic.Pointer[watcher]
	granted bool
	behind  atomic.Bool
	doubt   atomic.Bool // a request lost its answer, and may arrive yet
	grant   backend.Grant
	sleep   time.Duration // how long to wait for a push before asking again
	alive   time.Time     // when the server last answered
}

func (t *fairTicket) ask(ctx context.Context, place string) error {
	r, err := t.f.ask(ctx, t.req, place)
	if r.repeated || err != nil && !failure.ChangedNothing(err) {
		t.doubt.Store(true)
	}
	if err != nil {
		return err
	}
	t.alive = time.Now()
	list := wire.ListOf(r.value)
	if list.Int(0) != 0 || len(list) != 7 {
		t.grant, err = answerTo(t.req, t.names, r)
		t.granted = err == nil
		return err
	}
	t.behind.Store(true)
	t.arrival = list.String(4)
	t.sleep = t.pause()
	// The first of the queue asks when the holder's lease can have ended. The second,
	// where the key is left to a first that may be dead, asks when its place ends.
	end := list.Millis(3)
	if list.Int(5) == 1 && end == 0 {
		end = list.Millis(6)
	} else if list.Int(5) > 0 {
		end = 0
	}
	if end > 0 {
		t.sleep = min(t.sleep, end+2*time.Millisecond)
	}
	return nil
}

// pause is a quarter to a third of the life of the place.
func (t *fairTicket) pause() time.Duration {
	life := lifeOf(t.req)
	return life/4 + rand.N(life/12)
}

// Wait asks when it is told that it is the first of the queue, and else several
// times in the life of the place, which keeps it.
func (t *fairTicket) Wait(ctx context.Context) (backend.Grant, error) {
	defer t.unwatch()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var watchAgain time.Time
	for !t.granted {
		if t.watch.Load() == nil && time.Now().After(watchAgain) {
			watchAgain = time.Now().Add(2 * time.Second)
			if w := newWatcher(false, t.place); t.f.b.hub.Add(t.f.channelOf(t.f.name), w) == nil { // without it there is the timer
				t.watch.Store(w)
			}
		}
		timer.Reset(t.sleep)
		var signals <-chan backend.Hint
		var confirmed <-chan error
		if w := t.watch.Load(); w != nil {
			signals, confirmed = w.signals, w.confirmed
		}
		select {
		case <-ctx.Done():
			return backend.Grant{}, ctx.Err()
		case <-timer.C:
		case err := <-confirmed: // what happened before is unknown
			if err != nil {
				t.unwatch()
			}
		case _, ok := <-signals:
			if !ok {
				t.unwatch()
			}
		}
		if err := t.askAgain(ctx); err != nil {
			return backend.Grant{}, err
		}
	}
	return t.grant, nil
}

// askAgain bears errors of the server for a TTL: when it is back, as after a
// failover, the place is taken back by its arrival.
func (t *fairTicket) askAgain(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, t.req.TTL/2)
	defer cancel()
	err := t.ask(limited, t.arrival)
	if err == nil || ctx.Err() != nil || errors.Is(err, backend.ErrPermanent) || errors.Is(err, backend.ErrTooManyHolds) || time.Since(t.alive) > t.req.TTL {
		return err
	}
	t.sleep = t.pause()
	return nil
}

// Behind implements backend.Ticket.
func (t *fairTicket) Behind() bool { return t.behind.Load() }

// MayArrive implements backend.LateTicket.
func (t *fairTicket) MayArrive() bool { return t.doubt.Load() }

func (t *fairTicket) unwatch() {
	if w := t.watch.Swap(nil); w != nil {
		t.f.b.hub.Remove(t.f.channelOf(t.f.name), w)
	}
}

// Withdraw gives up the place and the grant, and tells the next, in one script. The
// watch ends too, since nobody may have called Wait.
func (t *fairTicket) Withdraw(ctx context.Context) error {
	t.unwatch()
	_, err := t.f.b.run(ctx, fairReleaseScript, t.names, t.f.leaving(t.req.ID.Hex(), t.place)...)
	return err
}
