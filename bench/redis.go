package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/mortiselock/lock/internal/servertest"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
)

const (
	bareSet      = "SET NX PX + script"
	bareSetPiped = "the same, pipelined"
	handedOnSet  = "SET for each grant"
	ourRedis     = "redis:"
)

var redisStore = &store{
	name: "redis", title: "Redis", parallel: 64, heldFor: aMoment,
	about: "One server that keeps nothing on disk.",
	start: func(h *servertest.Program) *servers { return redisServers(h, 1) },
	contenders: []contender{
		{
			name: bareSet, kind: bare, plainSet: true,
			how: "`SetNX`, and the script that compares and deletes, of go-redis; every 1 ms while the key is taken",
			not: map[string]string{held: notRenewed},
			open: func(s *servers, _ purpose) (client, error) {
				c := redisClient(s.addrs[0])
				return bareRedis(c, func() { _ = c.Close() }), nil
			},
		},
		{
			name: bareSetPiped, kind: bare, plainSet: true,
			how: "the same on `AutoPipeline` of go-redis",
			not: map[string]string{held: notRenewed, waiters: "as without a pipeline"},
			open: func(s *servers, _ purpose) (client, error) {
				c := redisClient(s.addrs[0])
				piped, err := c.AutoPipeline()
				if err != nil {
					return client{}, err
				}
				return bareRedis(piped, func() { _ = c.Close() }), nil
			},
		},
		{
			name: handedOnSet, kind: bare, plainSet: true,
			how: "what a command for each grant leaves: of all clients one at a time sends SET, and nobody asks twice",
			not: map[string]string{
				serial: "no lock", parallel: "no lock", waiters: "as contended", crowd: "as contended", held: "no lock",
			},
			open: func(s *servers, _ purpose) (client, error) {
				c := redisClient(s.addrs[0])
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) {
						place := channelOf(key)
						select {
						case place <- struct{}{}:
						case <-ctx.Done():
							return nil, ctx.Err()
						}
						release := func() error { <-place; return nil }
						if err := c.Set(ctx, key, random(), ttl).Err(); err != nil {
							_ = release()
							return nil, err
						}
						return release, nil
					},
					close: func() { _ = c.Close() },
				}, nil
			},
		},
		{
			name: "bsm/redislock", kind: peer,
			how:  "`Obtain` with `LinearBackoff(10ms)`; a goroutine for each lease calls `Refresh`",
			most: map[string]int{held: 10_000},
			open: func(s *servers, p purpose) (client, error) {
				c := redisClient(s.addrs[0])
				return client{acquire: obtain(bsm.New(c), p), close: func() { _ = c.Close() }}, nil
			},
		},
		{
			name: "redsync", kind: peer, plainSet: true,
			how:  "`NewMutex` with one pool, `LockContext` without an end of tries; a goroutine for each lease calls `ExtendContext`",
			most: map[string]int{held: 10_000},
			open: openRedsync,
		},
		{
			name: "rueidislock", kind: peer,
			how: "`WithContext`, with `KeyMajority` 1 and `NoLoopTracking`, as its README has it for one server",
			open: func(s *servers, p purpose) (client, error) {
				l, err := rueidislock.NewLocker(rueidislock.LockerOption{
					ClientOption: rueidis.ClientOption{InitAddress: s.addrs},
					KeyMajority:  1, KeyValidity: p.ttl, NoLoopTracking: true,
					// A request that is slower makes WithContext wait for a notification, which
					// does not come for a key of its own.
					TryNextAfter: 10 * time.Second,
				})
				if err != nil {
					return client{}, err
				}
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) {
						_, release, err := l.WithContext(ctx, key)
						return func() error { release(); return nil }, err
					},
					close: l.Close,
				}, nil
			},
		},
		{
			name: ourRedis, kind: own, open: ours(""),
			how: "`lock.Open` of `redis://host`",
			aims: []aim{
				atLeast(serial, 0.9, bareSet),
				atLeast(parallel, 1.6, bestPeer),
				atLeast(parallel, 0.6, bareSetPiped),
				atLeast(contended, 0.9, handedOnSet),
				atLeast(contended, 1.05, "redis: no hand-over"),
				{scenario: contended, figure: longest, goal: goal{atMost: 1.5}},
				asWith(waiters, commands, 1500, 10, goal{atMost: 1.1}),
				{scenario: held, size: 100_000, figure: goroutines, goal: goal{atMost: 10}},
				{scenario: held, size: 100_000, figure: memory, goal: goal{atMost: 1.2}},
				{scenario: held, size: 100_000, figure: latest, goal: goal{atMost: 0.5}},
				{scenario: held, size: 10_000, figure: keeping, against: "rueidislock", goal: goal{atMost: 0.33}},
			},
		},
		{
			name: "redis: no hand-over", kind: own, open: withoutHandOver,
			how: "the same on a backend that declines to hand over: what the hand-over buys",
			not: onlyContended,
		},
		{
			name: "redis: fair", kind: own, open: ours("?fair=true&prefix=fair:"),
			how:  "`lock.Open` of `redis://host?fair=true`",
			most: map[string]int{held: 10_000},
			aims: []aim{
				atLeast(serial, 0.8, ourRedis),
				atLeast(parallel, 0.8, ourRedis),
				atLeast(contended, 0.8, ourRedis),
				{scenario: contended, figure: longest, goal: goal{atMost: 1.5}},
			},
		},
	},
}

