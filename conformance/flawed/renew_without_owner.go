package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z14 = Lock{
	ID: "Z14", Title: "renewal with a bare PEXPIRE",
	Summary: "A holder that has lost the key keeps the next one's record alive.",
	Seen:    "Home-made watchdogs.",
	Instead: "Compare and extend in one script; else the hold is lost.",
	File:    "renew_without_owner.go", Over: Redis,
	Rule: "RenewNotOthers",
	Also: []string{"RenewNeverResurrects", "RenewAfterRelease", "RenewByID", "RefusalLeavesNothing", "ReleaseStopsRenewal", "LostOnRemoval"},
	On:   onRedis(func(s single) backend.Backend { return renewWithoutOwner{s} }),
}

// renewWithoutOwner extends whatever record there is.
//
//	A: SET job a NX PX 10000   -> OK, and renews every 3 seconds
//	A: stands still for 15 seconds
//	B: SET job b NX PX 10000   -> OK, B works
//	A: PEXPIRE job 10000       -> 1: A thinks that it has renewed, and goes on
//	B: dies; A goes on extending B's record, and nobody gets the key
//
// Two mistakes in one: A is not told of its loss, and B's time is not B's.
// Caught by RenewNotOthers, which renews a lease that has run out while somebody
// else holds the key.
//
// Instead: compare the id and extend in one script.
type renewWithoutOwner struct{ single }

func (s renewWithoutOwner) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	extended, err := s.rdb.PExpire(ctx, s.name(hold.Key), hold.TTL).Result()
	return renewed(sent, hold.TTL, extended, err)
}
