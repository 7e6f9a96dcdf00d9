package engine

import (
	"context"
	"sync/atomic"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// FaultSite is a way to put faults between the lock package and a backend.
type FaultSite struct {
	Name string
	of   func(*faultlock.Faults) backend.Backend
}

var (
	// Primitives: the abilities are left out, so that every request is a
	// try, a renewal or a release. The lock package does without them.
	Primitives = FaultSite{"primitives", (*faultlock.Faults).Primitives}
	// Whole: queues, batches of renewals, watches and hand-overs are disturbed too.
	Whole = FaultSite{"all it has", (*faultlock.Faults).Backend}
)

// What the lock package asks a backend for, through whatever interface.
var (
	OpsToGet  = []faultlock.Op{faultlock.OpTry, faultlock.OpEnqueue}
	OpsToEnd  = []faultlock.Op{faultlock.OpRelease, faultlock.OpHandOver, faultlock.OpWithdraw}
	OpsToKeep = []faultlock.Op{faultlock.OpRenew}
)

// usesOptional reports whether the lock package uses more of the backend than the
// primitives.
func usesOptional(b backend.Backend) bool {
	for _, has := range []bool{Implements[backend.Watcher](b), Implements[backend.Queuer](b), Implements[backend.BatchRenewer](b), Implements[backend.HandOverer](b)} {
		if has {
			return true
		}
	}
	return false
}

// Implements reports whether the backend has the ability.
func Implements[T any](b backend.Backend) bool {
	_, ok := backend.As[T](b)
	return ok
}

// AtFaultSites makes a case of one that is run for each way to put faults in.
func AtFaultSites(run func(e *Env, via FaultSite)) func(*Env) {
	return func(e *Env) { e.EachFaultSite(func(via FaultSite) { run(e, via) }) }
}

// EachFaultSite runs the case once for each way to put faults in, at the same time.
func (e *Env) EachFaultSite(f func(via FaultSite)) {
	kinds := []FaultSite{Primitives}
	if e.able {
		kinds = append(kinds, Whole)
	}
	e.Each(len(kinds), func(i int) { f(kinds[i]) })
}

// Faulty opens a Locker whose requests can be disturbed between it and the server,
// at the primitives.
func (e *Env) Faulty() (*Client, *faultlock.Faults) { return e.FaultyAt(Primitives, nil) }

// FaultyWhole is Faulty with the abilities of the backend, whose requests can be
// disturbed too.
func (e *Env) FaultyWhole() (*Client, *faultlock.Faults) { return e.FaultyAt(Whole, nil) }

// FaultyAt is Faulty with the given place for faults and options.
func (e *Env) FaultyAt(via FaultSite, opts *faultlock.Options) (*Client, *faultlock.Faults) {
	return e.faultyOver(via, opts, func(b backend.Backend) backend.Backend { return b })
}

// faultyOver is FaultyAt over what is made of the backend.
func (e *Env) faultyOver(via FaultSite, opts *faultlock.Options, made func(backend.Backend) backend.Backend) (*Client, *faultlock.Faults) {
	var f *faultlock.Faults
	var cl atomic.Pointer[Client]
	var told faultlock.Options
	if opts != nil {
		told = *opts
	}
	told.Observe = func(i faultlock.Injection) {
		who, what := "a client", i.Fault.String()
		if c := cl.Load(); c != nil {
			who = c.Who
			c.harmed.Store(true)
		}
		if i.Landed {
			what += ", applied now"
		}
		e.Log.disturb(who, i.Key, i.Op, what)
		if opts != nil && opts.Observe != nil {
			opts.Observe(i)
		}
	}
	told.Answered = e.Log.answered
	c := e.LockerFrom(func(ctx context.Context) (lock.Locker, error) {
		b, err := e.openBackend(ctx)
		if err != nil {
			return nil, err
		}
		f = faultlock.New(made(b), &told)
		return e.MakeLocker(via.of(f), e.TTL)
	})
	cl.Store(c)
	return c, f
}

// Watched is Locker, and where the suite makes its Lockers of backends, what the Locker asks
// by itself is seen: how long its renewals take, and how many there are. Elsewhere the second
// result is nil.
func (e *Env) Watched() (*Client, *faultlock.Faults) {
	if e.Open != nil {
		return e.Locker(), nil
	}
	return e.FaultyWhole()
}

// Requests is how many requests of the operations were sent for the key.
func Requests(f *faultlock.Faults, key string, ops ...faultlock.Op) (n int) {
	for _, op := range ops {
		n += f.Calls(op, key)
	}
	return n
}
