package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// checkSettings asks the server for a sign of life, refuses what cannot work and
// warns of what may lose locks.
func (b *redisBackend) checkSettings(ctx context.Context, logger *slog.Logger, ttl time.Duration) error {
	if timeout, ok := hangTimeout(b.client); ok && timeout > ttl/3 {
		shown := "none"
		if timeout < forever {
			shown = timeout.String()
		}
		logger.WarnContext(ctx, "redislock: the client ignores the deadlines of contexts, and its ReadTimeout is longer than a third of the TTL, so that one hanging request can cost the lease; set ContextTimeoutEnabled",
			"read_timeout", shown, "ttl", ttl)
	}
	b.hub.Denied = func(err error) {
		logger.Warn("redislock: the user may not subscribe to the channels of the prefix, so that waiters here learn of a release only when they ask again",
			"channels", b.prefix+"*", "error", err)
	}
	primaries, err := b.primaries(ctx)
	if err != nil {
		return openError(ctx, err)
	}
	if err := primaries[0].mute; err != nil {
		logger.WarnContext(ctx, "redislock: the server does not allow INFO; make sure that maxmemory-policy is noeviction", "error", err)
	}
	appendOnly := true
	var forgetful []string
	for _, p := range primaries {
		if p.err != nil {
			logger.WarnContext(ctx, "redislock: a member of the Cluster does not answer; its keys are unavailable for now, and its settings were not looked at: whether it evicts keys, and whether it keeps an append-only file",
				"member", p.address, "error", wire.Describe(ctx, p.err))
		}
		if p.info["role"] == "slave" && !b.cluster {
			return fmt.Errorf("redislock: open: %w: the server is a read-only replica; use the address of its primary, or Sentinel (master=NAME)", backend.ErrUnavailable)
		}
		if policy := p.info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
			logger.WarnContext(ctx, "redislock: the server may evict locks and token counters when its memory is full; set maxmemory-policy to noeviction",
				"maxmemory_policy", policy, "maxmemory", p.info["maxmemory_human"])
		}
		appendOnly = appendOnly && p.info["aof_enabled"] == "1"
		if p.info["aof_enabled"] == "0" {
			forgetful = append(forgetful, p.address)
		}
	}
	if len(forgetful) > 0 {
		const text = "redislock: the server keeps no append-only file: when it restarts, others can have the keys that are held before their holders know; set appendonly to yes"
		if b.cluster {
			logger.WarnContext(ctx, text, "members", strings.Join(forgetful, ", "))
		} else {
			logger.WarnContext(ctx, text)
		}
	}
	b.guarantees = guarantees(appendOnly)
	first := primaries[0]
	if !b.cluster && first.info["cluster_enabled"] == "1" {
		if err := b.reachesEverySlot(ctx); err != nil {
			return openError(ctx, err)
		}
	}
	if _, err := wire.Ask(ctx, first.client, "publish", b.prefix+"{m:00}:k:", ""); wire.NotAllowed(err) {
		logger.WarnContext(ctx, "redislock: the user may not publish on the channels of the prefix, so that waiters elsewhere learn of a release only when they ask again",
			"channels", b.prefix+"*", "error", err)
	} else if err != nil {
		return openError(ctx, err)
	}
	return nil
}

// primary is a server that is written to, and what it said of itself.
type primary struct {
	client  goredis.UniversalClient
	address string
	info    map[string]string
	mute    error // INFO is not allowed
	err     error // no sign of life
}

func (p *primary) look(ctx context.Context) {
	if _, p.err = wire.Ask(ctx, p.client, "ping"); p.err != nil {
		return
	}
	text, err := wire.Ask(ctx, p.client, "info")
	if wire.NotAllowed(err) {
		p.mute = err
		return
	}
	said, _ := text.(string)
	p.info, p.err = wire.InfoFields(said), err
}

// primaries asks every server that is written to, and has those that answered first.
// It is an error if none does, and if one refuses for good.
func (b *redisBackend) primaries(ctx context.Context) ([]primary, error) {
	cluster, ok := b.client.(*goredis.ClusterClient)
	if !ok {
		p := primary{client: b.client}
		p.look(ctx)
		return []primary{p}, p.err
	}
	var mu sync.Mutex
	var there, away []primary
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, member *goredis.Client) error {
		p := primary{client: member, address: member.Options().Addr}
		p.look(ctx)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case p.err == nil:
			there = append(there, p)
		case errors.Is(wire.Sentinel(p.err), backend.ErrPermanent):
			return p.err
		default:
			away = append(away, p)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(there) > 0:
		return append(there, away...), nil
	case len(away) > 0:
		return nil, away[0].err
	}
	return nil, errors.New("the Cluster names no members")
}

// openError is the error of a request of the opening. None of them changes
// anything, so that what is not a refusal for good is "unavailable".
func openError(ctx context.Context, err error) error {
	err = wire.Describe(ctx, err)
	if errors.Is(err, backend.ErrPermanent) || errors.Is(err, backend.ErrUnavailable) {
		return fmt.Errorf("redislock: open: %w", err)
	}
	hint := "check that a Redis server answers at this address"
	if strings.Contains(err.Error(), "all sentinels") {
		// The client says this also of sentinels that answered that they know no such name.
		hint = "check that the sentinels answer, and that they watch a master of the name that was given (master=NAME)"
	}
	return fmt.Errorf("redislock: open: %w: %w; %s", backend.ErrUnavailable, err, hint)
}

// reachesEverySlot finds out whether a single member of a Cluster serves all
// buckets, so that a missing cluster=true is noticed when the backend is opened
// and not at the first key of another member.
func (b *redisBackend) reachesEverySlot(ctx context.Context) error {
	_, err := b.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for i := range 256 {
			pipe.Exists(ctx, fmt.Sprintf("%s{m:%02x}:t", b.prefix, i))
		}
		return nil
	})
	return err
}

// forever is the timeout of a client that has none.
const forever = time.Duration(math.MaxInt64)

// hangTimeout returns the read timeout of a client that ignores the deadlines
// of contexts.
func hangTimeout(client goredis.UniversalClient) (timeout time.Duration, ignores bool) {
	switch c := client.(type) {
	case *goredis.Client:
		timeout, ignores = c.Options().ReadTimeout, !c.Options().ContextTimeoutEnabled
	case *goredis.ClusterClient:
		timeout, ignores = c.Options().ReadTimeout, !c.Options().ContextTimeoutEnabled
	}
	if ignores && timeout <= 0 {
		timeout = forever
	}
	return timeout, ignores
}
