package mysqlflawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

var clientClock = Lock{
	ID: "Z10", Title: "expiry by the client's clock",
	Summary: "A client whose clock is ahead takes held keys.",
	Seen:    "lukas-krecan/ShedLock#6 and #132.",
	Instead: "UTC_TIMESTAMP(6) in the statement.",
	File:    "client_clock.go",
	Rule:    "ServerOutlivesD",
	On:      onTable(func(t table) backend.Backend { return byClientClock{t} }),
}

// byClientClock compares with the time of the machine that asks. The clock of each
// client is a minute ahead of the last one's.
//
//	A: UPDATE ... SET expires = '10:00:10' WHERE expires <= '10:00:00'   A works
//	B: UPDATE ... SET expires = '10:01:10' WHERE expires <= '10:01:00'   B works too
//
// Caught by ServerOutlivesD: the next client has the key before the deadline of its holder.
type byClientClock struct{ table }

func (t byClientClock) clock() time.Time {
	return time.Now().UTC().Add(time.Duration(t.number%60) * time.Minute)
}

const layout = "2006-01-02 15:04:05.000000"

func (t byClientClock) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.free(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	sent, clock := instant(), t.clock()
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET owner=?, expires=IF(LAST_INSERT_ID(1),?,NULL) WHERE lock_key=? AND (expires<=? OR owner=?)",
		req.ID.Hex(), clock.Add(req.TTL).Format(layout), req.Key, clock.Format(layout), req.ID.Hex())
	return granted(sent, req, ok, err)
}

func (t byClientClock) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent, clock := instant(), t.clock()
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET expires=IF(LAST_INSERT_ID(1),GREATEST(expires,?),NULL) WHERE lock_key=? AND owner=? AND expires>?",
		clock.Add(hold.TTL).Format(layout), hold.Key, hold.ID.Hex(), clock.Format(layout))
	return renewed(sent, hold, ok, err)
}
