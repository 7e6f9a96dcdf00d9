// Package flaw is how the flawed locks of all collections are declared.
package flaw

import (
	"context"

	"github.com/mortiselock/lock/conformance"
)

// Lock is one lock of a collection: a broken one, or a healthy one that broken ones are
// made of.
type Lock struct {
	// ID is the name of the mistake, such as "Z01". Locks with the same mistake share it,
	// also those on other servers. A new mistake gets a number that no collection has; the
	// numbers mean nothing else, and All has the order.
	ID string
	// Title says in a few words what the lock does.
	Title string
	// Summary says in one sentence what goes wrong.
	Summary string
	// Seen says where locks like it were found, or where they are described.
	Seen string
	// Instead says what to do in its place.
	Instead string
	// File is the source file of the mistake, in its package's directory.
	File string
	// Over is the store that it needs, if that is not the one of the collection.
	Over Store
	// Rule is the rule of the suite that must catch it. It is empty for a healthy lock.
	Rule string
	// Also are the other rules, or subjects of rules, that the same mistake breaks, or
	// breaks when the timing is right. The suite must not report anything else.
	Also []string
	// Slow: what the mistake does looks as if the server were slow.
	Slow bool
	// On makes the lock.
	On Maker
}

// Maker makes a lock. Each collection has a few, around functions that make a client of
// the lock out of a healthy client.
type Maker interface {
	// Make returns the lock as the suite sees it, but for its name. The server is what
	// the locks of the collection have in common, a client or an address for example. It
	// stays open. ctx bounds the making.
	Make(ctx context.Context, l Lock, server any) (conformance.Config, error)
}

// Store is where a lock keeps its records.
type Store string

// The stores.
const (
	Redis  Store = "redis"  // a Redis server
	Memory Store = "memory" // the memory of the process
)

// Config is the lock as the suite sees it, on a server of the collection.
func (l Lock) Config(ctx context.Context, server any) (conformance.Config, error) {
	cfg, err := l.On.Make(ctx, l, server)
	cfg.Name = l.ID + " " + l.Title
	return cfg, err
}
