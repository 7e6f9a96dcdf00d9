package flawed

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z31 = Lock{
	ID: "Z31", Title: "re-entry counted with a blind HINCRBY",
	Summary: "A repeated request counts twice, and one release leaves the key held.",
	Seen:    "HINCRBY under clients that repeat commands.",
	Instead: "Count holds by their ids.",
	File:    "reentry_counted_blindly.go", Over: Redis,
	Rule: "ReentrantFault",
	Also: []string{
		"ReleaseDelayed", "TryIdempotent", "HandOverUnknown", "CancelMidRequest", "ProgressUnderFaults", "LateGrant",
		"OwnGrantRecognised", "HoldCount", "ReleaseByID", "RenewByID", "ExpiryIsPerHold", "ReentrantLimit",
		"ReleaseUnknown", "ReentrantAfterLoss", "BackendErrors", "RefusalLeavesNothing", "CancelDuring", "NoSecretsInErrors",
	},
	On: onRedis(func(s single) backend.Backend { return countedBlindly{s} }),
}

// countedBlindly keeps a hash with the owner and how often it has entered.
//
//	A: HINCRBY job holds 1    -> 1, but the connection breaks before A reads it
//	A: HINCRBY job holds 1    -> 2, says the repeat on a new connection
//	A: works, releases: HINCRBY job holds -1 -> 1, so the record stays
//	B: waits for the TTL, or for ever where A's process renews
//
// A counter does not know what it has counted. Caught by ReentrantFault, which
// loses requests and answers. That all holds have one expiry, and that a second release
// of one hold ends another, comes from the same counter.
//
// Instead: a field for each hold, named by its id, with an expiry of its own.
type countedBlindly struct{ single }

var (
	enter = goredis.NewScript(`
		local owner = redis.call('HGET', KEYS[1], 'owner')
		if owner and owner ~= ARGV[1] then return 0 end
		redis.call('HSET', KEYS[1], 'owner', ARGV[1])
		if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
		return redis.call('HINCRBY', KEYS[1], 'holds', 1)`)

	extend = goredis.NewScript(`
		if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
		if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
		return 1`)

	leave = goredis.NewScript(`
		if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
		if redis.call('HINCRBY', KEYS[1], 'holds', -1) == 0 then redis.call('DEL', KEYS[1]) end
		return 1`)
)

// ownerOf is who is written into the record: whoever names no owner is one of its own.
func ownerOf(owner string, id backend.ID) string {
	if owner == "" {
		return id.Hex()
	}
	return owner
}

func (s countedBlindly) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	n, err := enter.Run(ctx, s.rdb, []string{s.name(req.Key)}, ownerOf(req.Owner, req.ID), req.TTL.Milliseconds()).Int()
	switch {
	case err != nil:
		return backend.Grant{}, err
	case n == 0:
		return backend.Grant{}, held(req.Key)
	}
	g := granted(sent, req.TTL)
	g.Holds = n
	return g, nil
}

func (s countedBlindly) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	n, err := extend.Run(ctx, s.rdb, []string{s.name(hold.Key)}, ownerOf(hold.Owner, hold.ID), hold.TTL.Milliseconds()).Int()
	return renewed(sent, hold.TTL, n == 1, err)
}

func (s countedBlindly) Release(ctx context.Context, hold backend.Hold) error {
	n, err := leave.Run(ctx, s.rdb, []string{s.name(hold.Key)}, ownerOf(hold.Owner, hold.ID)).Int()
	return released(n == 1, err)
}

func (s countedBlindly) Guarantees() backend.Guarantees {
	g := s.single.Guarantees()
	g.Reentrancy = backend.ReentrancyServer
	return g
}
