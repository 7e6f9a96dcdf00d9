package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/backend"
)

var z130 = Lock{
	ID: "Z130", Title: "a prefix that is a pattern",
	Summary: "Who forgets the keys of one customer begins the tokens of others anew.",
	Seen:    "DELETE ... WHERE name LIKE CONCAT(?, '%'): an underscore stands for any character.",
	Instead: "LEFT(name, n) = ?, or escape the prefix.",
	File:    "forget_by_pattern.go", Over: Memory,
	Rule: "ForgetLeavesOthers",
	On:   onMemory(func(m primitives) backend.Backend { return &likeForgets{primitives: m, counters: counters} }),
}

// counters is what is kept of keys.
var counters = &tokensOf{last: map[string]uint64{}, from: map[string]uint64{}}

// tokensOf are the tokens of keys.
type tokensOf struct {
	mu         sync.Mutex
	last, from map[string]uint64 // the last token, and the one before the first
}

// likeForgets forgets what is LIKE the prefix.
//
//	orders_1/a: last token 900; ordersX1/a: last token 700
//	Forget("orders_1/"): both are gone
//	the next holder of ordersX1/a: token 1, which its resource refuses for ever
//
// Caught by ForgetLeavesOthers, whose prefix has such characters.
type likeForgets struct {
	primitives
	counters *tokensOf
}

// Try implements backend.Backend.
func (l *likeForgets) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := l.primitives.Try(ctx, req)
	l.counters.mu.Lock()
	defer l.counters.mu.Unlock()
	if err == nil {
		l.counters.last[req.Key] = g.Token
		g.Token -= l.counters.from[req.Key]
	}
	return g, err
}

// Forget implements backend.Forgetter.
func (l *likeForgets) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return backend.ErrInvalid
	}
	l.counters.mu.Lock()
	defer l.counters.mu.Unlock()
	for key, last := range l.counters.last {
		if _, err := l.Backend.(backend.Inspector).Inspect(ctx, key); err != nil && ctx.Err() == nil && like(key, prefix+"%") {
			l.counters.from[key] = last
		}
	}
	return nil
}

// like is SQL's LIKE.
func like(s, pattern string) bool {
	switch {
	case pattern == "":
		return s == ""
	case pattern[0] == '%':
		return like(s, pattern[1:]) || s != "" && like(s[1:], pattern)
	}
	return s != "" && (pattern[0] == '_' || pattern[0] == s[0]) && like(s[1:], pattern[1:])
}
