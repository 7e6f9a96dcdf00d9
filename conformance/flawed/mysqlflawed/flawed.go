package mysqlflawed

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// Lock is one lock of the collection.
type Lock struct {
	// ID is the name of the mistake, such as "Z09". Two locks may share it.
	ID string
	// Title says in a few words what the lock does.
	Title string
	// Summary says in one sentence what goes wrong.
	Summary string
	// Seen says where locks like it were found, or where they are described.
	Seen string
	// Instead says what to do in its place.
	Instead string
	// File is the source file of the mistake, in this package's directory.
	File string
	// Rule is the rule of the suite that must catch it. It is empty for the
	// healthy lock.
	Rule string

	make func(table) backend.Backend
	// expires is the type of the column, if not DATETIME(6).
	expires string
}

// TTL is the time to live of the leases that the suite lets expire.
const TTL = time.Second

// All lists the broken locks.
func All() []Lock {
	return []Lock{takesWithoutCondition, releasesWithoutOwner, selectThenUpdate, clientClock, sessionTimeZones, rowsAffected, waitTimeoutIsFinal, goesOnAfterDeadlock, batchScans}
}

// Healthy is the lock that the broken ones are made of.
func Healthy() Lock { return healthy }

// Config is the lock as the suite sees it, in the table with that name, which is
// created. The pool is shared by all clients and stays open.
func (l Lock) Config(ctx context.Context, db *sql.DB, name string) (conformance.Config, error) {
	expires := l.expires
	if expires == "" {
		expires = "DATETIME(6)"
	}
	_, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+name+` (
		lock_key VARBINARY(512) NOT NULL PRIMARY KEY,
		owner VARBINARY(32) NOT NULL,
		expires `+expires+` NOT NULL) ENGINE=InnoDB`)
	var clients atomic.Int64
	var guarded *conformance.GuardedWrite
	if b, ok := l.make(table{db: db, name: name}).(batching); ok {
		guarded = b.guarded()
	}
	return conformance.Config{
		Guarded: guarded,
		Name:    l.ID + " " + l.Title,
		TTL:     TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) {
			return l.make(table{db: db, name: name, number: int(clients.Add(1))}), nil
		},
		Remove: func(ctx context.Context, key string) error {
			_, err := db.ExecContext(ctx, "UPDATE "+name+" SET owner='', expires='1970-01-01' WHERE lock_key=?", key)
			return err
		},
	}, err
}
