package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z90 = Lock{
	ID: "Z90", Title: "a store that is dropped with its last client",
	Summary: "When everybody has closed, the tokens begin at 1 again.",
	Seen:    "Stores in memory that count their clients.",
	Instead: "What must not go back outlives its users.",
	File:    "forgets_with_last.go", Over: Memory,
	Rule: "TokenSurvivesLastClose",
	On:   onTable(func(s session) backend.Backend { return openCounted(s) }),
}

// counted is a table with tokens, of which clients are counted.
//
//	A: opens, acquires, token 7; closes for a deployment, as all others do
//	the last one drops the table
//	B: opens, acquires, token 1; its writes are refused by a store that has seen 7
//
// As long as one client is left, as in a test with two, nothing happens. Caught by
// TokenSurvivesLastClose, which waits until it has the store for itself.
//
// Instead: keep the tokens.
type counted struct {
	tableLock
	all   *clientsOf
	close func()
}

// clientsOf is the clients of one table, and the last tokens of its keys.
type clientsOf struct {
	mu     sync.Mutex
	open   int
	tokens map[string]uint64
	given  map[backend.ID]uint64
}

var tables sync.Map // *table -> *clientsOf

func openCounted(s session) backend.Backend {
	found, _ := tables.LoadOrStore(s.table, &clientsOf{})
	all := found.(*clientsOf)
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.open == 0 {
		all.tokens, all.given = map[string]uint64{}, map[backend.ID]uint64{}
	}
	all.open++
	return counted{tableLock{s}, all, sync.OnceFunc(func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		all.open--
	})}
}

// Try implements backend.Backend.
func (c counted) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	g, err := c.tableLock.Try(ctx, req)
	if err != nil {
		return g, err
	}
	if _, repeated := c.all.given[req.ID]; !repeated {
		c.all.tokens[req.Key]++
		c.all.given[req.ID] = c.all.tokens[req.Key]
	}
	g.Token = c.all.given[req.ID]
	return g, nil
}

// Close implements backend.Backend.
func (c counted) Close() error {
	c.close()
	return c.tableLock.Close()
}

func (c counted) Guarantees() backend.Guarantees {
	g := c.tableLock.Guarantees()
	g.Token = backend.TokenCounter
	g.TokenSurvives = []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved}
	return g
}
