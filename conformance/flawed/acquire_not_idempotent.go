package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z32 = Lock{
	ID: "Z32", Title: "SET NX that does not know its own record",
	Summary: "After a lost answer the repeat is refused.",
	Seen:    "redis/go-redis#2985; go-redis repeats three times by default.",
	Instead: "When the key is taken, look for one's own id.",
	File:    "acquire_not_idempotent.go", Over: Redis,
	Rule: "TryIdempotent",
	Also: []string{"OwnGrantRecognised", "ProgressUnderFaults", "CancelMidRequest"},
	On:   onRedis(func(s single) backend.Backend { return notIdempotent{s} }),
}

// notIdempotent takes every nil of SET NX for somebody else's record.
//
//	A: SET job a NX PX 10000   -> OK, but the connection breaks before A reads it
//	A: SET job a NX PX 10000   -> nil, says the repeat on a new connection
//	A: it is taken, so A goes away, and nobody holds the key for ten seconds
//
// The repeat is made by the client library, so the code of the lock shows only one
// SET. Caught by TryIdempotent, which sends the same request again.
// (OwnGrantRecognised looks through the lock package, which gives back what it may have
// been granted, and asks again.)
//
// Instead: the id in the record is fresh for every acquisition, so whoever finds
// its own there has been granted the key.
type notIdempotent struct{ single }

func (s notIdempotent) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	taken, err := s.rdb.SetNX(ctx, s.name(req.Key), req.ID.Hex(), req.TTL).Result()
	switch {
	case err != nil:
		return backend.Grant{}, err
	case !taken:
		return backend.Grant{}, held(req.Key) // by whom?
	}
	return granted(sent, req.TTL), nil
}
