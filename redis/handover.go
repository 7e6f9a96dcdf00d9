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
		from.ID.Hex(), to.ID.Hex(), to.TTL.Milliseconds(), b.owned(to.Owner, to.Holder))
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
		err = notHeld(n.key)
	case int64(foreignRecord):
		err = foreignError(n)
	case int64(-2):
		err = foreignCounter(n)
	case int64(-3):
		err = tokensUsedUp(n)
	case int64(-4):
		err = fmt.Errorf("redislock: key %q: %w: its owner has other holds on it", n.key, backend.ErrUnsupported)
	default:
		err = unexpected(n.key, r)
	}
	return backend.Grant{}, r.refusal(n, err)
}
