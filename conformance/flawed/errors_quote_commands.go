package flawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

var z77 = Lock{
	ID: "Z77", Title: "errors that quote the command",
	Summary: "The id of the hold gets into logs with the error.",
	Seen:    "Clients that print a failed command with its arguments.",
	Instead: "Name the key and the step. The id stays between its holder and the server.",
	File:    "errors_quote_commands.go", Over: Memory,
	Rule: "NoSecretsShown",
	On:   onMemory(func(m primitives) backend.Backend { return quotingCommands{m} }),
}

// quotingCommands tells all that it knows.
//
//	A: renews job   -> a hiccup; log: "EVALSHA renew job 5f2c...: connection reset"
//	a reader of the log: EVALSHA release job 5f2c...
//	B: acquires job, while A, whose next renewal has not come yet, works on it
//
// Refusals are looked at by everybody, and are clean. Caught by NoSecretsShown, which makes
// every method fail.
//
// Instead: "renewing job: connection reset".
type quotingCommands struct{ primitives }

func quoted(command string, hold backend.Hold, err error) error {
	if err != nil {
		return fmt.Errorf("%s %q %s: %w", command, hold.Key, hold.ID.Hex(), err)
	}
	return nil
}

func (q quotingCommands) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	v, err := q.primitives.Renew(ctx, hold)
	return v, quoted("EVALSHA renew", hold, err)
}

// Release implements backend.Backend.
func (q quotingCommands) Release(ctx context.Context, hold backend.Hold) error {
	return quoted("EVALSHA release", hold, q.primitives.Release(ctx, hold))
}
