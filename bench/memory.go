package main

import (
	"context"
	"sync"

	"github.com/mortiselock/lock/internal/servertest"
	_ "github.com/mortiselock/lock/memory"
)

const bareChannel = "a channel for each key"

var memoryStore = &store{
	name: "memory", title: "Memory", parallel: 16,
	about:    "One process; its clients are Lockers on one store. Those who compete are in one, and do nothing while they hold the key.",
	together: true,
	start:    func(*servertest.Program) *servers { return &servers{url: "mem:"} },
	contenders: []contender{
		{
			name: bareChannel, kind: bare, not: nothingCounted, most: map[string]int{held: 1000},
			how: "a `sync.Map` of channels of one place, with a `select` on the context",
			open: func(*servers, purpose) (client, error) {
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) {
						place := channelOf(key)
						select {
						case place <- struct{}{}:
							return func() error { <-place; return nil }, nil
						case <-ctx.Done():
							return nil, ctx.Err()
						}
					},
					close: func() {},
				}, nil
			},
		},
		{
			name: "a sync.Mutex for each key", kind: bare, not: nothingCounted, most: map[string]int{held: 1000},
			how: "a `sync.Map` of mutexes, which take no context",
			open: func(*servers, purpose) (client, error) {
				return client{
					acquire: func(_ context.Context, key string) (func() error, error) {
						m, ok := mutexes.Load(key)
						if !ok {
							m, _ = mutexes.LoadOrStore(key, &sync.Mutex{})
						}
						mu := m.(*sync.Mutex)
						mu.Lock()
						return func() error { mu.Unlock(); return nil }, nil
					},
					close: func() {},
				}, nil
			},
		},
		{
			name: "mem: without an end", kind: own, open: endless(ours("")),
			how: "the same with `context.Background()`",
			not: map[string]string{
				waiters: "as with a context that can end", crowd: "as with a context that can end",
				parallel: "as with a context that can end", contended: "as with a context that can end", held: "as with a context that can end",
			},
			aims: []aim{
				{scenario: serial, figure: allocations, against: bareChannel, more: true, goal: goal{atMost: 4}},
				{scenario: serial, figure: processor, goal: goal{atMost: 1}},
			},
		},
		{
			name: "mem:", kind: own, not: nothingCounted, open: ours(""),
			how: "`lock.Open` of `mem:`",
			aims: []aim{
				{scenario: serial, figure: allocations, against: bareChannel, more: true, goal: goal{atMost: 6}},
				{scenario: serial, figure: processor, goal: goal{atMost: 2}},
				atLeast(contended, 0.1, bareChannel),
			},
		},
	},
}

var nothingCounted = map[string]string{waiters: "no server counts anything", crowd: "no server counts anything"}

// Shared by all clients, as the store of mem: is.
var channels, mutexes sync.Map

func channelOf(key string) chan struct{} {
	c, ok := channels.Load(key)
	if !ok {
		c, _ = channels.LoadOrStore(key, make(chan struct{}, 1))
	}
	return c.(chan struct{})
}
