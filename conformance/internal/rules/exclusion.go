package rules

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var exclusionRules = []*engine.Rule{
	{
		Name:      "HandsOut",
		Statement: "A free key is granted at once, by a lease that works.",
		Run:       handsOut,
	},
	{
		Name:      "Exclusive",
		Statement: "At no instant are leases of different owners valid for one key.",
		Run:       exclusive,
	},
	{
		Name:      "ExclusiveAcrossTakeover",
		Statement: "When a lease runs out, exactly one of many who ask gets the key.",
		LimitTTLs: 60,
		Run:       exclusiveAcrossTakeover,
	},
	{
		Name:      "ExclusiveWithinLocker",
		Statement: "Acquisitions through one Locker exclude each other, unless both name the same owner.",
		Run:       exclusiveWithinLocker,
	},
	{
		Name:      "IndependentKeys",
		Statement: "Every byte of a key counts, and holding one key never blocks another.",
		Run:       independentKeys,
	},
	{
		Name:      "TryIsImmediate",
		Statement: "TryAcquire on a held key is refused at once, after one request, and leaves nothing behind.",
		Run:       tryIsImmediate,
	},
	{
		Name:      "Progress",
		Statement: "Under contention every client gets the key again and again.",
		Limit:     2 * time.Minute,
		Run:       progress,
	},
	{
		Name:      "HeldDetails",
		Statement: "A refusal names the key, the holder's label and the remaining time.",
		Claims:    []engine.Claim{engine.ClaimDetails},
		Run:       heldDetails,
	},
	{
		Name:      "Linearizable",
		Statement: "Some order of single steps explains all answers about a key.",
		LimitTTLs: 40,
		Run:       linearizable,
	},
}

func handsOut(e *engine.Env) {
	a := e.Locker()
	var mu sync.Mutex
	var closed []*engine.Hold
	e.Together(
		func() { eachLease(e, a, "a", func(h *engine.Hold) { works(e, h) }) },
		func() {
			eachLease(e, a, "closed", func(h *engine.Hold) {
				mu.Lock()
				defer mu.Unlock()
				closed = append(closed, h)
			})
		})
	_ = a.Close()
	for _, h := range closed {
		if h.Lease.Key() != h.Key {
			e.Failf(h.Key, "Lease.Key is %s after the Close of its Locker; expected %s, as while it was held", engine.QuoteKey(h.Lease.Key()), engine.QuoteKey(h.Key))
		}
	}
}

// works looks at a new lease.
func works(e *engine.Env, h *engine.Hold) {
	key := h.Key
	if h.Lease.Key() != key {
		e.Failf(key, "Lease.Key is %q; expected %q", h.Lease.Key(), key)
	}
	if h.Lease.Context() == nil {
		e.Fatalf(key, "Lease.Context is nil")
	}
	if t := h.Lease.Token(); t != 0 && e.Claimed.Token == backend.TokenNone && (e.Says || e.Guarantees != nil) {
		e.Failf(key, "Lease.Token is %d, although the guarantees say that there are none; expected 0, since what is no fencing token must not be taken for one", t)
	}
	h.MustLive("it was granted a moment ago")
	if d, ok := h.Lease.Deadline(); ok && !d.After(time.Now()) {
		e.Latef(key, "the deadline of a lease that was granted a moment ago has passed (%s)", engine.Seconds(e.Log.At(d)))
	} else if !ok && e.Claimed.Deadline {
		e.Failf(key, "Lease.Deadline is unknown, although the guarantees claim it")
	}
	h.MustRelease()
	if h.Lease.Key() != key {
		e.Failf(key, "Lease.Key is %s after Release; expected %s, as while it was held", engine.QuoteKey(h.Lease.Key()), engine.QuoteKey(key))
	}
}