var redlockStore = &store{
	name: "redlock", title: "Redlock", parallel: 16, heldFor: aMoment,
	about: "Five servers that keep nothing on disk.",
	start: func(h *servertest.Program) *servers {
		s := redisServers(h, 5)
		s.url = "redlock://" + strings.Join(s.addrs, ",")
		return s
	},
	contenders: []contender{
		{
			name: "redsync of 5", kind: peer, plainSet: true, open: openRedsync,
			how:  "`NewMutex` with five pools; the rest as with Redis",
			most: map[string]int{held: 1000},
		},
		{
			name: "redlock:", kind: own, open: ours("?new_nodes=true"),
			how:  "`lock.Open` of `redlock://` with five hosts",
			most: map[string]int{held: 10_000},
			aims: []aim{
				atLeast(serial, 0.9, bestPeer),
			},
		},
		{
			name: "redlock: no tokens", kind: own, open: ours("?new_nodes=true&tokens=off&prefix=untold:"),
			how: "the same with `tokens=off`, as in redsync",
			not: map[string]string{held: "as with tokens", waiters: "as with tokens"},
			aims: []aim{
				atLeast(serial, 1.3, bestPeer),
			},
		},
	},
}

const notRenewed = "commands alone renew nothing"

// redisServers starts n servers.
func redisServers(h *servertest.Program, n int) *servers {
	s := &servers{}
	var admins []*goredis.Client
	for range n {
		server := servertest.Redis(h, servertest.WithControl())
		admin := redisClient(server.Addr())
		h.Cleanup(func() { _ = admin.Close() })
		admins = append(admins, admin)
		s.version, s.url = "Redis "+server.Version(), server.URL()
		s.addrs = append(s.addrs, server.Addr())
	}
	s.commands = func(ctx context.Context, c *contender) (float64, error) {
		total := 0.0
		for _, admin := range admins {
			n, err := redisCommands(ctx, admin, c)
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	}
	return s
}

// redisCommands is how many commands the server was sent. What a script calls counts in
// commandstats too, and is left out.
func redisCommands(ctx context.Context, admin *goredis.Client, c *contender) (float64, error) {
	text, err := admin.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	names := []string{"eval", "evalsha", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "ping"}
	if c.plainSet {
		names = append(names, "set")
	}
	total := 0.0
	for _, name := range names {
		var calls float64
		if _, after, ok := strings.Cut(text, "cmdstat_"+name+":calls="); ok {
			_, _ = fmt.Sscanf(after, "%f", &calls)
		}
		total += calls
	}
	return total, nil
}

func redisClient(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr})
}

// bareRelease is the script of the Redis page on distributed locks.
var bareRelease = goredis.NewScript(`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`)

func bareRedis(c goredis.Cmdable, closeIt func()) client {
	return client{
		acquire: func(ctx context.Context, key string) (func() error, error) {
			for id := random(); ; {
				ok, err := c.SetNX(ctx, key, id, ttl).Result()
				if err != nil {
					return nil, err
				}
				if ok {
					return func() error { return bareRelease.Run(ctx, c, []string{key}, id).Err() }, nil
				}
				if err := pause(ctx); err != nil {
					return nil, err
				}
			}
		},
		close: closeIt,
	}
}

func obtain(c *bsm.Client, p purpose) func(ctx context.Context, key string) (func() error, error) {
	return func(ctx context.Context, key string) (func() error, error) {
		l, err := c.Obtain(ctx, key, p.ttl, &bsm.Options{RetryStrategy: bsm.LinearBackoff(10 * time.Millisecond)})
		if err != nil {
			return nil, err
		}
		release := func() error { return l.Release(ctx) }
		if p.renewed {
			release = refreshing(p.ttl, func() error { return l.Refresh(ctx, p.ttl, nil) }, release)
		}
		return release, nil
	}
}

func openRedsync(s *servers, p purpose) (client, error) {
	var pools []redsyncredis.Pool
	var clients []*goredis.Client
	for _, addr := range s.addrs {
		c := redisClient(addr)
		clients, pools = append(clients, c), append(pools, redsyncgoredis.NewPool(c))
	}
	all := redsync.New(pools...)
	return client{
		acquire: func(ctx context.Context, key string) (func() error, error) {
			m := all.NewMutex(key, redsync.WithExpiry(p.ttl), redsync.WithTries(1_000_000))
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			release := func() error { _, err := m.UnlockContext(ctx); return err }
			if p.renewed {
				release = refreshing(p.ttl, func() error { _, err := m.ExtendContext(ctx); return err }, release)
			}
			return release, nil
		},
		close: func() {
			for _, c := range clients {
				_ = c.Close()
			}
		},
	}, nil
}
