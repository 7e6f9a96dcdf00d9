package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var guardRules = []*engine.Rule{
	{
		Name:      "GuardedWriteWhileHeld",
		Statement: "A guarded write takes effect while its lease is held; later it returns ErrNotHeld.",
		Claims:    []engine.Claim{engine.ClaimGuardedWrite},
		Run:       guardedWhileHeld,
	},
	{
		Name:      "GuardedWriteNeverLate",
		Statement: "No guarded write of a holder comes after the next holder's first.",
		Claims:    []engine.Claim{engine.ClaimGuardedWrite},
		LimitTTLs: 60,
		Run:       guardedNeverLate,
	},
	{
		Name:      "GuardedWriteHoldsUpNobody",
		Statement: "A guarded write of half a TTL holds up no other key, lets nobody in, and costs no hold.",
		Claims:    []engine.Claim{engine.ClaimGuardedWrite},
		Run:       guardedHoldsUpNobody,
	},
}

func mayGuard(e *engine.Env) {
	if e.Guarded == nil || e.Guarded.Write == nil || e.Guarded.Read == nil {
		e.Skipf("needs Config.Guarded")
	}
	if !e.Claimed.WithoutRenewal {
		e.Skipf("needs leases that are not renewed, which the guarantees don't claim")
	}
}

func guardedWrite(e *engine.Env, h *engine.Hold, value string) error {
	return guardedBy(e, h, "guarded write of "+value, func() error { return e.Guarded.Write(e.Ctx, h.Lease, value) })
}

// guardedOpen is guardedWrite with something that happens while it is under way.
func guardedOpen(e *engine.Env, h *engine.Hold, value string, between func()) error {
	called := false
	var end any
	err := guardedBy(e, h, "guarded write of "+value, func() error {
		return e.Guarded.Open(e.Ctx, h.Lease, value, func() {
			called = true
			e.Log.Note(h.Client.Who, h.Key, "the guarded write is under way")
			end = e.Guard(between)
		})
	})
	if end != nil {
		panic(end)
	}
	if err == nil && !called {
		e.Fatalf(h.Key, "Config.Guarded.Open wrote without calling what it was to call between")
	}
	return err
}

func guardedBy(e *engine.Env, h *engine.Hold, op string, write func() error) error {
	ev := e.Log.Begin(h.Client.Who, op, h.Key)
	err := write()
	e.Log.End(ev, engine.Outcome(err))
	if errors.Is(context.Cause(h.Lease.Context()), lock.ErrReleased) {
		h.Releasing(ev.From) // the write has ended the lease, as it may
	}
	return err
}

func requireValue(e *engine.Env, key, want, why string) {
	got, err := e.Guarded.Read(e.Ctx, key)
	switch {
	case err != nil:
		e.UnexpectedFatal(key, err, "reading the value returned %s", engine.Outcome(err))
	case got != want:
		e.Fatalf(key, "the value is %q; expected %q: %s", got, want, why)
	}
}

