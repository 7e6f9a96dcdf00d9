package rules

import (
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var expiryRules = []*engine.Rule{
	{
		Name:      "CrashFrees",
		Statement: "When a holder dies, others get the key within TTL and takeover lag.",
		Run:       crashFrees,
	},
	{
		Name:      "ServerOutlivesD",
		Statement: "Nobody else is granted the key before the deadline of the holder's lease.",
		LimitTTLs: 80,
		Virtual:   4 * time.Minute,
		Run:       serverOutlivesD,
	},
	{
		Name:      "HoldersTTLCounts",
		Statement: "A lease lasts for the holder's TTL, whatever TTL others ask with.",
		Run:       holdersTTLCounts,
	},
	{
		Name:      "ExpiryIsPerHold",
		Statement: "Each hold of an owner expires on its own.",
		Claims:    []engine.Claim{engine.ClaimReentrancy},
		Run:       expiryIsPerHold,
	},
	{
		Name:      "TTLRange",
		Statement: "A TTL outside the limits is refused with ErrInvalid, or with ErrUnsupported where they are the lock's own; the limits are accepted.",
		Run:       ttlRange,
	},
	{
		Name:      "TTLGrain",
		Statement: "A TTL is granted as it is, or refused before sending with ErrInvalid and the limit.",
		LimitTTLs: 40,
		Run:       ttlGrain,
	},
	{
		Name:      "Defaults",
		Statement: "Without options a lease has the default TTL, renews itself, and names no owner.",
		AtDefault: true,
		Run:       defaults,
	},
	{
		Name:      "OptionsOfOneCall",
		Statement: "An option counts for its acquisition, and not for the next of the Locker.",
		Run:       optionsOfOneCall,
	},
	{
		Name:      "EveryTTLLasts",
		Statement: "A lease lasts for its own TTL: none is cut to something coarser.",
		Run:       everyTTLLasts,
	},
	{
		Name:      "AcquireKeepsTTL",
		Statement: "A lease from Acquire has its TTL, counted from the grant.",
		LimitTTLs: 40,
		Run:       acquireKeepsTTL,
	},
	{
		Name:      "DeadlineFromSend",
		Statement: "A deadline is at most the start of the call plus the TTL.",
		Claims:    []engine.Claim{engine.ClaimDeadline},
		Run:       deadlineFromSend,
	},
	{
		Name:      "GrantIsUsable",
		Statement: "A new lease has at least a third of its TTL left.",
		Claims:    []engine.Claim{engine.ClaimDeadline},
		Run:       grantIsUsable,
	},
	{
		Name:         "CrashBetweenSteps",
		Statement:    "A request given up at any moment leaves nothing that outlives the TTL.",
		NeedsBackend: true,
		Run:          crashBetweenSteps,
	},
}

// abandon takes the key for a client that then dies.
func abandon(e *engine.Env, key string, ttl time.Duration) *engine.Record {
	switch {
	case e.OpenBackend != nil:
		return e.Backend().MustTry(e.Request(key, "", ttl)).Record
	case e.Kill != nil:
		c := e.Locker()
		h := c.MustTryFor(key, ttl)
		c.Kill()
		return h.Record
	}
	return e.Locker().MustTryFor(key, ttl, lock.WithoutRenewal()).Record
}

// A record may outlive its lease by what the guarantees say, and somebody has to ask.
func judgeExpiry(e *engine.Env, l *engine.Lateness, why string) {
	l.Judge(e, "", e.Claimed.TakeoverLag+e.Prompt(), "%s, with a TTL of %s, and the next grant of its key came", why, e.TTL)
}

func crashFrees(e *engine.Env) {
	b := e.Locker()
	var late engine.Lateness
	renewed := e.Start(func() { renewedThenDead(e, b) })
	e.Each(3, func(i int) {
		key := e.Key("%d", i)
		e.Pause(time.Duration(i) * e.TTL / 3)
		abandon(e, key, e.TTL)
		expiry := e.Log.Now() + e.TTL
		if i == 2 { // a waiter rather than a poller
			wait := e.TakeoverLimit(e.TTL)
			done := make(chan struct{})
			join := e.Start(func() {
				h := b.MustWait(e.Ctx, key)
				close(done)
				_ = h.Release(e.Ctx)
			})
			if !e.Within(wait, done) {
				e.Look(key)
				e.OverdueFatalf(key, "a waiter had not been granted the key after %s; its holder died, and its TTL was %s", wait, e.TTL)
			}
			join()
			return
		}
		next := b.Wins(key, e.TakeoverLimit(e.TTL), e.TTL/50, "its holder died")
		late.Add(e, e.Log.Now()-expiry)
		_ = next.Release(e.Ctx)
	})
	renewed()
	judgeExpiry(e, &late, "a holder died")
}

// renewedThenDead has a holder die whose Locker has renewed its leases.
func renewedThenDead(e *engine.Env, b *engine.Client) {
	var c *engine.Client
	var die func()
	switch {
	case e.Kill != nil:
		c = e.Locker()
		die = c.Kill
	case e.OpenBackend != nil && e.Open == nil && !e.Fixed && e.Claimed.Expiry != backend.ClockConnection:
		cut, f := e.FaultyWhole() // which ends no session, if there is one for all TTLs
		c, die = cut, func() { f.All(faultlock.HangBefore()) }
		defer f.Heal()
	default:
		return
	}
	holds := make([]*engine.Hold, 3)
	for i := range holds {
		holds[i] = c.MustTryFor(e.Key("renewed-%d", i), e.TTL)
	}
	e.Pause(e.TTL * 5 / 3)
	for _, h := range holds {
		h.MustLive("it is renewed automatically")
		h.Lapses()
	}
	die()
	expiry := e.Log.Now() + e.TTL
	var late engine.Lateness
	e.Each(len(holds), func(i int) {
		next := b.Wins(holds[i].Key, e.TakeoverLimit(e.TTL), e.TTL/50, "its holder, whose Locker had renewed it, died")
		late.Add(e, e.Log.Now()-expiry)
		_ = next.Release(e.Ctx)
	})
	judgeExpiry(e, &late, "a holder died whose Locker had renewed its leases")
}

func serverOutlivesD(e *engine.Env) {
	const keys = 4
	rounds := e.Rounds(e.TTL*3/2, 2, 50)
	wait := e.Start(func() { serverOutlivesKinds(e) }, func() { serverOutlivesLong(e) })
	e.EachLayer(func(layer engine.Layer) {
		a, b := layer.Open(), layer.Open()
		e.Each(keys, func(n int) {
			e.Pause(e.Randomly(e.TTL))
			for round := range rounds {
				key := e.Key("%s-%d-%d", layer.Name, n, round)
				old := e.MustTake(a, key, e.TTL)
				untilDeadline(e, old, b, key, e.Claimed.ManualRenewal && round%2 == 1, "")
			}
		})
	})
	wait()
	e.Notef("%d takeovers", keys*rounds*len(e.Layers()))
}

// serverOutlivesKinds takes over each kind of lease, once renewed and once not.
func serverOutlivesKinds(e *engine.Env) {
	if !e.Claimed.WithoutRenewal {
		return
	}
	a, b := e.Locker(), e.Locker()
	all := kinds(e)[1:]
	e.Each(2*len(all), func(i int) {
		k, key := all[i/2], e.Key("with-%s-%d", all[i/2].name, i%2)
		if old, ok := k.take(a, key, e.TTL, lock.WithoutRenewal()); ok {
			untilDeadline(e, old, b, key, e.Claimed.ManualRenewal && i%2 == 1, ", and the lease had "+k.name)
		}
	})
	if owner := oneOwner(e); owner != nil && e.Claimed.ManualRenewal {
		key := e.Key("beside another hold")
		old, beside := a.MustTryFor(key, e.TTL, append(owner, lock.WithoutRenewal())...), a.MustTryFor(key, e.TTL, append(owner, lock.WithoutRenewal())...)
		e.Pause(e.TTL / 4)
		if err := old.Renew(); err != nil {
			e.UnexpectedLate(key, err, "Renew of a lease in the first third of its life returned %s; expected no error", engine.Outcome(err))
			return
		}
		beside.MustRelease()
		untilDeadline(e, old, b, key, false, ", but for once beside another hold of its owner")
	}
}

// serverOutlivesLong takes over what has a long TTL, which a server may keep in whole seconds.
func serverOutlivesLong(e *engine.Env) {
	ttl := e.Fit(75 * time.Second)
	if !e.Virtual() || ttl <= e.TTL {
		return
	}
	fractions := []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 950 * time.Millisecond}
	e.EachLayer(func(layer engine.Layer) {
		a, b := layer.Open(), layer.Open()
		e.Each(len(fractions), func(i int) {
			key := e.Key("%s-long-%d", layer.Name, i)
			e.Pause(time.Until(time.Now().Truncate(time.Second).Add(time.Second + fractions[i])))
			deadline := e.MustTake(a, key, ttl).Until()
			e.Pause(time.Until(deadline) - 1500*time.Millisecond)
			next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(ttl), 5*time.Millisecond, "the lease of the holder was not renewed")
			if now := time.Now(); now.Before(deadline) {
				e.Failf(key, "another client was granted the key %s before the deadline of its holder, whose TTL was %s; expected nobody to get it before", engine.Short(deadline.Sub(now)), ttl)
			}
			_ = next.Release(e.Ctx)
		})
	})
}

