package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/mortiselock/lock/backend"
)

var (
	_ backend.Forgetter = (*tableBackend)(nil)
	_ backend.Forgetter = (*rowBackend)(nil)
)

// forgetChunk is how many keys Forget looks at in one step.
const forgetChunk = 200

var errNoPrefix = fmt.Errorf("mysqllock: %w: an empty prefix would forget the tokens of every key", backend.ErrInvalid)

// Forget implements backend.Forgetter. A row that somebody has locked is left alone. The
// user needs DELETE on the table.
func (b *tableBackend) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return errNoPrefix
	}
	where := statement(nil).text(" WHERE ").beginning(prefix).text(" AND expires<=" + now)
	for {
		removed, err := b.remove(ctx, where, forgetChunk)
		switch {
		case err != nil:
			return fmt.Errorf("mysqllock: forgetting keys: %w", describe(ctx, err))
		case removed < forgetChunk:
			return nil
		}
	}
}

// Forget implements backend.Forgetter. A key whose row somebody has locked is left
// alone, and so is every other key. The user needs DELETE on both tables.
func (b *rowBackend) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return errNoPrefix
	}
	keys := "SELECT k FROM " + b.rows + " WHERE k >= " + literal(prefix) + " AND LEFT(k, " + strconv.Itoa(len(prefix)) + ") = " + literal(prefix)
	if _, err := b.removeKeys(ctx, keys, ""); err != nil {
		return fmt.Errorf("mysqllock: forgetting keys: %w", describe(ctx, err))
	}
	return nil
}

// removeKeys removes the keys that the query names, which ends with a condition, if their
// records meet another one, and returns how many. It leaves out those whose rows somebody
// has locked.
func (b *rowBackend) removeKeys(ctx context.Context, query, record string) (removed int, err error) {
	for after := ""; ; {
		conn, err := b.briefConn(ctx)
		if err != nil {
			return removed, err
		}
		keys, n, err := b.removeSome(ctx, conn, query+" AND k > "+literal(after)+" ORDER BY k LIMIT "+strconv.Itoa(forgetChunk), record)
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		closeConn(conn, errNotReused)
		removed += n
		if err != nil || len(keys) < forgetChunk {
			return removed, err
		}
		after = keys[len(keys)-1]
	}
}

// removeSome returns the keys that it has looked at, and how many it has removed. It names each
// row that it locks: a statement about several may lock rows of other keys, which are refused
// meanwhile. It leaves a transaction open.
func (b *rowBackend) removeSome(ctx context.Context, conn *sql.Conn, query, record string) (keys []string, removed int, err error) {
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
		switch code := codeOf(err); {
		case err == nil:
			gone, err = b.deleteKey(ctx, conn, key, record)
		case errors.Is(err, sql.ErrNoRows), code == codeLockNowait, code == codeLockWaitTimeout:
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
func (b *rowBackend) deleteKey(ctx context.Context, conn *sql.Conn, key, record string) (bool, error) {
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
