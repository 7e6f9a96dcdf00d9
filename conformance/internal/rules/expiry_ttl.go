package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func ttlRange(e *engine.Env) {
	refuse := func(what string, ttl time.Duration, or ...error) {
		or = append(or, lock.ErrInvalid)
		refuseOption(e, fmt.Sprintf("a TTL of %s (%s)", ttl, what), lock.WithTTL(ttl), or...)
		if more := oneOwner(e); more != nil {
			refuseOption(e, fmt.Sprintf("an owner's TTL of %s (%s)", ttl, what), func(s *lock.Settings) { more[0](s); lock.WithTTL(ttl)(s) }, or...)
		}
	}
	refuse("zero", 0)
	refuse("negative", -time.Second)
	grain := max(e.Claimed.TTLGrain, 1)
	if below := e.Claimed.MinTTL - grain; below > 0 {
		refuse("below the minimum", below, lock.ErrUnsupported)
	}
	if e.Claimed.MinTTL > 1 {
		refuse("one nanosecond", 1, lock.ErrUnsupported)
	}
	if e.Claimed.MaxTTL > 0 {
		refuse("above the maximum", e.Claimed.MaxTTL+grain, lock.ErrUnsupported)
	}
	if e.Fixed {
		return
	}
	c, other := e.Locker(), e.Locker()
	ttlRefusedInside(e, c, other)
	shortest := (e.Claimed.MinTTL + grain - 1) / grain * grain // that of the limits need not be of the grain
	for _, ttl := range []time.Duration{e.TTL, e.Claimed.MaxTTL / grain * grain} {
		if ttl == 0 {
			continue
		}
		calls := []struct {
			way
			more []lock.Option
		}{{ways[0], nil}, {ways[1], nil}}
		if more := oneOwner(e); more != nil {
			calls = append(calls, struct {
				way
				more []lock.Option
			}{way{"TryAcquire by an owner", ways[0].get}, more})
		}
		for _, w := range calls {
			key := e.Key("accepted-%s-%s", ttl, w.name)
			h := w.mustGet(c, key, ttl, w.more...)
			if e.Claimed.HolderDetails && ttl > e.TTL {
				// A number of milliseconds or seconds may be too large for where it is put.
				_, err := other.Try(key)
				var held *lock.HeldError
				if errors.As(err, &held) && held.Remaining < ttl/2 {
					e.Failf(key, "%s with a TTL of %s was granted, and a refusal says that the lease lasts for another %s", w.name, ttl, held.Remaining)
				}
			}
			h.MustRelease()
		}
	}
	if shortest > 0 {
		// So short a lease may have run out before its reply arrives.
		key := e.Key("minimum")
		h, err := c.TryFor(e.Ctx, key, shortest)
		if err == nil {
			_ = h.Release(e.Ctx)
		} else if errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrUnsupported) {
			e.Unexpected(key, err, "the smallest TTL of the guarantees, %s, was refused: %s", shortest, engine.Outcome(err))
		}
	}
}

// grainTTLs are where a TTL gets lost when it is put into coarser units: below them, at
// them, and just beside them; and the limits of the lock.
func grainTTLs(e *engine.Env) []time.Duration {
	grain := max(e.Claimed.TTLGrain, 1)
	out := []time.Duration{
		1, time.Microsecond, time.Millisecond - time.Microsecond, time.Millisecond,
		time.Second - time.Millisecond, time.Second, time.Second + 1, time.Second * 19 / 10,
		e.Claimed.MinTTL, e.Claimed.MinTTL + 1, e.Claimed.MaxTTL, grain, grain + 1,
	}
	for _, off := range []time.Duration{1, grain / 2, grain - 1} {
		out = append(out, e.Fit(2*e.TTL)+off)
	}
	slices.Sort(out)
	return slices.Compact(slices.DeleteFunc(out, func(ttl time.Duration) bool { return ttl <= 0 }))
}

