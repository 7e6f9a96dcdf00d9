package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// tokenProbe is the key that CarryTokens acquires. It need not be free.
const tokenProbe = "mortise/token-floor"

// clockPatience is for how long CarryTokens waits for a clock that is a little behind.
const clockPatience = 3 * time.Second

// CarryTokens is for a program that changes its store. It makes sure that every token that
// to grants from now on, through whatever client, is larger than all that from has granted
// so far, and returns the largest of those. What checks tokens then goes on as before. Call
// it when from grants nothing any more, or while both are held; docs/migrating.md has the
// steps.
//
// It acquires and releases one key of its own in each of both, and looks at the keys that
// are held. Where tokens are revisions of the store (etcd, ZooKeeper), the store is told to
// count on from there. Elsewhere they count from the server's clock in microseconds, which
// is ahead as a rule; by up to three seconds it is waited for, and beyond that the error
// matches ErrUnsupported and tells by how much it is behind. A clock that is set back later
// is not noticed. The error matches ErrUnsupported, too, where one of the two has no
// tokens.
func CarryTokens(ctx context.Context, from, to *Client) (uint64, error) {
	for _, c := range []*Client{from, to} {
		if c.guarantees.Token == backend.TokenNone {
			return 0, fmt.Errorf("%w: locks on %s have no tokens: there is nothing to carry", ErrUnsupported, c.guarantees.Name)
		}
	}
	floor, err := from.nextToken(ctx)
	if err != nil {
		return 0, fmt.Errorf("the tokens of the store to leave: %w", err)
	}
	if l, ok := backend.As[backend.Lister](from.server.Own); ok {
		err := l.List(ctx, "", func(r backend.Record) bool {
			floor = max(floor, r.Token)
			return true
		})
		if err != nil {
			return 0, fmt.Errorf("the tokens of the store to leave: %w", err)
		}
	}
	if r, ok := backend.As[backend.FloorRaiser](to.server.Own); ok {
		if err := r.RaiseFloor(ctx, floor); err != nil {
			return 0, fmt.Errorf("the tokens of the store to enter: %w", err)
		}
	}
	for waited := false; ; waited = true {
		next, err := to.nextToken(ctx)
		if err != nil {
			return 0, fmt.Errorf("the tokens of the store to enter: %w", err)
		}
		if next > floor {
			return floor, nil
		}
		behind := time.Duration(floor-next+1) * time.Microsecond
		if waited || behind > clockPatience {
			return 0, fmt.Errorf("%w: the tokens of %s stand at %d, and those of %s have come to %d: they count from a clock in microseconds, which is behind by %s: set it right, or try again later",
				ErrUnsupported, to.guarantees.Name, next, from.guarantees.Name, floor, behind.Round(time.Millisecond))
		}
		select {
		case <-time.After(behind + time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// nextToken is the token of a grant now.
func (c *Client) nextToken(ctx context.Context) (uint64, error) {
	lease, err := c.Acquire(ctx, tokenProbe, WithLabel("CarryTokens"))
	if err != nil {
		return 0, err
	}
	token := lease.Token()
	if err := lease.Release(ctx); err != nil {
		return 0, err
	}
	if f, ok := backend.As[backend.Forgetter](c.server.Own); ok {
		_ = f.Forget(ctx, tokenProbe) // what is left of it is one row
	}
	return token, nil
}