// untilDeadline has a hold run out that is renewed once, or not at all.
func untilDeadline(e *engine.Env, old engine.Grip, b engine.Party, key string, renewed bool, which string) {
	if renewed {
		e.Pause(e.TTL / 4)
		if err := old.Renew(); err != nil {
			e.UnexpectedLate(key, err, "Renew of a lease in the first third of its life returned %s; expected no error", engine.Outcome(err))
			return
		}
	}
	deadline := old.Until()
	e.Pause(time.Until(deadline) - e.TTL/16)
	next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), 2*time.Millisecond, "the lease of the holder was not renewed any more")
	if now := time.Now(); now.Before(deadline) {
		how := "the lease had not been renewed"
		if renewed {
			how = "the lease had been renewed once, and its new deadline counts"
		}
		e.Failf(key, "another client was granted the key %s before the deadline of its holder; expected nobody to get it before (%s%s)", engine.Short(deadline.Sub(now)), how, which)
	}
	_ = next.Release(e.Ctx)
}

func holdersTTLCounts(e *engine.Env) {
	longer := e.Fit(3 * e.TTL)
	if longer < 2*e.TTL {
		e.Skipf("needs two TTLs, and only %s can be had", e.TTL)
	}
	muchLonger := e.Fit(time.Hour)
	e.EachLayer(func(layer engine.Layer) {
		e.Together(
			func() { // contenders with a short TTL don't shorten a long lease
				key := e.Key("%s-long", layer.Name)
				a, b := layer.Open(), layer.Open()
				old := e.MustTake(a, key, longer)
				deadline := old.Until()
				next := e.TakeOver(b, key, e.TTL, e.TakeoverLimit(longer), e.TTL/25, "the holder's lease was not renewed")
				if now := time.Now(); now.Before(deadline) {
					e.Failf(key, "a client that asked with a TTL of %s was granted the key %s before the deadline of the holder, whose TTL was %s; expected nobody to get it before", e.TTL, engine.Short(deadline.Sub(now)), longer)
				}
				_ = next.Release(e.Ctx)
			},
			func() { // contenders with a long TTL don't lengthen a short lease
				key := e.Key("%s-short", layer.Name)
				a, b := layer.Open(), layer.Open()
				e.MustTake(a, key, e.TTL)
				next := e.TakeOver(b, key, muchLonger, e.TakeoverLimit(e.TTL), e.TTL/25, "the holder's TTL was short, whatever the contender's")
				_ = next.Release(e.Ctx)
			},
		)
	})
}

