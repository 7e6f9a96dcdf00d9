// Package rowflawed is a collection of locks on rows of MySQL or MariaDB, with SELECT
// ... FOR UPDATE, as people write them: each has one mistake and names the rule of the
// conformance suite that must catch it. It goes with the packages flawed and
// mysqlflawed, which has the lock tables. None of it is for use.
package rowflawed

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
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
func All() []Lock { return []Lock{z26, uncommittedToken, z43, z44, z45} }

// Healthy lists the locks that the broken ones are made of. The suite must pass on
// them.
func Healthy() []Lock { return []Lock{healthy} }

// How a client of the lock is made. The server is a [*sql.DB], which all clients of the
// lock share. It should not bound the number of connections, and keep at least 50 idle
// ones.
type (
	onRows func(db *sql.DB) backend.Backend
	// onHiddenRows is onRows where nobody can see whose connection a hold is on, so that
	// nobody can remove it.
	onHiddenRows func(db *sql.DB) backend.Backend
)

// Make implements flaw.Maker.
func (on onRows) Make(ctx context.Context, l Lock, server any) (conformance.Config, error) {
	cfg, err := onHiddenRows(on).Make(ctx, l, server)
	cfg.Remove = func(ctx context.Context, key string) error { return removeRow(ctx, server.(*sql.DB), key) }
	return cfg, err
}

// Make implements flaw.Maker.
func (on onHiddenRows) Make(ctx context.Context, _ Lock, server any) (conformance.Config, error) {
	db := server.(*sql.DB)
	if err := prepareRows(ctx, db); err != nil {
		return conformance.Config{}, fmt.Errorf("rowflawed: %w", err)
	}
	return conformance.Config{
		TTL:         TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) { return on(db), nil },
		Pool:        func(ctx context.Context) (string, error) { return sessions(ctx, db) },
	}, nil
}

// sessions describes the connections that lie idle in the pool: how many have which
// settings.
func sessions(ctx context.Context, db *sql.DB) (string, error) {
	seen := map[string]bool{}
	var held []*sql.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for range max(db.Stats().Idle, 1) {
		c, err := db.Conn(ctx)
		if err != nil {
			return "", err
		}
		held = append(held, c)
		var wait, autocommit int
		if err := c.QueryRowContext(ctx, "SELECT @@SESSION.wait_timeout, @@SESSION.autocommit").Scan(&wait, &autocommit); err != nil {
			return "", err
		}
		seen[fmt.Sprintf("wait_timeout=%d autocommit=%d", wait, autocommit)] = true
	}
	var list []string
	for s := range seen {
		list = append(list, s)
	}
	slices.Sort(list)
	return fmt.Sprint(list), nil
}
