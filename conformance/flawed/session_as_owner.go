package flawed

import (
	"context"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var z35 = Lock{
	ID: "Z35", Title: "the session is the owner",
	Summary: "Two handles of a session both hold the key.",
	Seen:    "etcd-io/etcd#11364, projecteru2/core#698.",
	Instead: "A random id for every acquisition.",
	File:    "session_as_owner.go", Over: Redis,
	Rule: "ExclusiveWithinLocker",
	Also: slices.Concat(takeovers, cleanUps, manyInOneClient, []string{"TryIdempotent", "ReleaseByID", "RenewByID", "RefusalLeavesNothing", "BackendErrors", "ReleaseAtExpiry", "NothingKept"}),
	On:   onRedis(func(s single) backend.Backend { return sessionAsOwner{s, backend.NewID()} }),
}

// sessionAsOwner writes the id of its session into the record, and takes a record
// with that id for its own, so that a repeated request finds its grant.
//
//	A, request 1: SET job s NX PX 10000   -> OK, works
//	A, request 2: SET job s NX PX 10000   -> nil; GET job -> s: that is us, works
//	A, request 1: done; the record has s, DEL job
//	B: SET job b NX PX 10000              -> OK, while request 2 works
//
// Between processes it excludes, which is what its tests look at. Caught by
// ExclusiveWithinLocker, which asks twice through one client. (ReentrantExplicit is asked
// of locks that claim re-entry.)
//
// Instead: a session says which process is alive. Who holds a key is another
// question, and needs an id that one acquisition has.
type sessionAsOwner struct {
	single
	session backend.ID
}

var takeOrEnter = goredis.NewScript(`
	local holder = redis.call('GET', KEYS[1])
	if holder and holder ~= ARGV[1] then return 0 end
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	return 1`)

func (s sessionAsOwner) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	n, err := takeOrEnter.Run(ctx, s.rdb, []string{s.name(req.Key)}, s.session.Hex(), req.TTL.Milliseconds()).Int()
	switch {
	case err != nil:
		return backend.Grant{}, err
	case n == 0:
		return backend.Grant{}, held(req.Key)
	}
	return granted(sent, req.TTL), nil
}

func (s sessionAsOwner) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	hold.ID = s.session
	return s.single.Renew(ctx, hold)
}

func (s sessionAsOwner) Release(ctx context.Context, hold backend.Hold) error {
	hold.ID = s.session
	return s.single.Release(ctx, hold)
}
