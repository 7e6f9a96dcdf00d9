package mysqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/values"
)

var (
	_ values.Keeper = (*tableBackend)(nil)
	_ values.Keeper = (*rowBackend)(nil)
	_ values.Opener = (*guardedValues)(nil)
)

// GuardedValues implements values.Keeper with a table of its own, which Guarded writes.
func (b *tableBackend) GuardedValues(ctx context.Context) (values.Guarded, error) {
	v, err := makeValues(ctx, b.db, b.mayCreate, b.name)
	if err != nil {
		return nil, err
	}
	v.write = func(ctx context.Context, lease lock.Lease, set setter) error {
		return Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error { return set(ctx, tx) })
	}
	return v, nil
}

// GuardedValues implements values.Keeper with a table of its own, which InTx writes. A
// write ends the lease.
func (b *rowBackend) GuardedValues(ctx context.Context) (values.Guarded, error) {
	name := b.rowsName
	if b.schemaName != "" {
		name = b.schemaName + "." + name
	}
	v, err := makeValues(ctx, b.control, b.mayCreate, name)
	if err != nil {
		return nil, err
	}
	v.write = func(ctx context.Context, lease lock.Lease, set setter) error {
		return InTx(ctx, lease, func(ctx context.Context, tx Tx) error { return set(ctx, tx) })
	}
	return v, nil
}

// execer is what the two kinds of transactions have in common.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// setter sets the value in a transaction.
type setter func(ctx context.Context, tx execer) error

type guardedValues struct {
	db    *sql.DB
	table string // quoted
	write func(ctx context.Context, lease lock.Lease, set setter) error
}

var errMayNotCreate = errors.New("they need a table of their own, and create=false forbids to make one")

// makeValues makes the table in the database that has the table of the locks.
func makeValues(ctx context.Context, db *sql.DB, mayCreate bool, beside string) (*guardedValues, error) {
	if !mayCreate {
		return nil, errMayNotCreate
	}
	name := "lock_values_" + strings.ToLower(rand.Text()[:12])
	if database, _, ok := strings.Cut(beside, "."); ok {
		name = database + "." + name
	}
	v := &guardedValues{db: db, table: quoted(name)}
	_, err := db.ExecContext(ctx, "CREATE TABLE "+v.table+" (k VARBINARY(512) PRIMARY KEY, v VARBINARY(256) NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC COMMENT='values of a check of github.com/mortiselock/lock, which removes it'")
	if err != nil {
		return nil, fmt.Errorf("they need a table of their own, which could not be made: %w", describe(ctx, err))
	}
	return v, nil
}

func (v *guardedValues) Write(ctx context.Context, lease lock.Lease, value string) error {
	return v.Open(ctx, lease, value, func() {})
}

// Open implements values.Opener: the transaction is under way between.
func (v *guardedValues) Open(ctx context.Context, lease lock.Lease, value string, between func()) error {
	return v.write(ctx, lease, func(ctx context.Context, tx execer) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO "+v.table+" VALUES (?, ?) ON DUPLICATE KEY UPDATE v=VALUES(v)", lease.Key(), value)
		between()
		return err
	})
}

func (v *guardedValues) Read(ctx context.Context, key string) (string, error) {
	var value string
	err := v.db.QueryRowContext(ctx, "SELECT v FROM "+v.table+" WHERE k=?", key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return value, err
}

func (v *guardedValues) Remove(ctx context.Context) error {
	_, err := v.db.ExecContext(ctx, "DROP TABLE IF EXISTS "+v.table)
	return err
}
