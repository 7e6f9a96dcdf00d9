package redislock

import (
	"context"
	_ "embed" // the script
	"fmt"
	"strconv"

	"github.com/mortiselock/lock/backend"
)

//go:embed handover.lua
var handOverText string

var handOverScript = newScript(handOverText)

// HandOver ends the hold and grants the key to the next waiter of this client, in
// one script. Whose turn it is has been decided by the lock package.
func (b *redisBackend) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	n := b.buckets.namesOf(from.Key)
	r, err := b.run(ctx, handOverScript, n,
		from.ID.Hex(), to.ID.Hex(), to.TTL.Milliseconds(), b.holders.owned(to.Owner, to.Holder))
	if err != nil {
		return backend.Grant{}, err
	}
	if text, ok := r.value.(string); ok {
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return backend.Grant{}, unexpected(n.key, r)
		}
		return backend.Grant{
			Token: token, Holds: 1,
			Validity: backend.Validity{Sent: r.sent, For: backend.ValidFor(to.TTL)},
		}, nil
	}
	switch r.value {
	case int64(0):
		if r.repeated {
			return backend.Grant{}, fmt.Errorf("redislock: key %q: %w: a hand-over lost its reply", n.key, backend.ErrOutcomeUnknown)
		}
		return backend.Grant{}, notHeld(n.key)
	case int64(foreignRecord):
		return backend.Grant{}, foreignError(n)
	case int64(-2):
		return backend.Grant{}, foreignCounter(n)
	case int64(-3):
		return backend.Grant{}, tokensUsedUp(n)
	case int64(-4):
		return backend.Grant{}, fmt.Errorf("redislock: key %q: %w: its owner has other holds on it", n.key, backend.ErrUnsupported)
	}
	return backend.Grant{}, unexpected(n.key, r)
}
