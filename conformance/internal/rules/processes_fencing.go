package rules

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// fencedWrites has processes acquire the key, check their lease and write to a
// register. Some are stopped between check and write, for up to three TTLs. The
// first is stopped until a newer holder has written, so that at least one write
// comes too late.
func fencedWrites(e *engine.Env, ps *engine.Processes) {
	rounds := e.Rounds(4*e.TTL, 1, 10)
	all := ps.Start(3)
	sameStore(all[0], e.Locker())
	f := &fencing{e: e, key: e.Key("register"), reg: engine.NewFencedRegister()}
	// Everybody else may be granted the key first, and stand still.
	f.limit = time.Duration(len(all)) * (3*e.TTL + e.TakeoverLimit(e.TTL))
	stopped := make(chan struct{})
	e.Each(len(all), func(i int) {
		p := all[i]
		if i == 0 {
			f.write(p, func(h *engine.FarHold) {
				close(stopped)
				f.awaitNewer(h)
			})
		} else {
			if !e.Within(e.TakeoverLimit(e.TTL), stopped) {
				e.Look(f.key)
				e.OverdueFatalf(f.key, "a process had not been granted a free key")
			}
			f.write(p, nil)
		}
		for range rounds {
			if e.Random(3) == 0 {
				f.write(p, nil)
			} else {
				f.write(p, func(*engine.FarHold) { e.Pause(e.Randomly(3 * e.TTL)) })
			}
		}
	})
	accepted, refused := f.reg.Counts()
	if refused == 0 {
		e.Notef("inconclusive: no write came too late")
	}
	e.CheckTokens(f.key, false)
	e.Notef("%d writes accepted, %d of older holders refused", accepted, refused)
}

// fencing is the case FencedRegister.
type fencing struct {
	e     *engine.Env
	key   string
	limit time.Duration // of an acquisition
	reg   *engine.FencedRegister
}

// write has the process acquire the key, check the lease, stand still for as long
// as still takes, and write.
func (f *fencing) write(p *engine.Process, still func(*engine.FarHold)) {
	e := f.e
	h, err := p.Acquire(f.key, e.TTL, f.limit)
	if err != nil {
		e.UnexpectedFatal(f.key, err, "Acquire in %s returned %s; expected a lease: other holders stand still for up to %s, and their TTL is %s", p.Who, engine.Outcome(err), 3*e.TTL, e.TTL)
	}
	h.MustLive("it was granted a moment ago")
	order := engine.Command{Op: engine.OpWrite, Lease: h.Number}
	var written *engine.Asked
	if still == nil {
		written = p.Ask(order, nil)
	} else {
		p.Stop(f.key)
		written = p.Ask(order, nil) // is carried out when the process goes on
		still(h)
		p.Continue(f.key)
	}
	a, ok := p.Wait(written)
	if !ok {
		return
	}
	ev := e.Log.Begin(p.Who, "writes to the register", f.key)
	if f.reg.Write(engine.FencedWrite{Who: p.Who, Token: a.Token, Granted: h.Granted, Sure: h.Sure, At: e.Log.Now()}) {
		e.Log.End(ev, "accepted")
	} else {
		e.Log.End(ev, "refused")
	}
	if text, when := f.reg.Verdict(); text != "" {
		e.ProofAt(when, f.key, "%s", text)
		panic(engine.Abort{})
	}
	// A hold that stood still may have been lost meanwhile, and says so.
	if err := h.Release(context.Background()); err != nil && (still == nil || !errors.Is(err, lock.ErrNotHeld)) {
		e.UnexpectedFatal(f.key, err, "Release in %s returned %s; expected no error, or after a pause one that matches ErrNotHeld", p.Who, engine.Outcome(err))
	}
}

// awaitNewer waits until a holder that was granted the key after the hold has
// written.
func (f *fencing) awaitNewer(h *engine.FarHold) {
	limit := f.e.TakeoverLimit(f.e.TTL) + f.e.WaitBound()
	control := time.Now().Add(limit)
	for {
		done, changed := f.reg.Newer(h.Granted)
		if done {
			return
		}
		if !f.e.Within(time.Until(control), changed) {
			f.e.Look(f.key)
			f.e.OverdueFatalf(f.key, "no waiting process had been granted the key %s after its holder stood still; its TTL is %s", limit, f.e.TTL)
		}
	}
}
