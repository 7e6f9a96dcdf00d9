package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// Try asks the server once for the key, in one script.
func (b *redisBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	n := b.buckets.namesOf(req.Key)
	r, err := b.run(ctx, tryScript, n, req.ID.Hex(), req.TTL.Milliseconds(), b.owned(req.Owner, req.Holder))
	if err != nil {
		return backend.Grant{}, err
	}
	return answerTo(req, n, r)
}

// trying are the arguments of the script that grants, for those who have more.
func (b *redisBackend) trying(req backend.Request) []any {
	return []any{req.ID.Hex(), req.TTL.Milliseconds(), b.owned(req.Owner, req.Holder)}
}

func answerTo(req backend.Request, n names, r reply) (backend.Grant, error) {
	list := wire.ListOf(r.value)
	if token, ok := r.value.(string); ok {
		list = wire.List{int64(1), token, int64(1)}
	}
	var err error
	switch list.Int(0) {
	case 1:
		token, noNumber := strconv.ParseUint(list.String(1), 10, 64)
		if noNumber == nil && len(list) == 3 {
			return backend.Grant{
				Token:     token,
				Holds:     list.Int(2),
				MayArrive: r.repeated,
				Validity:  backend.Validity{Sent: r.sent, For: backend.ValidFor(req.TTL)},
			}, nil
		}
	case 0:
		if len(list) == 4 || len(list) == 7 {
			err = &backend.HeldError{
				Key:       req.Key,
				Holder:    wire.HolderOf(list.String(1), list.String(2)),
				Remaining: list.Millis(3),
			}
		}
	case foreignRecord:
		err = foreignError(n)
	case -2:
		err = foreignCounter(n)
	case -3:
		err = tokensUsedUp(n)
	case -5:
		err = foreignQueue(n)
	case -4:
		err = fmt.Errorf("redislock: key %q: %w", req.Key, backend.ErrTooManyHolds)
	}
	if err == nil {
		err = unexpected(req.Key, r)
	}
	return backend.Grant{}, r.refusal(n, err)
}

// refusal is the error of a request for a grant that was refused. An earlier request
// that lost its reply may be under way still, and be granted what this one was not:
// then the outcome is unknown, whatever the last answer was.
func (r reply) refusal(n names, err error) error {
	if !r.repeated {
		return err
	}
	return fmt.Errorf("redislock: key %q: %w: an attempt lost its reply, and may take effect yet; after it: %w",
		n.key, backend.ErrOutcomeUnknown, failure.Unmarked(err))
}

// Renew extends the hold in one script.
func (b *redisBackend) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	n := b.buckets.namesOf(hold.Key)
	r, err := b.run(ctx, renewScript, n, hold.ID.Hex(), hold.TTL.Milliseconds())
	if err != nil {
		return backend.Validity{}, renewalError(err)
	}
	return renewal(hold, n, r)
}

// renewalError has a hold end whose client was closed by its owner: no renewal can
// succeed any more, and the holder should not learn of it at the deadline only.
func renewalError(err error) error {
	if errors.Is(err, goredis.ErrClosed) {
		return fmt.Errorf("%w: %w", backend.ErrSessionLost, err)
	}
	return err
}

func renewal(hold backend.Hold, n names, r reply) (backend.Validity, error) {
	switch r.value {
	case int64(1):
		return backend.Validity{Sent: r.sent, For: backend.ValidFor(hold.TTL)}, nil
	case int64(0):
		return backend.Validity{}, notHeld(hold.Key)
	case int64(foreignRecord):
		return backend.Validity{}, foreignError(n)
	}
	return backend.Validity{}, unexpected(hold.Key, r)
}

// Release ends the hold in one script. When an attempt lost its reply and the
// next one finds no hold, the first is taken to have removed it.
func (b *redisBackend) Release(ctx context.Context, hold backend.Hold) error {
	_, err := b.ReleaseTelling(ctx, hold)
	return err
}

