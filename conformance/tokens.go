package conformance

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var tokenRules = []*rule{
	{
		Name:      "TokenFits",
		Statement: "A fencing token is from 1 to 2^63 - 1, below 2^53 where it is a counter, and Lease.Token always returns the same one.",
		claims:    []claim{claimTokens},
		run:       tokenFits,
	},
	{
		Name:      "TokenIncreases",
		Statement: "The token grows with every grant of a key, whichever client gets it.",
		claims:    []claim{claimTokens},
		run:       tokenIncreases,
	},
	{
		Name:      "TokenSurvivesRelease",
		Statement: "The token grows across release, expiry, takeover, the close of all clients, and removal by force where that is claimed.",
		claims:    []claim{claimTokens},
		LimitTTLs: 40,
		run:       tokenSurvives,
	},
	{
		Name:      "TokenStable",
		Statement: "The token of a lease does not change while it is held, renewed, or entered again by its owner.",
		claims:    []claim{claimTokens},
		LimitTTLs: 30,
		run:       tokenStable,
	},
	{
		Name:      "TokenInGrantOrder",
		Statement: "Under contention tokens are distinct and grow in the order of the grants.",
		claims:    []claim{claimTokens},
		run:       tokenInGrantOrder,
	},
	{
		Name:      "TokenInTakeoverOrder",
		Statement: "When leases run out, the token of the next holder is larger than that of the last.",
		claims:    []claim{claimTokens},
		LimitTTLs: 40,
		run:       tokenInTakeoverOrder,
	},
}

func tokenFits(e *env) {
	c := e.locker()
	for i := range 5 {
		key := e.key("%d", i)
		h := c.mustTry(key)
		if t := h.lease.Token(); t == 0 || t > math.MaxInt64 {
			e.failf(key, "the token is %d; expected one from 1 to 2^63 - 1", t)
		} else if e.g.Token == backend.TokenCounter && t >= 1<<53 {
			e.failf(key, "the token is %d; expected a counter below 2^53, which scripts and floating-point numbers keep exactly", t)
		}
		h.mustRelease()
		if t := h.lease.Token(); t != h.token {
			e.failf(key, "the token changed from %d to %d when the lease was released", h.token, t)
		}
	}
}

func tokenIncreases(e *env) {
	key := e.key("a")
	clients := e.lockers(3)
	n := e.rounds(100*time.Millisecond, 10, 200)
	for i := range n {
		clients[i%len(clients)].mustTry(key).mustRelease()
	}
	e.checkTokens(key, true)
	e.notef("%d grants", n)
}

func tokenSurvives(e *env) {
	cycles := e.rounds(2*e.ttl, 1, 10)
	removing := backend.Survives(e.g.TokenSurvives, backend.EventRecordRemoved)
	if removing && e.Remove == nil {
		e.notef("not tried without Config.Remove: the token after the removal of the record")
		removing = false
	}
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		a, b := k.open(), k.open()
		for range cycles {
			// Released, and acquired anew.
			for _, p := range []party{a, b, a} {
				_ = e.mustTake(p, key, e.long).release(e.ctx)
			}
			e.checkTokens(key, true)
			// Expired, and taken over at once.
			_, taken := e.lapse(a, b, key)
			e.checkTokens(key, true)
			_ = taken.release(e.ctx)
			// Expired, with nobody about for a while.
			e.expire(e.mustTake(b, key, e.ttl))
			_ = e.takeOver(a, key, e.long, e.takeover(e.ttl), e.ttl/20, "the lease was not renewed").release(e.ctx)
			e.checkTokens(key, true)
			if removing {
				e.mustTake(a, key, e.long)
				e.remove(key)
				_ = e.mustTake(b, key, e.long).release(e.ctx)
				e.checkTokens(key, true)
			}
			if e.failed() {
				return
			}
		}
	})
	// All clients closed, and new ones opened.
	key := e.key("closed")
	for range 3 {
		c := e.locker()
		c.mustTry(key).mustRelease()
		_ = c.close()
	}
	e.checkTokens(key, true)
}

