package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
)

var guardRules = []*rule{
	{
		Name:      "GuardedWriteWhileHeld",
		Statement: "A guarded write takes effect while its lease is held; after its release, loss or removal it changes nothing and returns ErrNotHeld.",
		claims:    []claim{claimGuardedWrite},
		run:       guardedWhileHeld,
	},
	{
		Name:      "GuardedWriteNeverLate",
		Statement: "However a holder hurries while its lease runs out, none of its guarded writes comes after the next holder's first.",
		claims:    []claim{claimGuardedWrite},
		LimitTTLs: 60,
		run:       guardedNeverLate,
	},
	{
		Name:      "GuardedWriteHoldsUpNobody",
		Statement: "While guarded writes of a client are under way, its other leases are renewed and kept, other keys can be taken and freed, and nobody else gets those that are written. A write of up to half its TTL costs not even another hold of its owner on the same key.",
		claims:    []claim{claimGuardedWrite},
		run:       guardedHoldsUpNobody,
	},
}

// GuardedWrite is a value in the lock's own store for each key, which is written
// through what the lock offers for guarded writes.
type GuardedWrite struct {
	// Write sets the value while the lease is held, and otherwise changes nothing
	// and returns an error that matches lock.ErrNotHeld. It may end the lease.
	Write func(ctx context.Context, lease lock.Lease, value string) error
	// Open does what Write does, and calls between after its first step and before its
	// last one: a transaction has begun, and keeps the key from others, but nothing is
	// committed. Where a guarded write is one request there is nothing between, and Open
	// is nil; the rule GuardedWriteHoldsUpNobody is then skipped.
	Open func(ctx context.Context, lease lock.Lease, value string, between func()) error
	// Read returns the value of the key, without any lock; empty when there is none.
	Read func(ctx context.Context, key string) (string, error)
}

var claimGuardedWrite = claim{"GuardedWrite", func(s *settings) bool { return s.g.GuardedWrite }}

func (e *env) mayGuard() {
	if e.Guarded == nil || e.Guarded.Write == nil || e.Guarded.Read == nil {
		e.skipf("needs Config.Guarded")
	}
	if !e.g.WithoutRenewal {
		e.skipf("needs leases that are not renewed, which the guarantees don't claim")
	}
}

func (e *env) guardedWrite(h *hold, value string) error {
	return e.guardedBy(h, "guarded write of "+value, func() error { return e.Guarded.Write(e.ctx, h.lease, value) })
}

// guardedOpen is guardedWrite with something that happens while it is under way.
func (e *env) guardedOpen(h *hold, value string, between func()) error {
	called := false
	var end any
	err := e.guardedBy(h, "guarded write of "+value, func() error {
		return e.Guarded.Open(e.ctx, h.lease, value, func() {
			called = true
			e.hist.note(h.c.who, h.key, "the guarded write is under way")
			end = e.guard(between)
		})
	})
	if end != nil {
		panic(end)
	}
	if err == nil && !called {
		e.fatalf(h.key, "Config.Guarded.Open wrote without calling what it was to call between")
	}
	return err
}

func (e *env) guardedBy(h *hold, op string, write func() error) error {
	ev := e.hist.begin(h.c.who, op, h.key)
	err := write()
	e.hist.end(ev, outcome(err))
	if errors.Is(context.Cause(h.lease.Context()), lock.ErrReleased) {
		h.releasing(ev.from) // the write has ended the lease, as it may
	}
	return err
}

func (e *env) requireValue(key, want, why string) {
	got, err := e.Guarded.Read(e.ctx, key)
	switch {
	case err != nil:
		e.unexpectedFatal(key, err, "reading the value returned %s", outcome(err))
	case got != want:
		e.fatalf(key, "the value is %q; expected %q: %s", got, want, why)
	}
}

