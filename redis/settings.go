package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

// checkSettings asks the server for a sign of life, refuses what cannot work and
// warns of what may lose locks.
func (b *redisBackend) checkSettings(ctx context.Context, logger *slog.Logger, ttl time.Duration) error {
	if _, err := b.ask(ctx, "ping"); err != nil {
		return openError(ctx, err)
	}
	if timeout, ok := hangTimeout(b.client); ok && timeout > ttl/3 {
		logger.WarnContext(ctx, "redislock: the client ignores the deadlines of contexts, and its ReadTimeout is longer than a third of the TTL, so that one hanging request can cost the lease; set ContextTimeoutEnabled",
			"read_timeout", timeout, "ttl", ttl)
	}
	servers, err := b.serverInfos(ctx)
	if notAllowed(err) {
		logger.WarnContext(ctx, "redislock: the server does not allow INFO; make sure that maxmemory-policy is noeviction", "error", err)
	} else if err != nil {
		return openError(ctx, err)
	}
	appendOnly := len(servers) > 0
	for _, info := range servers {
		if info["role"] == "slave" {
			return fmt.Errorf("redislock: open: %w: the server is a read-only replica; use the address of its primary, or Sentinel (master=NAME)", backend.ErrUnavailable)
		}
		if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" {
			logger.WarnContext(ctx, "redislock: the server may evict locks and token counters when its memory is full; set maxmemory-policy to noeviction",
				"maxmemory_policy", policy, "maxmemory", info["maxmemory_human"])
		}
		appendOnly = appendOnly && info["aof_enabled"] == "1"
	}
	b.guarantees = guarantees(appendOnly)
	if !b.cluster && len(servers) == 1 && servers[0]["cluster_enabled"] == "1" {
		if err := b.reachesEverySlot(ctx); err != nil {
			return openError(ctx, err)
		}
	}
	if _, err := b.ask(ctx, "publish", b.prefix+"{m:00}:k:", ""); notAllowed(err) {
		logger.WarnContext(ctx, "redislock: the user may not publish on the channels of the prefix, so that waiters elsewhere learn of a release only when they ask again",
			"channels", b.prefix+"*", "error", err)
	} else if err != nil {
		return openError(ctx, err)
	}
	return nil
}

// ask sends one command, once.
func (b *redisBackend) ask(ctx context.Context, args ...any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cmd := newCommand(ctx, args...)
	err := b.client.Process(ctx, cmd)
	return cmd.Val(), err
}

// openError is the error of a request of the opening. None of them changes
// anything, so that what is not a refusal for good is "unavailable".
func openError(ctx context.Context, err error) error {
	err = describe(ctx, err)
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

// notAllowed reports that the server does not allow a command.
func notAllowed(err error) bool {
	return goredis.HasErrorPrefix(err, "NOPERM") || goredis.HasErrorPrefix(err, "unknown command") ||
		goredis.HasErrorPrefix(err, "ERR unknown command")
}

// serverInfos returns the INFO fields of every server that is written to.
func (b *redisBackend) serverInfos(ctx context.Context) ([]map[string]string, error) {
	cluster, ok := b.client.(*goredis.ClusterClient)
	if !ok {
		text, err := b.client.Info(ctx).Result()
		if err != nil {
			return nil, err
		}
		return []map[string]string{infoFields(text)}, nil
	}
	var mu sync.Mutex
	var all []map[string]string
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
		text, err := node.Info(ctx).Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, infoFields(text))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func infoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
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

// hangTimeout returns the read timeout of a client that ignores the deadlines
// of contexts.
func hangTimeout(client goredis.UniversalClient) (time.Duration, bool) {
	switch c := client.(type) {
	case *goredis.Client:
		return c.Options().ReadTimeout, !c.Options().ContextTimeoutEnabled
	case *goredis.ClusterClient:
		return c.Options().ReadTimeout, !c.Options().ContextTimeoutEnabled
	}
	return 0, false
}
