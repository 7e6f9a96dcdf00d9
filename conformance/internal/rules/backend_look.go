package rules

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// looks asks the backend for everything that can be asked about the key without taking it.
func looks(e *engine.Env, b *engine.BackendClient, key string) {
	if in, ok := backend.As[backend.Inspector](b.Backend); ok {
		_, _ = in.Inspect(e.Ctx, key)
	}
	if l, ok := backend.As[backend.Lister](b.Backend); ok {
		_ = l.List(e.Ctx, key, func(backend.Record) bool { return true })
	}
	if w, ok := backend.As[backend.Watcher](b.Backend); ok {
		ctx, cancel := context.WithCancel(e.Ctx)
		_, _ = w.Watch(ctx, key)
		cancel()
	}
}

// longLooks are looks enough: those of some servers take far longer than a try.
const longLooks = 10 * time.Second

func lookingChangesNothing(e *engine.Env) {
	a, b := e.Backend(), e.Backend()
	optional[backend.Inspector](b, "Inspector")
	begun := e.Log.Now()
	for round := range e.Rounds(e.Work(50*time.Millisecond), 5, 50) {
		triesBesideLooks(e, a, b, e.Key("%d", round))
		if e.Log.Now()-begun > longLooks {
			break
		}
	}
	if e.Untouched == nil {
		e.Notef("without Config.Untouched it was not asked whether a look leaves something in the store")
		return
	}
	store := untouched(e)
	b = store.open("backend on a store of its own")
	before := store.contents()
	key := e.Key("untouched")
	looks(e, b, key)
	if f, ok := backend.As[backend.ForceReleaser](b.Backend); ok {
		e.Is(key, f.ForceRelease(e.Ctx, key, 1), "ForceRelease of a key that nobody has used", backend.ErrNotHeld)
	}
	if after := store.contents(); after != before {
		e.Failf(key, "the store contained %s before anybody looked, and %s afterwards; expected the same", shortText(before), shortText(after))
	}
}

// triesBesideLooks takes and releases the key while somebody looks at it all the time.
func triesBesideLooks(e *engine.Env, a, b *engine.BackendClient, key string) {
	looks(e, b, key)
	ctx, stop := context.WithCancel(e.Ctx)
	defer stop()
	begins := make(chan struct{})
	var took atomic.Int64
	wait := e.Start(func() {
		for {
			select {
			case begins <- struct{}{}:
			case <-ctx.Done():
				return
			}
			start := time.Now()
			looks(e, b, key)
			took.Store(int64(time.Since(start)))
		}
	})
	for range 5 {
		select {
		case <-begins:
		case <-ctx.Done():
		}
		e.Pause(time.Duration(rand.N(took.Load() + 1))) // it is under way
		h, err := a.Try(e.Request(key, "", e.Long))
		if err != nil {
			e.UnexpectedFatal(key, err, "Try returned %s while others only looked at the key; expected a grant", engine.Outcome(err))
		}
		e.MustGiveBack(h, key, ", at which others looked")
	}
	stop()
	wait()
}

func shortText(s string) string {
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return fmt.Sprintf("%q", s)
}
