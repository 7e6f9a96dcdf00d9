package flawed

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var healthyTable = Lock{
	ID: "healthy", Title: "a lock table",
	File: "healthy_table.go", Over: Memory,
	On: onTable(func(s session) backend.Backend { return tableLock{s} }),
}

// table is a table of a database, in memory:
//
//	CREATE TABLE locks (name VARCHAR(512) PRIMARY KEY, owner CHAR(32), ends_at DATETIME(6))
//
// Each of its statements is atomic, and nothing is between two of them, as between
// statements that commit by themselves.
type table struct {
	mu   sync.Mutex
	rows map[string]row
}

type row struct {
	owner string
	ends  datetime
}

// datetime is a date and a time of day. As in SQL it does not know its time zone:
// it is the time since 1970 as a clock on the wall shows it.
type datetime time.Duration

// session is the connection of one client.
type session struct {
	clocked
	*table
	number int           // 1 for the first client of a run, and so on
	zone   time.Duration // its time zone, ahead of UTC
}

// utcTimestamp is UTC_TIMESTAMP(6).
func (s session) utcTimestamp() datetime { return datetime(time.Now().UnixNano()) }

// now is NOW(6): the time in the zone of the session.
func (s session) now() datetime { return s.utcTimestamp() + datetime(s.zone) }

// selectRow is SELECT owner, ends_at FROM locks WHERE name = ?.
func (s session) selectRow(ctx context.Context, name string) (row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[name], ctx.Err()
}

// insertIgnore is INSERT IGNORE INTO locks VALUES (?, ”, '1970-01-01').
func (s session) insertIgnore(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.rows[name]; !there && ctx.Err() == nil {
		s.rows[name] = row{}
	}
	return ctx.Err()
}

// update is UPDATE locks SET ... WHERE name = ? AND where. It returns the number of
// rows that were changed.
func (s session) update(ctx context.Context, name string, set row, where func(row) bool) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	r, there := s.rows[name]
	if !there || !where(r) {
		return 0, nil
	}
	s.rows[name] = set
	return 1, nil
}

// delete is DELETE FROM locks WHERE name = ?.
func (s session) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, name)
}

// tableLock is a correct lock on such a table. Each step is one statement whose
// condition the database checks, with the time of the database.
//
//	acquire   INSERT IGNORE; UPDATE ... SET owner = ?, ends_at = UTC_TIMESTAMP(6) + ttl
//	          WHERE name = ? AND (owner = ? OR ends_at <= UTC_TIMESTAMP(6))
//	renew     UPDATE ... SET ends_at = ... WHERE name = ? AND owner = ? AND ends_at > UTC_TIMESTAMP(6)
//	release   UPDATE ... SET owner = '', ends_at = '1970-01-01' WHERE as for renew
type tableLock struct{ session }

func (t tableLock) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := t.insertIgnore(ctx, req.Key); err != nil {
		return backend.Grant{}, err
	}
	return t.takeIf(ctx, req, func(r row) bool {
		return r.owner == req.ID.Hex() || r.ends <= t.utcTimestamp()
	})
}

// takeIf makes the row the request's if it fulfils the condition.
func (t tableLock) takeIf(ctx context.Context, req backend.Request, where func(row) bool) (backend.Grant, error) {
	sent := now()
	n, err := t.update(ctx, req.Key, row{req.ID.Hex(), t.utcTimestamp() + datetime(req.TTL)}, where)
	switch {
	case err != nil:
		return backend.Grant{}, err
	case n == 0:
		return backend.Grant{}, held(req.Key)
	}
	return granted(sent, req.TTL), nil
}

// mine is the condition WHERE owner = ? AND ends_at > UTC_TIMESTAMP(6).
func (t tableLock) mine(hold backend.Hold) func(row) bool {
	return func(r row) bool { return r.owner == hold.ID.Hex() && r.ends > t.utcTimestamp() }
}

func (t tableLock) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	n, err := t.update(ctx, hold.Key, row{hold.ID.Hex(), t.utcTimestamp() + datetime(hold.TTL)}, t.mine(hold))
	return renewed(sent, hold.TTL, n == 1, err)
}

func (t tableLock) Release(ctx context.Context, hold backend.Hold) error {
	n, err := t.update(ctx, hold.Key, row{}, t.mine(hold))
	return released(n == 1, err)
}

func (t tableLock) Close() error { return nil }

func (t tableLock) Guarantees() backend.Guarantees {
	g := single{}.Guarantees()
	g.Reach = backend.ReachProcess
	g.Assumptions = []string{"Everybody who must be excluded is a goroutine of this process and uses this table."}
	return g
}
