package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

const (
	linearCallers = 5
	linearClients = 3
	linearSteps   = 9
)

func linearizable(e *env) { e.makeHistories(1, nil) }

func linearizableUnderFaults(e *env, via seamKind) { e.makeHistories(2, &via) }

// makeHistories has callers do this and that with a few keys, with faults at the
// seam if there is one, and has the history of each key judged.
func (e *env) makeHistories(keys int, via *seamKind) {
	if e.Judge == nil {
		e.skipf("needs Config.Judge; package conformance/linear has one")
	}
	clients := make([]*client, linearClients)
	name := "calm"
	for i := range clients {
		if via == nil {
			clients[i] = e.locker()
			continue
		}
		name = via.name
		clients[i], _ = e.faultyAt(*via, &faultlock.Options{Random: &faultlock.Random{
			Seed: uint64(e.random(1<<62)) + 1, Active: 1, Chance: 0.04, MaxDelay: 10 * time.Millisecond,
			Faults: []faultlock.Fault{
				// Not Duplicate: a try that is refused, and granted when its copy
				// arrives, keeps the key for a TTL, and nobody knows.
				faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter(), faultlock.DelayBefore(0), faultlock.DelayAfter(0),
			},
		}})
	}
	owners := []string{""}
	if claimReentrancy.made(e.settings) {
		owners = append(owners, e.owner("A"), e.owner("B"))
	}
	rounds := e.rounds(400*time.Millisecond, 2, 20)
	enough := time.Now().Add(e.window() * 3)
	var operations, histories, undecided atomic.Int64
	e.each(keys+1, func(n int) {
		if n == keys { // on one key more, leases are left to run out
			if via == nil && e.g.WithoutRenewal {
				j := &journal{e: e, key: e.key("%s-expiring", name)}
				e.makeHistory(j, clients, owners, true)
				if !j.judge() {
					undecided.Add(1)
				}
			}
			return
		}
		for round := range rounds {
			if round >= 2 && time.Now().After(enough) {
				return // lost requests cost time on some servers
			}
			j := &journal{e: e, key: e.key("%s-%d-%d", name, n, round), faults: via != nil}
			e.makeHistory(j, clients, owners, false)
			operations.Add(int64(len(j.ops)))
			histories.Add(1)
			if !j.judge() {
				undecided.Add(1)
			}
			if e.failed() {
				return
			}
		}
	})
	if n := undecided.Load(); n > 0 && !e.failed() {
		e.skipf("inconclusive: %d histories were decided, and %d not in time", histories.Load(), n)
	}
	e.notef("%s: %d operations in %d histories", name, operations.Load(), histories.Load())
}

// caller makes the calls of one client of a history, one after the other.
type caller struct {
	*journal
	n      int
	c      *client
	owners []string
	holds  []*listed
}

// listed is a lease with its number in the journal.
type listed struct {
	*hold
	n int
}

func (e *env) makeHistory(j *journal, clients []*client, owners []string, expiring bool) {
	e.each(linearCallers, func(i int) {
		w := &caller{journal: j, n: i, c: clients[i%len(clients)], owners: owners}
		for step := range linearSteps {
			if expiring && i == 0 && step == linearSteps/2 {
				w.abandon()
			}
			w.step()
			if e.failed() {
				break
			}
		}
		for len(w.holds) > 0 {
			w.release(0)
		}
	})
}

// step makes one call.
func (w *caller) step() {
	e := w.e
	e.pause(e.randomly(2 * time.Millisecond))
	var owner string
	switch dice := e.random(10); {
	case len(w.holds) > 0 && dice < 4:
		w.release(int(e.random(int64(len(w.holds)))))
		return
	case len(w.holds) > 0 && dice < 6 && e.g.ManualRenewal:
		w.renew(w.holds[0])
		return
	case len(w.holds) > 0 && dice < 8:
		owner = w.holds[0].owner
	default:
		owner = w.owners[e.random(int64(len(w.owners)))]
	}
	// Who holds the key must not wait for it for long, least of all for itself.
	patience := e.waitBound()
	if len(w.holds) > 0 || e.random(4) == 0 {
		patience = e.randomly(6 * time.Millisecond)
	}
	w.get(owner, len(w.holds) > 0 && owner == "" || e.random(3) == 0, patience)
}