// ReleaseTelling implements backend.ReleaseTeller. In a Cluster the clients that watch
// may be connected to other members, so their number is not known.
func (b *redisBackend) ReleaseTelling(ctx context.Context, hold backend.Hold) (others int, err error) {
	n := b.buckets.namesOf(hold.Key)
	own := b.hub.Subscribes(n.record())
	r, err := b.run(ctx, releaseScript, n, b.removing(hold.ID.Hex())...)
	if err != nil {
		return 0, err
	}
	if watch, ok := r.value.(int64); ok && watch > 1 { // as release.lua returns it
		others = int(watch) - 2
		if own {
			others = max(others-1, 0)
		}
		return others, nil
	}
	return -1, removal(n, r)
}

// ForceRelease removes the record if it has the token, in one script.
func (b *redisBackend) ForceRelease(ctx context.Context, key string, token uint64) error {
	n := b.buckets.namesOf(key)
	r, err := b.run(ctx, forceScript, n, b.removing(strconv.FormatUint(token, 10))...)
	if err != nil {
		return err
	}
	return removal(n, r)
}

// removing are the arguments of the scripts that end a hold, or all of them.
func (b *redisBackend) removing(what string) []any {
	if b.cluster {
		return []any{what, "cluster"}
	}
	return []any{what}
}

func removal(n names, r reply) error {
	switch r.value {
	case int64(1):
		return nil
	case int64(0):
		if r.repeated {
			return nil
		}
		return notHeld(n.key)
	case int64(foreignRecord):
		return foreignError(n)
	}
	return unexpected(n.key, r)
}

// Inspect shows the record of the key. Redis does not know who waits, so
// Waiters is -1.
func (b *redisBackend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	return b.inspect(ctx, inspectScript, key)
}

func (b *redisBackend) inspect(ctx context.Context, s script, key string) (backend.Record, error) {
	n := b.buckets.namesOf(key)
	r, err := b.run(ctx, s, n)
	if err != nil {
		return backend.Record{}, err
	}
	list := wire.ListOf(r.value)
	switch list.Int(0) {
	case 1:
		token, err := strconv.ParseUint(list.String(1), 10, 64)
		waiters := -1
		if len(list) == 8 {
			waiters = list.Int(7)
		}
		if err == nil && len(list) >= 7 {
			return backend.Record{
				Key:       key,
				Token:     token,
				Holds:     list.Int(2),
				Waiters:   waiters,
				Remaining: list.Millis(3),
				Holder:    wire.HolderOf(list.String(5), list.String(4)),
				Revoked:   list.Int(6) == 1,
			}, nil
		}
	case 0:
		return backend.Record{}, notHeld(key)
	case foreignRecord:
		return backend.Record{}, foreignError(n)
	}
	return backend.Record{}, unexpected(key, r)
}

// foreignRecord is what every script answers about a record that is not ours.
const foreignRecord = -1

func notHeld(key string) error { return failure.NotHeld("redislock", key) }

func foreignError(n names) error {
	return fmt.Errorf("redislock: key %q: %w: the value of the Redis key %q was not written by this version of the library, and is left as it is; remove it, or choose another prefix",
		n.key, backend.ErrPermanent, n.record())
}

// unexpected is a reply that no script of ours gives. The outcome is unknown.
func unexpected(key string, r reply) error {
	return fmt.Errorf("redislock: key %q: the server gave an unexpected reply of type %T", key, r.value)
}

// owned is what a record says of owner and holder.
func (b *redisBackend) owned(owner string, h backend.Holder) string {
	return ownerField(owner) + "|" + b.holders.Of(h)
}

func foreignCounter(n names) error {
	return fmt.Errorf("redislock: key %q: %w: the Redis key %q is not a token counter of ours, and is left as it is; remove it, or choose another prefix",
		n.key, backend.ErrPermanent, n.counter())
}

func foreignQueue(n names) error {
	return fmt.Errorf("redislock: key %q: %w: the Redis key %q is not a queue of ours, and is left as it is; remove it, or choose another prefix",
		n.key, backend.ErrPermanent, n.queue())
}

func tokensUsedUp(n names) error {
	return fmt.Errorf("redislock: key %q: %w: the tokens are used up: the counter %q has reached 2^53; only another prefix starts afresh, with smaller tokens",
		n.key, backend.ErrPermanent, n.counter())
}
