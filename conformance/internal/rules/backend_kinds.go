package rules

import (
	"encoding/base64"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// grantKind is whose a grant of a backend is, and whether its owner has another beside it.
type grantKind struct {
	name, owner string
	after       bool // the other hold was granted before it
	before      bool // the other hold was granted after it
}

// grantKinds are those that the backend has, the one without an owner first.
func grantKinds(e *engine.Env) []grantKind {
	all := []grantKind{{name: "plain"}}
	if engine.ClaimServerHolds.Made(e.Settings) {
		all = append(all,
			grantKind{name: "owner", owner: e.Owner("A")},
			grantKind{name: "inner", owner: e.Owner("B"), after: true},
			grantKind{name: "outer", owner: e.Owner("C"), before: true})
	}
	return all
}

// eachGrantKind runs the case for each of the kinds, at the same time.
func eachGrantKind(e *engine.Env, f func(k grantKind)) {
	all := grantKinds(e)
	e.Each(len(all), func(i int) { f(all[i]) })
}

// take has a client take a free key with the request, and another the hold beside it, which
// is nil where the kind has none.
func (k grantKind) take(c, other *engine.BackendClient, req backend.Request) (h, beside *engine.Grant) {
	e := c.Env
	req.Owner = k.owner
	if k.after {
		beside = other.MustTry(e.Request(req.Key, k.owner, e.Long))
	}
	h = c.MustTry(req)
	if k.before {
		beside = other.MustTry(e.Request(req.Key, k.owner, e.Long))
	}
	return h, beside
}

// innerOnly is an owner's inner hold, whose outermost hold has run out. It is nil where that
// can't be had.
func innerOnly(e *engine.Env, c *engine.BackendClient, key string) *engine.Grant {
	if !engine.ClaimServerHolds.Made(e.Settings) || e.Claimed.EndsWithSession || e.Long < 3*e.TTL+2*e.Claimed.TakeoverLag {
		return nil
	}
	owner := e.Owner("A")
	outermost := e.Request(key, owner, e.TTL)
	outermost.Holder.Label = "outermost"
	outer, inner := c.MustTry(outermost), c.MustTry(e.Request(key, owner, e.Long))
	e.Expire(outer)
	return inner
}

// renewedLate is a hold that was renewed when a good part of its TTL had passed, or nil where
// that can't be had.
func renewedLate(e *engine.Env, c *engine.BackendClient, key string) *engine.Grant {
	if !e.Claimed.ManualRenewal {
		return nil
	}
	h := c.MustTry(e.Request(key, "", e.Fit(2*e.TTL)))
	e.Pause(h.Hold.TTL / 2)
	if err := h.Renew(); err != nil {
		e.UnexpectedLateFatal(key, err, "Renew of a hold after half of its TTL returned %s; expected no error", engine.Outcome(err))
	}
	return h
}

// freed gives back what is beside the hold that has ended, and takes the key.
func freed(e *engine.Env, key string, beside *engine.Grant, by *engine.BackendClient) {
	if beside != nil {
		by.MustRefuse(key, "there is another hold")
		e.MustGiveBack(beside, key, ", since only another hold has ended")
	}
	h, err := by.Try(e.Request(key, "", e.Long))
	if err != nil {
		e.UnexpectedFatal(key, err, "a try returned %s after all holds of the key had ended; expected a grant", engine.Outcome(err))
	}
	_ = h.Release(e.Ctx)
}

// neighbours returns an acquisition id, and others that a store takes for the same if it does
// not compare all of its bytes, each as it is.
func neighbours() (id backend.ID, others map[string]backend.ID) {
	id = backend.NewID()
	text := func(s string) (b [3]byte) {
		_, _ = base64.StdEncoding.Decode(b[:], []byte(s))
		return b
	}
	lower, upper := text("lock"), text("LOCK")
	copy(id[:], lower[:])
	id[5], id[7] = 'k', 0
	with := func(i int, b byte) backend.ID { n := id; n[i] = b; return n }
	others = map[string]backend.ID{
		"in its first byte":           with(0, id[0]^0x80),
		"in its last byte":            with(len(id)-1, id[len(id)-1]^1),
		"between capital and small":   with(5, 'K'),
		"in the case of its base64":   id,
		"in a space for a zero byte":  with(7, ' '),
		"in the bytes after the half": with(len(id)/2, id[len(id)/2]^0x10),
	}
	other := id
	copy(other[:], upper[:])
	others["in the case of its base64"] = other
	return id, others
}
