package wire

import (
	"context"
	"crypto/sha1"
	"encoding/hex"

	goredis "github.com/redis/go-redis/v9"
)

// Script is sent by its SHA-1, under which Redis caches it, and as text when
// Redis does not know it.
type Script struct {
	Text string
	Hash any // a string, made an interface once and not per command
}

// NewScript is the script with this text.
func NewScript(text string) Script {
	sum := sha1.Sum([]byte(text))
	return Script{Text: text, Hash: hex.EncodeToString(sum[:])}
}

// AsText are the arguments of a command that names the script by its hash, with the
// text in its place.
func (s Script) AsText(args []any) []any {
	all := append([]any(nil), args...)
	all[0], all[1] = "eval", s.Text
	return all
}

// UnknownScript reports that the server does not know the hash of a script.
func UnknownScript(err error) bool { return err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") }

// Command is a command that go-redis sends once. The library's own repeats would
// hide that an earlier attempt may have been applied, so that a refusal of the
// last attempt could no longer be told from "nothing happened".
type Command struct{ *goredis.Cmd }

// NoRetry is asked by go-redis before it repeats a command.
func (Command) NoRetry() bool { return true }

// NewCommand is the command with these arguments.
func NewCommand(ctx context.Context, args ...any) Command {
	cmd := Command{goredis.NewCmd(ctx, args...)}
	// A Cluster client asks some member for COMMAND to find this out, and the commands to
	// all members wait for the answer.
	cmd.SetStepCount(1)
	return cmd
}

// Ask sends one command, once.
func Ask(ctx context.Context, client interface {
	Process(ctx context.Context, cmd goredis.Cmder) error
}, args ...any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cmd := NewCommand(ctx, args...)
	err := client.Process(ctx, cmd)
	return cmd.Val(), err
}
