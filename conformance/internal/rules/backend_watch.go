package rules

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func watchBeforeReturn(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	w := optional[backend.Watcher](b, "Watcher")
	ho, hands := backend.As[backend.HandOverer](a.Backend)
	n := e.Rounds(e.Work(100*time.Millisecond), 12, 200)
	missed := 0
	renew := func(h *engine.Grant, round int) {
		if round%4 >= 2 && e.Claimed.ManualRenewal {
			if err := h.Renew(); err != nil {
				e.UnexpectedFatal(h.Key, err, "Renew of a hold returned %s; expected no error", engine.Outcome(err))
			}
		}
	}
	for round := range n {
		key, owner := e.Key("%d", round), ""
		switch round % 3 {
		case 1: // what has a meaning in some servers' patterns
			key = e.Key("[a-z]*?%%_\\ %d", round)
		case 2:
			key = filled(key+"-", backend.MaxKey)
		}
		if round%2 == 1 && engine.ClaimServerHolds.Made(e.Settings) {
			owner = e.Owner("A")
		}
		h := a.MustTry(e.Request(key, owner, e.Long))
		renew(h, round)
		if hands && round%3 == 0 {
			next, err := a.HandOver(ho, h, e.Request(key, owner, e.Long))
			if err != nil {
				e.UnexpectedFatal(key, err, "HandOver of a hold returned %s; expected a grant", engine.Outcome(err))
			}
			h = next
		}
		var inner *engine.Grant
		if round%4 == 1 && owner != "" {
			inner = a.MustTry(e.Request(key, owner, e.Long))
		}
		ctx, cancel := context.WithCancel(e.Ctx)
		ev := e.Log.Begin(b.Who, "Watch", key)
		hints, err := w.Watch(ctx, key)
		e.Log.End(ev, engine.Outcome(err))
		if err != nil || hints == nil {
			cancel()
			e.UnexpectedFatal(key, err, "Watch returned %s (channel: %t); expected a channel", engine.Outcome(err), hints != nil)
		}
		renew(h, round)
		if inner != nil {
			_ = inner.Release(e.Ctx)
		}
		_ = h.Release(e.Ctx)
		// Signals may be spurious: the key must be free after one of them.
		control := time.NewTimer(e.Slack())
		signalled := false
		for !signalled {
			select {
			case _, ok := <-hints:
				got, err := b.Try(e.Request(key, "", e.Long))
				if err == nil {
					_ = got.Release(e.Ctx)
					signalled = true
				} else if !ok {
					e.UnexpectedFatal(key, err, "the watch broke, and the key was refused (%s) although it had been released", engine.Outcome(err))
				}
			case <-control.C:
				signalled = true
				missed++
				e.Log.Note("suite", key, "no signal came")
			}
		}
		control.Stop()
		cancel()
		if missed > 2 {
			break
		}
	}
	// Signals are hints, and one may be lost; losing them again and again is not that.
	if missed > 2 {
		e.Latef("", "%d releases after Watch had returned were not signalled within %s", missed, e.Slack())
	}
	e.Notef("%d watches, %d signals missed", n, missed)
	e.Together(func() { watchGoesOn(e, a, b, w) }, func() { watchesInner(e, a, w) }, func() { watchesMany(e, a, w) })
}

// watchesMany has one client watch many keys at once.
func watchesMany(e *engine.Env, a *engine.BackendClient, w backend.Watcher) {
	keys := e.Rounds(e.Work(10*time.Millisecond), 40, 70)
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	holds, hints := make([]*engine.Grant, keys), make([]<-chan backend.Hint, keys)
	e.EachFew(keys, func(i int) {
		key := e.Key("one of many, %d", i)
		holds[i] = a.MustTry(e.Request(key, "", e.Long))
		var err error
		if hints[i], err = w.Watch(ctx, key); err != nil {
			e.UnexpectedFatal(key, err, "Watch returned %s, while %d other keys were watched at most; expected a channel", engine.Outcome(err), keys-1)
		}
	})
	released := make([]bool, keys) // where a hold had run out before, its signal may be another's, or none
	e.EachFew(keys, func(i int) { released[i] = holds[i].Release(e.Ctx) == nil })
	control := time.NewTimer(e.Slack())
	defer control.Stop()
	missed, over := 0, false
	for i, hint := range hints {
		if !released[i] {
			continue
		}
		select {
		case <-hint:
			continue
		default:
		}
		if !over {
			select {
			case <-hint:
				continue
			case <-control.C:
				over = true
			}
		}
		missed++
	}
	// As above, one may be lost.
	if missed > 2 {
		e.Latef("", "%d releases were not signalled within %s, of %d keys that one client watched at once", missed, e.Slack(), keys)
	}
}

