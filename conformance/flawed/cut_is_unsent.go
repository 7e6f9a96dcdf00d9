package flawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

var z140 = Lock{
	ID: "Z140", Title: "a release that was cut off counts as unsent",
	Summary: "The hold is gone on the server, and its client is told that nothing has happened.",
	Seen:    "Drivers that return the error of the context wherever they stood when it ended (lib/pq, go-redis).",
	Instead: "Say that nothing was sent only where the write has not begun.",
	File:    "cut_is_unsent.go", Over: Redis,
	Rule: "NotSentIsTrue",
	On:   onRedis(func(s single) backend.Backend { return cutIsUnsent{s} }),
}

// cutIsUnsent concludes from the end of the context.
//
//	A: Release(ctx): DEL job is on its way
//	A: ctx ends -> "nothing was sent", and A goes on as the holder
//	B: SET job b NX PX 10000 -> OK
//
// Caught by NotSentIsTrue, which cuts requests off, and then looks.
type cutIsUnsent struct{ single }

// Release implements backend.Backend.
func (c cutIsUnsent) Release(ctx context.Context, h backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrNotSent, err)
	}
	err := c.single.Release(context.WithoutCancel(ctx), h)
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%w: %w", backend.ErrNotSent, ended)
	}
	return err
}
