package flawed

import (
	"context"
	"slices"

	"github.com/mortiselock/lock/backend"
)

var z18 = Lock{
	ID: "Z18", Title: "one owner id per process",
	Summary: "A late release of an earlier hold ends a later one.",
	Seen:    "StackExchange/StackExchange.Redis#144 (Environment.MachineName), teableio/teable#3238.",
	Instead: "A random id for every acquisition.",
	File:    "owner_per_process.go", Over: Redis,
	Rule: "ReleaseDelayed",
	Also: slices.Concat(takeovers, cleanUps, []string{"TryIdempotent", "ReleaseByID"}),
	On:   onRedis(func(s single) backend.Backend { return ownerPerProcess{s, backend.NewID()} }),
}

// ownerPerProcess writes the same id into every record: host name and process
// number, or a random id made once at start.
//
//	A, request 1: SET job a NX PX 10000   -> OK; it takes 12 seconds
//	A, request 2: SET job a NX PX 10000   -> OK, after the expiry
//	A, request 1: compare a, it matches, DEL job: that was request 2's
//	B: SET job b NX PX 10000              -> OK, while request 2 works
//
// Between processes it is safe, so a test with two processes passes. Caught by
// ReleaseDelayed, which holds a release back until its client has the key again.
//
// Instead: the id names the acquisition. Who needs to know the process finds it
// beside the record, not in its id.
type ownerPerProcess struct {
	single
	id backend.ID
}

func (s ownerPerProcess) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	taken, err := s.rdb.SetNX(ctx, s.name(req.Key), s.id.Hex(), req.TTL).Result()
	switch {
	case err != nil:
		return backend.Grant{}, err
	case !taken:
		return backend.Grant{}, held(req.Key)
	}
	return granted(sent, req.TTL), nil
}

func (s ownerPerProcess) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	hold.ID = s.id
	return s.single.Renew(ctx, hold)
}

func (s ownerPerProcess) Release(ctx context.Context, hold backend.Hold) error {
	hold.ID = s.id
	return s.single.Release(ctx, hold)
}
