package table

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

var _ backend.Forgetter = (*Backend)(nil)

// forgetChunk is how many keys Forget looks at in one step.
const forgetChunk = 200

// Forget implements backend.Forgetter. A row that somebody has locked is left alone. The
// user needs DELETE on the table.
func (b *Backend) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return wire.ErrNoPrefix
	}
	where := statement(nil).text(" WHERE ").beginning(prefix).text(" AND expires<=" + now)
	for {
		removed, err := b.remove(ctx, where, forgetChunk)
		switch {
		case err != nil:
			return fmt.Errorf("mysqllock: forgetting keys: %w", wire.Describe(ctx, err))
		case removed < forgetChunk:
			return nil
		}
	}
}
