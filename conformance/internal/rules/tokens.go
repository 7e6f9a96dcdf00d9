package rules

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var tokenRules = []*engine.Rule{
	{
		Name:      "TokenFits",
		Statement: "A token is from 1 to 2^63 - 1, below 2^53 if a counter.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		Run:       tokenFits,
	},
	{
		Name:      "TokenIncreases",
		Statement: "The token grows with every grant of a key, whichever client gets it.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		Run:       tokenIncreases,
	},
	{
		Name:      "TokenSurvivesRelease",
		Statement: "The token grows across release, expiry, takeover, Close, and removal if claimed.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		LimitTTLs: 40,
		Run:       tokenSurvives,
	},
	{
		Name:      "TokenSurvivesIdling",
		Statement: "The token grows over a time in which nobody uses the key.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		LimitTTLs: 30,
		Virtual:   90 * time.Minute,
		Run:       tokenSurvivesIdling,
	},
	{
		Name:      "TokenSurvivesLastClose",
		Statement: "The token grows after the last client of the store has closed.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		Alone:     true,
		Virtual:   13 * time.Minute,
		Run:       tokenSurvivesLastClose,
	},
	{
		Name:      "TokenStable",
		Statement: "The token of a lease does not change by renewal, re-entry or release.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		LimitTTLs: 30,
		Run:       tokenStable,
	},
	{
		Name:      "TokenInGrantOrder",
		Statement: "Under contention tokens grow in the order of the grants.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		Run:       tokenInGrantOrder,
	},
	{
		Name:      "TokenInTakeoverOrder",
		Statement: "When leases run out, the next holder's token is larger.",
		Claims:    []engine.Claim{engine.ClaimTokens},
		LimitTTLs: 40,
		Run:       tokenInTakeoverOrder,
	},
}

func tokenFits(e *engine.Env) {
	c := e.Locker()
	for i := range 5 {
		key := e.Key("%d", i)
		h := c.MustTry(key)
		if t := h.Lease.Token(); t == 0 || t > math.MaxInt64 {
			e.Failf(key, "the token is %d; expected one from 1 to 2^63 - 1", t)
		} else if e.Claimed.Token == backend.TokenCounter && t >= 1<<53 {
			e.Failf(key, "the token is %d; expected a counter below 2^53, which scripts and floating-point numbers keep exactly", t)
		}
		h.MustRelease()
		if t := h.Lease.Token(); t != h.Token {
			e.Failf(key, "the token changed from %d to %d when the lease was released", h.Token, t)
		}
	}
}

func tokenIncreases(e *engine.Env) {
	key := e.Key("a")
	clients := e.Lockers(3)
	asks := append([]kind{plain}, optionKinds(e, clients[0])...)
	n, i := e.Rounds(e.Work(100*time.Millisecond), 10, 200), 0
	// Some counters go wrong at the hundreds. On a fast store that is tried too.
	for end := time.Now().Add(e.Window() / 4); i < n || i < 1_000 && time.Now().Before(end); i++ {
		clients[i%len(clients)].MustTry(key, asks[i/2%len(asks)].opts...).MustRelease()
	}
	n = i
	e.CheckOutermostTokens(key)
	e.Notef("%d grants", n)
}

func tokenSurvives(e *engine.Env) {
	cycles := e.Rounds(3*e.TTL, 1, 10)
	removing := backend.Survives(e.Claimed.TokenSurvives, backend.FaultRecordRemoved)
	if removing && e.Remove == nil {
		e.Notef("not tried without Config.Remove: the token after the removal of the record")
		removing = false
	}
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		a, b := layer.Open(), layer.Open()
		for range cycles {
			// Released, and acquired anew.
			for _, p := range []engine.Party{a, b, a} {
				_ = e.MustTake(p, key, e.Long).Release(e.Ctx)
			}
			e.CheckTokens(key, true)
			// Expired, and taken over at once.
			_, taken := lapse(e, a, b, key)
			e.CheckTokens(key, true)
			_ = taken.Release(e.Ctx)
			// Expired, with nobody about for a while.
			e.Expire(e.MustTake(b, key, e.TTL))
			_ = e.TakeOver(a, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease was not renewed").Release(e.Ctx)
			e.CheckTokens(key, true)
			if removing {
				e.MustTake(a, key, e.Long)
				e.RemoveByForce(key)
				_ = e.MustTake(b, key, e.Long).Release(e.Ctx)
				e.CheckTokens(key, true)
			}
			if e.Failed() {
				return
			}
		}
	})
	// Its clients closed, and new ones opened.
	key := e.Key("closed")
	for range 3 {
		c := e.Locker()
		c.MustTry(key).MustRelease()
		_ = c.Close()
	}
	e.CheckTokens(key, true)
}