func exclusive(e *engine.Env) {
	const contenders, lockers = 16, 4
	key := e.Key("contended")
	clients := e.Lockers(lockers)
	end := time.Now().Add(e.Window())
	var work engine.Updates
	var grants atomic.Int64
	done := func() bool {
		n := grants.Load()
		return n >= 4_000 || n >= 2*contenders && time.Now().After(end)
	}
	waiting, enough := context.WithCancel(e.Ctx)
	defer enough()
	e.Each(contenders, func(i int) {
		c := clients[i%lockers]
		for !done() {
			h, err := c.Acquire(waiting, key)
			if err != nil {
				if waiting.Err() != nil && e.Ctx.Err() == nil {
					return
				}
				e.UnexpectedFatal(key, err, "Acquire under contention returned %s; expected a lease", engine.Outcome(err))
			}
			grants.Add(1)
			good := work.Work(h)
			if err := h.Release(e.Ctx); err != nil && good {
				e.Unexpected(key, err, "Release of a lease that was held returned %s; expected no error", engine.Outcome(err))
			}
			if i%2 == 0 { // the others go on at once, as busy callers do
				time.Sleep(e.Randomly(2 * time.Millisecond))
			}
			if e.Failed() {
				enough()
			}
		}
		enough()
	})
	work.Check(e, key)
	e.Notef("%d grants to %d contenders", grants.Load(), contenders)
}

func exclusiveAcrossTakeover(e *engine.Env) {
	const pollers, keys = 6, 3
	rounds := e.Rounds(e.TTL*3/2, 2, 100)
	e.EachLayer(func(layer engine.Layer) {
		parties := []engine.Party{layer.Open(), layer.Open(), layer.Open()}
		e.Each(keys, func(n int) {
			e.Pause(e.Randomly(e.TTL))
			for round := range rounds {
				key := e.Key("%s-%d-%d", layer.Name, n, round)
				abandoned := e.MustTake(parties[round%len(parties)], key, e.TTL)
				abandoned.Lapses()
				e.Pause(time.Until(abandoned.Until()) - e.TTL/10)
				race := &takeoverRace{e: e, key: key, control: time.Now().Add(e.TakeoverLimit(e.TTL))}
				e.Each(pollers, func(i int) { race.run(parties[i%len(parties)]) })
				if g := race.winner.Load(); g != nil {
					_ = (*g).Release(e.Ctx)
				}
			}
		})
	})
	e.Notef("%d takeovers with %d clients each", rounds*keys*len(e.Layers()), pollers)
}

// takeoverRace is one expiry that several clients notice.
type takeoverRace struct {
	e       *engine.Env
	key     string
	control time.Time
	winner  atomic.Pointer[engine.Grip]
}

// run tries until somebody has won, and three times more.
func (r *takeoverRace) run(p engine.Party) {
	e := r.e
	for after := 0; after < 3; {
		g, err := p.Take(r.key, e.Long)
		if err == nil {
			if r.winner.CompareAndSwap(nil, &g) {
				return
			}
			if first := *r.winner.Load(); time.Now().After(first.Until()) {
				e.TooSlowf(r.key, "the lease of the first who took the key over had run out")
			}
			e.Fatalf(r.key, "two clients took the key over after one lease had run out; expected exactly one")
		}
		e.JudgeRefusal(r.key, "a try", "somebody else held it", nil, err)
		switch {
		case e.Failed():
			panic(engine.Abort{})
		case r.winner.Load() != nil:
			after++
		case time.Now().After(r.control):
			e.OverdueFatalf(r.key, "nobody could take the key over within %s of the end of the abandoned lease; its TTL was %s%s", e.TakeoverLimit(e.TTL), e.TTL, e.NotStated(e.TakeoverLimit(e.TTL)))
		}
		time.Sleep(time.Millisecond + e.Randomly(2*time.Millisecond))
	}
}