// identity is what the owner is called in the history: where each client counts
// the holds of its own, the same owner elsewhere is somebody else.
func (w *caller) identity(owner string) string {
	if owner == "" {
		return ""
	}
	if claimServerHolds.made(w.e.settings) {
		return w.e.ownerName(owner)
	}
	return w.e.ownerName(owner) + " of " + w.c.who
}

func (w *caller) op(kind OperationKind, hold int) Operation {
	return Operation{Client: w.n, Who: w.c.who, Kind: kind, Hold: hold}
}

// get acquires the key, or tries to.
func (w *caller) get(owner string, try bool, patience time.Duration, more ...lock.Option) {
	e := w.e
	if owner != "" {
		more = append(more, lock.WithOwner(owner))
	}
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	op := w.op(Granted, w.newHold())
	op.Owner = w.identity(owner)
	call := e.hist.now()
	var h *hold
	var err error
	if try {
		h, err = w.c.tryFor(ctx, w.key, e.long, more...)
	} else {
		h, err = w.c.acquireFor(ctx, w.key, e.long, more...)
	}
	switch {
	case err == nil:
		op.Token = h.token
		w.granted(op, call)
		w.holds = append(w.holds, &listed{h, op.Hold})
		return
	case e.ctx.Err() != nil:
		panic(abort{})
	case try && errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrOutcomeUnknown) && ctx.Err() == nil:
		op.Kind, op.Hold = Refused, 0
		w.add(op, call)
		return
	case errors.Is(err, lock.ErrTooManyHolds):
		return
	case errors.Is(err, lock.ErrHeld), errors.Is(err, lock.ErrOutcomeUnknown), errors.Is(err, lock.ErrUnavailable), ctx.Err() != nil:
	default:
		e.unexpectedFatal(w.key, err, "an acquisition returned %s; expected a lease, or an error that says that the key is held, that the server was not reached, or that the context has ended", outcome(err))
	}
	op.Kind = MayGrant
	w.open(op, call)
	w.open(w.op(MayEnd, op.Hold), call) // its clean-up
}

func (w *caller) renew(h *listed) {
	call := w.e.hist.now()
	switch err := h.renew(); {
	case err == nil:
		w.add(w.op(Kept, h.n), call)
	case errors.Is(err, lock.ErrNotHeld):
		w.add(w.op(Ended, h.n), call)
	}
}

// release releases the i-th lease.
func (w *caller) release(i int) {
	h := w.holds[i]
	w.holds = append(w.holds[:i], w.holds[i+1:]...)
	call, end := w.e.hist.now(), w.e.hist.at(h.until())
	switch err := h.release(w.e.ctx); {
	case err == nil:
		w.add(w.op(Released, h.n), call)
	case errors.Is(err, lock.ErrNotHeld):
		if end <= w.e.hist.now() { // it ran out: the machine stood still
			w.open(w.op(MayEnd, h.n), end)
		}
		w.add(w.op(Ended, h.n), call)
	default:
		w.open(w.op(MayEnd, h.n), call)
	}
}

// abandon takes the key for a lease that runs out.
func (w *caller) abandon() {
	e := w.e
	for len(w.holds) > 0 {
		w.release(0)
	}
	op := w.op(Granted, w.newHold())
	ctx, cancel := context.WithTimeout(e.ctx, e.waitBound())
	defer cancel()
	call := e.hist.now()
	h, err := w.c.acquireFor(ctx, w.key, e.ttl, lock.WithoutRenewal())
	if err != nil {
		w.open(Operation{Client: w.n, Who: w.c.who, Kind: MayGrant, Hold: op.Hold}, call)
		w.open(w.op(MayEnd, op.Hold), call)
		return
	}
	h.lapses()
	op.Token = h.token
	w.add(op, call)
	end, _ := h.end(e, nil)
	w.open(w.op(MayEnd, op.Hold), end)
}
