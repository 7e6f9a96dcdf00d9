package mysqlflawed

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
)

// Lock is one lock of the collection.
type Lock = flaw.Lock

// TTL is the time to live of the leases that the suite lets expire.
const TTL = time.Second

// All lists the broken locks.
func All() []Lock {
	return []Lock{takesWithoutCondition, releasesWithoutOwner, selectThenUpdate, clientClock, sessionTimeZones, rowsAffected, waitTimeoutIsFinal, goesOnAfterDeadlock, batchScans}
}

// Healthy is what the broken locks are made of.
func Healthy() []Lock { return []Lock{healthy} }

// onTable makes a client of the lock out of a healthy one. The server is a [*sql.DB],
// which all clients of the lock share. Each lock creates a table of its own.
type onTable func(table) backend.Backend

// Make implements flaw.Maker.
func (on onTable) Make(ctx context.Context, l Lock, server any) (conformance.Config, error) {
	return onColumn{"DATETIME(6)", on}.Make(ctx, l, server)
}

// onColumn is onTable where the expiry is of another type.
type onColumn struct {
	expires string
	table   onTable
}

// Make implements flaw.Maker.
func (on onColumn) Make(ctx context.Context, l Lock, server any) (conformance.Config, error) {
	db := server.(*sql.DB)
	name := fmt.Sprintf("flawed_%s_%d", strings.TrimSuffix(l.File, ".go"), os.Getpid())
	_, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+name+` (
		lock_key VARBINARY(512) NOT NULL PRIMARY KEY,
		owner VARBINARY(32) NOT NULL,
		expires `+on.expires+` NOT NULL) ENGINE=InnoDB`)
	var clients atomic.Int64
	var guarded *conformance.GuardedWrite
	if b, ok := on.table(table{db: db, name: name}).(batching); ok {
		guarded = b.guarded()
	}
	return conformance.Config{
		Guarded: guarded,
		TTL:     TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) {
			return on.table(table{db: db, name: name, number: int(clients.Add(1))}), nil
		},
		Remove: func(ctx context.Context, key string) error {
			_, err := db.ExecContext(ctx, "UPDATE "+name+" SET owner='', expires='1970-01-01' WHERE lock_key=?", key)
			return err
		},
	}, err
}