func exclusiveWithinLocker(e *engine.Env) {
	c := e.Locker()
	key := e.Key("a")
	h := c.MustTry(key)
	c.MustRefuse(key, "the same Locker holds it and no owner was named")
	ctx, cancel := context.WithTimeout(e.Ctx, 100*time.Millisecond)
	defer cancel()
	if again, err := c.Acquire(ctx, key); err == nil {
		_ = again.Release(e.Ctx)
		e.Fatalf(key, "Acquire was granted a key that the same Locker holds, without an owner being named")
	}
	h.MustLive("it was not released")
	h.MustRelease()
	for round := range 20 {
		key := e.Key("race-%d", round)
		var granted atomic.Int64
		holds := make([]*engine.Hold, 8)
		e.Each(len(holds), func(i int) {
			h, err := c.Try(key)
			switch {
			case err == nil:
				granted.Add(1)
				holds[i] = h
			case !errors.Is(err, lock.ErrHeld):
				e.Unexpected(key, err, "TryAcquire in a race returned %s; expected a lease or ErrHeld", engine.Outcome(err))
			}
		})
		ended := slices.ContainsFunc(holds, func(h *engine.Hold) bool { return h != nil && h.Lost() })
		if n := granted.Load(); n > 1 && ended {
			e.TooSlowf(key, "a lease had run out before all tries were made")
		} else if n != 1 {
			e.Failf(key, "%d of %d simultaneous tries of one Locker were granted; expected exactly one", n, len(holds))
		}
		for _, h := range holds {
			if h != nil {
				h.MustRelease()
			}
		}
		if e.Failed() {
			return
		}
	}
}

func tryIsImmediate(e *engine.Env) {
	key := e.Key("a")
	clients := e.Lockers(3)
	h := clients[0].MustTry(key)
	tryOftenAtOnce(e, key, clients, "")
	if e.Virtual() {
		for _, c := range clients[1:] {
			_, _ = c.GivesUp(key, true, &engine.Lateness{})
		}
		tryOftenAtOnce(e, key, clients, ", after a wait for the key that was given up,")
	}
	if e.OpenBackend != nil {
		c, server := e.FaultyWhole()
		c.MustRefuse(key, "somebody else holds it")
		if n := engine.Requests(server, key, engine.OpsToGet...); n > 1 {
			e.Failf(key, "TryAcquire on a held key has sent %d requests for it; expected one", n)
		}
		free := c.MustTry(e.Key("granted to who asks once"))
		if n := engine.Requests(server, free.Key, engine.OpsToGet...); n > 1 {
			e.Failf(free.Key, "TryAcquire on a free key, which was granted, has sent %d requests for it; expected one", n)
		}
		free.MustRelease()
		for _, k := range optionKinds(e, clients[1]) {
			before := engine.Requests(server, key, engine.OpsToGet...)
			c.MustRefuse(key, "somebody else holds it", k.opts...)
			if n := engine.Requests(server, key, engine.OpsToGet...) - before; n > 1 {
				e.Failf(key, "TryAcquire on a held key, for a lease with %s, has sent %d requests for it; expected one", k.name, n)
			}
		}
	}
	h.MustRelease()
	clients[2].MustTry(key).MustRelease()
	clients[0].MustTry(key).MustRelease()
}

// tryOftenAtOnce has two clients try the key, which is held by another one, and one that is free.
func tryOftenAtOnce(e *engine.Env, key string, clients []*engine.Client, after string) {
	// The fastest of several is what the lock needs, and not what the machine adds.
	granted, refused := time.Hour, time.Hour
	var waited time.Duration // by an adapter of a lock that has no try
	if a, ok := clients[1].Locker.(interface{ TriesFor() time.Duration }); ok {
		waited = a.TriesFor()
	}
	for i := range 10 {
		// A server that hangs for a moment holds up the client beside, too.
		var took [2]time.Duration
		var free *engine.Hold
		e.Each(2, func(what int) {
			c, begun := clients[1+(i+what)%2], time.Now()
			if what == 0 {
				c.MustRefuse(key, "somebody else holds it")
			} else {
				free = c.MustTry(e.Key("free"))
			}
			took[what] = time.Since(begun)
			if what == 0 {
				took[what] -= waited
			}
		})
		switch slack := e.Slack(); {
		case took[0] > slack && took[1] > slack/2:
			e.TooSlowf(key, "a refusal took %s, and a grant of a free key to another client at the same time %s", took[0].Round(time.Millisecond), took[1].Round(time.Millisecond))
		case took[0] > slack:
			e.OverdueFatalf(key, "TryAcquire on a held key%s took %s; expected one round trip", after, took[0].Round(time.Millisecond))
		}
		refused, granted = min(refused, took[0]), min(granted, took[1])
		free.MustRelease()
	}
	if limit := granted + 50*time.Millisecond; refused > limit {
		e.Latef(key, "the fastest of ten refusals by TryAcquire%s took %s, and the fastest grant of a free key %s; expected at most %s, since a try asks once and does not wait", after, refused.Round(time.Millisecond), granted.Round(time.Millisecond), limit.Round(time.Millisecond))
	}
}

