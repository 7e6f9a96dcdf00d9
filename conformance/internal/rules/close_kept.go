package rules

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// nothingKept repeats calls of each kind through a Locker that stays open, each with a copy
// of its key and a context of its own, and asks what has become of them, of the goroutines,
// and of what waits for the contexts.
func nothingKept(e *engine.Env) {
	const least, most = 30, 200
	a, b := e.Locker(), e.Locker()
	free, held := e.Key("a free key"), e.Key("a held key")
	h := b.MustTry(held)
	type repeated struct {
		what string
		of   string // what has the copies, each another text, if not the keys
		key  string
		ttl  time.Duration
		call func(ctx context.Context, key string, opts []lock.Option) // what it answers is for other rules
		kept engine.Copies
		ctxs engine.Copies
	}
	calls := []*repeated{
		{what: "holds that were released", key: free, ttl: e.Long, call: func(ctx context.Context, key string, opts []lock.Option) {
			_ = takenAndReleased(a.Locker.TryAcquire(ctx, key, opts...))
		}},
		{what: "refusals", key: held, ttl: e.Long, call: func(ctx context.Context, key string, opts []lock.Option) {
			_ = takenAndReleased(a.Locker.TryAcquire(ctx, key, opts...))
		}},
		// What a request that was under way may have left is cleaned up for a TTL.
		{what: "waits that were given up", key: held, ttl: e.TTL, call: func(ctx context.Context, key string, opts []lock.Option) {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_ = takenAndReleased(a.Locker.Acquire(ctx, key, opts...))
		}},
	}
	// So short a maximum is reached as soon as it is waited for.
	calls = append(calls, &repeated{what: "holds that were lost", key: e.Key("a lost key"), ttl: e.TTL, call: func(ctx context.Context, key string, opts []lock.Option) {
		ctx, cancel := context.WithTimeout(ctx, e.WaitBound())
		defer cancel()
		lease, err := a.Locker.Acquire(ctx, key, append(opts, lock.WithMaxHold(e.TTL/100))...)
		if err != nil {
			return
		}
		if !e.Within(e.Slack(), lease.Context().Done()) {
			_ = lease.Release(ctx)
		}
	}})
	if engine.ClaimReentrancy.Made(e.Settings) {
		key := e.Key("a key of owners")
		calls = append(calls, &repeated{what: "holds of owners", of: "owners", key: e.Owner("A"), ttl: e.Long, call: func(ctx context.Context, owner string, opts []lock.Option) {
			_ = takenAndReleased(a.Locker.TryAcquire(ctx, key, append(opts, lock.WithOwner(owner))...))
		}})
	}
	// These end without a request, or with one that says so.
	calls = append(calls,
		&repeated{what: "calls that were not acceptable", key: e.Key("a refused key"), ttl: e.Long, call: func(ctx context.Context, key string, opts []lock.Option) {
			_ = takenAndReleased(a.Locker.TryAcquire(ctx, key, append(opts, lock.WithTTL(-time.Second))...))
		}},
		&repeated{what: "calls whose contexts had ended", key: e.Key("a key that nobody asks for"), ttl: e.Long, call: func(ctx context.Context, key string, opts []lock.Option) {
			_ = takenAndReleased(a.Locker.Acquire(endedOf{ctx}, key, opts...))
			_ = takenAndReleased(a.Locker.TryAcquire(endedOf{ctx}, key, opts...))
		}},
		&repeated{what: "waits that got the key", key: e.Key("a key that is waited for"), ttl: e.Long, call: func(ctx context.Context, key string, opts []lock.Option) {
			stands, err := b.Locker.TryAcquire(e.Ctx, strings.Clone(key), opts...)
			if err != nil {
				return
			}
			defer time.AfterFunc(time.Millisecond, func() { _ = stands.Release(e.Ctx) }).Stop()
			waited, cancel := context.WithTimeout(ctx, e.WaitBound())
			defer cancel()
			_ = takenAndReleased(a.Locker.Acquire(waited, key, opts...))
		}})
	gone := a.MustTry(e.Key("a released key"))
	gone.MustRelease()
	calls = append(calls, &repeated{what: "second releases", key: gone.Key, call: func(ctx context.Context, _ string, _ []lock.Option) {
		_ = gone.Lease.Release(ctx)
		if e.Claimed.ManualRenewal {
			_ = gone.Lease.Renew(ctx)
		}
	}})
	if e.Claimed.HolderDetails {
		key := e.Key("a key with labels")
		calls = append(calls, &repeated{what: "leases with labels", of: "labels", key: "a label of its own", ttl: e.Long, call: func(ctx context.Context, label string, opts []lock.Option) {
			_ = takenAndReleased(a.Locker.TryAcquire(ctx, key, append(opts, lock.WithLabel(label))...))
		}})
	}
	if engine.ClaimReentrancy.Made(e.Settings) {
		calls = append(calls, &repeated{what: "waits of owners that were given up", of: "owners", key: e.Owner("B"), ttl: e.TTL, call: func(ctx context.Context, owner string, opts []lock.Option) {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_ = takenAndReleased(a.Locker.Acquire(ctx, held, append(opts, lock.WithOwner(owner))...))
		}})
	}
	var renewed *engine.Hold
	if e.Claimed.ManualRenewal {
		renewed = a.MustTry(e.Key("a renewed key"))
		calls = append(calls, &repeated{what: "renewals", key: renewed.Key, call: func(ctx context.Context, _ string, _ []lock.Option) {
			_ = renewed.Lease.Renew(ctx)
		}})
	}
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	var waiting, total atomic.Int64 // the first for the end of a context
	label := fmt.Sprintf("%s%d", e.Stem, time.Now().UnixNano())
	e.Labelled(label, func() {
		// A lock may keep as many goroutines as it needs for calls at a time.
		for some := range slices.Chunk(calls, 6) {
			e.Each(len(some), func(i int) {
				k, end := some[i], time.Now().Add(e.Window()/4)
				late := end.Add(e.Slack()) // where each call waits for something
				for n := 0; n < least && time.Now().Before(late) || n < most && time.Now().Before(end); n++ {
					text := k.key
					if k.of != "" {
						text = fmt.Sprintf("%s-%d", text, n)
					}
					k.call(k.ctxs.Follow(ctx, &waiting), k.kept.Copy(text), e.Opts(k.ttl))
					total.Add(1)
				}
			})
		}
	})
	patience := e.Slack() + 2*e.TTL
	if arriveLate(e) {
		patience += e.Long
	}
	watches := e.Start(func() { watchesEnd(e, patience) })
	for _, k := range calls {
		n := k.kept.Len()
		if n < least {
			e.Notef("%d %s, too few to tell what is kept of them", n, k.what)
			continue
		}
		for what, kept := range map[string]*engine.Copies{cmp.Or(k.of, "keys"): &k.kept, "contexts": &k.ctxs} {
			if left := e.Forgotten(kept, n/2, patience); left > n/2 {
				e.Overduef("", "of %d %s, the %s of %d are still in memory after %s, although the calls have returned; expected what adds up to be forgotten", n, k.what, what, left, patience)
			}
		}
	}
	if n, stacks := e.Settles(label, least/2, patience); n > least/2 {
		e.Overduef("", "%d goroutines are left of %d calls that have returned, %s later; for example\n%s", n, total.Load(), patience, stacks)
	}
	if n := waiting.Load(); n > least/2 {
		e.Overduef("", "%d things still wait for the ends of contexts that were given to %d calls, all of which have returned; expected none", n, total.Load())
	}
	if renewed != nil { // what it keeps must not end with it
		_ = renewed.Release(e.Ctx)
	}
	_ = gone.Release(e.Ctx)
	_ = h.Release(e.Ctx)
	a.Soon(held, "its holder has released it, and whoever of this Locker has waited for it has given up").MustRelease()
	watches()
	e.Notef("%d calls", total.Load())
	e.Together(func() { keysForgotten(e, patience) }, func() { runOutForgotten(e, patience) })
}

