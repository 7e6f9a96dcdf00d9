package rules

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

const (
	linearCallers = 5
	linearClients = 3
	linearSteps   = 9
)

func linearizable(e *engine.Env) { makeHistories(e, 1, nil) }

func linearizableUnderFaults(e *engine.Env, via engine.FaultSite) { makeHistories(e, 2, &via) }

// makeHistories has callers do this and that with a few keys, with faults below the
// Lockers if there is something below them, and has the history of each key judged.
func makeHistories(e *engine.Env, keys int, via *engine.FaultSite) {
	if e.Judge == nil {
		e.Skipf("needs Config.Judge; package conformance/linear has one")
	}
	clients := make([]*engine.Client, linearClients)
	name := "calm"
	for i := range clients {
		if via == nil {
			clients[i] = e.Locker()
			continue
		}
		name = via.Name
		clients[i], _ = e.FaultyAt(*via, &faultlock.Options{Random: &faultlock.Random{
			Seed: uint64(e.Random(1<<62)) + 1, Active: 1, Chance: 0.04, MaxDelay: 10 * time.Millisecond,
			Faults: []faultlock.Fault{
				// Not Duplicate: a try that is refused, and granted when its copy
				// arrives, keeps the key for a TTL, and nobody knows.
				faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter(), faultlock.DelayBefore(0), faultlock.DelayAfter(0),
			},
		}})
	}
	owners := []string{""}
	if engine.ClaimReentrancy.Made(e.Settings) {
		owners = append(owners, e.Owner("A"), e.Owner("B"))
	}
	rounds := e.Rounds(e.Work(400*time.Millisecond), 2, 20)
	enough := time.Now().Add(e.Window() * 3)
	var operations, histories, undecided atomic.Int64
	e.Each(keys+1, func(n int) {
		if n == keys { // on one key more, leases are left to run out
			if via == nil && e.Claimed.WithoutRenewal {
				j := &engine.Journal{Env: e, Key: e.Key("%s-expiring", name)}
				makeHistory(e, j, clients, owners, true)
				if !j.Judge() {
					undecided.Add(1)
				}
			}
			return
		}
		for round := range rounds {
			if round >= 2 && time.Now().After(enough) {
				return // lost requests cost time on some servers
			}
			j := &engine.Journal{Env: e, Key: e.Key("%s-%d-%d", name, n, round), Faults: via != nil}
			makeHistory(e, j, clients, owners, false)
			operations.Add(int64(len(j.Ops)))
			histories.Add(1)
			if !j.Judge() {
				undecided.Add(1)
			}
			if e.Failed() {
				return
			}
		}
	})
	if n := undecided.Load(); n > 0 && !e.Failed() {
		e.Skipf("inconclusive: %d histories were decided, and %d not in time", histories.Load(), n)
	}
	e.Notef("%s: %d operations in %d histories", name, operations.Load(), histories.Load())
}

// caller makes the calls of one client of a history, one after the other.
type caller struct {
	*engine.Journal
	n      int
	c      *engine.Client
	owners []string
	holds  []*listed
}

// listed is a lease with its number in the journal.
type listed struct {
	*engine.Hold
	n int
}