// ttlRefusedInside has an owner that holds the key enter it with TTLs that nobody can have.
func ttlRefusedInside(e *engine.Env, c, other *engine.Client) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	bad := []time.Duration{0, -time.Second}
	if e.Claimed.MinTTL > 1 {
		bad = append(bad, 1)
	}
	if e.Claimed.MaxTTL > 0 {
		bad = append(bad, e.Claimed.MaxTTL+max(e.Claimed.TTLGrain, 1))
	}
	key := e.Key("entered with a TTL")
	h := c.MustTry(key, owner...)
	for _, ttl := range bad {
		inner, err := c.Try(key, append(slices.Clone(owner), lock.WithTTL(ttl))...)
		if err == nil {
			_ = inner.Release(e.Ctx)
		}
		if !errors.Is(err, lock.ErrInvalid) && !errors.Is(err, lock.ErrUnsupported) {
			e.Unexpected(key, err, "an owner that holds the key entered it with a TTL of %s, and TryAcquire returned %s; expected ErrInvalid, since a TTL is never rounded", ttl, engine.Outcome(err))
		}
	}
	h.MustLive("its owner was refused another hold")
	h.MustRelease()
	other.Soon(key, "its only hold was released; those that its owner was refused, for their TTLs, don't count").MustRelease()
}

func ttlGrain(e *engine.Env) {
	ttls := grainTTLs(e)
	b := e.Locker()
	a, sent := e.Locker(), func(string) int { return 0 }
	if e.OpenBackend != nil {
		var f *faultlock.Faults
		a, f = e.Faulty()
		sent = func(key string) int { return engine.Requests(f, key, sending...) }
	}
	var granted atomic.Int64
	type call struct {
		name string
		get  engine.Getter
		more []lock.Option
	}
	calls := []call{{"TryAcquire", a.Locker.TryAcquire, nil}, {"Acquire", a.Locker.Acquire, nil}}
	if more := oneOwner(e); more != nil {
		calls = append(calls, call{"TryAcquire by an owner", a.Locker.TryAcquire, more})
	}
	shares := make([][]float64, len(calls)) // of the TTL until the deadline, for what was granted
	for i := range shares {
		shares[i] = make([]float64, len(ttls))
	}
	e.Each(len(calls)*len(ttls), func(i int) {
		call, ttl := calls[i%len(calls)], ttls[i/len(calls)]
		key := e.Key("%s-%s", call.name, ttl)
		ctx, cancel := context.WithTimeout(e.Ctx, e.WaitBound())
		defer cancel()
		h, err := a.Get(call.name, call.get, ctx, key, append(append(unrenewed(e), call.more...), lock.WithTTL(ttl)))
		switch {
		case err == nil:
			granted.Add(1)
			shares[i%len(calls)][i/len(calls)] = judgeTTL(e, h, b)
			return
		case errors.Is(err, lock.ErrInvalid) || e.Fixed && errors.Is(err, lock.ErrUnsupported):
			judgeRefusedTTL(e, key, ttl, err)
			if n := sent(key); n > 0 {
				e.Failf(key, "a TTL of %s was refused, but only after %d requests for the key; expected the refusal before anything is sent", ttl, n)
			}
		case ttl < e.TTL && (errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrOutcomeUnknown)):
			// Accepted, and over before the answer came: shorter than what is honest here.
		case !e.Says: // a server may have refused it in words of its own
		default:
			e.Unexpected(key, err, "%s with a TTL of %s returned %s; expected a lease, or ErrInvalid", call.name, ttl, engine.Outcome(err))
		}
		b.Soon(key, "a request with a TTL of "+ttl.String()+" was not granted, and must leave nothing").MustRelease()
	})
	for i, ttl := range ttls {
		for c, call := range calls {
			judgeShares(e, call.name, ttl, ttls[:i], shares[c])
		}
	}
	e.Notef("%d TTLs in %d ways, %d calls granted", len(ttls), len(calls), granted.Load())
}

// judgeRefusedTTL looks at a refusal.
func judgeRefusedTTL(e *engine.Env, key string, ttl time.Duration, err error) {
	if !e.Says {
		return
	}
	if e.Claimed.CheckTTL(ttl) == nil {
		e.Failf(key, "a TTL of %s was refused (%s), although the guarantees accept it", ttl, engine.Outcome(err))
	}
	for what, limit := range map[string]time.Duration{"smallest TTL": e.Claimed.MinTTL, "largest TTL": e.Claimed.MaxTTL, "grain": e.Claimed.TTLGrain} {
		if limit > 1 && !strings.Contains(err.Error(), limit.String()) && !e.Fixed {
			e.Failf(key, "the refusal of a TTL of %s is %q; expected it to name the %s, %s, so that its reader knows which TTL to take", ttl, err, what, limit)
		}
	}
}

