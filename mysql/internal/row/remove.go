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

var (
	_ backend.Forgetter = (*Backend)(nil)
	_ backend.Cleaner   = (*Backend)(nil)
)

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
	return b.Cleanup(ctx, olderThan, false)
}

// Cleanup implements backend.Cleaner. A key is as old as its last grant. Those that were never
// granted are removed too, and none whose row somebody has locked.
func (b *Backend) Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (int, error) {
	if dryRun {
		return b.old(ctx, olderThan, b.hasRecord, b.isUngranted)
	}
	return b.old(ctx, olderThan, b.deleteKey, b.deleteUngranted)
}

// old calls do for each key whose last grant was longer than olderThan ago, and ungranted for
// each that was never granted: whoever made its row has given up, or died.
func (b *Backend) old(ctx context.Context, olderThan time.Duration, do, ungranted deed) (n int, err error) {
	if olderThan <= 0 {
		return 0, wire.TooYoung(olderThan)
	}
	// The token is compared too: it is ahead of a clock that has been set back.
	age := strconv.FormatInt(wire.Micros(olderThan), 10)
	old := "since < UTC_TIMESTAMP(6) - INTERVAL " + age + " MICROSECOND AND token < " + utcMicros + " - " + age
	n, err = b.eachKey(ctx, "SELECT k FROM "+b.holders+" WHERE "+old, " AND "+old, do)
	if err == nil {
		var more int
		more, err = b.eachKey(ctx, "SELECT k FROM "+b.rows+" AS r WHERE NOT EXISTS (SELECT 1 FROM "+b.holders+" AS h WHERE h.k = r.k)", "", ungranted)
		n += more
	}
	if err != nil {
		return n, fmt.Errorf("mysqllock: clean-up: %w", wire.Describe(ctx, err))
	}
	return n, nil
}

// Forget implements backend.Forgetter. A key whose row somebody has locked is left
// alone, and so is every other key. The user needs DELETE on both tables.
func (b *Backend) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return wire.ErrNoPrefix
	}
	keys := "SELECT k FROM " + b.rows + " WHERE k >= " + literal(prefix) + " AND LEFT(k, " + strconv.Itoa(len(prefix)) + ") = " + literal(prefix)
	if _, err := b.eachKey(ctx, keys, "", b.deleteKey); err != nil {
		return fmt.Errorf("mysqllock: forgetting keys: %w", wire.Describe(ctx, err))
	}
	return nil
}

// deed is done with a key whose row is locked for it, if its record meets the condition.
type deed func(ctx context.Context, conn *sql.Conn, key, record string) (done bool, err error)

// eachKey does something with the keys that the query names, which ends with a condition,
// and returns with how many. It leaves out those whose rows somebody has locked.
func (b *Backend) eachKey(ctx context.Context, query, record string, do deed) (done int, err error) {
	for after := floorKey; ; {
		conn, err := b.briefConn(ctx)
		if err != nil {
			return done, err
		}
		keys, n, err := b.someKeys(ctx, conn, query+" AND k > "+literal(after)+" ORDER BY k LIMIT "+strconv.Itoa(removeChunk), record, do)
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		closeConn(conn, errNotReused)
		done += n
		if err != nil || len(keys) < removeChunk {
			return done, err
		}
		after = keys[len(keys)-1]
	}
}

// someKeys returns the keys that it has looked at, and with how many it was done. It names each
// row that it locks: a statement about several may lock rows of other keys, which are refused
// meanwhile. It leaves a transaction open.
func (b *Backend) someKeys(ctx context.Context, conn *sql.Conn, query, record string, do deed) (keys []string, done int, err error) {
	keys, err = keysOf(ctx, conn, query)
	if err != nil {
		return nil, 0, err
	}
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return nil, 0, err
	}
	for _, key := range keys {
		did := false
		err := conn.QueryRowContext(ctx, b.row(key)+" FOR UPDATE NOWAIT").Scan(new(int))
		switch code := wire.CodeOf(err); {
		case err == nil:
			did, err = do(ctx, conn, key, record)
		case errors.Is(err, sql.ErrNoRows), code == wire.CodeLockNowait, code == wire.CodeLockWaitTimeout:
			err = nil
		}
		if err == nil {
			_, err = conn.ExecContext(ctx, "COMMIT AND CHAIN")
		}
		if err != nil {
			return nil, done, err
		}
		if did {
			done++
		}
	}
	return keys, done, nil
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

// hasRecord says whether the record of a key meets the condition.
func (b *Backend) hasRecord(ctx context.Context, conn *sql.Conn, key, record string) (bool, error) {
	found, err := keysOf(ctx, conn, "SELECT k FROM "+b.holders+" WHERE k = "+literal(key)+record)
	return len(found) > 0, err
}

// deleteUngranted removes the row of a key that has no record.
func (b *Backend) deleteUngranted(ctx context.Context, conn *sql.Conn, key, _ string) (bool, error) {
	res, err := conn.ExecContext(ctx, "DELETE FROM "+b.rows+" WHERE k = "+literal(key)+
		" AND NOT EXISTS (SELECT 1 FROM "+b.holders+" WHERE k = "+literal(key)+")")
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// isUngranted says whether a key has no record.
func (b *Backend) isUngranted(ctx context.Context, conn *sql.Conn, key, _ string) (bool, error) {
	has, err := b.hasRecord(ctx, conn, key, "")
	return !has, err
}