func guardedWhileHeld(e *engine.Env) {
	mayGuard(e)
	a, b := e.Locker(), e.Locker()
	e.Together(
		func() { // released
			key := e.Key("released")
			h := a.MustTry(key)
			if err := guardedWrite(e, h, "held"); err != nil {
				e.UnexpectedFatal(key, err, "a guarded write under a lease that is held returned %s; expected no error", engine.Outcome(err))
			}
			requireValue(e, key, "held", "a guarded write was confirmed")
			_ = h.Release(e.Ctx)
			e.Is(key, guardedWrite(e, h, "released"), "a guarded write after Release", lock.ErrNotHeld)
			requireValue(e, key, "held", "the lease had been released")
		},
		func() { // taken over
			key := e.Key("expired")
			old := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
			next := b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/25, "the lease was not renewed")
			e.Is(key, guardedWrite(e, old, "old"), "a guarded write of a holder whose lease had run out", lock.ErrNotHeld)
			requireValue(e, key, "", "its lease had run out")
			if err := guardedWrite(e, next, "new"); err != nil {
				e.UnexpectedFatal(key, err, "a guarded write of the next holder returned %s; expected no error", engine.Outcome(err))
			}
			e.Is(key, guardedWrite(e, old, "old"), "a guarded write of a holder whose lease had run out", lock.ErrNotHeld)
			requireValue(e, key, "new", "the lease of the writer of any other value had run out")
			_ = next.Release(e.Ctx)
		},
		func() { // removed by force, which the holder may not know yet
			if e.Remove == nil {
				e.Notef("not tried without Config.Remove: a guarded write after the removal of the record")
				return
			}
			key := e.Key("removed")
			h := a.MustTry(key)
			e.RemoveByForce(key)
			e.Is(key, guardedWrite(e, h, "removed"), "a guarded write of a holder whose record was removed", lock.ErrNotHeld)
			requireValue(e, key, "", "the record of its lease had been removed")
			_ = h.Release(e.Ctx)
		},
	)
}

func guardedNeverLate(e *engine.Env) {
	mayGuard(e)
	a, b := e.Locker(), e.Locker()
	const keys = 3
	rounds := e.Rounds(e.TTL*2, 1, 20)
	e.Each(keys, func(n int) {
		e.Pause(e.Randomly(e.TTL))
		for round := range rounds {
			key := e.Key("%d-%d", n, round)
			old := a.MustTryFor(key, e.TTL, lock.WithoutRenewal())
			e.Pause(time.Until(old.Until()) - e.TTL/8)
			stop := make(chan struct{})
			join := e.Start(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					err := guardedWrite(e, old, fmt.Sprintf("old %d", i))
					switch {
					case err == nil, errors.Is(err, lock.ErrNotHeld):
					case e.Ctx.Err() != nil:
						return
					}
					e.Pause(e.TTL / 200)
				}
			})
			next := b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/200, "the lease was not renewed")
			if err := guardedWrite(e, next, "new"); err != nil {
				e.Unexpected(key, err, "a guarded write of the next holder returned %s; expected no error", engine.Outcome(err))
				close(stop)
				join()
				return
			}
			for until := time.Now().Add(e.TTL / 4); time.Now().Before(until); e.Pause(e.TTL / 100) {
				requireValue(e, key, "new", "the next holder had written it, and the lease of the earlier one had run out")
			}
			close(stop)
			join()
			requireValue(e, key, "new", "the next holder had written it, and the lease of the earlier one had run out")
			_ = next.Release(e.Ctx)
		}
	})
	e.Notef("%d takeovers", keys*rounds)
}

// needsGuardedOpen skips the case where nobody can stay in the middle of a guarded write.
func needsGuardedOpen(e *engine.Env) {
	switch {
	case e.Guarded == nil:
		e.Skipf("needs Config.Guarded, with Open")
	case e.Guarded.Open == nil:
		e.Skipf("does not apply: a guarded write is one request, or there is no way to stay in the middle of it")
	}
}

