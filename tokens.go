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
// so far, and returns a number that none of those exceeds. What checks tokens then goes on
// as before. Call it when from grants nothing any more: what it grants later is not looked
// at. docs/migrating.md has the steps, and what sees to tokens while both are held.
//
// It acquires and releases one key of its own in each of both, so that the clock that from
// counts by is looked at too, and reads every counter of from ([backend.TokenTeller]). Then
// to is told to count on from there, whatever its own clock says ([backend.FloorRaiser]):
// every backend of this module can, and writes to each of its counters that is behind. After
// an error call it again: a part of them may have been raised, which does no harm. A backend
// of others that can't be told has to have a clock that is ahead; by up to three seconds it
// is waited for, and beyond that the error matches ErrUnsupported and tells by how much it
// is behind. The error matches ErrUnsupported, too, where one of the two has no tokens, and
// ErrInvalid where those of from are close to 2^53.
func CarryTokens(ctx context.Context, from, to *Client) (uint64, error) {
	for _, c := range []*Client{from, to} {
		if c.guarantees.Token == backend.TokenNone {
			return 0, fmt.Errorf("%w: locks on %s have no tokens: there is nothing to carry", ErrUnsupported, c.guarantees.Name)
		}
	}
	floor, err := from.lastToken(ctx)
	if err != nil {
		return 0, fmt.Errorf("the tokens of the store to leave: %w", err)
	}
	raiser, told := backend.As[backend.FloorRaiser](to.server.Own)
	if told {
		if err := raiser.RaiseFloor(ctx, floor); err != nil {
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
		switch {
		case told:
			return 0, fmt.Errorf("%w: %s was told to count on from %d, and its next token was %d: something else writes to it", ErrUnavailable, to.guarantees.Name, floor, next)
		case waited || behind > clockPatience:
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

// lastToken is a number that no token exceeds which was granted so far. What can't read its
// counters shows the keys that are held.
func (c *Client) lastToken(ctx context.Context) (uint64, error) {
	last, err := c.nextToken(ctx)
	if err != nil {
		return 0, err
	}
	if t, ok := backend.As[backend.TokenTeller](c.server.Own); ok {
		most, err := t.LastToken(ctx)
		return max(last, most), err
	}
	if l, ok := backend.As[backend.Lister](c.server.Own); ok {
		err = l.List(ctx, "", func(r backend.Record) bool {
			last = max(last, r.Token)
			return true
		})
	}
	return last, err
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