// endedOf is a context that has ended.
type endedOf struct{ context.Context }

func (endedOf) Err() error { return context.Canceled }

func (endedOf) Done() <-chan struct{} { return closedAlready }

var closedAlready = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// runOutForgotten has leases run out that nobody renews or releases. A cache of a decent size has
// room for so few, but nobody keeps one of what is in memory, in virtual time.
func runOutForgotten(e *engine.Env, patience time.Duration) {
	const many = 200
	if e.OpenBackend == nil || !e.Virtual() {
		return // it may be the store that has not tidied up
	}
	c := apartLocker(e)
	if c == nil || !e.Claimed.WithoutRenewal || e.Claimed.Expiry == backend.ClockConnection {
		return
	}
	var keys engine.Copies
	e.Each(many, func(i int) {
		lease, err := c.Locker.TryAcquire(e.Ctx, keys.Copy(e.Key("runs out %d", i)), e.Opts(e.TTL, lock.WithoutRenewal())...)
		if err == nil && e.Claimed.LossSignal {
			e.Within(e.TTL+e.Slack(), lease.Context().Done())
		}
	})
	patience += e.TTL + many*100*time.Millisecond // for what ends them at the server, one after the other
	if left := e.Forgotten(&keys, many/2, patience); left > many/2 {
		e.Overduef("", "of %d leases that have run out, the keys of %d are still in memory after %s; expected most to be forgotten", many, left, patience)
	}
}