func tokenStable(e *env) {
	key := e.key("a")
	a := e.locker()
	var more []lock.Option
	if claimReentrancy.made(e.settings) {
		more = append(more, lock.WithOwner(e.owner("A")))
	}
	h := a.mustTryFor(key, e.ttl, more...)
	for range 8 {
		e.pause(e.ttl / 4)
		if e.g.ManualRenewal {
			if err := h.renew(); err != nil {
				e.latef(key, "Renew of a lease that is held returned %s; expected no error", outcome(err))
				return
			}
		}
		if len(more) > 0 {
			again := a.mustTryFor(key, e.ttl, more...)
			if again.token != h.token {
				if h.lost() {
					e.lateFatalf(key, "the lease was lost although it is renewed: %s", outcome(h.cause()))
				}
				e.failf(key, "the token of a re-entry is %d; expected that of the outermost hold, %d", again.token, h.token)
			}
			again.mustRelease()
		}
		if t := h.lease.Token(); t != h.token {
			e.failf(key, "the token changed from %d to %d while the lease was held", h.token, t)
		}
	}
	_ = h.release(e.ctx)
}

func tokenInGrantOrder(e *env) {
	const contenders, lockers = 8, 4
	key := e.key("contended")
	clients := e.lockers(lockers)
	end := time.Now().Add(e.window() / 2)
	var grants atomic.Int64
	e.each(contenders, func(i int) {
		c := clients[i%lockers]
		more := func() bool {
			n := grants.Load()
			return n < 8*contenders || n < 2_000 && time.Now().Before(end)
		}
		for n := 0; more(); n++ {
			var h *hold
			if i < lockers {
				h = c.mustWait(e.ctx, key)
			} else { // half of them try, so that both ways to a grant compete
				got, err := c.try(key)
				if err != nil {
					e.judgeRefusal(key, "TryAcquire", "others hold it", nil, err)
					if e.failed() {
						panic(abort{})
					}
					e.pause(e.randomly(3 * time.Millisecond))
					continue
				}
				h = got
			}
			grants.Add(1)
			if n%2 == 0 {
				e.pause(e.randomly(time.Millisecond))
			}
			h.mustRelease()
		}
	})
	e.checkTokens(key, true)
	e.notef("%d grants to %d contenders", grants.Load(), contenders)
}

// tokenInTakeoverOrder keeps a register that refuses tokens smaller than the
// largest it has seen, as a fenced resource does, and has every holder write to
// it once while it holds and once when it is too late.
func tokenInTakeoverOrder(e *env) {
	rounds := e.rounds(2*e.ttl, 2, 10)
	e.eachKind(func(k kind) {
		key := e.key("%s", k.name)
		parties := []party{k.open(), k.open()}
		var highest uint64
		write := func(token uint64) bool {
			ok := token >= highest
			highest = max(highest, token)
			return ok
		}
		refused := 0
		holder := e.mustTake(parties[0], key, e.ttl)
		write(holder.fence())
		for i := range rounds {
			next := e.takeOver(parties[(i+1)%2], key, e.ttl, e.takeover(e.ttl), e.ttl/20, "the lease of the holder was not renewed")
			if !write(next.fence()) {
				e.failf(key, "the new holder's token %d is smaller than one that was given before (%d): its write would be refused", next.fence(), highest)
				return
			}
			if write(holder.fence()) {
				e.failf(key, "the token of the earlier holder, %d, is not smaller than that of the holder now, %d: its late write would be accepted", holder.fence(), next.fence())
				return
			}
			refused++
			holder = next
		}
		e.notef("%d late writes refused", refused)
	})
}

// tokensOf are the tokens of the holds, without repetition.
func tokensOf(holds []*hold) []uint64 {
	var out []uint64
	for _, h := range holds {
		if !slices.Contains(out, h.token) {
			out = append(out, h.token)
		}
	}
	return out
}
