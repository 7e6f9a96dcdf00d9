package redislock

import (
	"context"
	_ "embed" // the script
	"fmt"
	"strconv"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed floor.lua
var floorText string

var floorScript = wire.NewScript(floorText)

// largestToken is the last one that the scripts grant: from 2^53 on, Lua's numbers no longer
// tell neighbours apart.
const largestToken = 1<<53 - 1

// RaiseFloor raises the counter of every bucket that is smaller. The next token of each of its
// keys is larger, and holds keep theirs in their records.
func (b *redisBackend) RaiseFloor(ctx context.Context, above uint64) error {
	if above >= largestToken {
		return fmt.Errorf("redislock: %w: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(largestToken-1))
	}
	if _, err := b.counters(ctx, above); err != nil {
		return fmt.Errorf("redislock: raising the floor of the tokens: %w", err)
	}
	return nil
}

// LastToken is the largest counter of all buckets.
func (b *redisBackend) LastToken(ctx context.Context) (uint64, error) {
	last, err := b.counters(ctx, 0)
	if err != nil {
		return 0, fmt.Errorf("redislock: reading the counters of the tokens: %w", err)
	}
	return last, nil
}

// counters raises all counters to what is given, at least, and returns the largest. They are
// in one pipeline, on a Cluster in one for each member.
func (b *redisBackend) counters(ctx context.Context, least uint64) (largest uint64, err error) {
	cmds := make([]wire.Command, len(b.buckets))
	for i := range cmds {
		cmds[i] = keyed(ctx, []any{"evalsha", floorScript.Hash, 1, b.buckets[i].counter(), strconv.FormatUint(least, 10)})
	}
	b.exec(ctx, cmds)
	var unknown []int
	var texts []wire.Command
	for i, cmd := range cmds {
		if wire.UnknownScript(cmd.Err()) {
			unknown = append(unknown, i)
			texts = append(texts, keyed(ctx, floorScript.AsText(cmd.Args())))
		}
	}
	if len(texts) > 0 {
		b.exec(ctx, texts)
		for i, at := range unknown {
			cmds[at] = texts[i]
		}
	}
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			return 0, wire.Describe(ctx, b.refusal(err))
		}
		text, ok := cmd.Val().(string)
		n, err := strconv.ParseUint(text, 10, 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("%w: the Redis key %q is not a token counter of ours, and is left as it is; remove it, or choose another prefix", backend.ErrPermanent, b.buckets[i].counter())
		}
		largest = max(largest, n)
	}
	return largest, nil
}

// RaiseFloor implements backend.FloorRaiser.
func (f *fairBackend) RaiseFloor(ctx context.Context, above uint64) error {
	return f.b.RaiseFloor(ctx, above)
}

// LastToken implements backend.TokenTeller.
func (f *fairBackend) LastToken(ctx context.Context) (uint64, error) { return f.b.LastToken(ctx) }
