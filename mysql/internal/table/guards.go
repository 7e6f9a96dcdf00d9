package table

import (
	"context"
	"fmt"
	"sync"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// guards are the keys whose rows are locked by guarded writes of this client. What
// else would change such a row is answered or waits here: on the server it would wait
// for the lock of the row, with a connection, and with the locks of other rows if its
// statement has several.
type guards struct {
	mu   sync.Mutex
	keys map[string]*guardedKey
	open int           // guarded writes with a connection
	left chan struct{} // closed when one of them has ended; nil if nobody waits
}

// guardedKey is what goes on with one key.
type guardedKey struct {
	writes   map[backend.ID]*guard // those that are open, by hold
	renewals int                   // on their way to the server and back
	changed  chan struct{}         // closed when the writes of a hold, or a renewal, have ended; nil if nobody waits
}

type guard struct {
	writes  int
	skipped bool // a renewal of the hold came meanwhile
}

// room waits until fewer than most guarded writes have a connection. One that is part
// of another would wait for itself, and does not wait.
func (g *guards) room(ctx context.Context, most int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.open >= most && !g.within(ctx, "") {
		if g.left == nil {
			g.left = make(chan struct{})
		}
		if err := g.wait(ctx, g.left); err != nil {
			return fmt.Errorf("waiting for one of %d guarded writes to end, which is how many the pool has connections for: %w", most, err)
		}
	}
	g.open++
	return nil
}

func (g *guards) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	signal(&g.left)
}

// begin notes that a guarded write is going to lock the row, and waits for the
// renewals of the key that are under way.
func (g *guards) begin(ctx context.Context, hold backend.Hold) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.key(hold.Key)
	if k.writes[hold.ID] == nil {
		k.writes[hold.ID] = &guard{}
	}
	k.writes[hold.ID].writes++
	for k.renewals > 0 {
		if err := g.wait(ctx, k.change()); err != nil {
			g.endLocked(hold)
			return fmt.Errorf("a renewal of the key is under way: %w", err)
		}
	}
	return nil
}

// end reports whether a renewal was left out and can be made up for.
func (g *guards) end(hold backend.Hold) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.endLocked(hold)
}

func (g *guards) endLocked(hold backend.Hold) bool {
	k := g.keys[hold.Key]
	one := k.writes[hold.ID]
	one.writes--
	if one.writes > 0 {
		return false
	}
	delete(k.writes, hold.ID)
	g.tidy(hold.Key, k)
	return one.skipped
}

// renew reports whether the hold can be renewed: its row is not locked by a guarded
// write, and none begins before renewed is called.
func (g *guards) renew(hold backend.Hold) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.keys[hold.Key]; k != nil && len(k.writes) > 0 {
		if one := k.writes[hold.ID]; one != nil {
			one.skipped = true
		}
		return false
	}
	g.key(hold.Key).renewals++
	return true
}

func (g *guards) renewed(hold backend.Hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.keys[hold.Key]
	k.renewals--
	g.tidy(hold.Key, k)
}

// others reports whether a guarded write of another hold has the row locked.
func (g *guards) others(hold backend.Hold) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.othersLocked(hold)
}

func (g *guards) othersLocked(hold backend.Hold) bool {
	k := g.keys[hold.Key]
	return k != nil && (len(k.writes) > 1 || len(k.writes) == 1 && k.writes[hold.ID] == nil)
}

// pass waits until no other hold of the key has an open guarded write. From within
// such a write it would wait for itself, and is refused.
func (g *guards) pass(ctx context.Context, hold backend.Hold) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.othersLocked(hold) {
		if g.within(ctx, hold.Key) {
			return fmt.Errorf("%w: a guarded write has the row of its key locked, so that its work can neither take the key again nor release another hold of it; do so before or after", backend.ErrUnsupported)
		}
		if err := g.wait(ctx, g.keys[hold.Key].change()); err != nil {
			return wire.Unsent(fmt.Errorf("a guarded write of the same owner has the row locked: %w", err))
		}
	}
	return nil
}

// wait waits without the mutex.
func (g *guards) wait(ctx context.Context, signal <-chan struct{}) error {
	g.mu.Unlock()
	defer g.mu.Lock()
	select {
	case <-signal:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *guards) key(key string) *guardedKey {
	k := g.keys[key]
	if k == nil {
		if g.keys == nil {
			g.keys = map[string]*guardedKey{}
		}
		k = &guardedKey{writes: map[backend.ID]*guard{}}
		g.keys[key] = k
	}
	return k
}

// tidy tells those who wait, and forgets a key with which nothing goes on.
func (g *guards) tidy(key string, k *guardedKey) {
	signal(&k.changed)
	if len(k.writes) == 0 && k.renewals == 0 {
		delete(g.keys, key)
	}
}

func (k *guardedKey) change() <-chan struct{} {
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	return k.changed
}

func signal(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// guardedWork is what the context of the work of a guarded write knows.
type guardedWork struct {
	guards *guards
	key    string
	outer  *guardedWork
}

type guardedWorkKey struct{}

func (g *guards) workContext(ctx context.Context, key string) context.Context {
	outer, _ := ctx.Value(guardedWorkKey{}).(*guardedWork)
	return context.WithValue(ctx, guardedWorkKey{}, &guardedWork{g, key, outer})
}

// within reports whether the context is that of the work of a guarded write of the
// key, or of any key where it is empty.
func (g *guards) within(ctx context.Context, key string) bool {
	work, _ := ctx.Value(guardedWorkKey{}).(*guardedWork)
	for ; work != nil; work = work.outer {
		if work.guards == g && (key == "" || work.key == key) {
			return true
		}
	}
	return false
}
