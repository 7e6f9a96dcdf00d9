package rules

import (
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"
)

// idle is for how long a case leaves something unused: longer than what is kept for a
// moment, and no longer than the run can wait.
func idle(e *engine.Env) time.Duration {
	if e.Virtual() { // longer than an idle connection or an entry of a cache lasts by default
		return 11 * time.Minute
	}
	return max(3*e.TTL, min(e.Budget/15, 4*time.Second))
}

// beIdle waits for that long.
func beIdle(e *engine.Env) { patiently(e, idle(e)) }

// patiently waits on purpose for longer than a case may hang.
func patiently(e *engine.Env, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); e.Log.Patient() {
		e.Pause(min(time.Until(end), 5*time.Second))
	}
}

// tokenSurvivesIdling leaves keys alone that were released, that have expired, and whose
// clients have closed. In virtual time it does so again and again, for longer than the 72 minutes
// after which microseconds begin anew that are counted in 32 bits.
func tokenSurvivesIdling(e *engine.Env) {
	times := 1
	if e.Virtual() {
		times = 7
	}
	e.EachLayer(func(layer engine.Layer) {
		p, released, expired := layer.Open(), e.Key("%s-released", layer.Name), e.Key("%s-expired", layer.Name)
		for range times {
			_ = e.MustTake(p, released, e.Long).Release(e.Ctx)
			e.Expire(e.MustTake(p, expired, e.TTL))
			beIdle(e)
		}
		_ = e.TakeOver(p, expired, e.Long, e.TakeoverLimit(0), e.TTL/20, "its lease has run out long ago").Release(e.Ctx)
		_ = e.MustTake(p, released, e.Long).Release(e.Ctx)
		for _, key := range []string{released, expired} {
			e.CheckTokens(key, true)
		}
	})
	e.Notef("nobody used the keys for %s, times %d", idle(e), times)
}

// tokenSurvivesLastClose runs when no other case does, so that the store has no client
// between a close and the next open.
func tokenSurvivesLastClose(e *engine.Env) {
	key := e.Key("a")
	pauses := []func(){func() { e.Pause(e.TTL / 10) }, func() { beIdle(e) }, func() {}}
	for _, pause := range pauses {
		c := e.Locker()
		c.MustTry(key).MustRelease()
		if err := c.Close(); err != nil {
			e.Unexpected("", err, "Close returned %s; expected no error", engine.Outcome(err))
		}
		pause()
	}
	e.CheckTokens(key, true)
}
