package wire

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/guarded"
)

var _ guarded.Opener = (*guardedValues)(nil)

// Execer is what the two kinds of transactions have in common.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Setter sets the value in a transaction.
type Setter func(ctx context.Context, tx Execer) error

type guardedValues struct {
	db    *sql.DB
	table string // quoted
	write func(ctx context.Context, lease lock.Lease, set Setter) error
}

var errMayNotCreate = errors.New("they need a table of their own, and create=false forbids to make one")

// NewValues makes a table in the database that has the table of the locks. write has the
// value set in a transaction of the lease.
func NewValues(ctx context.Context, db *sql.DB, mayCreate bool, beside string, write func(context.Context, lock.Lease, Setter) error) (guarded.Values, error) {
	if !mayCreate {
		return nil, errMayNotCreate
	}
	name := "lock_values_" + strings.ToLower(rand.Text()[:12])
	if database, _, ok := strings.Cut(beside, "."); ok {
		name = database + "." + name
	}
	v := &guardedValues{db: db, table: Quote(name), write: write}
	_, err := db.ExecContext(ctx, "CREATE TABLE "+v.table+" (k VARBINARY(512) PRIMARY KEY, v VARBINARY(256) NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC COMMENT='values of a check of github.com/mortiselock/lock, which removes it'")
	if err != nil {
		return nil, fmt.Errorf("they need a table of their own, which could not be made: %w", Describe(ctx, err))
	}
	return v, nil
}

func (v *guardedValues) Write(ctx context.Context, lease lock.Lease, value string) error {
	return v.Open(ctx, lease, value, func() {})
}

// Open implements guarded.Opener: the transaction is under way between.
func (v *guardedValues) Open(ctx context.Context, lease lock.Lease, value string, between func()) error {
	return v.write(ctx, lease, func(ctx context.Context, tx Execer) error {
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
