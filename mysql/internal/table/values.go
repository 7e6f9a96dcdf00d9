package table

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/guarded"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

var _ guarded.Keeper = (*Backend)(nil)

// GuardedValues implements guarded.Keeper with a table of its own, which guarded writes set.
func (b *Backend) GuardedValues(ctx context.Context) (guarded.Values, error) {
	return wire.NewValues(ctx, b.db, b.mayCreate, b.name, func(ctx context.Context, lease lock.Lease, set wire.Setter) error {
		return Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error { return set(ctx, tx) })
	})
}
