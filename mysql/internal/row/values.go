package row

import (
	"context"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/guarded"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

var _ guarded.Keeper = (*Backend)(nil)

// GuardedValues implements guarded.Keeper with a table of its own, which InTx sets. A
// write ends the lease.
func (b *Backend) GuardedValues(ctx context.Context) (guarded.Values, error) {
	name := b.rowsName
	if b.schemaName != "" {
		name = b.schemaName + "." + name
	}
	return wire.NewValues(ctx, b.control, b.mayCreate, name, func(ctx context.Context, lease lock.Lease, set wire.Setter) error {
		return InTx(ctx, lease, func(ctx context.Context, tx *Tx) error { return set(ctx, tx) })
	})
}
