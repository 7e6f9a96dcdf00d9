package rules

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"
)

// crashBetweenSteps gives requests up at random moments. The longer of these come to
// twice the time that a request takes here and now: so many are granted as are not.
func crashBetweenSteps(e *engine.Env) {
	const requesters = 4
	rounds := e.Rounds(e.TTL/20, 40, 500)
	var granted, cut atomic.Int64
	e.Each(requesters, func(i int) {
		a, b := e.Backend(), e.Backend()
		latest := time.Millisecond
		asked := 0
		// What is granted is nobody's, and stays for its TTL: where each hold has a
		// connection of its own, they may run out.
		for started := time.Now(); asked < rounds && time.Since(started) < 3*e.TTL; asked++ {
			ctx, cancel := context.WithCancel(e.Ctx)
			timer := time.AfterFunc(e.Randomly(latest), cancel)
			if _, err := a.TryCtx(ctx, e.Request(e.Key("%d-%d", i, asked), "", e.TTL)); err == nil {
				granted.Add(1)
				latest = max(latest*3/4, time.Microsecond)
			} else {
				cut.Add(1)
				latest = min(latest*4/3, e.TTL)
			}
			timer.Stop()
			cancel()
		}
		for round := range asked {
			key := e.Key("%d-%d", i, round)
			next := e.TakeOver(b, key, e.Long, e.TakeoverLimit(e.TTL), e.TTL/20, "its client gave the request up, which asked for a TTL of "+e.TTL.String())
			_ = next.Release(e.Ctx)
		}
	})
	e.Notef("%d requests: %d were granted and %d given up", granted.Load()+cut.Load(), granted.Load(), cut.Load())
	switch {
	case granted.Load() == 0:
		e.Notef("inconclusive: every request was given up before its answer came")
	case cut.Load() == 0:
		e.Notef("inconclusive: every request was answered before it could be given up")
	}
}
