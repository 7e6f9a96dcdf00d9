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
	faultlock "github.com/mortiselock/lock/backend/fault"
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
		},
		func() { hardlyAnyTime(e, a) })
	_ = a.Close()
	for _, h := range closed {
		if h.Lease.Key() != h.Key {
			e.Failf(h.Key, "Lease.Key is %s after the Close of its Locker; expected %s, as while it was held", engine.QuoteKey(h.Lease.Key()), engine.QuoteKey(h.Key))
		}
	}
}

// hardlyAnyTime asks for free keys with contexts that are about to end. Whatever becomes of that,
// nobody holds them.
func hardlyAnyTime(e *engine.Env, c *engine.Client) {
	if !e.Virtual() { // elsewhere such a context has ended before the lock looks at it
		return
	}
	for op, get := range map[string]engine.Getter{"Acquire": c.Locker.Acquire, "TryAcquire": c.Locker.TryAcquire} {
		for _, left := range []time.Duration{time.Microsecond, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 90 * time.Millisecond} {
			key := e.Key("%s-%s", op, left)
			ctx, cancel := context.WithTimeout(e.Ctx, left)
			h, err := c.Get(op, get, ctx, key, e.Opts(e.Long))
			cancel()
			if err == nil {
				h.MustRelease()
			} else if errors.Is(err, lock.ErrHeld) {
				e.Failf(key, "%s of a key that nobody holds, with a context that would end %s later, returned %s; it must not match ErrHeld: nobody has said so", op, left, engine.Outcome(err))
			}
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
	wait := e.Start(func() { takenOverStaysHeld(e) })
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
	wait()
	e.Notef("%d takeovers with %d clients each", rounds*keys*len(e.Layers()), pollers)
}

// takenOverStaysHeld has keys be taken over and kept, in virtual time at every moment of some
// seconds: what clears away expired records now and then may do so a moment after it has looked. A
// Locker gives back what it has lost, so that backends do it where there are any.
func takenOverStaysHeld(e *engine.Env) {
	layers := e.Layers()
	if len(layers) == 0 || e.Claimed.EndsWithSession { // whose session keeps what is abandoned
		return
	}
	const moment = 40 * time.Millisecond
	takers, end := 8, time.Now()
	if e.Virtual() {
		takers, end = 32, end.Add(8*time.Second)
	}
	layer := layers[len(layers)-1]
	gone, next, other := layer.Open(), layer.Open(), layer.Open()
	e.Each(takers, func(n int) {
		e.Pause(time.Duration(n) * (e.TTL + 4*moment) / time.Duration(takers))
		for round := 0; round == 0 || time.Now().Before(end); round++ {
			key := e.Key("kept-%d-%d", n, round)
			abandoned := e.MustTake(gone, key, e.TTL)
			abandoned.Lapses()
			e.Pause(time.Until(abandoned.Until()) + moment)
			g := e.TakeOver(next, key, e.Long, e.TakeoverLimit(e.TTL), moment/4, "its holder's lease had run out")
			for range 3 {
				e.Pause(moment)
				other.Refuses(key, "another client has taken it over, after a lease had run out, and keeps it")
			}
			e.MustGiveBack(g, key, ", by who had taken the key over after a lease had run out")
		}
	})
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

// judgeAgain requires the refusal of a key that the same Locker holds.
func judgeAgain(e *engine.Env, key, op string, again *engine.Hold, err error) {
	const why = "the same Locker holds it and no owner was named"
	if again == nil {
		e.JudgeRefusal(key, op, why, nil, err)
		return
	}
	e.JudgeRefusal(key, op, why, again.Record, nil)
	_ = again.Release(e.Ctx)
	panic(engine.Abort{})
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
	const inner = "with the context of the lease, which carries nothing"
	again, err := c.Get("TryAcquire", c.Locker.TryAcquire, h.Lease.Context(), key, e.Opts(e.Long))
	judgeAgain(e, key, "TryAcquire "+inner, again, err)
	short, end := context.WithTimeout(h.Lease.Context(), 100*time.Millisecond)
	defer end()
	if again, err := c.Acquire(short, key); err == nil {
		judgeAgain(e, key, "Acquire "+inner, again, nil)
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
	if e.Virtual() && waitsEnd(e) {
		for _, c := range clients[1:] {
			_, _ = c.GivesUp(key, true, &engine.Lateness{})
		}
		tryOftenAtOnce(e, key, clients, ", after a wait for the key that was given up,")
	}
	triesBesideItsWaits(e, key, clients)
	triesBesideRelease(e)
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

// triesBesideRelease tries a key whose release, by the same Locker, hangs.
func triesBesideRelease(e *engine.Env) {
	if e.OpenBackend == nil || !e.Virtual() {
		return
	}
	a, server := e.FaultyWhole()
	h := a.MustTry(e.Key("being released"))
	server.All(faultlock.HangBefore(), engine.OpsToEnd...)
	release := e.Start(func() { _ = h.Release(e.Ctx) })
	e.Settle()
	begun, done := time.Now(), make(chan struct{})
	try := e.Start(func() {
		defer close(done)
		if next, err := a.Try(h.Key); err == nil {
			_ = next.Release(e.Ctx)
		}
	})
	if !e.Within(e.TTL/2, done) {
		e.Latef(h.Key, "TryAcquire had not returned after %s, beside a release of the key, by the same Locker, which hangs; expected it to ask the server and to return", engine.Short(time.Since(begun)))
	}
	server.Heal()
	try()
	release()
}

// triesBesideItsWaits has an owner try keys while it waits for others, through the same Lockers. The
// first client holds the key.
func triesBesideItsWaits(e *engine.Env, key string, clients []*engine.Client) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	var held []*engine.Hold
	var waits []*engine.Acquiring
	for i, c := range clients[1:] { // each for a key of its own: an owner may share one with itself
		held = append(held, clients[0].MustTry(e.Key("elsewhere-%d", i)))
		waits = append(waits, c.Acquiring(held[i].Key, owner...))
	}
	e.Settle()
	tryOftenAtOnce(e, key, clients, " of an owner who waits for another key,", owner...)
	var late engine.Lateness
	for i := 0; i < 10 && !e.Failed(); i++ {
		begun := time.Now()
		free := clients[1+i%2].MustTry(e.Key("free for its owner"), owner...)
		late.Add(e, time.Since(begun))
		free.MustRelease()
	}
	late.Judge(e, key, e.Prompt(), "TryAcquire of a free key, by an owner who waits for another key, returned")
	for i, w := range waits {
		held[i].MustRelease()
		w.MustGet(e, held[i].Key, e.WaitBound(), "its holder has released it").MustRelease()
	}
}

// tryOftenAtOnce has two clients try the key, which is held by another one, and one that is free. The
// options are for the one that is held.
func tryOftenAtOnce(e *engine.Env, key string, clients []*engine.Client, after string, more ...lock.Option) {
	// The fastest of several is what the lock needs, and not what the machine adds.
	granted, refused := time.Hour, time.Hour
	var waited time.Duration // by an adapter of a lock that has no try
	if a, ok := clients[1].Locker.(interface{ TriesFor() time.Duration }); ok {
		waited = a.TriesFor()
	}
	limit := func() time.Duration { return granted + 50*time.Millisecond }
	n := 0
	for ; n < 10 || n < 40 && refused > limit(); n++ { // some requests are slow by chance
		// A server that hangs for a moment holds up the client beside, too.
		var took [2]time.Duration
		var free *engine.Hold
		e.Each(2, func(what int) {
			c, begun := clients[1+(n+what)%2], time.Now()
			if what == 0 {
				c.MustRefuse(key, "somebody else holds it", more...)
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
	if refused > limit() {
		e.Latef(key, "the fastest of %d refusals by TryAcquire%s took %s, and the fastest grant of a free key %s; expected at most %s, since a try asks once and does not wait", n, after, refused.Round(time.Millisecond), granted.Round(time.Millisecond), limit().Round(time.Millisecond))
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
