package rules

import (
	"errors"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// holderAcrossProcesses has each of two processes hold a key, and is refused here.
func holderAcrossProcesses(e *engine.Env, ps *engine.Processes) {
	here := e.Locker()
	for _, p := range ps.Start(2) {
		key := e.Key("%d", p.PID())
		label := "of " + p.Who
		h, err := p.TryAs(key, "", label)
		if err != nil {
			e.UnexpectedFatal(key, err, "TryAcquire with a label returned %s in another process, for a free key; expected a lease", engine.Outcome(err))
		}
		err = here.Refusal(key, "another process holds it", lock.WithLabel("of who is refused"))
		if held := (*lock.HeldError)(nil); !errors.As(err, &held) {
			e.Failf(key, "a refusal says nothing of the holder, a process with the number %d; expected a *HeldError with its label", p.PID())
		} else if held.Holder.Label != label || held.Holder.PID != p.PID() {
			e.Failf(key, "a refusal names the holder %s; expected the label %q and the process %d, which took the key", held.Holder, label, p.PID())
		}
		h.MustRelease()
	}
}

// ownerAcrossProcesses has an owner of another process enter here, and the other way about.
func ownerAcrossProcesses(e *engine.Env, ps *engine.Processes) {
	p, here := ps.Start(1)[0], e.Locker()
	owner, other := e.Owner("A"), e.Owner("B")
	same := func(key string, there, here uint64) {
		if tokens(e) && there != here {
			e.Failf(key, "an owner's hold in another process has the token %d, and the one here %d; expected one token for all holds of an owner", there, here)
		}
	}

	key := e.Key("entered-here")
	far, err := p.TryAs(key, owner, "")
	if err != nil {
		e.UnexpectedFatal(key, err, "TryAcquire with an owner returned %s in another process, for a free key; expected a lease", engine.Outcome(err))
	}
	here.MustRefuse(key, "an owner of another process holds it", lock.WithOwner(other))
	here.MustRefuse(key, "an owner of another process holds it")
	if !engine.ClaimServerHolds.Made(e.Settings) {
		here.MustRefuse(key, "holds are counted by each client, so that another process is excluded even with the same owner", lock.WithOwner(owner))
		far.MustRelease()
		here.MustTry(key, lock.WithOwner(owner)).MustRelease()
		return
	}
	h, err := here.Try(key, lock.WithOwner(owner))
	if err != nil {
		e.UnexpectedFatal(key, err, "the owner that holds the key in another process got %s here; expected a lease, since holds are counted on the server", engine.Outcome(err))
	}
	same(key, far.Token, h.Token)
	far.MustRelease()
	e.Locker().MustRefuse(key, "its owner still holds it here")
	h.MustRelease()
	here.MustTry(key).MustRelease()

	key = e.Key("entered-there")
	h = here.MustTry(key, lock.WithOwner(owner))
	far, err = p.TryAs(key, owner, "")
	if err != nil {
		e.UnexpectedFatal(key, err, "the owner that holds the key here got %s in another process; expected a lease, since holds are counted on the server", engine.Outcome(err))
	}
	same(key, far.Token, h.Token)
	h.MustRelease()
	here.MustRefuse(key, "its owner still holds it in another process")
	far.MustRelease()
	here.MustTry(key).MustRelease()
}
