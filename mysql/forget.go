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

// Forget implements backend.Forgetter. The user needs DELETE on the table.
func (b *tableBackend) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return errNoPrefix
	}
	statement := string(statement(nil).text("DELETE FROM ").text(b.table).text(" WHERE ").beginning(prefix).
		text(" AND expires<=" + now + " ORDER BY lock_key LIMIT ").int(forgetChunk))
	for {
		var removed int64
		err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
			res, err := conn.ExecContext(ctx, statement)
			if err == nil {
				removed, err = res.RowsAffected()
			}
			return err
		})
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
	for after := ""; ; {
		conn, err := b.control.Conn(ctx)
		if err != nil {
			return fmt.Errorf("mysqllock: forgetting keys: %w", describe(ctx, unsent{err}))
		}
		keys, err := b.forgetSome(ctx, conn, prefix, after)
		_, ended := conn.ExecContext(ctx, "ROLLBACK")
		closeConn(conn, ended)
		switch {
		case err != nil:
			return fmt.Errorf("mysqllock: forgetting keys: %w", describe(ctx, err))
		case len(keys) < forgetChunk:
			return nil
		}
		after = keys[len(keys)-1]
	}
}

// forgetSome returns the keys that it has looked at. It names each row that it locks:
// a statement about several may lock rows of other keys, which are refused meanwhile.
// It leaves a transaction open.
func (b *rowBackend) forgetSome(ctx context.Context, conn *sql.Conn, prefix, after string) ([]string, error) {
	keys, err := b.keysFrom(ctx, conn, prefix, after)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return nil, err
	}
	for _, key := range keys {
		err := conn.QueryRowContext(ctx, b.row(key)+" FOR UPDATE NOWAIT").Scan(new(int))
		switch code := codeOf(err); {
		case err == nil:
			err = b.deleteKey(ctx, conn, key)
		case errors.Is(err, sql.ErrNoRows), code == codeLockNowait, code == codeLockWaitTimeout:
			err = nil
		}
		if err == nil {
			_, err = conn.ExecContext(ctx, "COMMIT AND CHAIN")
		}
		if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// keysFrom are the next keys with the prefix, in the order of their bytes.
func (b *rowBackend) keysFrom(ctx context.Context, conn *sql.Conn, prefix, after string) ([]string, error) {
	rows, err := conn.QueryContext(ctx, "SELECT k FROM "+b.rows+" WHERE k >= "+literal(prefix)+" AND k > "+literal(after)+
		" AND LEFT(k, "+strconv.Itoa(len(prefix))+") = "+literal(prefix)+" ORDER BY k LIMIT "+strconv.Itoa(forgetChunk))
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

func (b *rowBackend) deleteKey(ctx context.Context, conn *sql.Conn, key string) error {
	for _, table := range []string{b.rows, b.holders} {
		if _, err := conn.ExecContext(ctx, "DELETE FROM "+table+" WHERE k = "+literal(key)); err != nil {
			return err
		}
	}
	return nil
}