// judgeShares compares a deadline with those of shorter TTLs. A cautious lock may state one
// long before the server ends the hold, but what it takes off a shorter TTL is enough for the
// same part of a longer one.
func judgeShares(e *engine.Env, call string, ttl time.Duration, shorter []time.Duration, shares []float64) {
	const century = 100 * 365 * 24 * time.Hour // a clock may end before a longer one does
	if ttl > century {
		return
	}
	got := shares[len(shorter)]
	for j, shorter := range shorter {
		if most := shares[j]; got > 0 && got < most*0.9-float64(10*time.Millisecond)/float64(ttl) {
			e.Fail(engine.TimelyFor(ttl), e.Key("%s-%s", call, ttl), "a lease with a TTL of %s has its deadline %.0f %% of that after the start of the call, and one with a TTL of %s %.0f %%; expected a longer TTL to leave the same part of it, at least",
				ttl, 100*got, shorter, 100*most)
			return
		}
	}
}

// judgeTTL has a client b ask for the key of a lease until its deadline, unless that
// is far away. It returns which part of the TTL the deadline is away from the start of the
// call.
func judgeTTL(e *engine.Env, h *engine.Hold, b *engine.Client) (share float64) {
	ttl, key := h.Settings.TTL, h.Key
	if err := e.Claimed.CheckTTL(ttl); err != nil {
		_ = h.Release(e.Ctx)
		e.Failf(key, "a TTL of %s was accepted; expected ErrInvalid: %v", ttl, err)
		return 0
	}
	deadline := h.Until()
	left := deadline.Sub(e.Log.Base.Add(h.Invoked))
	if _, known := h.Lease.Deadline(); !known && left <= 0 {
		_ = h.Release(e.Ctx)
		return 0 // it says nothing that could be judged
	}
	if left <= 0 || left < ttl/3-10*time.Millisecond {
		e.Fail(engine.TimelyFor(ttl), key, "a lease with a TTL of %s has its deadline %s after the start of the call; expected a third of the TTL at least, and never nothing", ttl, left)
	}
	if d, known := h.Lease.Deadline(); known && time.Until(d) > ttl {
		e.Failf(key, "a lease with a TTL of %s is certain for another %s; expected its TTL at most", ttl, engine.Short(time.Until(d)))
	}
	share = min(float64(left)/float64(ttl), 1) // an Acquire may have asked more than once
	if !e.Claimed.WithoutRenewal || time.Until(deadline) > 3*time.Second {
		b.MustRefuse(key, "its holder's TTL is "+ttl.String())
		if err := h.Release(e.Ctx); errors.Is(err, lock.ErrExpired) && !time.Now().Before(deadline) {
			e.TooSlowf(key, "a lease with a TTL of %s had run out before it was released", ttl)
		} else if err != nil {
			e.UnexpectedFatal(key, err, "Release of a lease that was held returned %s; expected no error", engine.Outcome(err))
		}
		return share
	}
	next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(ttl), stepOf(ttl), "its holder's TTL was "+ttl.String())
	if now := time.Now(); now.Before(deadline) {
		e.Failf(key, "another client was granted the key %s before the deadline of its holder, whose TTL was %s; expected nobody to get it before", engine.Short(deadline.Sub(now)), ttl)
	}
	_ = next.Release(e.Ctx)
	return share
}

// stepOf is the pause between two tries for a key from the grant on: a part of the TTL that
// no coarser unit is as small as.
func stepOf(ttl time.Duration) time.Duration { return max(5*time.Millisecond, ttl/50) }

// uneven are TTLs between the usual ones, as far as the guarantees accept them.
func uneven(e *engine.Env) []time.Duration {
	var out []time.Duration
	grain := max(e.Claimed.TTLGrain, 1)
	for _, ttl := range []time.Duration{max(e.TTL/4, engine.MinTTL), e.TTL * 3 / 2, e.TTL*2 - 1} {
		ttl -= ttl % grain
		if e.Claimed.CheckTTL(ttl) == nil && !slices.Contains(out, ttl) {
			out = append(out, ttl)
		}
	}
	return out
}