func makeHistory(e *engine.Env, j *engine.Journal, clients []*engine.Client, owners []string, expiring bool) {
	e.Each(linearCallers, func(i int) {
		w := &caller{Journal: j, n: i, c: clients[i%len(clients)], owners: owners}
		for step := range linearSteps {
			if expiring && i == 0 && step == linearSteps/2 {
				w.abandon()
			}
			w.step()
			if e.Failed() {
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
	e := w.Env
	e.Pause(e.Randomly(2 * time.Millisecond))
	var owner string
	switch dice := e.Random(10); {
	case len(w.holds) > 0 && dice < 4:
		w.release(int(e.Random(int64(len(w.holds)))))
		return
	case len(w.holds) > 0 && dice < 6 && e.Claimed.ManualRenewal:
		w.renew(w.holds[0])
		return
	case len(w.holds) > 0 && dice < 8:
		owner = w.holds[0].Owner
	default:
		owner = w.owners[e.Random(int64(len(w.owners)))]
	}
	// Who holds the key must not wait for it for long, least of all for itself.
	patience := e.WaitBound()
	if len(w.holds) > 0 || e.Random(4) == 0 {
		patience = e.Randomly(6 * time.Millisecond)
	}
	w.get(owner, len(w.holds) > 0 && owner == "" || e.Random(3) == 0, patience)
}

// identity is what the owner is called in the history: where each client counts
// the holds of its own, the same owner elsewhere is somebody else.
func (w *caller) identity(owner string) string {
	if owner == "" {
		return ""
	}
	if engine.ClaimServerHolds.Made(w.Env.Settings) {
		return w.Env.OwnerName(owner)
	}
	return w.Env.OwnerName(owner) + " of " + w.c.Who
}

func (w *caller) op(kind engine.OperationKind, hold int) engine.Operation {
	return engine.Operation{Client: w.n, Who: w.c.Who, Kind: kind, Hold: hold}
}

// get acquires the key, or tries to.
func (w *caller) get(owner string, try bool, patience time.Duration, more ...lock.Option) {
	e := w.Env
	if owner != "" {
		more = append(more, lock.WithOwner(owner))
	}
	ctx, cancel := context.WithTimeout(e.Ctx, patience)
	defer cancel()
	op := w.op(engine.Granted, w.NewHold())
	op.Owner = w.identity(owner)
	call := e.Log.Now()
	var h *engine.Hold
	var err error
	if try {
		h, err = w.c.TryFor(ctx, w.Key, e.Long, more...)
	} else {
		h, err = w.c.AcquireFor(ctx, w.Key, e.Long, more...)
	}
	switch {
	case err == nil:
		op.Token = h.Token
		w.Granted(op, call)
		w.holds = append(w.holds, &listed{h, op.Hold})
		return
	case e.Ctx.Err() != nil:
		panic(engine.Abort{})
	case try && errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrOutcomeUnknown) && ctx.Err() == nil:
		op.Kind, op.Hold = engine.Refused, 0
		w.Add(op, call)
		return
	case errors.Is(err, lock.ErrTooManyHolds):
		return
	case errors.Is(err, lock.ErrHeld), errors.Is(err, lock.ErrOutcomeUnknown), errors.Is(err, lock.ErrUnavailable), ctx.Err() != nil:
	default:
		e.UnexpectedFatal(w.Key, err, "an acquisition returned %s; expected a lease, or an error that says that the key is held, that the server was not reached, or that the context has ended", engine.Outcome(err))
	}
	op.Kind = engine.MayGrant
	w.Open(op, call)
	w.Open(w.op(engine.MayEnd, op.Hold), call) // its clean-up
}

func (w *caller) renew(h *listed) {
	call := w.Env.Log.Now()
	switch err := h.Renew(); {
	case err == nil:
		w.Add(w.op(engine.Kept, h.n), call)
	case errors.Is(err, lock.ErrNotHeld):
		w.Add(w.op(engine.Ended, h.n), call)
	}
}

// release releases the i-th lease.
func (w *caller) release(i int) {
	h := w.holds[i]
	w.holds = append(w.holds[:i], w.holds[i+1:]...)
	call, end := w.Env.Log.Now(), w.Env.Log.At(h.Until())
	switch err := h.Release(w.Env.Ctx); {
	case err == nil:
		w.Add(w.op(engine.Released, h.n), call)
	case errors.Is(err, lock.ErrNotHeld):
		if end <= w.Env.Log.Now() { // it ran out: the machine stood still
			w.Open(w.op(engine.MayEnd, h.n), end)
		}
		w.Add(w.op(engine.Ended, h.n), call)
	default:
		w.Open(w.op(engine.MayEnd, h.n), call)
	}
}

// abandon takes the key for a lease that runs out.
func (w *caller) abandon() {
	e := w.Env
	for len(w.holds) > 0 {
		w.release(0)
	}
	op := w.op(engine.Granted, w.NewHold())
	ctx, cancel := context.WithTimeout(e.Ctx, e.WaitBound())
	defer cancel()
	call := e.Log.Now()
	h, err := w.c.AcquireFor(ctx, w.Key, e.TTL, lock.WithoutRenewal())
	if err != nil {
		w.Open(engine.Operation{Client: w.n, Who: w.c.Who, Kind: engine.MayGrant, Hold: op.Hold}, call)
		w.Open(w.op(engine.MayEnd, op.Hold), call)
		return
	}
	h.Lapses()
	op.Token = h.Token
	w.Add(op, call)
	end, _ := h.End(e, nil)
	w.Open(w.op(engine.MayEnd, op.Hold), end)
}
