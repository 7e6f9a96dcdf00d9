package table

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// listChunk bounds how many rows one statement of List returns.
const listChunk = 500

// List reads the held keys in the order of their bytes, 500 in a statement.
func (b *Backend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	for after := floorKey; ; {
		rows, err := b.read(ctx, b.list(prefix, after))
		if err != nil {
			return fmt.Errorf("mysqllock: listing keys: %w", wire.Describe(ctx, err))
		}
		for _, r := range rows {
			rec, err := r.record()
			if err != nil {
				continue // not ours
			}
			if !visit(rec) {
				return nil
			}
		}
		if len(rows) < listChunk {
			return nil
		}
		after = rows[len(rows)-1].key
	}
}

// record is what the row shows, and an error for a row that is free or not ours.
func (r row) record() (backend.Record, error) {
	holds, err := r.unexpired()
	switch {
	case err != nil:
		return backend.Record{}, err
	case len(holds) == 0:
		return backend.Record{}, wire.NotHeld(r.key)
	}
	return backend.Record{
		Key: r.key, Token: uint64(r.token), Holds: len(holds), Waiters: -1,
		Remaining: r.remaining(), Holder: r.holder(), Revoked: r.holds == revokedHold,
	}, nil
}
