package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z10 = Lock{
	ID: "Z10", Title: "a lock table with NOW() and time zones",
	Summary: "Sessions read the same row differently: one takes what is held.",
	Seen:    "lukas-krecan/ShedLock#6 and #132.",
	Instead: "UTC_TIMESTAMP(6), or seconds since 1970.",
	File:    "session_time_zones.go", Over: Memory,
	Rule: "ServerOutlivesD",
	Also: keepsNobodyOut,
	On: onTable(func(s session) backend.Backend {
		s.zone = time.Duration(s.number%24) * time.Hour
		return sessionTimeZones{tableLock{s}}
	}),
}

// sessionTimeZones compares and writes times of the zone of its session.
//
//	A, in Lisbon: ends_at = NOW() + 10 s  -> 12:00:10, A works
//	B, in Madrid: NOW() is 13:00:01, so A's time is over; ends_at = 13:00:11, B works
//	C, in Lisbon: finds B's row after B's death, and waits until 13:00:11, for an hour
//
// A column of the type DATETIME has no zone, and NOW() has that of the session,
// which a container, a pool or a change to summer time chooses. A client's own clock
// instead of NOW() goes wrong in the same way, by minutes. Caught by ServerOutlivesD:
// each of the suite's clients is given the zone east of the last one's, and so has the
// key before the deadline of its holder.
//
// Instead: UTC_TIMESTAMP(6) in every statement, and no time from the client.
type sessionTimeZones struct{ tableLock }

func (t sessionTimeZones) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.insertIgnore(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	sent := now()
	n, err := t.update(ctx, req.Key, row{req.ID.Hex(), t.now() + datetime(req.TTL)}, func(r row) bool {
		return r.owner == req.ID.Hex() || r.ends <= t.now()
	})
	switch {
	case err != nil:
		return backend.Grant{}, err
	case n == 0:
		return backend.Grant{}, held(req.Key)
	}
	return granted(sent, req.TTL), nil
}

func (t sessionTimeZones) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	n, err := t.update(ctx, hold.Key, row{hold.ID.Hex(), t.now() + datetime(hold.TTL)}, t.mineHere(hold))
	return renewed(sent, hold.TTL, n == 1, err)
}

func (t sessionTimeZones) Release(ctx context.Context, hold backend.Hold) error {
	n, err := t.update(ctx, hold.Key, row{}, t.mineHere(hold))
	return released(n == 1, err)
}

// mineHere is the condition WHERE owner = ? AND ends_at > NOW(6).
func (t sessionTimeZones) mineHere(hold backend.Hold) func(row) bool {
	return func(r row) bool { return r.owner == hold.ID.Hex() && r.ends > t.now() }
}
