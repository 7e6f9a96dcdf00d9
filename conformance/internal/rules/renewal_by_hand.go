package rules

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func renewByHand(e *engine.Env) {
	n := e.Rounds(e.TTL, 2, 10)
	wait := e.Start(func() { renewByHandLong(e) }, func() {
		a, b := e.Locker(), e.Locker()
		eachKind(e, append(kinds(e)[1:], renewedPairs(e)...), func(k kind) { renewKindByHand(e, k, a, b) })
	}, func() { renewOneOfOwner(e) }, func() { renewalsOverlap(e) })
	defer wait()
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		g := e.MustTake(a, key, e.TTL)
		// A lock without a deadline has none to move; that it was kept is seen by the refusals.
		renew := func(when string) {
			before := g.Until()
			if err := g.Renew(); err != nil {
				e.UnexpectedLateFatal(key, err, "Renew of a lease that was held, %s, returned %s; expected no error", when, engine.Outcome(err))
			}
			if e.Claimed.Deadline && !g.Until().After(before) {
				e.Failf(key, "the deadline is %s, as before a Renew that returned no error, %s; expected it to move", engine.Seconds(e.Log.At(before)), when)
			}
		}
		first := g.Until()
		for range 4 * n {
			e.Pause(e.TTL / 4)
			renew(fmt.Sprintf("%s after the last one", e.TTL/4))
			b.Refuses(key, "its holder renews it in time")
			if h, ok := g.(*engine.Hold); ok {
				h.MustLive("its holder renews it in time")
			}
		}
		var lasts []time.Duration // the last moment counts too
		if last := e.TTL / 5; e.Work(2*time.Millisecond) < last {
			lasts = append(lasts, last)
		}
		if e.Virtual() { // where that is no race
			lasts = append(lasts, e.TTL/25)
		}
		for _, last := range lasts {
			e.Pause(time.Until(g.Until()) - last)
			renew(fmt.Sprintf("%s before its deadline", last))
		}
		if last := g.Until(); e.Claimed.Deadline && last.Before(first.Add(e.TTL/2)) {
			e.Failf(key, "the deadline has moved from %s to %s only, although Renew was called for %d TTLs", engine.Seconds(e.Log.At(first)), engine.Seconds(e.Log.At(last)), n)
		}
		e.Pause(e.TTL / 8) // one renewal soon after another counts as much
		renew(fmt.Sprintf("%s after the last one", e.TTL/8))
		if err := g.Release(e.Ctx); err != nil {
			e.UnexpectedLate(key, err, "Release of a lease that was renewed in time returned %s; expected no error", engine.Outcome(err))
		}
	})
}

// renewKindByHand keeps a lease of the kind for twice its TTL.
func renewKindByHand(e *engine.Env, k kind, a, b *engine.Client) {
	key := e.Key("with-%s", k.name)
	h, ok := k.take(a, key, e.TTL, unrenewed(e)...)
	if !ok {
		return
	}
	first := h.Until()
	for range 8 {
		e.Pause(e.TTL / 4)
		if err := h.Renew(); err != nil {
			e.UnexpectedLateFatal(key, err, "Renew of a lease with %s that was held returned %s; expected no error", k.name, engine.Outcome(err))
		}
		b.MustRefuse(key, "its holder renews it in time; it has "+k.name)
		h.MustLive("its holder renews it in time; it has " + k.name)
	}
	if last := h.Until(); e.Claimed.Deadline && last.Before(first.Add(e.TTL/2)) {
		e.Failf(key, "the deadline of a lease with %s has moved from %s to %s only, although Renew was called for two TTLs", k.name, engine.Seconds(e.Log.At(first)), engine.Seconds(e.Log.At(last)))
	}
	h.MustRelease()
}

