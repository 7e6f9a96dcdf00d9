package main

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/redlock"
)

// redlock compares acquire and release on five nodes, by one goroutine, with the bare
// commands sent to all of them at the same time; then it freezes a node.
func (b *bench) redlock() error {
	const nodes = 5
	var servers []*servertest.Server
	var clients []goredis.UniversalClient
	for range nodes {
		s := servertest.Redis(b.host, servertest.WithControl())
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Password: s.Password()})
		defer c.Close()
		servers, clients = append(servers, s), append(clients, c)
	}
	id := backend.NewID().Hex()
	sides := []*measure.Side{{Name: "bare commands, all awaited", Take: func(ctx context.Context) (func() error, error) {
		err := toAll(clients, func(c goredis.UniversalClient) error { return c.SetNX(ctx, "bare", id, 15*time.Second).Err() })
		return func() error {
			return toAll(clients, func(c goredis.UniversalClient) error { return bareRelease.Run(ctx, c, []string{"bare"}, id).Err() })
		}, err
	}}}
	var frozen []*measure.Side
	for _, tokens := range []bool{false, true} {
		l, err := redlock.New(b.ctx, clients, &redlock.Options{NewNodes: true, WithoutTokens: !tokens})
		if err != nil {
			return err
		}
		defer l.Close()
		name := fmt.Sprintf("redlock, tokens %v", tokens)
		healthy := &measure.Side{Name: name, Take: measure.Taking(l.TryAcquire, name)}
		sides = append(sides, healthy)
		frozen = append(frozen, measure.Frozen(healthy))
	}
	if err := b.pairs(sides...); err != nil {
		return err
	}
	servers[0].Freeze(b.host)
	defer servers[0].Resume(b.host)
	return b.pairs(frozen...)
}

// toAll runs f for each client at the same time and returns the first error.
func toAll(clients []goredis.UniversalClient, f func(goredis.UniversalClient) error) error {
	errs := make(chan error, len(clients))
	for _, c := range clients {
		go func() { errs <- f(c) }()
	}
	var first error
	for range clients {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