func guardedWhileHeld(e *env) {
	e.mayGuard()
	a, b := e.locker(), e.locker()
	e.together(
		func() { // released
			key := e.key("released")
			h := a.mustTry(key)
			if err := e.guardedWrite(h, "held"); err != nil {
				e.unexpectedFatal(key, err, "a guarded write under a lease that is held returned %s; expected no error", outcome(err))
			}
			e.requireValue(key, "held", "a guarded write was confirmed")
			_ = h.release(e.ctx)
			e.is(key, e.guardedWrite(h, "released"), "a guarded write after Release", lock.ErrNotHeld)
			e.requireValue(key, "held", "the lease had been released")
		},
		func() { // taken over
			key := e.key("expired")
			old := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
			next := b.wins(key, e.takeover(e.ttl), e.ttl/25, "the lease was not renewed")
			e.is(key, e.guardedWrite(old, "old"), "a guarded write of a holder whose lease had run out", lock.ErrNotHeld)
			e.requireValue(key, "", "its lease had run out")
			if err := e.guardedWrite(next, "new"); err != nil {
				e.unexpectedFatal(key, err, "a guarded write of the next holder returned %s; expected no error", outcome(err))
			}
			e.is(key, e.guardedWrite(old, "old"), "a guarded write of a holder whose lease had run out", lock.ErrNotHeld)
			e.requireValue(key, "new", "the lease of the writer of any other value had run out")
			_ = next.release(e.ctx)
		},
		func() { // removed by force, which the holder may not know yet
			if e.Remove == nil {
				e.notef("not tried without Config.Remove: a guarded write after the removal of the record")
				return
			}
			key := e.key("removed")
			h := a.mustTry(key)
			e.remove(key)
			e.is(key, e.guardedWrite(h, "removed"), "a guarded write of a holder whose record was removed", lock.ErrNotHeld)
			e.requireValue(key, "", "the record of its lease had been removed")
			_ = h.release(e.ctx)
		},
	)
}

func guardedNeverLate(e *env) {
	e.mayGuard()
	a, b := e.locker(), e.locker()
	const keys = 3
	rounds := e.rounds(e.ttl*2, 1, 20)
	e.each(keys, func(n int) {
		e.pause(e.randomly(e.ttl))
		for round := range rounds {
			key := e.key("%d-%d", n, round)
			old := a.mustTryFor(key, e.ttl, lock.WithoutRenewal())
			e.pause(time.Until(old.until()) - e.ttl/8)
			stop := make(chan struct{})
			join := e.start(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					err := e.guardedWrite(old, fmt.Sprintf("old %d", i))
					switch {
					case err == nil, errors.Is(err, lock.ErrNotHeld):
					case e.ctx.Err() != nil:
						return
					}
					e.pause(e.ttl / 200)
				}
			})
			next := b.wins(key, e.takeover(e.ttl), e.ttl/200, "the lease was not renewed")
			if err := e.guardedWrite(next, "new"); err != nil {
				e.unexpected(key, err, "a guarded write of the next holder returned %s; expected no error", outcome(err))
				close(stop)
				join()
				return
			}
			for until := time.Now().Add(e.ttl / 4); time.Now().Before(until); e.pause(e.ttl / 100) {
				e.requireValue(key, "new", "the next holder had written it, and the lease of the earlier one had run out")
			}
			close(stop)
			join()
			e.requireValue(key, "new", "the next holder had written it, and the lease of the earlier one had run out")
			_ = next.release(e.ctx)
		}
	})
	e.notef("%d takeovers", keys*rounds)
}

// needsGuardedOpen skips the case where nobody can stay in the middle of a guarded write.
func (e *env) needsGuardedOpen() {
	switch {
	case e.Guarded == nil:
		e.skipf("needs Config.Guarded, with Open")
	case e.Guarded.Open == nil:
		e.skipf("does not apply: a guarded write is one request, or there is no way to stay in the middle of it")
	}
}

