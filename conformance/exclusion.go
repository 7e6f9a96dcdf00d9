package conformance

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

var exclusionRules = []*rule{
	{
		Name:      "HandsOut",
		Statement: "A free key is granted at once, by TryAcquire and by Acquire, with a lease that names the key, is alive, and can be released.",
		run:       handsOut,
	},
	{
		Name:      "Exclusive",
		Statement: "At no instant are two leases of different owners valid for one key, whatever the contention.",
		run:       exclusive,
	},
	{
		Name:      "ExclusiveAcrossTakeover",
		Statement: "When a lease runs out while many clients ask for the key, exactly one of them gets it.",
		LimitTTLs: 60,
		run:       exclusiveAcrossTakeover,
	},
	{
		Name:      "ExclusiveWithinLocker",
		Statement: "Two acquisitions through one Locker exclude each other, unless both name the same owner.",
		run:       exclusiveWithinLocker,
	},
	{
		Name:      "IndependentKeys",
		Statement: "Every byte of a key counts: keys that differ in case, accents, spaces or a suffix are different keys, and holding one never blocks another.",
		run:       independentKeys,
	},
	{
		Name:      "TryIsImmediate",
		Statement: "TryAcquire on a held key is refused without waiting for the holder, and leaves nothing behind.",
		run:       tryIsImmediate,
	},
	{
		Name:      "Progress",
		Statement: "Under contention every client gets the key again and again.",
		run:       progress,
	},
	{
		Name:      "HeldDetails",
		Statement: "A refusal names the key, the holder's label and the remaining time of its lease.",
		claims:    []claim{claimDetails},
		run:       heldDetails,
	},
	{
		Name:      "Linearizable",
		Statement: "All answers to callers about a key, whatever they asked, fit into one order of single steps in which every answer is right.",
		LimitTTLs: 40,
		run:       linearizable,
	},
}

func handsOut(e *env) {
	c := e.locker()
	for _, op := range []string{"TryAcquire", "Acquire"} {
		key := e.key("%s", op)
		var h *hold
		if op == "TryAcquire" {
			h = c.mustTry(key)
		} else {
			ctx, cancel := context.WithTimeout(e.ctx, 20*time.Second)
			var err error
			h, err = c.acquire(ctx, key)
			cancel()
			if err != nil {
				e.unexpectedFatal(key, err, "Acquire of a free key returned %s; expected a lease", outcome(err))
			}
		}
		if h.lease.Key() != key {
			e.failf(key, "Lease.Key is %q; expected %q", h.lease.Key(), key)
		}
		if h.lease.Context() == nil {
			e.fatalf(key, "Lease.Context is nil")
		}
		h.mustLive("it was granted a moment ago")
		if d, ok := h.lease.Deadline(); ok && !d.After(time.Now()) {
			e.latef(key, "the deadline of a lease that was granted a moment ago has passed (%s)", seconds(e.hist.at(d)))
		} else if !ok && e.g.Deadline {
			e.failf(key, "Lease.Deadline is unknown, although the guarantees claim it")
		}
		h.mustRelease()
	}
}

func exclusive(e *env) {
	const contenders, lockers = 16, 4
	key := e.key("contended")
	clients := e.lockers(lockers)
	end := time.Now().Add(e.window())
	var work updates
	var grants atomic.Int64
	done := func() bool {
		n := grants.Load()
		return n >= 4_000 || n >= 2*contenders && time.Now().After(end)
	}
	waiting, enough := context.WithCancel(e.ctx)
	defer enough()
	e.each(contenders, func(i int) {
		c := clients[i%lockers]
		for !done() {
			h, err := c.acquire(waiting, key)
			if err != nil {
				if waiting.Err() != nil && e.ctx.Err() == nil {
					return
				}
				e.unexpectedFatal(key, err, "Acquire under contention returned %s; expected a lease", outcome(err))
			}
			grants.Add(1)
			good := work.work(h)
			if err := h.release(e.ctx); err != nil && good {
				e.unexpected(key, err, "Release of a lease that was held returned %s; expected no error", outcome(err))
			}
			if i%2 == 0 { // the others go on at once, as busy callers do
				time.Sleep(e.randomly(2 * time.Millisecond))
			}
			if e.failed() {
				enough()
			}
		}
		enough()
	})
	work.check(e, key)
	e.notef("%d grants to %d contenders", grants.Load(), contenders)
}