func expiryIsPerHold(e *engine.Env) {
	if !e.Claimed.WithoutRenewal {
		if !killedBeside(e) {
			e.Skipf("needs leases that end while their owner has another: the guarantees claim neither WithoutRenewal nor holds of several clients together with Config.Kill")
		}
		return
	}
	e.Together(func() {
		key := e.Key("longer")
		if e.Long < 4*e.TTL {
			return
		}
		a, b := e.Locker(), e.Locker()
		owner := lock.WithOwner(e.Owner("A"))
		short := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
		long := a.MustTryFor(key, e.Long, owner, lock.WithoutRenewal())
		awaitLapse(e, short)
		e.Expire(short)
		b.MustRefuse(key, "a second and longer hold of its owner goes on")
		long.MustLive("only the other hold of its owner had a short TTL")
		long.MustRelease()
		b.MustTry(key).MustRelease()
	}, func() {
		key := e.Key("abandoned")
		a, b := e.Locker(), e.Locker()
		owner := lock.WithOwner(e.Owner("B"))
		kept := a.MustTryFor(key, e.TTL, owner)
		lapsing := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
		awaitLapse(e, lapsing)
		e.Expire(lapsing)
		b.MustRefuse(key, "one of its holds is renewed")
		kept.MustLive("it is renewed")
		end, known := kept.Deadline()
		kept.MustRelease()
		h, err := b.Try(key)
		if err == nil && known && e.Log.Now() >= end {
			e.TooSlowf(key, "the key was taken at %s; a hold that was wrongly renewed with another could have ended at %s", engine.Seconds(e.Log.Now()), engine.Seconds(end))
		}
		if err != nil {
			e.UnexpectedFatal(key, err, "a try returned %s although one hold of the owner was released and the other had run out; expected a lease: the renewals of one hold must not keep another alive", engine.Outcome(err))
		}
		h.MustRelease()
	}, func() { renewedBeside(e) }, func() { abandonedBeside(e) }, func() { killedBeside(e) })
}

