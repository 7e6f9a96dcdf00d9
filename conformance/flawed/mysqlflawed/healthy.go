package mysqlflawed

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
)

var healthy = Lock{
	ID: "healthy", Title: "one conditional UPDATE for each step, by the server's clock",
	File: "healthy.go",
	On:   onTable(func(t table) backend.Backend { return t }),
}

// table is a correct lock table without tokens and without explicit owners, and the
// ground on which broken ones are built.
//
//	acquire   INSERT IGNORE a free row
//	          UPDATE ... SET owner = id WHERE lock_key = ? AND (expires <= now OR owner = id)
//	renew     UPDATE ... SET expires = now + ttl WHERE lock_key = ? AND owner = id AND expires > now
//	release   UPDATE ... SET owner = '' WHERE lock_key = ? AND owner = id AND expires > now
//
// LAST_INSERT_ID(1) comes back with the answer when a row has met the condition,
// whether it was changed or not.
type table struct {
	db     *sql.DB
	name   string
	number int // 1 for the first client of a run, and so on
}

const (
	now  = "UTC_TIMESTAMP(6)"
	then = now + "+INTERVAL ? MICROSECOND"
)

func instant() backend.Instant { return backend.SystemClock().Now() }

// matched sends an UPDATE that has LAST_INSERT_ID(1) in it.
func (t table) matched(ctx context.Context, query string, args ...any) (bool, error) {
	return matchedOn(ctx, t.db, query, args...)
}

// execer is a pool, or one connection.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func matchedOn(ctx context.Context, on execer, query string, args ...any) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// The statement goes on when the context has ended: a driver that gives it up
	// closes the connection, and the server may carry it out later.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for {
		res, err := on.ExecContext(ctx, query, args...)
		if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && (e.Number == 1205 || e.Number == 1213) {
			continue // others were in the way
		}
		if err != nil {
			return false, err
		}
		id, err := res.LastInsertId()
		return id == 1, err
	}
}

// free creates the row if there is none.
func (t table) free(ctx context.Context, key string) error {
	_, err := t.matched(ctx, "INSERT IGNORE INTO "+t.name+" VALUES (?, '', '1970-01-01')", key)
	return err
}

func (t table) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.free(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	sent := instant()
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET owner=?, expires=IF(LAST_INSERT_ID(1),"+then+",NULL) WHERE lock_key=? AND (expires<="+now+" OR owner=?)",
		req.ID.Hex(), req.TTL.Microseconds(), req.Key, req.ID.Hex())
	return granted(sent, req, ok, err)
}

func (t table) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := instant()
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET expires=IF(LAST_INSERT_ID(1),GREATEST(expires,"+then+"),NULL) WHERE lock_key=? AND owner=? AND expires>"+now,
		hold.TTL.Microseconds(), hold.Key, hold.ID.Hex())
	return renewed(sent, hold, ok, err)
}

func (t table) Release(ctx context.Context, hold backend.Hold) error {
	ok, err := t.matched(ctx, "UPDATE "+t.name+" SET owner='', expires=IF(LAST_INSERT_ID(1),'1970-01-01',NULL) WHERE lock_key=? AND owner=? AND expires>"+now,
		hold.Key, hold.ID.Hex())
	return found(ok, err)
}

func (t table) Close() error { return nil }

func (t table) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name: "lock table", Reach: backend.ReachNetwork, Expiry: backend.ClockServerWall,
		Assumptions: []string{"One server takes all writes, keeps what it has committed, and its clock is not set forward."},
		MinTTL:      100 * time.Millisecond, MaxTTL: time.Hour, TTLGrain: time.Microsecond,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll,
		ManualRenewal: true, WithoutRenewal: true, LossSignal: true, Deadline: true,
	}
}

func granted(sent backend.Instant, req backend.Request, ok bool, err error) (backend.Grant, error) {
	switch {
	case err != nil:
		return backend.Grant{}, err
	case !ok:
		return backend.Grant{}, &backend.HeldError{Key: req.Key}
	}
	return backend.Grant{Holds: 1, Validity: backend.Validity{Sent: sent, For: backend.ValidFor(req.TTL)}}, nil
}

func renewed(sent backend.Instant, hold backend.Hold, ok bool, err error) (backend.Validity, error) {
	if err := found(ok, err); err != nil {
		return backend.Validity{}, err
	}
	return backend.Validity{Sent: sent, For: backend.ValidFor(hold.TTL)}, nil
}

func found(ok bool, err error) error {
	if err == nil && !ok {
		return backend.ErrNotHeld
	}
	return err
}
