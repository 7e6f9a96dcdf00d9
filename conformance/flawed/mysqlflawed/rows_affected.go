package mysqlflawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

var rowsAffected = Lock{
	ID: "Z38", Title: "no changed row means not held",
	Summary: "A renewal that writes what is there looks like a loss.",
	Seen:    "sidorares/node-mysql2#1097, lukas-krecan/ShedLock#1158.",
	Instead: "Ask for matched rows, or change a column every time.",
	File:    "rows_affected.go",
	Rule:    "RenewIdempotentCount",
	On:      onColumn{"DATETIME(1)", func(t table) backend.Backend { return byRowsAffected{t} }},
}

// byRowsAffected renews by the number of affected rows, which leaves out those that
// matched and were as they should be. The column here has tenths of a second; most
// have whole ones.
//
//	A: UPDATE ... SET expires = '10:00:15.1' WHERE owner = a   -> 1 row
//	A: UPDATE ... SET expires = '10:00:15.1' WHERE owner = a   -> 0 rows: lost?
//
// Caught by RenewIdempotentCount.
type byRowsAffected struct{ table }

// grain is added to every expiry, so that rounding takes nothing away.
const grain = 100 * time.Millisecond

func (t byRowsAffected) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := instant()
	res, err := t.db.ExecContext(ctx, "UPDATE "+t.name+" SET expires=GREATEST(expires,"+then+") WHERE lock_key=? AND owner=? AND expires>"+now,
		hold.TTL.Microseconds(), hold.Key, hold.ID.Hex())
	if err != nil {
		return backend.Validity{}, err
	}
	n, err := res.RowsAffected()
	v, err := renewed(sent, hold, n == 1, err)
	v.For -= min(v.For, grain)
	return v, err
}

func (t byRowsAffected) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := t.table.Try(ctx, req)
	g.For -= min(g.For, grain)
	return g, err
}