// renewOneOfOwner renews one hold of an owner after the other: each time its own deadline moves, and
// no other.
func renewOneOfOwner(e *engine.Env) {
	owner := oneOwner(e)
	if owner == nil || !e.Claimed.Deadline || !e.Claimed.WithoutRenewal {
		return
	}
	a, key := e.Locker(), e.Key("one of an owner's")
	holds := make([]*engine.Hold, 3)
	for i := range holds {
		holds[i] = a.MustTryFor(key, e.TTL, append(unrenewed(e), owner...)...)
		holds[i].Lapses()
	}
	for i, h := range holds {
		e.Pause(e.TTL / 8)
		before := make([]time.Time, len(holds))
		for j, other := range holds {
			before[j] = other.Until()
		}
		if err := h.Renew(); err != nil {
			e.UnexpectedLateFatal(key, err, "Renew of hold %d of an owner, which was held, returned %s; expected no error", i+1, engine.Outcome(err))
		}
		for j, other := range holds {
			moved := other.Until().Sub(before[j])
			switch {
			case other.Lost():
				e.TooSlowf(key, "hold %d of an owner ran out beside the renewals", j+1)
			case j == i && moved < e.TTL/16:
				e.Failf(key, "Renew of hold %d of an owner, %s after its grant, moved its deadline by %s; expected it to count from now", i+1, engine.Short(e.Log.Now()-h.Granted), engine.Short(moved))
			case j != i && moved > e.TTL/16:
				e.Failf(key, "Renew of hold %d of an owner moved the deadline of hold %d by %s; expected that to stay, since nobody has renewed it", i+1, j+1, engine.Short(moved))
			}
		}
	}
	renewAllOfOwner(e, holds)
	for _, h := range holds {
		_ = h.Release(e.Ctx)
	}
}

// renewAllOfOwner renews the holds of an owner at the same time: each deadline moves.
func renewAllOfOwner(e *engine.Env, holds []*engine.Hold) {
	e.Pause(e.TTL / 8)
	before := make([]time.Time, len(holds))
	for i, h := range holds {
		before[i] = h.Until()
	}
	e.Each(len(holds), func(i int) {
		h := holds[i]
		if err := h.Renew(); err != nil {
			e.UnexpectedLateFatal(h.Key, err, "Renew of hold %d of an owner, at the time of those of its other holds, returned %s; expected no error", i+1, engine.Outcome(err))
		}
		if moved := h.Until().Sub(before[i]); moved < e.TTL/16 && !h.Lost() {
			e.Failf(h.Key, "Renew of hold %d of an owner, at the time of those of its other holds, moved its deadline by %s; expected it to count from now", i+1, engine.Short(moved))
		}
	})
}

// renewalsOverlap has a Renew begin while an earlier one has no answer yet, which comes before that of
// the second, or after it. The second counts from its own call, and the first takes nothing back.
func renewalsOverlap(e *engine.Env) {
	if e.OpenBackend == nil || !e.Claimed.Deadline {
		return
	}
	const part = 4 // of the TTL, for the first answer
	for _, last := range []bool{false, true} {
		a, server := e.Faulty()
		key := e.Key("overlap-%t", last)
		h := a.MustTryFor(key, e.TTL, unrenewed(e)...)
		answered := e.TTL / part
		server.Next(1, faultlock.DelayAfter(answered), faultlock.OpRenew)
		if !last {
			server.Next(1, faultlock.DelayAfter(answered/2), faultlock.OpRenew)
		}
		first := e.Start(func() { _ = h.Lease.Renew(e.Ctx) })
		e.Pause(answered * 3 / 4)
		granted := h.Until()
		err := h.Lease.Renew(e.Ctx)
		until := h.Until()
		first()
		switch left := h.Until(); {
		case h.Lost():
			e.TooSlowf(key, "the lease ran out beside two renewals")
		case err != nil:
			e.UnexpectedLate(key, err, "Renew of a lease that was held, which began while another Renew had no answer yet, returned %s; expected no error", engine.Outcome(err))
		case until.Sub(granted) < answered*3/8:
			e.Latef(key, "a Renew that began %s after another one, which had no answer yet, has moved the deadline by %s; expected it to count from its own call", engine.Short(answered*3/4), engine.Short(until.Sub(granted)))
		case left.Before(until.Add(-time.Millisecond)):
			e.Failf(key, "the deadline went back by %s with the answer to an earlier Renew, which came after that to a later one; expected that of the later one", engine.Short(until.Sub(left)))
		}
		server.Heal()
		_ = h.Release(e.Ctx)
	}
}