// apartLocker is a Locker of whose keys only itself can keep the memory, or nil.
func apartLocker(e *engine.Env) *engine.Client {
	switch here := e.Claimed.Reach == backend.ReachProcess; {
	case here && e.OpenBackend == nil:
		return nil
	case here:
		return e.LockerFrom(e.OpenApart)
	default:
		return e.Locker()
	}
}

// watchesEnd makes waits that are given up and waits that get the key, and asks which of their
// watches go on.
func watchesEnd(e *engine.Env, patience time.Duration) {
	const waits = 8
	a, w := e.LockerWithWatches()
	if w == nil {
		return
	}
	b := e.Locker()
	wait := func(key string) *engine.Acquiring {
		before := w.Begun(key)
		wait := a.Acquiring(key)
		for end := time.Now().Add(100 * time.Millisecond); w.Begun(key) == before && time.Now().Before(end); e.Pause(time.Millisecond) {
		}
		return wait
	}
	end := func(key, what string) {
		begun := w.Begun(key)
		if open := w.Ended(e, key, waits/2, patience); open > waits/2 {
			e.Overduef(key, "the Locker began to watch the key %d times in %d waits that %s, and the contexts of %d watches have not ended %s after the last; expected what adds up to end", begun, waits, what, open, patience)
		}
		e.Notef("%d watches of %d waits that %s", begun, waits, what)
	}
	e.Together(
		func() {
			if !waitsEnd(e) {
				return
			}
			key := e.Key("watched and given up")
			h := b.MustTry(key)
			for range waits {
				given := wait(key)
				given.Cancel()
				if !e.Within(e.Slack(), given.Done) {
					e.OverdueFatalf(key, "a cancelled waiter had not returned after %s", e.Slack())
				}
				if given.Err == nil {
					e.Fatalf(key, "a waiter was granted a key that was held")
				}
			}
			h.MustRelease()
			end(key, "were given up")
		},
		func() {
			key := e.Key("watched and granted")
			for range waits {
				h := b.MustTry(key)
				next := wait(key)
				h.MustRelease()
				next.MustGet(e, key, e.WaitBound(), "it was released").MustRelease()
			}
			end(key, "got the key")
		},
	)
}

// keysForgotten uses many keys once, more than a cache of a decent size has room for, and is
// refused each of them while it has it. A
// store in this process may have to remember them for their tokens, so the keys of such a
// Locker are kept apart from it, which takes a backend.
func keysForgotten(e *engine.Env, patience time.Duration) {
	const many, callers = 10_000, 8
	if policyTried(e) { // in memory
		return
	}
	c := apartLocker(e)
	if c == nil {
		return
	}
	var keys, refused engine.Copies
	var used atomic.Int64
	end := time.Now().Add(e.Window())
	e.Each(callers, func(int) {
		for n := used.Add(1); n <= many && time.Now().Before(end); n = used.Add(1) {
			key := keys.Copy(e.Key("key number %d", n))
			get := c.Locker.TryAcquire
			if n%2 == 0 {
				get = c.Locker.Acquire
			}
			begun := time.Now()
			lease, err := get(e.Ctx, key, e.Opts(e.Long)...)
			if err == nil {
				granted := takenAndReleased(c.Locker.TryAcquire(e.Ctx, refused.Copy(key), e.Opts(e.Long)...)) == nil
				if err = lease.Release(e.Ctx); granted { // which is for other rules
					err = nil
				}
			}
			if err != nil {
				e.Undisturbed(time.Since(begun), err)
				e.UnexpectedFatal(key, err, "a key that is used once: the call ended with %s", engine.Outcome(err))
			}
		}
	})
	if n := keys.Len(); n < many {
		e.Notef("%d keys in %s, too few to tell whether keys are forgotten", n, e.Window())
		return
	}
	for what, of := range map[string]*engine.Copies{"used once": &keys, "refused once": &refused} {
		if left := e.Forgotten(of, many/2, patience); left > many/2 {
			e.Overduef("", "of %d keys that were %s, %d are still in memory after %s; expected most to be forgotten", many, what, left, patience)
		}
	}
	e.Notef("%d keys", many)
}

// takenAndReleased releases what was granted.
func takenAndReleased(lease lock.Lease, err error) error {
	if err != nil {
		return err
	}
	return lease.Release(context.Background())
}
