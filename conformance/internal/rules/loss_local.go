package rules

import (
	"context"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func leaseIsLocal(e *engine.Env) {
	a, f := e.FaultyWhole()
	key := e.Key("a")
	h := a.MustTry(key)
	before := engine.Requests(f, key, sending...)
	f.All(faultlock.HangBefore())
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	renews, beside := func() {}, ""
	if e.Claimed.ManualRenewal && e.Virtual() {
		beside = ", beside a Renew that hangs,"
		renews = e.Start(func() { _ = h.Lease.Renew(ctx) })
		e.Settle()
	}
	for range 2 { // beside a server that hangs, and one that answers
		read := make(chan struct{})
		wait := e.Start(func() {
			defer close(read)
			readOften(h.Lease)
		})
		if !e.Within(e.Slack(), read) {
			e.Overduef(key, "reading a lease a thousand times%s had not ended after %s; expected it to wait for nothing", beside, e.Slack())
		}
		f.Heal()
		wait()
		beside = ""
	}
	cancel()
	renews()
	if n := engine.Requests(f, key, sending...) - before; n > 10 { // it may have been renewed
		e.Failf(key, "reading a lease two thousand times sent %d requests for its key; expected none, so that a holder can look at it as often as it likes", n)
	}
	h.MustRelease()
}

// readOften reads everything that a lease says of itself a thousand times.
func readOften(l lock.Lease) {
	for range 1000 {
		_, _ = l.Key(), l.Token()
		_, _ = l.Deadline()
		_, _ = l.Context().Deadline()
		_, _ = l.Context().Err(), context.Cause(l.Context())
	}
}