// renewByHandLong moves the deadline of a lease that is far from it.
func renewByHandLong(e *engine.Env) {
	if !e.Claimed.Deadline || e.Fixed {
		return
	}
	ttl := e.Fit(30 * time.Second)
	key := e.Key("%s", ttl)
	h := e.Locker().MustTryFor(key, ttl, unrenewed(e)...)
	first := h.Until()
	e.Pause(max(e.TTL/2, ttl/30))
	if err := h.Renew(); err != nil {
		e.UnexpectedLateFatal(key, err, "Renew of a lease with a TTL of %s that was held returned %s; expected no error", ttl, engine.Outcome(err))
	}
	if moved := h.Until().Sub(first); moved < ttl/60 {
		e.Failf(key, "Renew of a lease with a TTL of %s has moved its deadline by %s, %s after the grant; expected it to count from now", ttl, engine.Short(moved), engine.Short(max(e.TTL/2, ttl/30)))
	}
	h.MustRelease()
}

// renewsJustLate renews leases shortly after they ran out: the server granted each
// before its grant arrived, so that it has ended a TTL later at the latest.
func renewsJustLate(e *engine.Env, layer engine.Layer) {
	late := []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond}
	if e.Virtual() { // where a clock is not read twice in between
		late = append(late, time.Millisecond, 2*time.Millisecond)
	}
	a := layer.Open()
	e.Each(len(late), func(i int) {
		key := e.Key("%s-%s", layer.Name, late[i])
		g := e.MustTake(a, key, e.TTL)
		g.Lapses()
		e.Pause(e.TTL + e.Claimed.TTLGrain + late[i])
		if err := g.Renew(); err == nil {
			e.Latef(key, "Renew of a lease that had run out %s ago returned no error, although nobody else had taken the key; expected ErrNotHeld", late[i])
		}
	})
}

func renewAfterRelease(e *engine.Env) {
	locker := e.Locker()
	var ended endedLeases
	eachLease(e, locker, "kind", func(h *engine.Hold) {
		h.MustRelease()
		err := h.Renew()
		e.Is(h.Key, err, "Renew after Release", lock.ErrNotHeld)
		not(e, h.Key, err, "Renew after Release", lock.ErrLost, lock.ErrClosed)
		next := locker.MustTry(h.Key)
		err = h.Renew()
		e.Is(h.Key, err, "Renew after Release, while another lease of its Locker has the key,", lock.ErrNotHeld)
		next.MustRelease()
		ended.add(h)
	})
	ended.outliveClose(e, locker, "a lease that was released before")
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		g := e.MustTake(a, key, e.Long)
		e.MustGiveBack(g, key, "")
		for range 2 {
			if err := g.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
				e.Unexpected(key, err, "Renew after Release returned %s; expected ErrNotHeld", engine.Outcome(err))
			}
		}
		other, err := b.Take(key, e.Long)
		if err != nil {
			e.UnexpectedFatal(key, err, "a try returned %s after a released lease was renewed; expected a grant", engine.Outcome(err))
		}
		if err := g.Renew(); err == nil || !errors.Is(err, lock.ErrNotHeld) {
			e.Unexpected(key, err, "Renew after Release, while somebody else holds the key, returned %s; expected ErrNotHeld", engine.Outcome(err))
		}
		e.MustGiveBack(other, key, ", since only a lease that was released before was renewed")
	})
}