// watchesInner watches keys of which the outermost hold has run out.
func watchesInner(e *engine.Env, a *engine.BackendClient, w backend.Watcher) {
	const keys = 4
	var missed atomic.Int64
	e.Each(keys, func(i int) {
		key := e.Key("inner %d", i)
		inner := innerOnly(e, a, key)
		if inner == nil {
			return
		}
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		hints, err := w.Watch(ctx, key)
		if err != nil {
			e.UnexpectedFatal(key, err, "Watch returned %s; expected a channel", engine.Outcome(err))
		}
		e.MustGiveBack(inner, key, "")
		control := time.NewTimer(e.Slack())
		defer control.Stop()
		select {
		case <-hints:
		case <-control.C:
			missed.Add(1)
		}
	})
	if n := missed.Load(); n > 2 {
		e.Latef("", "%d of %d releases were not signalled within %s, of keys whose outermost hold had run out before", n, keys, e.Slack())
	}
}

// watchGoesOn has several releases follow one Watch.
func watchGoesOn(e *engine.Env, a, b *engine.BackendClient, w backend.Watcher) {
	const releases = 6
	key := e.Key("watched for long")
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	hints, err := w.Watch(ctx, key)
	if err != nil {
		e.UnexpectedFatal(key, err, "Watch returned %s; expected a channel", engine.Outcome(err))
	}
	missed := 0
	for range releases {
		e.MustGiveBack(a.MustTry(e.Request(key, "", e.Long)), key, "")
		control := time.NewTimer(e.Slack())
		select {
		case _, ok := <-hints:
			if !ok {
				control.Stop()
				return // it says that it is over
			}
		case <-control.C:
			missed++
		}
		control.Stop()
	}
	if missed > 2 {
		e.Latef(key, "%d of %d releases were not signalled within %s to one watch, which had begun while the key was free, and whose context goes on", missed, releases, e.Slack())
	}
	b.MustTry(e.Request(key, "", e.Long))
}

func watchEndsWithContext(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	w := optional[backend.Watcher](b, "Watcher")
	key := e.Key("a")
	h := a.MustTry(e.Request(key, "", e.Long))
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	kept, err := w.Watch(ctx, key)
	if err != nil {
		e.UnexpectedFatal(key, err, "Watch returned %s; expected a channel", engine.Outcome(err))
	}
	label := fmt.Sprintf("%s%d", e.Stem, time.Now().UnixNano())
	const watches = 50
	e.Labelled(label, func() {
		for range watches {
			ctx, cancel := context.WithCancel(e.Ctx)
			if _, err := w.Watch(ctx, key); err != nil {
				e.Unexpected(key, err, "Watch returned %s; expected a channel", engine.Outcome(err))
			}
			cancel()
		}
	})
	if n, stacks := e.Settles(label, watches/2, e.Slack()); n > watches/2 {
		e.Failf(key, "%d goroutines of %d watches are left after the contexts of those had ended; for example\n%s", n, watches, stacks)
	}
	_ = h.Release(e.Ctx)
	control := time.NewTimer(e.Slack())
	defer control.Stop()
	select {
	case <-kept:
	case <-control.C:
		e.Latef(key, "the release was not signalled to the remaining watch within %s, after others had ended", e.Slack())
	}
	watchOutlivesOthers(e, a, b)
}

// watchOutlivesOthers has another client watch the same keys, and close.
func watchOutlivesOthers(e *engine.Env, a, b *engine.BackendClient) {
	const keys = 4
	closes := e.Backend()
	holds, hints := make([]*engine.Grant, keys), make([]<-chan backend.Hint, keys)
	for i := range keys {
		key := e.Key("watched by two, %d", i)
		holds[i] = a.MustTry(e.Request(key, "", e.Long))
		watchers := []*engine.BackendClient{b, closes}
		if i%2 == 1 {
			watchers = []*engine.BackendClient{closes, b}
		}
		for _, who := range watchers {
			in, err := optional[backend.Watcher](who, "Watcher").Watch(e.Ctx, key)
			if err != nil {
				e.UnexpectedFatal(key, err, "Watch returned %s; expected a channel", engine.Outcome(err))
			}
			if who == b {
				hints[i] = in
			}
		}
	}
	_ = closes.Close()
	e.Settle()                     // what its end takes with it has gone by then
	released := make([]bool, keys) // where a hold had run out before, its signal may be another's, or none
	for i, h := range holds {
		released[i] = h.Release(e.Ctx) == nil
	}
	over := e.Log.Now() + e.Slack()
	missed := 0
	for i, hint := range hints {
		control := time.NewTimer(max(over-e.Log.Now(), 1))
		select {
		case <-hint:
		case <-control.C:
			if released[i] {
				missed++
			}
		}
		control.Stop()
	}
	// One may be lost.
	if missed > 2 {
		e.Latef("", "%d of %d releases were not signalled within %s to a client that watched the keys, when another client that watched them had been closed", missed, keys, e.Slack())
	}
}