func exclusiveAcrossTakeover(e *env) {
	const pollers, keys = 6, 3
	rounds := e.rounds(e.ttl*3/2, 2, 100)
	e.eachKind(func(k kind) {
		parties := []party{k.open(), k.open(), k.open()}
		e.each(keys, func(n int) {
			e.pause(e.randomly(e.ttl))
			for round := range rounds {
				key := e.key("%s-%d-%d", k.name, n, round)
				abandoned := e.mustTake(parties[round%len(parties)], key, e.ttl)
				abandoned.lapses()
				e.pause(time.Until(abandoned.until()) - e.ttl/10)
				race := &takeoverRace{e: e, key: key, control: time.Now().Add(e.takeover(e.ttl))}
				e.each(pollers, func(i int) { race.run(parties[i%len(parties)]) })
				if g := race.winner.Load(); g != nil {
					_ = (*g).release(e.ctx)
				}
			}
		})
	})
	e.notef("%d takeovers with %d clients each", rounds*keys*len(e.kinds()), pollers)
}

// takeoverRace is one expiry that several clients notice.
type takeoverRace struct {
	e       *env
	key     string
	control time.Time
	winner  atomic.Pointer[grip]
}

// run tries until somebody has won, and three times more.
func (r *takeoverRace) run(p party) {
	e := r.e
	for after := 0; after < 3; {
		g, err := p.take(r.key, e.long)
		if err == nil {
			if r.winner.CompareAndSwap(nil, &g) {
				return
			}
			if first := *r.winner.Load(); time.Now().After(first.until()) {
				e.tooSlowf(r.key, "the lease of the first who took the key over had run out")
			}
			e.fatalf(r.key, "two clients took the key over after one lease had run out; expected exactly one")
		}
		e.judgeRefusal(r.key, "a try", "somebody else held it", nil, err)
		switch {
		case e.failed():
			panic(abort{})
		case r.winner.Load() != nil:
			after++
		case time.Now().After(r.control):
			e.overdueFatalf(r.key, "nobody could take the key over within %s of the end of the abandoned lease; its TTL was %s%s", e.takeover(e.ttl), e.ttl, e.notStated(e.takeover(e.ttl)))
		}
		time.Sleep(time.Millisecond + e.randomly(2*time.Millisecond))
	}
}

func exclusiveWithinLocker(e *env) {
	c := e.locker()
	key := e.key("a")
	h := c.mustTry(key)
	c.mustRefuse(key, "the same Locker holds it and no owner was named")
	ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
	defer cancel()
	if again, err := c.acquire(ctx, key); err == nil {
		_ = again.release(e.ctx)
		e.fatalf(key, "Acquire was granted a key that the same Locker holds, without an owner being named")
	}
	h.mustLive("it was not released")
	h.mustRelease()
	for round := range 20 {
		key := e.key("race-%d", round)
		var granted atomic.Int64
		holds := make([]*hold, 8)
		e.each(len(holds), func(i int) {
			h, err := c.try(key)
			switch {
			case err == nil:
				granted.Add(1)
				holds[i] = h
			case !errors.Is(err, lock.ErrHeld):
				e.unexpected(key, err, "TryAcquire in a race returned %s; expected a lease or ErrHeld", outcome(err))
			}
		})
		ended := slices.ContainsFunc(holds, func(h *hold) bool { return h != nil && h.lost() })
		if n := granted.Load(); n > 1 && ended {
			e.tooSlowf(key, "a lease had run out before all tries were made")
		} else if n != 1 {
			e.failf(key, "%d of %d simultaneous tries of one Locker were granted; expected exactly one", n, len(holds))
		}
		for _, h := range holds {
			if h != nil {
				h.mustRelease()
			}
		}
		if e.failed() {
			return
		}
	}
}

