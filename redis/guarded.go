package redislock

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed guarded.lua
var guardedText string

// GuardedScript is a Lua script that takes effect only while a lease is held. It is
// made once and is safe for concurrent use.
type GuardedScript struct{ script script }

// NewGuardedScript returns a script for [GuardedScript.Run]. It sees the KEYS and
// ARGV that Run is given.
func NewGuardedScript(lua string) *GuardedScript {
	return &GuardedScript{newScript(strings.Replace(guardedText, "\nCALLER\n", "\n"+lua+"\n", 1))}
}

// GuardedSet sets the Redis key KEYS[1] to ARGV[1] while the lease is held.
var GuardedSet = NewGuardedScript(`return redis.call('SET', KEYS[1], ARGV[1])`)

// Run compares the record of the lease's key with the lease, and then runs the
// script, in one atomic step on the server. It is the only protection that depends
// on no clock but the server's: a process that was paused between looking at its
// lease and writing is refused. The record must still be on the server, so the
// assumptions of the guarantees hold for it too, failover above all.
//
// In a Cluster all keys must be in the slot of the lease's key; [GuardedKey] makes
// such names. The result is what the script returns.
//
// The error matches ErrNotHeld when the lease is not held any more: nothing was
// run. ErrUnavailable, ErrPermanent and ErrInvalid, for an argument that go-redis can't
// send, say that nothing was run either. The script
// is sent once: after ErrOutcomeUnknown it may have been run. Every other error is
// the script's own, in its words and as a redis.Error, whatever they are: what the
// script had written before stays, as always in Redis.
func (s *GuardedScript) Run(ctx context.Context, lease lock.Lease, keys []string, args ...any) (any, error) {
	b, hold, err := guardedBy(lease)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redislock: key %q: nothing was sent: %w", hold.Key, err)
	}
	n := b.buckets.namesOf(hold.Key)
	all := []any{"evalsha", s.script.Hash, 2 + len(keys), n.record(), n.counter()}
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := keyed(ctx, append(append(all, hold.ID.Hex()), args...))
	send := func() error {
		err := b.client.Process(ctx, cmd)
		if wire.UnknownScript(err) {
			cmd = s.script.asText(ctx, cmd)
			err = b.client.Process(ctx, cmd)
		}
		return err
	}
	if err = send(); goredis.IsReadOnlyError(err) {
		err = b.elsewhere(ctx, err, send)
	}
	var refusal goredis.Error
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "redis: can't marshal"):
		return nil, fmt.Errorf("redislock: key %q: %w: nothing was run: %w", hold.Key, backend.ErrInvalid, err)
	case err == nil, errors.Is(err, goredis.Nil):
		return cmd.Val(), nil
	case goredis.HasErrorPrefix(err, scriptFailed):
		_, words, _ := strings.Cut(err.Error(), scriptFailed)
		return nil, fmt.Errorf("redislock: key %q: the guarded script failed: %w", hold.Key, scriptError(words))
	case errors.As(err, &refusal) && strings.HasSuffix(refusal.Error(), "MORTISE not held"):
		return nil, notHeld(hold.Key)
	case errors.As(err, &refusal) && strings.HasSuffix(refusal.Error(), "MORTISE foreign"):
		return nil, foreignError(n)
	case errors.As(err, &refusal), wire.Sentinel(err) != nil:
		return nil, keyError(ctx, n, err, false)
	}
	return nil, fmt.Errorf("redislock: key %q: %w: a guarded write: %w", hold.Key, backend.ErrOutcomeUnknown, wire.Describe(ctx, err))
}

// scriptFailed begins the errors of the caller's script.
const scriptFailed = "MORTISE script: "

// scriptError is what the caller's script said. It is a goredis.Error.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError tells the replies of a server from other errors.
func (scriptError) RedisError() {}

// GuardedKey is the name of a Redis key that guarded scripts can use beside the
// lease in a Cluster too, since it is in the same slot. It depends on the lease's
// key and the prefix only.
func GuardedKey(lease lock.Lease, name string) (string, error) {
	b, hold, err := guardedBy(lease)
	if err != nil {
		return "", err
	}
	return b.buckets.namesOf(hold.Key).bucket + "g:" + name, nil
}

// single is what both backends of this package are in the end.
type single interface{ plain() *redisBackend }

func (b *redisBackend) plain() *redisBackend { return b }
func (f *fairBackend) plain() *redisBackend  { return f.b }

func guardedBy(lease lock.Lease) (*redisBackend, backend.Hold, error) {
	held, err := lock.HeldOn[single](lease)
	if err != nil {
		return nil, backend.Hold{}, fmt.Errorf("redislock: %w", err)
	}
	return held.Backend.plain(), held.Hold, nil
}
