package flawed

import (
	"context"
	"errors"

	"github.com/mortiselock/lock/backend"
)

var z13 = Lock{
	ID: "Z13", Title: "renewal that takes the key again",
	Summary: "A lease that has run out comes back.",
	Seen:    "leandromoreira/redlock-rb#36; SET name id PX ttl.",
	Instead: "No record: the hold is lost.",
	File:    "renew_recreates.go", Over: Redis,
	Rule: "RenewNeverResurrects",
	Also: []string{"RenewNotOthers", "RenewAfterRelease", "RenewByID", "LostOnRemoval", "LeaseConcurrent", "ReleaseStopsRenewal", "ReleaseBesideRenewal", "RenewKeeps", "NoLeak", "DeadlineEnds"},
	On:   onRedis(func(s single) backend.Backend { return renewRecreates{s} }),
}

// renewRecreates renews a record that is its own, and when there is none takes
// the key, thinking that nobody else wants it.
//
//	A: SET job a NX PX 10000     -> OK; reads the stock: 5
//	A: stands still for 15 seconds
//	B: acquires, sets the stock to 4, releases
//	A: renews: there is no record, SET job a NX PX 10000 -> OK
//	A: still holds, as far as it can tell, and sets the stock to 4
//
// At no time were there two holders, and still an update is lost: what A knew was
// known under another hold. Caught by RenewNeverResurrects, which renews after the
// expiry, before anybody else has come.
//
// Instead: answer that the hold is lost, and let the caller begin anew.
type renewRecreates struct{ single }

func (s renewRecreates) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	v, err := s.single.Renew(ctx, hold)
	if !errors.Is(err, backend.ErrNotHeld) {
		return v, err
	}
	sent := now()
	taken, err := s.rdb.SetNX(ctx, s.name(hold.Key), hold.ID.Hex(), hold.TTL).Result()
	return renewed(sent, hold.TTL, taken, err)
}
