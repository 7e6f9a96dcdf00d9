package mysqlflawed

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

var sessionTimeZones = Lock{
	ID: "Z10", Title: "NOW() in sessions of different time zones",
	Summary: "A client takes what is held in another time zone.",
	Seen:    "lukas-krecan/ShedLock#6 and #132.",
	Instead: "UTC_TIMESTAMP(6).",
	File:    "session_time_zones.go",
	Rule:    "ServerOutlivesD",
	On:      onTable(func(t table) backend.Backend { return bySessionTime{t} }),
}

// bySessionTime takes the server's time as the session shows it. The sessions of each
// client are an hour ahead of the last one's.
//
//	A: UPDATE ... SET expires = NOW(6) + 10 s WHERE expires <= NOW(6)   at 12:00:00: A works
//	B: UPDATE ... SET expires = NOW(6) + 10 s WHERE expires <= NOW(6)   at 13:00:01: B works too
//
// Caught by ServerOutlivesD: the next client has the key before the deadline of its holder.
type bySessionTime struct{ table }

// inZone is matched in a session with the client's time zone.
func (t bySessionTime) inZone(ctx context.Context, query string, args ...any) (bool, error) {
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("SET time_zone='+%02d:00'", t.number%12)); err != nil {
		return false, err
	}
	return matchedOn(ctx, conn, query, args...)
}

func (t bySessionTime) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.free(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	sent := instant()
	ok, err := t.inZone(ctx, "UPDATE "+t.name+" SET owner=?, expires=IF(LAST_INSERT_ID(1),NOW(6)+INTERVAL ? MICROSECOND,NULL) WHERE lock_key=? AND (expires<=NOW(6) OR owner=?)",
		req.ID.Hex(), req.TTL.Microseconds(), req.Key, req.ID.Hex())
	return granted(sent, req, ok, err)
}

func (t bySessionTime) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := instant()
	ok, err := t.inZone(ctx, "UPDATE "+t.name+" SET expires=IF(LAST_INSERT_ID(1),GREATEST(expires,NOW(6)+INTERVAL ? MICROSECOND),NULL) WHERE lock_key=? AND owner=? AND expires>NOW(6)",
		hold.TTL.Microseconds(), hold.Key, hold.ID.Hex())
	return renewed(sent, hold, ok, err)
}

func (t bySessionTime) Release(ctx context.Context, hold backend.Hold) error {
	ok, err := t.inZone(ctx, "UPDATE "+t.name+" SET owner='', expires=IF(LAST_INSERT_ID(1),'1970-01-01',NULL) WHERE lock_key=? AND owner=? AND expires>NOW(6)",
		hold.Key, hold.ID.Hex())
	return found(ok, err)
}
