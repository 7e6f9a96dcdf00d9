package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Store is a store of the lock that nobody has used yet.
type Store struct {
	// Open returns a client of it. The suite closes it.
	Open func(ctx context.Context) (backend.Backend, error)
	// Contents says what the store contains, in any words. The same text means: the
	// same contents.
	Contents func(ctx context.Context) (string, error)
}

// looks asks the backend for everything that can be asked about the key without taking it.
func (e *env) looks(b *seam, key string) {
	if in, ok := backend.As[backend.Inspector](b.b); ok {
		_, _ = in.Inspect(e.ctx, key)
	}
	if l, ok := backend.As[backend.Lister](b.b); ok {
		_ = l.List(e.ctx, key, func(backend.Record) bool { return true })
	}
	if w, ok := backend.As[backend.Watcher](b.b); ok {
		ctx, cancel := context.WithCancel(e.ctx)
		_, _ = w.Watch(ctx, key)
		cancel()
	}
}

func lookingChangesNothing(e *env) {
	a, b := e.backend(), e.backend()
	optional[backend.Inspector](b, "Inspector")
	for round := range e.rounds(50*time.Millisecond, 5, 50) {
		e.triesBesideLooks(a, b, e.key("%d", round))
	}
	if e.Untouched == nil {
		e.notef("without Config.Untouched it was not asked whether a look leaves something in the store")
		return
	}
	store, err := e.Untouched(e.ctx)
	if err != nil {
		e.unexpectedFatal("", err, "Config.Untouched failed: %v", err)
	}
	opened, err := store.Open(e.ctx)
	if err != nil {
		e.unexpectedFatal("", err, "a store that nobody has used could not be opened: %v", err)
	}
	defer func() { _ = opened.Close() }()
	contents := func() string {
		text, err := store.Contents(e.ctx)
		if err != nil {
			e.unexpectedFatal("", err, "Config.Untouched: the contents can't be told: %v", err)
		}
		return text
	}
	before := contents()
	b = &seam{e: e, b: opened, who: "backend on a store of its own"}
	key := e.key("untouched")
	e.looks(b, key)
	if f, ok := backend.As[backend.ForceReleaser](opened); ok {
		e.is(key, f.ForceRelease(e.ctx, key, 1), "ForceRelease of a key that nobody has used", backend.ErrNotHeld)
	}
	if after := contents(); after != before {
		e.failf(key, "the store contained %s before anybody looked, and %s afterwards; expected the same", shortText(before), shortText(after))
	}
}

// triesBesideLooks takes and releases the key while somebody looks at it all the time.
func (e *env) triesBesideLooks(a, b *seam, key string) {
	e.looks(b, key)
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	begins := make(chan struct{})
	var took atomic.Int64
	wait := e.start(func() {
		for {
			select {
			case begins <- struct{}{}:
			case <-ctx.Done():
				return
			}
			start := time.Now()
			e.looks(b, key)
			took.Store(int64(time.Since(start)))
		}
	})
	for range 5 {
		select {
		case <-begins:
		case <-ctx.Done():
		}
		e.pause(time.Duration(rand.N(took.Load() + 1))) // it is under way
		h, err := a.try(e.request(key, "", e.long))
		if err != nil {
			e.unexpectedFatal(key, err, "Try returned %s while others only looked at the key; expected a grant", outcome(err))
		}
		e.mustGiveBack(h, key, ", at which others looked")
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
