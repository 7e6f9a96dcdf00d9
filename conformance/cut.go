package conformance

import (
	"context"
	"sync/atomic"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// seamKind is a way to put faults between the lock package and a backend.
type seamKind struct {
	name string
	of   func(*faultlock.Faults) backend.Backend
}

var (
	// primitives: the optional interfaces are left out, so that every request is a
	// try, a renewal or a release. The lock package does without them.
	primitives = seamKind{"primitives", (*faultlock.Faults).Primitives}
	// whole: queues, batches of renewals, watches and hand-overs are disturbed too.
	whole = seamKind{"all it has", (*faultlock.Faults).Backend}
)

// What the lock package asks a backend for, through whatever interface.
var (
	toGet  = []faultlock.Op{faultlock.OpTry, faultlock.OpEnqueue}
	toEnd  = []faultlock.Op{faultlock.OpRelease, faultlock.OpHandOver, faultlock.OpWithdraw}
	toKeep = []faultlock.Op{faultlock.OpRenew}
)

// usesOptional reports whether the lock package uses more of the backend than the
// primitives.
func usesOptional(b backend.Backend) bool {
	for _, has := range []bool{is[backend.Watcher](b), is[backend.Queuer](b), is[backend.BatchRenewer](b), is[backend.HandOverer](b)} {
		if has {
			return true
		}
	}
	return false
}

func is[T any](b backend.Backend) bool {
	_, ok := backend.As[T](b)
	return ok
}

// atFaultSites makes a case of one that is run for each way to put faults in.
func atFaultSites(run func(e *env, via seamKind)) func(*env) {
	return func(e *env) { e.eachSeam(func(via seamKind) { run(e, via) }) }
}

// eachSeam runs the case once for each way to put faults in, at the same time.
func (e *env) eachSeam(f func(via seamKind)) {
	kinds := []seamKind{primitives}
	if e.able {
		kinds = append(kinds, whole)
	}
	e.each(len(kinds), func(i int) { f(kinds[i]) })
}

// faulty opens a Locker whose requests can be disturbed between it and the server,
// at the primitives.
func (e *env) faulty() (*client, *faultlock.Faults) { return e.faultyAt(primitives, nil) }

// disturbed is faulty with the optional interfaces of the backend.
func (e *env) disturbed() (*client, *faultlock.Faults) { return e.faultyAt(whole, nil) }

func (e *env) faultyAt(via seamKind, opts *faultlock.Options) (*client, *faultlock.Faults) {
	var f *faultlock.Faults
	var cl atomic.Pointer[client]
	var told faultlock.Options
	if opts != nil {
		told = *opts
	}
	told.Observe = func(i faultlock.Injection) {
		who, what := "a client", i.Fault.String()
		if c := cl.Load(); c != nil {
			who = c.who
			c.harmed.Store(true)
		}
		if i.Landed {
			what += ", applied now"
		}
		e.hist.disturb(who, i.Key, i.Op, what)
	}
	told.Answered = e.hist.answered
	c := e.lockerFrom(func(ctx context.Context) (lock.Locker, error) {
		b, err := e.openBackend(ctx)
		if err != nil {
			return nil, err
		}
		f = faultlock.New(b, &told)
		return e.wrap(via.of(f), e.ttl)
	})
	cl.Store(c)
	return c, f
}
