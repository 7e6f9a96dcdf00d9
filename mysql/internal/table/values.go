package table

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/values"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

var _ values.Keeper = (*Backend)(nil)

// GuardedValues implements values.Keeper with a table of its own, which guarded writes set.
func (b *Backend) GuardedValues(ctx context.Context) (values.Guarded, error) {
	return wire.NewValues(ctx, b.db, b.mayCreate, b.name, func(ctx context.Context, lease lock.Lease, set wire.Setter) error {
		return Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error { return set(ctx, tx) })
	})
}