// guardedHoldsUpNobody has a client write under several leases at a time, and stay in
// the middle of it, beside leases of the same client that are renewed meanwhile.
func guardedHoldsUpNobody(e *env) {
	e.needsGuardedOpen()
	const bystanders, writers = 2, 12
	a, b := e.locker(), e.locker()
	w := &slowWriting{e: e, a: a, b: b, besideOwn: e.guardsBesideOwnHold(a), ttl: e.fit(2 * e.ttl)}
	var beside, control []*hold
	for i := range bystanders {
		beside = append(beside, a.mustTryFor(e.key("beside-%d", i), w.ttl))
		control = append(control, b.mustTryFor(e.key("control-%d", i), w.ttl))
	}
	stop := make(chan struct{})
	least := [2]time.Duration{w.ttl, w.ttl} // that was left of beside and of control
	join := e.start(func() {
		for ; ; e.pause(w.ttl / 100) {
			for i, holds := range [][]*hold{beside, control} {
				for _, h := range holds {
					least[i] = min(least[i], time.Until(h.until()))
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	// All at once, which may take all connections that the client has, and then so that
	// one or the other is under way all the time.
	e.each(writers, func(n int) { w.write(fmt.Sprintf("at-once-%d", n), n%2 == 0) })
	e.each(writers, func(n int) {
		e.pause(e.randomly(w.ttl))
		w.write(fmt.Sprintf("staggered-%d", n), n%2 == 0)
	})
	close(stop)
	join()
	for _, h := range append(beside, control...) {
		h.mustLive("it is renewed, and only other keys were written")
	}
	if least[0] < least[1]-w.ttl/4 {
		e.latef("", "while guarded writes were under way, the leases of their client on other keys were renewed late: at one time %s of %s were left of one, where no lease of another client had less than %s",
			least[0].Round(time.Millisecond), w.ttl, least[1].Round(time.Millisecond))
	}
	for _, h := range append(beside, control...) {
		h.mustRelease()
	}
	e.notef("%d guarded writes; of leases beside them %s of %s were left at least, of those of another client %s",
		2*writers, least[0].Round(time.Millisecond), w.ttl, least[1].Round(time.Millisecond))
}

// guardsBesideOwnHold reports whether an owner can write under one of its holds on a key.
func (e *env) guardsBesideOwnHold(c *client) bool {
	if !claimReentrancy.made(e.settings) {
		return false
	}
	key := e.key("own")
	h := c.mustTry(key, lock.WithOwner(e.owner("A")))
	err := e.guardedOpen(h, "new", func() {})
	if err != nil && !errors.Is(err, lock.ErrUnsupported) {
		e.unexpectedFatal(key, err, "a guarded write under a lease that is held returned %s; expected no error", outcome(err))
	}
	if !h.lost() {
		h.mustRelease()
	}
	if err != nil {
		e.notef("not tried beside another hold of the owner: %s", outcome(err))
	}
	return err == nil
}

// slowWriting is a client that stays in the middle of guarded writes.
type slowWriting struct {
	e         *env
	a, b      *client // who writes, and somebody else
	besideOwn bool    // an owner can write under one of its holds on a key
	ttl       time.Duration
}

// stay is how long a write is under way, well beyond the next renewal of its key. Beside
// another hold of the owner, which may not be renewed meanwhile, it must end before what
// that is sure to have.
func (w *slowWriting) stay(besideOwn bool) time.Duration {
	if besideOwn {
		return w.ttl / 2
	}
	return w.ttl * 3 / 4
}

// write writes a key of its own and stays under way, if that can be with a second hold
// of its owner on the key, and looks at what else its client can do.
func (w *slowWriting) write(name string, besideOwn bool) {
	e, a, b := w.e, w.a, w.b
	key := e.key("written-%s", name)
	var owner []lock.Option
	besideOwn = besideOwn && w.besideOwn
	stay := w.stay(besideOwn)
	if besideOwn {
		owner = append(owner, lock.WithOwner(e.owner(name)))
	}
	h := a.mustTryFor(key, w.ttl, owner...)
	var own *hold
	if besideOwn {
		own = a.mustTryFor(key, w.ttl, owner...)
	}
	err := e.guardedOpen(h, "new", func() {
		begun := time.Now()
		b.mustRefuse(key, "a guarded write of its holder is under way")
		e.pause(stay/2 - time.Since(begun))
		asked := time.Now()
		elsewhere := e.key("elsewhere-%s", name)
		a.mustTry(elsewhere).mustRelease()
		if took := time.Since(asked); took > e.slack() {
			e.overduef(elsewhere, "while guarded writes of other keys were under way, taking and freeing a key took %s", took.Round(time.Millisecond))
		}
		e.pause(stay - time.Since(begun))
	})
	if err != nil {
		e.unexpectedFatal(key, err, "a guarded write under a lease that is held returned %s; expected no error", outcome(err))
	}
	e.requireValue(key, "new", "a guarded write was confirmed")
	if own != nil {
		own.mustLive("the guarded write of another hold of its owner ended before it")
	}
	if !h.lost() {
		h.mustRelease()
	}
	if own != nil {
		b.mustRefuse(key, "one hold of its owner is left")
		own.mustRelease()
	}
	b.soon(key, "its holder has written and released it").mustRelease()
}