// progress has every contender come back until all have had their turns, so that whoever
// is left out is so while others go on. Each client has so many contenders that one of
// them waits nearly always. After a turn they stay away for a moment, in which a lock that
// does nothing about it gives others a chance.
func progress(e *engine.Env) {
	const contenders, lockers, each = 16, 4, 8
	const most = 25 * contenders * each // grants, in which nobody may be left out
	key := e.Key("contended")
	clients := e.Lockers(lockers)
	begun := time.Now()
	var turns [contenders]atomic.Int64
	counts := func() (all []int64, sum int64) {
		for i := range turns {
			all = append(all, turns[i].Load())
			sum += all[i]
		}
		return all, sum
	}
	waiting, enough := context.WithTimeout(e.Ctx, 2*each*lockers*e.WakeBound())
	defer enough()
	e.Each(contenders, func(i int) {
		for {
			h, err := clients[i%lockers].Acquire(waiting, key)
			if err != nil {
				if waiting.Err() != nil && e.Ctx.Err() == nil {
					return
				}
				e.UnexpectedFatal(key, err, "contender %d of %d got the key %d times, then Acquire returned %s", i+1, contenders, turns[i].Load(), engine.Outcome(err))
			}
			time.Sleep(time.Millisecond)
			h.MustRelease()
			turns[i].Add(1)
			if all, sum := counts(); slices.Min(all) >= each || sum >= most {
				enough()
				return
			}
			time.Sleep(time.Millisecond + e.Randomly(time.Millisecond))
		}
	})
	all, sum := counts()
	took := time.Since(begun)
	switch {
	case slices.Min(all) >= each:
	case (slices.Min(all)+1)*most/each < sum:
		late := engine.Excuse{From: took / 8, By: engine.AnyRequest}
		e.Fail(late, key, "the %d contenders of %d clients were granted the key %v times within %s; expected at least %d for each of them, also while none of the others stops asking", contenders, lockers, all, took.Round(time.Millisecond), each)
	case took > time.Duration(sum)*e.WakeBound():
		e.Latef(key, "%d grants of a contended key took %s; expected at most %s for each", sum, took.Round(time.Millisecond), e.WakeBound())
	default: // all are slow, and nobody is left out
		e.TooSlowf(key, "%d contenders were granted the key %v times within %s; that is too few for a judgement", contenders, all, took.Round(time.Millisecond))
	}
	e.Notef("%v grants to the contenders", all)
}

func heldDetails(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	e.Together(
		func() { eachWay(e, everyWay, func(w way) { lookAtHolder(e, w, a, b) }) },
		func() { lookAtEnd(e) },
		func() { lookAtLabels(e, a, b) },
		func() { lookAtKinds(e, a, b) },
		func() { lookAtOwner(e, a, b) },
	)
}

// lookAtOwner has an owner hold a key twice. What is left is that of the longer hold.
func lookAtOwner(e *engine.Env, a, b *engine.Client) {
	longer := e.Fit(20 * e.TTL)
	if !engine.ClaimReentrancy.Made(e.Settings) || longer < 3*e.TTL {
		return
	}
	owner := oneOwner(e)
	e.Each(2, func(i int) {
		key, ttls := e.Key("owner-%d", i), []time.Duration{longer, e.TTL * 2}
		opts := append(unrenewed(e), owner...)
		first := a.MustTryFor(key, ttls[i], opts...)
		second := a.MustTryFor(key, ttls[1-i], opts...)
		long := []*engine.Hold{first, second}[i] // the first of the first case
		err := b.Refusal(key, "another client holds it")
		left := time.Until(long.Until()) - max(e.Claimed.TTLGrain, time.Millisecond) - longer/20
		if held := (*lock.HeldError)(nil); errors.As(err, &held) && held.Remaining > 0 && held.Remaining < left {
			e.Failf(key, "the refusal says that the key is held for another %s; expected at least the %s that are left of the longer of its owner's two holds", held.Remaining, left)
		}
		_ = first.Release(e.Ctx)
		_ = second.Release(e.Ctx)
	})
}