func tokenStable(e *engine.Env) {
	key := e.Key("a")
	a := e.Locker()
	var more []lock.Option
	if engine.ClaimReentrancy.Made(e.Settings) {
		more = append(more, lock.WithOwner(e.Owner("A")))
	}
	h := a.MustTryFor(key, e.TTL, more...)
	for range 8 {
		e.Pause(e.TTL / 4)
		if e.Claimed.ManualRenewal {
			if err := h.Renew(); err != nil {
				e.UnexpectedLate(key, err, "Renew of a lease that is held returned %s; expected no error", engine.Outcome(err))
				return
			}
		}
		if len(more) > 0 {
			again := a.MustTryFor(key, e.TTL, more...)
			if again.Token != h.Token {
				if h.Lost() {
					e.LateFatalf(key, "the lease was lost although it is renewed: %s", engine.Outcome(h.Cause()))
				}
				e.Failf(key, "the token of a re-entry is %d; expected that of the outermost hold, %d", again.Token, h.Token)
			}
			again.MustRelease()
		}
		if t := h.Lease.Token(); t != h.Token {
			e.Failf(key, "the token changed from %d to %d while the lease was held", h.Token, t)
		}
	}
	released := func(h *engine.Hold) {
		_ = h.Release(e.Ctx)
		if t := h.Lease.Token(); t != h.Token { // what is written late is refused by it
			e.Failf(h.Key, "the token changed from %d to %d when the lease was released", h.Token, t)
		}
	}
	released(h)
	eachLease(e, a, "kind", released)
}

func tokenInGrantOrder(e *engine.Env) {
	const contenders, lockers = 8, 4
	key := e.Key("contended")
	clients := e.Lockers(lockers)
	end := time.Now().Add(e.Window() / 2)
	var grants atomic.Int64
	e.Each(contenders, func(i int) {
		c := clients[i%lockers]
		more := func() bool {
			n := grants.Load()
			return n < 8*contenders || n < 2_000 && time.Now().Before(end)
		}
		for n := 0; more(); n++ {
			var h *engine.Hold
			if i < lockers {
				h = c.MustWait(e.Ctx, key)
			} else { // half of them try, so that both ways to a grant compete
				got, err := c.Try(key)
				if err != nil {
					e.JudgeRefusal(key, "TryAcquire", "others hold it", nil, err)
					if e.Failed() {
						panic(engine.Abort{})
					}
					e.Pause(e.Randomly(3 * time.Millisecond))
					continue
				}
				h = got
			}
			grants.Add(1)
			if n%2 == 0 {
				e.Pause(e.Randomly(time.Millisecond))
			}
			h.MustRelease()
		}
	})
	e.CheckTokens(key, true)
	e.Notef("%d grants to %d contenders", grants.Load(), contenders)
}

// tokenInTakeoverOrder keeps a register that refuses tokens smaller than the
// largest it has seen, as a fenced resource does. Every holder writes to it once while it
// holds, and once when it is too late.
func tokenInTakeoverOrder(e *engine.Env) {
	rounds := e.Rounds(2*e.TTL, 2, 10)
	e.EachLayer(func(layer engine.Layer) {
		key := e.Key("%s", layer.Name)
		parties := []engine.Party{layer.Open(), layer.Open()}
		var highest uint64
		write := func(token uint64) bool {
			ok := token >= highest
			highest = max(highest, token)
			return ok
		}
		refused := 0
		holder := e.MustTake(parties[0], key, e.TTL)
		write(holder.Fence())
		for i := range rounds {
			next := e.TakeOver(parties[(i+1)%2], key, e.TTL, e.TakeoverLimit(e.TTL), e.TTL/20, "the lease of the holder was not renewed")
			if !write(next.Fence()) {
				e.Failf(key, "the new holder's token %d is smaller than one that was given before (%d): its write would be refused", next.Fence(), highest)
				return
			}
			if write(holder.Fence()) {
				e.Failf(key, "the token of the earlier holder, %d, is not smaller than that of the holder now, %d: its late write would be accepted", holder.Fence(), next.Fence())
				return
			}
			refused++
			holder = next
		}
		e.Notef("%d late writes refused", refused)
	})
}

// tokensOf are the tokens of the holds, without repetition.
func tokensOf(holds []*engine.Hold) []uint64 {
	var out []uint64
	for _, h := range holds {
		if !slices.Contains(out, h.Token) {
			out = append(out, h.Token)
		}
	}
	return out
}
