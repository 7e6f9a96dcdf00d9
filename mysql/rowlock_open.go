package mysqllock

import (
	"context"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// openRow opens mode=row of a URL.
func openRow(ctx context.Context, s urlSettings) (backend.Backend, error) {
	if s.ttl != 0 {
		if err := rowGuarantees().CheckTTL(s.ttl); err != nil {
			return nil, err
		}
	}
	connector, err := newCuttable(s.config, s.lifetime)
	if err != nil {
		return nil, err
	}
	return NewRowBackend(ctx, connector, &RowOptions{
		Lock: lock.Options{Logger: s.logger}, Table: s.table, NoCreate: !s.create || s.lookOnly, PoolSize: s.pool,
		lookOnly: s.lookOnly,
	})
}