// lookAtLabels has labels that some store would change.
func lookAtLabels(e *engine.Env, a, b *engine.Client) {
	key := e.Key("labels")
	for _, label := range []string{
		"null", "0", "\ufffd", `a,b;c:d|e=f \\ \n 'g' ''h'' "i" <j>&amp;</j> 50%25 %s {"k":1} +` + " \U0001f512 \u200b\uff41a\u0308",
	} {
		h := a.MustTry(key, lock.WithLabel(label))
		err := b.Refusal(key, "another client holds it")
		if held := (*lock.HeldError)(nil); errors.As(err, &held) { // else told elsewhere
			namesLabel(e, key, held, label, "")
		}
		h.MustRelease()
	}
}

// namesLabel looks for the label of the holder in a refusal, which a server that is slow to tell
// who holds the key leaves out.
func namesLabel(e *engine.Env, key string, held *lock.HeldError, label, whose string) {
	switch held.Holder.Label {
	case label:
	case "":
		e.Latef(key, "the refusal does not name the holder%s; expected its label %q", whose, label)
	default:
		e.Failf(key, "the refusal names the holder %q%s; expected its label %q", held.Holder.Label, whose, label)
	}
}

// lookAtKinds labels leases that have more than a label, and such as were asked for without a
// TTL. Who is refused names none either.
func lookAtKinds(e *engine.Env, a, b *engine.Client) {
	const label = "with another option"
	all := []kind{plain}
	for _, k := range append(kindsAndUnrenewed(e), pairs(e)...) {
		if set, err := lock.ResolveOptions(k.opts...); err == nil && set.Label == "" {
			all = append(all, k)
		}
	}
	look := func(k kind, ttl time.Duration, called string) {
		key := e.Key("%s%s", k.name, called)
		h, ok := k.take(a, key, ttl, lock.WithLabel(label))
		if !ok {
			return
		}
		refused, err := b.TryFor(e.Ctx, key, engine.DefaultTTL)
		if err == nil {
			e.JudgeRefusal(key, "TryAcquire without an option", "another client holds it", refused.Record, nil)
			_ = refused.Release(e.Ctx)
			return
		}
		switch held := (*lock.HeldError)(nil); {
		case !errors.As(err, &held):
			e.Unexpected(key, err, "TryAcquire without an option returned %s on a held key; expected a *lock.HeldError in it", engine.Outcome(err))
		case held.Key != key:
			e.Failf(key, "the refusal of a call without an option names the key %q; expected %q", held.Key, key)
		default:
			namesLabel(e, key, held, label, ", whose lease"+called+" has "+k.name)
		}
		h.MustRelease()
	}
	eachKind(e, all, func(k kind) {
		look(k, e.Long, "")
		if !k.unrenewed && !e.Fixed {
			look(k, engine.DefaultTTL, " without a TTL")
		}
	})
}

// lookAtEnd asks for a key until the lease on it has run out. What is left of it is never
// less than nothing.
func lookAtEnd(e *engine.Env) {
	for _, layer := range e.Layers() {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		h := e.MustTake(a, key, e.TTL)
		h.Lapses()
		e.Pause(time.Until(h.Until()) - e.TTL/20)
		next := e.Poll(key, e.TakeoverLimit(e.TTL), e.TTL/400, "its holder did not renew it", func() (engine.Grip, error) {
			got, err := b.Take(key, e.Long)
			if held := (*lock.HeldError)(nil); errors.As(err, &held) && held.Remaining < 0 {
				e.Fatalf(key, "a refusal says that the lease lasts for another %s; expected nothing where it is over, or not known", held.Remaining)
			}
			return got, err
		})
		_ = next.Release(e.Ctx)
	}
}

