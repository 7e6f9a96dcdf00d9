package row

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

var _ backend.Forgetter = (*Backend)(nil)

// removeChunk is how many keys are looked at in one step.
const removeChunk = 200

// Cleanup does what [Backend.Cleanup] does, on tables that exist.
func Cleanup(ctx context.Context, connector driver.Connector, o Options, olderThan time.Duration) (removed int, err error) {
	if olderThan <= 0 {
		return 0, wire.TooYoung(olderThan)
	}
	o.NoCreate = true
	b, err := New(ctx, connector, o)
	if err != nil {
		return 0, err
	}
	defer b.Close()
	return b.Cleanup(ctx, olderThan)
}

// Cleanup removes the keys whose last grant was longer than olderThan ago, except those
// whose rows somebody has locked, and returns how many.
func (b *Backend) Cleanup(ctx context.Context, olderThan time.Duration) (removed int, err error) {
	if olderThan <= 0 {
		return 0, wire.TooYoung(olderThan)
	}
	// The token is compared too: it is ahead of a clock that has been set back.
	age := strconv.FormatInt((olderThan + time.Microsecond - 1).Microseconds(), 10)
	old := "since < UTC_TIMESTAMP(6) - INTERVAL " + age + " MICROSECOND AND token < " + utcMicros + " - " + age
	removed, err = b.removeKeys(ctx, "SELECT k FROM "+b.holders+" WHERE "+old, " AND "+old)
	if err != nil {
		return removed, fmt.Errorf("mysqllock: clean-up: %w", wire.Describe(ctx, err))
	}
	return removed, nil
}

// Forget implements backend.Forgetter. A key whose row somebody has locked is left
// alone, and so is every other key. The user needs DELETE on both tables.
func (b *Backend) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return wire.ErrNoPrefix
	}
	keys := "SELECT k FROM " + b.rows + " WHERE k >= " + literal(prefix) + " AND LEFT(k, " + strconv.Itoa(len(prefix)) + ") = " + literal(prefix)
	if _, err := b.removeKeys(ctx, keys, ""); err != nil {
		return fmt.Errorf("mysqllock: forgetting keys: %w", wire.Describe(ctx, err))
	}
	return nil
}

// removeKeys removes the keys that the query names, which ends with a condition, if their
// records meet another one, and returns how many. It leaves out those whose rows somebody
// has locked.
func (b *Backend) removeKeys(ctx context.Context, query, record string) (removed int, err error) {
	for after := ""; ; {
		conn, err := b.briefConn(ctx)
		if err != nil {
			return removed, err
		}
		keys, n, err := b.removeSome(ctx, conn, query+" AND k > "+literal(after)+" ORDER BY k LIMIT "+strconv.Itoa(removeChunk), record)
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		closeConn(conn, errNotReused)
		removed += n
		if err != nil || len(keys) < removeChunk {
			return removed, err
		}
		after = keys[len(keys)-1]
	}
}

// removeSome returns the keys that it has looked at, and how many it has removed. It names each
// row that it locks: a statement about several may lock rows of other keys, which are refused
// meanwhile. It leaves a transaction open.
func (b *Backend) removeSome(ctx context.Context, conn *sql.Conn, query, record string) (keys []string, removed int, err error) {
	keys, err = keysOf(ctx, conn, query)
	if err != nil {
		return nil, 0, err
	}
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return nil, 0, err
	}
	for _, key := range keys {
		gone := false
		err := conn.QueryRowContext(ctx, b.row(key)+" FOR UPDATE NOWAIT").Scan(new(int))
		switch code := wire.CodeOf(err); {
		case err == nil:
			gone, err = b.deleteKey(ctx, conn, key, record)
		case errors.Is(err, sql.ErrNoRows), code == wire.CodeLockNowait, code == wire.CodeLockWaitTimeout:
			err = nil
		}
		if err == nil {
			_, err = conn.ExecContext(ctx, "COMMIT AND CHAIN")
		}
		if err != nil {
			return nil, removed, err
		}
		if gone {
			removed++
		}
	}
	return keys, removed, nil
}

func keysOf(ctx context.Context, conn *sql.Conn, query string) ([]string, error) {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	var keys []string
	for rows.Next() {
		var key string
		if err = rows.Scan(&key); err != nil {
			break
		}
		keys = append(keys, key)
	}
	return keys, errors.Join(err, rows.Err(), rows.Close())
}

// deleteKey removes both rows of a key, if its record meets the condition.
func (b *Backend) deleteKey(ctx context.Context, conn *sql.Conn, key, record string) (bool, error) {
	res, err := conn.ExecContext(ctx, "DELETE FROM "+b.holders+" WHERE k = "+literal(key)+record)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 && record != "" {
		return false, err
	}
	_, err = conn.ExecContext(ctx, "DELETE FROM "+b.rows+" WHERE k = "+literal(key))
	return err == nil, err
}