// guardedHoldsUpNobody has a client write under several leases at a time, and stay in
// the middle of it, beside leases of the same client that are renewed meanwhile.
func guardedHoldsUpNobody(e *engine.Env) {
	needsGuardedOpen(e)
	const bystanders, writers = 2, 12
	a, b := e.Locker(), e.Locker()
	w := &slowWriting{e: e, a: a, b: b, besideOwn: guardsBesideOwnHold(e, a), ttl: e.Fit(2 * e.TTL)}
	var beside, control []*engine.Hold
	for i := range bystanders {
		beside = append(beside, a.MustTryFor(e.Key("beside-%d", i), w.ttl))
		control = append(control, b.MustTryFor(e.Key("control-%d", i), w.ttl))
	}
	stop := make(chan struct{})
	least := [2]time.Duration{w.ttl, w.ttl} // that was left of beside and of control
	join := e.Start(func() {
		for ; ; e.Pause(w.ttl / 100) {
			for i, holds := range [][]*engine.Hold{beside, control} {
				for _, h := range holds {
					least[i] = min(least[i], time.Until(h.Until()))
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
	e.Each(writers, func(n int) { w.write(fmt.Sprintf("at-once-%d", n), n%2 == 0) })
	e.Each(writers, func(n int) {
		e.Pause(e.Randomly(w.ttl))
		w.write(fmt.Sprintf("staggered-%d", n), n%2 == 0)
	})
	close(stop)
	join()
	for _, h := range append(beside, control...) {
		h.MustLive("it is renewed, and only other keys were written")
	}
	if least[0] < least[1]-w.ttl/4 {
		e.Latef("", "while guarded writes were under way, the leases of their client on other keys were renewed late: at one time %s of %s were left of one, where no lease of another client had less than %s",
			least[0].Round(time.Millisecond), w.ttl, least[1].Round(time.Millisecond))
	}
	for _, h := range append(beside, control...) {
		h.MustRelease()
	}
	e.Notef("%d guarded writes; of leases beside them %s of %s were left at least, of those of another client %s",
		2*writers, least[0].Round(time.Millisecond), w.ttl, least[1].Round(time.Millisecond))
}

// guardsBesideOwnHold reports whether an owner can write under one of its holds on a key.
func guardsBesideOwnHold(e *engine.Env, c *engine.Client) bool {
	if !engine.ClaimReentrancy.Made(e.Settings) {
		return false
	}
	key := e.Key("own")
	h := c.MustTry(key, lock.WithOwner(e.Owner("A")))
	err := guardedOpen(e, h, "new", func() {})
	if err != nil && !errors.Is(err, lock.ErrUnsupported) {
		e.UnexpectedFatal(key, err, "a guarded write under a lease that is held returned %s; expected no error", engine.Outcome(err))
	}
	if !h.Lost() {
		h.MustRelease()
	}
	if err != nil {
		e.Notef("not tried beside another hold of the owner: %s", engine.Outcome(err))
	}
	return err == nil
}

// slowWriting is a client that stays in the middle of guarded writes.
type slowWriting struct {
	e         *engine.Env
	a, b      *engine.Client // who writes, and somebody else
	besideOwn bool           // an owner can write under one of its holds on a key
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
	key := e.Key("written-%s", name)
	var owner []lock.Option
	besideOwn = besideOwn && w.besideOwn
	stay := w.stay(besideOwn)
	if besideOwn {
		owner = append(owner, lock.WithOwner(e.Owner(name)))
	}
	h := a.MustTryFor(key, w.ttl, owner...)
	var own *engine.Hold
	if besideOwn {
		own = a.MustTryFor(key, w.ttl, owner...)
	}
	err := guardedOpen(e, h, "new", func() {
		begun := time.Now()
		b.MustRefuse(key, "a guarded write of its holder is under way")
		e.Pause(stay/2 - time.Since(begun))
		asked := time.Now()
		elsewhere := e.Key("elsewhere-%s", name)
		a.MustTry(elsewhere).MustRelease()
		if took := time.Since(asked); took > e.Slack() {
			e.Overduef(elsewhere, "while guarded writes of other keys were under way, taking and freeing a key took %s", took.Round(time.Millisecond))
		}
		e.Pause(stay - time.Since(begun))
	})
	if err != nil {
		e.UnexpectedFatal(key, err, "a guarded write under a lease that is held returned %s; expected no error", engine.Outcome(err))
	}
	requireValue(e, key, "new", "a guarded write was confirmed")
	if own != nil {
		own.MustLive("the guarded write of another hold of its owner ended before it")
	}
	if !h.Lost() {
		h.MustRelease()
	}
	if own != nil {
		b.MustRefuse(key, "one hold of its owner is left")
		own.MustRelease()
	}
	b.Soon(key, "its holder has written and released it").MustRelease()
}