// mostLeft is for how long a hold of the TTL can be said to last, so long after its grant and
// without a renewal. Where it has an expiry of its own on the server, that comes nearer; half
// of the time that has passed may get lost in the difference of two clocks.
func mostLeft(e *engine.Env, ttl, passed time.Duration) time.Duration {
	most := ttl + max(e.Claimed.TTLGrain, e.Claimed.TakeoverLag) + time.Millisecond
	if !e.Claimed.EndsWithSession && e.Claimed.Expiry != backend.ClockConnection && e.Claimed.TTLGrain < time.Second {
		most -= passed / 2
	}
	return most
}

// rounding is by how much a remaining time may be off that is shown in whole seconds, as
// servers do that keep no more.
func rounding(shown time.Duration) time.Duration {
	if shown%time.Second == 0 {
		return time.Second
	}
	return 0
}

// unwhole is a TTL near the given one that is no whole number of seconds, if the lock has such.
// A lock that rounds what is left shows whole seconds; one that shows the TTL itself does not.
func unwhole(e *engine.Env, ttl time.Duration) time.Duration {
	return e.Fit(ttl - ttl%time.Second + 300*time.Millisecond)
}

func lookAtHolder(e *engine.Env, w way, a, b *engine.Client) {
	key := e.Key("%s", w.name)
	label := "nightly report by " + w.name
	ttl := unwhole(e, 20*e.TTL)
	h, told := w.take(a, key, ttl, append(unrenewed(e), lock.WithLabel(label))...)
	if !told {
		return
	}
	granted := e.Log.Base.Add(h.Granted)
	check := func(op string, until, asked time.Time, err error) {
		var held *lock.HeldError
		// The holder relies on it until then, so the server keeps it for no less.
		relied := max(time.Until(until), ttl-e.Log.Now()+h.since)
		least := relied - max(e.Claimed.TTLGrain, time.Millisecond) - ttl/20
		most := mostLeft(e, ttl, asked.Sub(granted))
		if !e.Claimed.WithoutRenewal {
			most = mostLeft(e, ttl, 0)
		}
		switch known := errors.As(err, &held); {
		case !known && (op == "TryAcquire" || e.Claimed.Waiting != backend.WaitQueue && errors.Is(err, lock.ErrHeld)):
			e.Unexpected(key, err, "%s on a held key returned %s; expected a *lock.HeldError in it", op, engine.Outcome(err))
		case !known: // a waiter in a queue was not refused, so it need not know
		case held.Key != key:
			e.Failf(key, "the refusal names the key %q; expected %q", held.Key, key)
		case held.Holder.Label != label:
			namesLabel(e, key, held, label, "")
		case held.Remaining <= 0 || held.Remaining > most+rounding(held.Remaining):
			e.Failf(key, "the refusal says that the lease lasts for another %s; expected more than 0 and at most %s, %s after its grant for %s", held.Remaining, most, engine.Short(asked.Sub(granted)), ttl)
		case held.Remaining < least-rounding(held.Remaining):
			e.Failf(key, "the refusal says that the lease lasts for another %s; expected at least the %s that are left of its TTL of %s",
				held.Remaining, least, ttl)
		}
	}
	until := h.Until()
	_, err := b.TryFor(e.Ctx, key, e.TTL) // what is left is not that of who asks
	check("TryAcquire", until, granted, err)
	ctx, cancel := context.WithTimeout(e.Ctx, min(200*time.Millisecond, ttl/4))
	defer cancel()
	_, err = b.Acquire(ctx, key)
	check("Acquire whose context ended", until, granted, err) // it may have asked at its beginning only
	asked := time.Now()
	_, err = b.TryFor(e.Ctx, key, e.TTL)
	check("TryAcquire", until, asked, err)
	asked = time.Now()
	_, err = a.TryFor(e.Ctx, key, e.TTL)
	check("TryAcquire", until, asked, err)
	h.MustLive("its TTL is long")
	h.MustRelease()
}
