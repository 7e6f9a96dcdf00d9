package row

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// listChunk bounds how many keys one statement of List returns.
const listChunk = 500

// listHolders names keys whose last holder's session still exists, in the order of
// their bytes.
func (st *statements) listHolders(prefix, after string) string {
	return fmt.Sprintf("SELECT k FROM %s WHERE k > %s AND LEFT(k, %d) = %s AND connection <> 0 AND %s = connection ORDER BY k LIMIT %d",
		st.holders, literal(after), len(prefix), literal(prefix), markUser, listChunk)
}

// List looks at the keys whose last holder's session still exists, one after the
// other, as Inspect does.
func (b *Backend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	for after := ""; ; {
		keys, err := b.holderKeys(ctx, b.listHolders(prefix, after))
		if err != nil {
			return fmt.Errorf("mysqllock: listing keys: %w", wire.Describe(ctx, err))
		}
		for _, key := range keys {
			rec, err := b.Inspect(ctx, key)
			switch {
			case errors.Is(err, backend.ErrNotHeld):
				continue
			case err != nil:
				return err
			case !visit(rec):
				return nil
			}
		}
		if len(keys) < listChunk {
			return nil
		}
		after = keys[len(keys)-1]
	}
}

func (b *Backend) holderKeys(ctx context.Context, statement string) ([]string, error) {
	rows, err := b.control.QueryContext(ctx, statement)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var keys []string
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, rows.Err()
}
