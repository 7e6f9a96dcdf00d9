package redlock

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed floor.lua
var floorText string

// largestToken is the last one that a node accepts: from 2^53 on, Lua's numbers no longer
// tell neighbours apart.
const largestToken = 1<<53 - 1

// tokenChunk is how many accepted tokens one pipeline reads.
const tokenChunk = 500

func (b *majority) floor() string { return b.prefix + "floor" }

// RaiseFloor raises the floor on every node, and fails where one can't be reached: a majority
// of the later ones may have none but that and those that have lost their data. Each node asks
// for a larger token from then on than its floor. As long as the floor is ahead of the nodes'
// clocks, an acquisition takes two rounds, since what it proposes counts along with these.
func (b majorityWithTokens) RaiseFloor(ctx context.Context, above uint64) error {
	if above >= largestToken {
		return fmt.Errorf("redlock: %w: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(largestToken-1))
	}
	reached, err := b.onNodes(ctx, func(ctx context.Context, s redisServer) error {
		_, err := b.floorOn(ctx, s, above)
		return err
	})
	if reached < len(b.nodes) {
		return fmt.Errorf("redlock: raising the floor of the tokens: %w: %d of %d nodes have it now, and all are needed: try again when all answer: %w", sentinelOf(err), reached, len(b.nodes), wire.Describe(ctx, err))
	}
	return nil
}

// LastToken is the largest token that a node remembers, and its floor. A majority of the nodes
// must answer, since a token was accepted by one node of every majority.
func (b majorityWithTokens) LastToken(ctx context.Context) (uint64, error) {
	var mu sync.Mutex
	var last uint64
	reached, err := b.onNodes(ctx, func(ctx context.Context, s redisServer) error {
		most, err := b.largestOn(ctx, s)
		mu.Lock()
		defer mu.Unlock()
		last = max(last, most)
		return err
	})
	if reached < b.quorum {
		return 0, fmt.Errorf("redlock: looking for the largest token: %w: %d of %d nodes answered, and %d are needed: %w", sentinelOf(err), reached, len(b.nodes), b.quorum, wire.Describe(ctx, err))
	}
	return last, nil
}

// sentinelOf is ErrPermanent where something on a node is not ours.
func sentinelOf(err error) error {
	if errors.Is(err, errNotOurs) {
		return backend.ErrPermanent
	}
	return backend.ErrUnavailable
}

// errNotOurs marks what somebody else has written to a node.
var errNotOurs = errors.New("is left as it is; remove it, or choose another prefix")

// onNodes calls f for every node at the same time, and returns for how many it succeeded.
func (b *majority) onNodes(ctx context.Context, f func(context.Context, redisServer) error) (reached int, _ error) {
	bounded, cancel := context.WithTimeout(ctx, listBound)
	defer cancel()
	failures := make([]error, len(b.nodes))
	var all sync.WaitGroup
	for i, n := range b.nodes {
		s, ok := n.server.(redisServer)
		if !ok {
			failures[i] = fmt.Errorf("%s is no server", n.name)
			continue
		}
		all.Go(func() {
			if err := f(bounded, s); err != nil {
				failures[i] = fmt.Errorf("%s: %w", n.name, err)
			}
		})
	}
	all.Wait()
	failed := slices.DeleteFunc(failures, func(err error) bool { return err == nil })
	return len(b.nodes) - len(failed), errors.Join(failed...)
}

// floorOn raises the floor on a node to what is given, at least, and returns it.
func (b *majority) floorOn(ctx context.Context, s redisServer, least uint64) (uint64, error) {
	v, err := s.client.Eval(ctx, floorText, []string{b.floor(), b.mark}, strconv.FormatUint(least, 10)).Result()
	if err != nil {
		return 0, err
	}
	text, ok := v.(string)
	floor, err := strconv.ParseUint(text, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("the Redis key %q is not a floor of tokens, and %w", b.floor(), errNotOurs)
	}
	return floor, nil
}

// largestOn is the largest token that a node has accepted for any key, or its floor.
func (b *majority) largestOn(ctx context.Context, s redisServer) (uint64, error) {
	last, err := b.floorOn(ctx, s, 0)
	if err != nil {
		return 0, err
	}
	keys, err := s.keys(ctx, b.accepted(""), "")
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(keys, tokenChunk) {
		answers, err := s.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, key := range some {
				p.Get(ctx, b.accepted(key))
			}
			return nil
		})
		if err != nil && !errors.Is(err, goredis.Nil) && !goredis.HasErrorPrefix(err, "WRONGTYPE") {
			return 0, err
		}
		for _, answer := range answers {
			get := answer.(*goredis.StringCmd)
			switch err := get.Err(); {
			case errors.Is(err, goredis.Nil), err != nil && goredis.HasErrorPrefix(err, "WRONGTYPE"):
				continue // forgotten meanwhile, or not ours: no token is granted for that key
			case err != nil:
				return 0, err
			}
			text, _, _ := strings.Cut(get.Val(), "|")
			if token, err := strconv.ParseUint(text, 10, 64); err == nil {
				last = max(last, token)
			}
		}
	}
	return last, nil
}