func tryIsImmediate(e *env) {
	key := e.key("a")
	clients := e.lockers(3)
	h := clients[0].mustTry(key)
	// The fastest of several is what the lock needs, and not what the machine adds.
	granted, refused := time.Hour, time.Hour
	for i := range 10 {
		c := clients[1+i%2]
		begun := time.Now()
		c.mustRefuse(key, "somebody else holds it")
		d := time.Since(begun)
		if d > e.slack() {
			e.overdueFatalf(key, "TryAcquire on a held key took %s; expected one round trip", d.Round(time.Millisecond))
		}
		refused = min(refused, d)
		begun = time.Now()
		free := c.mustTry(e.key("free"))
		granted = min(granted, time.Since(begun))
		free.mustRelease()
	}
	if limit := granted + 50*time.Millisecond; refused > limit {
		e.latef(key, "the fastest of ten refusals by TryAcquire took %s, and the fastest grant of a free key %s; expected at most %s, since a try asks once and does not wait", refused.Round(time.Millisecond), granted.Round(time.Millisecond), limit.Round(time.Millisecond))
	}
	h.mustRelease()
	clients[2].mustTry(key).mustRelease()
	clients[0].mustTry(key).mustRelease()
}

func progress(e *env) {
	const contenders, lockers, each = 8, 4, 4
	key := e.key("contended")
	clients := e.lockers(lockers)
	begun := time.Now()
	e.each(contenders, func(i int) {
		for n := range each {
			h, err := clients[i%lockers].acquire(e.ctx, key)
			if err != nil {
				e.unexpectedFatal(key, err, "contender %d of %d got the key %d times, then Acquire returned %s", i+1, contenders, n, outcome(err))
			}
			time.Sleep(time.Millisecond)
			h.mustRelease()
		}
	})
	const grants = contenders * each
	if took := time.Since(begun); took > grants*e.wakeBound() {
		e.latef(key, "%d grants of a contended key took %s; expected at most %s for each", grants, took.Round(time.Millisecond), e.wakeBound())
	}
}

func heldDetails(e *env) {
	key := e.key("a")
	a, b := e.locker(), e.locker()
	label := "nightly report"
	ttl := e.fit(20 * e.ttl)
	h, err := a.tryFor(e.ctx, key, ttl, lock.WithLabel(label))
	if err != nil {
		e.unexpectedFatal(key, err, "TryAcquire with a label returned %s; expected a lease", outcome(err))
	}
	check := func(op string, until time.Time, err error) {
		var held *lock.HeldError
		// The holder relies on it until then, so the server keeps it for no less.
		least := time.Until(until) - max(e.g.TTLGrain, time.Millisecond) - ttl/20
		switch known := errors.As(err, &held); {
		case !known && op == "TryAcquire":
			e.unexpected(key, err, "%s on a held key returned %s; expected a *lock.HeldError in it", op, outcome(err))
		case !known: // a waiter in a queue was not refused, so it need not know
		case held.Key != key:
			e.failf(key, "the refusal names the key %q; expected %q", held.Key, key)
		case held.Holder.Label != label:
			e.failf(key, "the refusal names the holder %q; expected its label %q", held.Holder.Label, label)
		case held.Remaining <= 0 || held.Remaining > ttl+max(e.g.TTLGrain, e.g.TakeoverLag)+time.Millisecond:
			e.failf(key, "the refusal says that the lease lasts for another %s; expected more than 0 and at most its TTL of %s", held.Remaining, ttl)
		case held.Remaining < least:
			e.failf(key, "the refusal says that the lease lasts for another %s; expected at least the %s for which its holder relies on it",
				held.Remaining, least)
		}
	}
	until := h.until()
	_, err = b.try(key)
	check("TryAcquire", until, err)
	ctx, cancel := context.WithTimeout(e.ctx, 200*time.Millisecond)
	defer cancel()
	_, err = b.acquire(ctx, key)
	check("Acquire whose context ended", until, err)
	h.mustLive("its TTL is long")
	h.mustRelease()
}