func everyTTLLasts(e *engine.Env) {
	if e.Fixed {
		e.Skipf("needs several TTLs, and only %s can be had", e.TTL)
	}
	ttls := append(uneven(e), lasting(e))
	last := len(ttls) // the longest once more, renewed
	e.EachLayer(func(layer engine.Layer) {
		a, b := layer.Open(), layer.Open()
		e.Each(last+1, func(i int) {
			ttl, renewed := ttls[min(i, last-1)], i == last
			if renewed && !e.Claimed.ManualRenewal {
				return
			}
			key, why := e.Key("%s-%s-%t", layer.Name, ttl, renewed), "its holder did not renew it"
			asked := time.Now()
			old := e.MustTake(a, key, ttl)
			if renewed {
				why = "its holder renewed it once"
				e.Pause(ttl / 10)
				asked = time.Now()
				if err := old.Renew(); err != nil {
					e.Fail(engine.TimelyFor(ttl), key, "Renew of a lease in the first third of its life returned %s; expected no error", engine.Outcome(err))
					return
				}
			}
			deadline := old.Until()
			next := e.TakeOver(b, key, e.Long, time.Until(deadline)+e.TakeoverLimit(ttl/8), stepOf(ttl), why)
			if now := time.Now(); now.Before(deadline) {
				e.Failf(key, "another client was granted the key %s before the deadline of its holder, whose TTL was %s (%s); expected nobody to get it before", engine.Short(deadline.Sub(now)), ttl, why)
			}
			// A deadline may be cautious. Nobody gives back at it what a backend was asked for.
			if _, ours := old.(*engine.Hold); !ours && time.Since(asked) < ttl*9/10-10*time.Millisecond {
				e.Failf(key, "another client was granted the key %s after it was asked for with a TTL of %s (%s); expected nobody to get it before that has passed", engine.Short(time.Since(asked)), ttl, why)
			}
			_ = next.Release(e.Ctx)
		})
	})
	e.Notef("TTLs of %s", ttls)
}

func acquireKeepsTTL(e *engine.Env) {
	ttl := e.Fit(4*e.TTL - e.TTL/10) // beside whole units, and of which a third is more than the default
	if !e.Claimed.WithoutRenewal {
		ttl = e.Fit(8 * e.TTL) // only its deadline is looked at
	}
	a, b := e.Locker(), e.Locker()
	eachWay(e, waysToWait, func(w way) {
		key := e.Key("%s", w.name)
		h, told := w.take(a, key, ttl, unrenewed(e)...)
		if !told {
			return
		}
		deadline, known := h.Lease.Deadline()
		switch left := time.Until(deadline); {
		case !known:
		case left > ttl:
			e.Failf(key, "%s with a TTL of %s returned a lease for another %s; expected its TTL at most", w.name, ttl, engine.Short(left))
		case deadline.Sub(e.Log.Base.Add(h.Granted)) < ttl/3-5*time.Millisecond:
			h.Lapses()
			e.Latef(key, "%s with a TTL of %s returned a lease for another %s; expected at least a third of its TTL", w.name, ttl, engine.Short(left))
		}
		if !e.Claimed.WithoutRenewal {
			_ = h.Release(e.Ctx)
			return
		}
		deadline = h.Until()
		next := e.TakeOver(b, key, e.Long, time.Until(deadline)+e.TakeoverLimit(ttl/8), e.TTL/25, "its holder asked Acquire for a TTL of "+ttl.String()+", without renewal")
		if now := time.Now(); now.Before(deadline) {
			e.Failf(key, "another client was granted the key %s before the deadline of its holder, who had asked Acquire for a TTL of %s; expected nobody to get it before", engine.Short(deadline.Sub(now)), ttl)
		}
		if e.Claimed.LossSignal && !h.Lost() {
			e.Latef(key, "another client was granted the key, and the earlier holder's context had not ended")
		}
		_ = next.Release(e.Ctx)
	})
}

// lasting is the longest TTL that is waited for.
func lasting(e *engine.Env) time.Duration {
	return e.Fit(max(3*e.TTL, min(e.Budget/2, 10*time.Second)))
}
