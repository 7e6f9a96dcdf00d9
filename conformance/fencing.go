package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

// fencedWrites has processes acquire the key, check their lease and write to a
// register. Some are stopped between check and write, for up to three TTLs. The
// first is stopped until a newer holder has written, so that at least one write
// comes too late.
func fencedWrites(e *env, ps *processes) {
	rounds := e.rounds(4*e.ttl, 1, 10)
	all := ps.start(3)
	all[0].sameStore(e.locker())
	f := &fencing{e: e, key: e.key("register"), reg: newFencedRegister()}
	// Everybody else may be granted the key first, and stand still.
	f.limit = time.Duration(len(all)) * (3*e.ttl + e.takeover(e.ttl))
	stopped := make(chan struct{})
	e.each(len(all), func(i int) {
		p := all[i]
		if i == 0 {
			f.write(p, func(h *farHold) {
				close(stopped)
				f.awaitNewer(h)
			})
		} else {
			if !e.within(e.takeover(e.ttl), stopped) {
				e.look(f.key)
				e.overdueFatalf(f.key, "a process had not been granted a free key")
			}
			f.write(p, nil)
		}
		for range rounds {
			if e.random(3) == 0 {
				f.write(p, nil)
			} else {
				f.write(p, func(*farHold) { e.pause(e.randomly(3 * e.ttl)) })
			}
		}
	})
	accepted, refused := f.reg.counts()
	if refused == 0 {
		e.notef("inconclusive: no write came too late")
	}
	e.checkTokens(f.key, false)
	e.notef("%d writes accepted, %d of older holders refused", accepted, refused)
}

// fencing is the case FencedRegister.
type fencing struct {
	e     *env
	key   string
	limit time.Duration // of an acquisition
	reg   *fencedRegister
}

// write has the process acquire the key, check the lease, stand still for as long
// as still takes, and write.
func (f *fencing) write(p *process, still func(*farHold)) {
	e := f.e
	h, err := p.acquire(f.key, e.ttl, f.limit)
	if err != nil {
		e.unexpectedFatal(f.key, err, "Acquire in %s returned %s; expected a lease: other holders stand still for up to %s, and their TTL is %s", p.who, outcome(err), 3*e.ttl, e.ttl)
	}
	h.mustLive("it was granted a moment ago")
	order := command{Op: opWrite, Lease: h.lease}
	var written *asked
	if still == nil {
		written = p.ask(order, nil)
	} else {
		p.stop(f.key)
		written = p.ask(order, nil) // is carried out when the process goes on
		still(h)
		p.goOn(f.key)
	}
	a, ok := p.wait(written)
	if !ok {
		return
	}
	ev := e.hist.begin(p.who, "writes to the register", f.key)
	if f.reg.write(fencedWrite{who: p.who, token: a.Token, granted: h.granted, sure: h.sure, at: e.hist.now()}) {
		e.hist.end(ev, "accepted")
	} else {
		e.hist.end(ev, "refused")
	}
	if text, when := f.reg.verdict(); text != "" {
		e.proofAt(when, f.key, "%s", text)
		panic(abort{})
	}
	// A hold that stood still may have been lost meanwhile, and says so.
	if err := h.release(context.Background()); err != nil && (still == nil || !errors.Is(err, lock.ErrNotHeld)) {
		e.unexpectedFatal(f.key, err, "Release in %s returned %s; expected no error, or after a pause one that matches ErrNotHeld", p.who, outcome(err))
	}
}

// awaitNewer waits until a holder that was granted the key after the hold has
// written.
func (f *fencing) awaitNewer(h *farHold) {
	limit := f.e.takeover(f.e.ttl) + f.e.waitBound()
	control := time.Now().Add(limit)
	for {
		done, changed := f.reg.newer(h.granted)
		if done {
			return
		}
		if !f.e.within(time.Until(control), changed) {
			f.e.look(f.key)
			f.e.overdueFatalf(f.key, "no waiting process had been granted the key %s after its holder stood still; its TTL is %s", limit, f.e.ttl)
		}
	}
}
