package redislock

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed try.lua
var tryText string

//go:embed renew.lua
var renewText string

//go:embed release.lua
var releaseText string

//go:embed inspect.lua
var inspectText string

//go:embed force.lua
var forceText string

//go:embed revoke.lua
var revokeText string

var (
	tryScript     = newScript("local later = false\n" + tryText)
	renewScript   = newScript(renewText)
	releaseScript = newScript(wire.TellText + releaseText)
	inspectScript = newScript(inspectText)
	forceScript   = newScript(forceText)
	revokeScript  = newScript(revokeText)
)

// script has the names of a key as its keys.
type script struct {
	wire.Script
	queue bool // it has the queue of the key as two more keys
}

func newScript(text string) script { return script{Script: wire.NewScript(text)} }

// command is the script with its arguments, to be sent by its hash first. The
// text replaces the hash when the server does not know it.
func (s script) command(ctx context.Context, n names, args ...any) wire.Command {
	all := make([]any, 0, 7+len(args))
	all = append(all, "evalsha", s.Hash, 2, n.record(), n.counterArg())
	if s.queue {
		all[2] = 4
		all = append(all, n.queue(), n.lives())
	}
	return keyed(ctx, append(all, args...))
}

func (s script) asText(ctx context.Context, cmd wire.Command) wire.Command {
	return keyed(ctx, s.AsText(cmd.Args()))
}

// keyed tells a Cluster client where the first key is.
func keyed(ctx context.Context, args []any) wire.Command {
	cmd := wire.NewCommand(ctx, args...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// maxRepeats is how often a script is sent again after its connection broke.
// Every script may be repeated.
const maxRepeats = 2

// reply is what a script answered.
type reply struct {
	value any
	// sent is the instant before the request that was answered.
	sent backend.Instant
	// repeated: an earlier request lost its reply and may have been applied.
	repeated bool
}

// run sends the script and reads its reply. Errors are those of the contract: a
// refusal of the server only if no earlier attempt can have been applied.
func (b *redisBackend) run(ctx context.Context, s script, n names, args ...any) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, fmt.Errorf("redislock: key %q: %w", n.key, unsentAfter(ctx))
	}
	var id string
	if len(args) > 0 {
		id, _ = args[0].(string)
	}
	b.abandoned.settle(ctx, id)
	var r reply
	for repeats := 0; ; repeats++ {
		cmd := s.command(ctx, n, args...)
		var err error
		r.sent, err = b.process(ctx, cmd)
		if wire.UnknownScript(err) {
			cmd = s.asText(ctx, cmd)
			r.sent, err = b.process(ctx, cmd)
		}
		if err == nil {
			r.value = cmd.Val()
			return r, nil
		}
		if repeats < maxRepeats && wire.ConnectionBroke(err) && ctx.Err() == nil {
			r.repeated = r.repeated || !errors.As(err, new(unconnected))
			continue
		}
		b.abandoned.note(id, err)
		return r, keyError(ctx, n, b.refusal(err), r.repeated)
	}
}

// process sends one command to a server that takes writes, and returns the instant
// before.
func (b *redisBackend) process(ctx context.Context, cmd wire.Command) (backend.Instant, error) {
	sent, err := b.send(ctx, cmd)
	if goredis.IsReadOnlyError(err) {
		err = b.elsewhere(ctx, err, func() (err error) {
			sent, err = b.send(ctx, cmd)
			return err
		})
	}
	return sent, err
}

// send sends one command, together with those of other callers where that is
// possible, and returns the instant before.
func (b *redisBackend) send(ctx context.Context, cmd wire.Command) (backend.Instant, error) {
	if b.together != nil {
		return b.together.process(ctx, cmd)
	}
	sent := b.clock.Now()
	return sent, neverSent(b.client.Process(ctx, cmd))
}

// neverSent marks the bare error of a context, which go-redis returns only while a
// command waits for a connection: on a connection the end of a context shows as an
// error of the network.
func neverSent(err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded { //nolint:errorlint // a wrapped one may come from a connection
		return fmt.Errorf("%w: %w", backend.ErrNotSent, err)
	}
	return err
}
