package redislock

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// maxBatch bounds a pipeline, so that one batch neither fills the connection's
// buffers nor occupies the server for long.
const maxBatch = 500

// RenewBatch renews the holds in one round trip for every 500 of them, and in
// one more for those that met a server that did not know the script.
func (b *redisBackend) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	for from := 0; from < len(holds); from += maxBatch {
		to := min(from+maxBatch, len(holds))
		b.renewChunk(ctx, holds[from:to], out[from:to])
	}
	return out
}

func (b *redisBackend) renewChunk(ctx context.Context, holds []backend.Hold, out []backend.Renewal) {
	cmds := make([]wire.Command, len(holds))
	for i, hold := range holds {
		cmds[i] = renewScript.command(ctx, b.buckets.namesOf(hold.Key), hold.ID.Hex(), hold.TTL.Milliseconds())
	}
	sent := b.exec(ctx, cmds)
	var again []int
	var texts []wire.Command
	for i, cmd := range cmds {
		if wire.UnknownScript(cmd.Err()) {
			again = append(again, i)
			texts = append(texts, renewScript.asText(ctx, cmd))
			continue
		}
		out[i] = b.renewalOf(ctx, holds[i], cmd, sent)
	}
	if len(again) == 0 {
		return
	}
	sent = b.exec(ctx, texts)
	for i, at := range again {
		out[at] = b.renewalOf(ctx, holds[at], texts[i], sent)
	}
}

// exec sends the commands in one pipeline, to a server that takes writes, and returns
// the instant before.
func (b *redisBackend) exec(ctx context.Context, cmds []wire.Command) (sent backend.Instant) {
	refusal := func() error {
		for _, cmd := range cmds {
			if goredis.IsReadOnlyError(cmd.Err()) {
				return cmd.Err()
			}
		}
		return nil
	}
	sent = b.pipeline(ctx, cmds)
	if err := refusal(); err != nil {
		_ = b.elsewhere(ctx, err, func() error {
			sent = b.pipeline(ctx, cmds)
			return refusal()
		})
	}
	return sent
}

func (b *redisBackend) pipeline(ctx context.Context, cmds []wire.Command) (sent backend.Instant) {
	pipe := b.client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	sent = b.clock.Now()
	if err := ctx.Err(); err != nil {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return sent
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	return sent
}

func (b *redisBackend) renewalOf(ctx context.Context, hold backend.Hold, cmd wire.Command, sent backend.Instant) backend.Renewal {
	n := b.buckets.namesOf(hold.Key)
	if err := cmd.Err(); err != nil {
		return backend.Renewal{Err: renewalError(keyError(ctx, n, b.refusal(err), false))}
	}
	v, err := renewal(hold, n, reply{value: cmd.Val(), sent: sent})
	return backend.Renewal{Validity: v, Err: err}
}
