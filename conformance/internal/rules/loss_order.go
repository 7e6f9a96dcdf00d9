package rules

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// endings are the ways in which a lease ends by the will of its holder.
var endings = []ending{
	{name: "its release", end: release},
	{name: "its release, beside a waiter of its own Locker", end: release, own: true},
	{name: "its release, by an owner", end: release, opts: oneOwner},
	{name: "its release, with a context that has ended", end: releaseWithEnded},
	{name: "the Close of its Locker, which has other leases", end: func(h *engine.Hold) { _ = h.Client.Close() }, others: 3},
	{name: "the Close of its Locker", end: func(h *engine.Hold) { _ = h.Client.Close() }},
	{name: "its maximum hold", end: func(*engine.Hold) {}, opts: sixteenthAtMost},
	{name: "its maximum hold, beside a waiter of its own Locker", end: func(*engine.Hold) {}, opts: sixteenthAtMost, own: true},
}

type ending struct {
	name string
	end  func(h *engine.Hold)
	opts func(e *engine.Env) []lock.Option
	kind kind // of the lease, besides these
	// others is how many other leases its Locker has.
	others int
	own    bool // who waits for it is a caller of the same Locker, which may hand over without the server
}

func release(h *engine.Hold) { _ = h.Release(h.Client.Env.Ctx) }

func releaseWithEnded(h *engine.Hold) {
	ctx, cancel := context.WithCancel(h.Client.Env.Ctx)
	cancel()
	_ = h.Release(ctx)
}

func sixteenthAtMost(e *engine.Env) []lock.Option {
	return []lock.Option{lock.WithMaxHold(e.TTL / 16)}
}

// contextEndsFirst has others ask for the key all the time while a lease ends. Whoever
// is granted it looks at once whether the earlier holder still believes in its lease.
// Where answers can be delayed, there is time between the end on the server and the
// answer that tells of it.
func contextEndsFirst(e *engine.Env) {
	open := []func() *engine.Client{e.Locker}
	if e.OpenBackend != nil {
		open = append(open, func() *engine.Client {
			c, f := e.FaultyWhole()
			f.All(faultlock.DelayAfter(30*time.Millisecond), engine.OpsToEnd...)
			return c
		})
	}
	all := endings
	for _, k := range kindsAndUnrenewed(e) {
		all = append(slices.Clip(all), ending{name: "its release, with " + k.name, end: release, kind: k})
		if policyTried(e) {
			continue
		}
		all = append(all,
			ending{name: "its release, with " + k.name + " and a context that has ended", end: releaseWithEnded, kind: k},
			ending{name: "the Close of its Locker, with " + k.name, end: func(h *engine.Hold) { _ = h.Client.Close() }, kind: k})
	}
	var grants atomic.Int64
	e.Each(len(all)*len(open), func(i int) {
		way, open := all[i%len(all)], open[i/len(all)]
		least, example := time.Hour, ""
		for round := range endsWatched {
			key := e.Key("%s-%d-%d", way.name, i/len(all), round)
			late, ok := endsFirst(e, way, open(), key, &grants)
			if !ok || late <= promptly {
				return
			}
			if late < least {
				least, example = late, key
			}
		}
		e.Fail(engine.Excuse{From: max(least, 4*promptly), By: engine.ThisProcess}, example,
			"somebody else was granted the key as a lease ended by %s, and the context of that lease ended %s later or more, all the %d times; expected it to end first, and then the server to be told",
			way.name, engine.Short(least), endsWatched)
	})
	e.Notef("%d grants as a lease ended", grants.Load())
}

const (
	endsWatched = 6
	// promptly is what a context takes that follows another one, in a goroutine of its own.
	promptly = 5 * time.Millisecond
)

// endsFirst has a lease end, and says for how long its context was still alive when
// somebody else was granted the key.
func endsFirst(e *engine.Env, way ending, holder *engine.Client, key string, grants *atomic.Int64) (late time.Duration, ok bool) {
	k := way.kind
	if k.name == "" {
		k = plain
	}
	if way.opts != nil {
		k.opts = way.opts(e)
	}
	for n := range way.others {
		holder.MustTry(key + fmt.Sprintf("-beside-%d", n)).Lapses()
	}
	h, ok := k.take(holder, key, e.Long)
	if !ok {
		return 0, false
	}
	h.Lapses()
	var mu sync.Mutex
	look := func(next *engine.Hold) {
		alive := time.Duration(0)
		for seen := time.Now(); !h.Lost() && alive < e.Slack(); alive = time.Since(seen) {
			e.Pause(200 * time.Microsecond)
		}
		grants.Add(1)
		_ = next.Release(e.Ctx)
		mu.Lock()
		defer mu.Unlock()
		late = max(late, alive)
	}
	if way.own {
		w := holder.Acquiring(key)
		e.Together(
			func() { e.Pause(5*time.Millisecond + e.Randomly(5*time.Millisecond)); way.end(h) },
			func() { look(w.MustGet(e, key, e.TTL/4+e.WaitBound(), "the lease of its holder ended by "+way.name)) })
		return late, true
	}
	a, b := e.Locker(), e.Locker()
	w := a.Acquiring(key)
	e.Together(
		func() { e.Pause(5*time.Millisecond + e.Randomly(5*time.Millisecond)); way.end(h) },
		func() { look(w.MustGet(e, key, e.TTL/4+e.WaitBound(), "the lease of its holder ended by "+way.name)) },
		func() {
			for {
				next, err := b.Try(key)
				if err == nil {
					look(next)
					return
				}
				e.JudgeRefusal(key, "TryAcquire", "somebody else holds it", nil, err)
				select {
				case <-w.Done:
					return
				default:
				}
				e.Pause(300*time.Microsecond + e.Randomly(300*time.Microsecond))
			}
		})
	return late, true
}