// renewedBeside has an owner whose hold does not renew itself enter it with one that does.
func renewedBeside(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key, owner := e.Key("entered"), lock.WithOwner(e.Owner("D"))
	lapsing := a.MustTryFor(key, e.TTL, owner, lock.WithoutRenewal())
	kept := a.MustTryFor(key, e.TTL, owner)
	awaitLapse(e, lapsing)
	e.Expire(lapsing)
	e.Pause(e.TTL / 4)
	if e.Virtual() { // and goes on to be
		e.Pause(e.TTL * 3 / 2)
	}
	b.MustRefuse(key, "the second hold of its owner is renewed")
	kept.MustLive("it is renewed automatically; only the hold before it, of its owner, was not")
	kept.MustRelease()
	b.Soon(key, "the last hold of its owner was released").MustRelease()
}

// abandonedBeside has the client of one hold of an owner die, whereas that of another goes
// on renewing. Nobody is left who would give the abandoned hold back.
func abandonedBeside(e *engine.Env) {
	if e.OpenBackend == nil || !engine.ClaimServerHolds.Made(e.Settings) || !e.Claimed.ManualRenewal {
		return
	}
	key, owner := e.Key("died"), e.Owner("C")
	dies, lives, b := e.Backend(), e.Backend(), e.Backend()
	abandoned := dies.MustTry(e.Request(key, owner, e.TTL))
	kept := lives.MustTry(e.Request(key, owner, e.TTL))
	abandoned.Lapses()
	for gone := abandoned.Gone(e); e.Log.Now() < gone; e.Pause(e.TTL / 5) {
		if err := kept.Renew(); err != nil {
			e.UnexpectedLateFatal(key, err, "Renew of a hold in time returned %s; expected no error", engine.Outcome(err))
		}
	}
	b.MustRefuse(key, "one of its holds is renewed")
	e.MustGiveBack(kept, key, "")
	h, err := b.Try(e.Request(key, "", e.Long))
	if err != nil {
		e.UnexpectedFatal(key, err, "a try returned %s although one hold of the owner was released, and the client of the other had died longer than a TTL ago; expected a grant: the renewals of one hold must not keep another alive", engine.Outcome(err))
	}
	_ = h.Release(e.Ctx)
}

// killedBeside is abandonedBeside for Lockers that renew by themselves. It reports whether
// it can be had.
func killedBeside(e *engine.Env) bool {
	if e.OpenBackend != nil || e.Kill == nil || !engine.ClaimServerHolds.Made(e.Settings) {
		return false
	}
	key, owner := e.Key("killed"), lock.WithOwner(e.Owner("D"))
	dies, lives, b := e.Locker(), e.Locker(), e.Locker()
	abandoned := dies.MustTryFor(key, e.TTL, owner)
	kept := lives.MustTryFor(key, e.TTL, owner)
	dies.Kill()
	// It may have been renewed once.
	abandoned.Lapses()
	e.Pause(2*e.TTL + e.Claimed.TakeoverLag)
	b.MustRefuse(key, "one of its holds is renewed")
	kept.MustLive("it is renewed")
	kept.MustRelease()
	h, err := b.Try(key)
	if err != nil {
		e.UnexpectedFatal(key, err, "a try returned %s although one hold of the owner was released, and the Locker of the other had died two TTLs ago; expected a lease: the renewals of one hold must not keep another alive", engine.Outcome(err))
	}
	h.MustRelease()
	return true
}
