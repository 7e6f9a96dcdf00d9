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
)

// Lock is one lock of the collection. The fields mean what they mean in package
// flawed; Also are other rules that the mistake may break.
type Lock struct {
	ID, Title, Summary, Seen, Instead, File, Rule string

	Also []string

	prepare func(ctx context.Context, db *sql.DB) error
	open    func(db *sql.DB) backend.Backend
	remove  func(ctx context.Context, db *sql.DB, key string) error
}

// TTL is the time to live of the leases that the suite lets expire.
const TTL = time.Second

// All lists the broken locks.
func All() []Lock { return []Lock{z26, uncommittedToken, z43, z44, z45} }

// Healthy lists the locks that the broken ones are made of. The suite must pass on
// them.
func Healthy() []Lock { return []Lock{healthy} }

// Config is the lock as the suite sees it, on a pool that the lock shares between all
// its clients. The suite leaves the pool open. It should not bound the number of
// connections, and keep at least 50 idle ones.
func (l Lock) Config(ctx context.Context, db *sql.DB) (conformance.Config, error) {
	if err := l.prepare(ctx, db); err != nil {
		return conformance.Config{}, fmt.Errorf("rowflawed: %w", err)
	}
	cfg := conformance.Config{
		Name: l.ID + " " + l.Title, TTL: TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) { return l.open(db), nil },
		Pool:        func(ctx context.Context) (string, error) { return sessions(ctx, db) },
	}
	if l.remove != nil {
		cfg.Remove = func(ctx context.Context, key string) error { return l.remove(ctx, db, key) }
	}
	return cfg, nil
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
