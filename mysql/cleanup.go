package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// CleanupTable removes the rows of keys that nobody has held or used for longer than
// olderThan, measured by the server's clock, and returns how many. No fencing token
// goes back: the largest token that was removed is kept, in the same transaction, as
// the floor for keys that come again. It can run beside everything else, and more
// than once at a time. The user needs DELETE on the table. When it ends with an
// error, what had been removed until then is counted.
func CleanupTable(ctx context.Context, db *sql.DB, opts *Options, olderThan time.Duration) (removed int, err error) {
	b, err := newTable(db, opts)
	if err != nil {
		return 0, err
	}
	return b.Cleanup(ctx, olderThan)
}

// cleanupChunk bounds how many rows one transaction locks.
const cleanupChunk = 200

// Cleanup does what [CleanupTable] does, on the table of the backend.
func (b *tableBackend) Cleanup(ctx context.Context, olderThan time.Duration) (removed int, err error) {
	if olderThan <= 0 {
		return 0, fmt.Errorf("mysqllock: clean-up: %w: rows older than %s; it must be positive", backend.ErrInvalid, olderThan)
	}
	if _, err := b.change(ctx, b.insertFloor(0)); err != nil {
		return 0, fmt.Errorf("mysqllock: clean-up: %w", describe(ctx, err))
	}
	for after := floorKey; ; {
		var chunk int
		err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
			var last string
			chunk, last, err = b.cleanChunk(ctx, conn, after, olderThan)
			if err == nil {
				after = last
			}
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("mysqllock: clean-up: %w", describe(ctx, err))
		}
		removed += chunk
		if after == "" {
			return removed, nil
		}
	}
}

// cleanChunk removes rows after the key, in one transaction, and returns the last
// key that it looked at, or "" when there are no more. The floor is locked before
// any row, the order in which a new key is inserted too.
func (b *tableBackend) cleanChunk(ctx context.Context, conn *sql.Conn, after string, olderThan time.Duration) (removed int, last string, err error) {
	old := statement(nil).text("updated<" + now + "-INTERVAL ").micros(olderThan).
		text(" MICROSECOND AND expires<" + now + "-INTERVAL ").micros(olderThan).text(" MICROSECOND")
	rows, err := scanRows(conn.QueryContext(ctx, string(b.selects().text(" WHERE lock_key>").bytes(after).
		text(" AND ").text(string(old)).text(" ORDER BY lock_key LIMIT ").int(cleanupChunk))))
	if err != nil || len(rows) == 0 {
		return 0, "", err
	}
	var keys statement
	var floor int64
	for i, r := range rows {
		if i > 0 {
			keys = keys.text(",")
		}
		keys = keys.bytes(r.key)
		floor = max(floor, r.token)
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = tx.Rollback() }() // nothing after a commit
	if _, err := tx.ExecContext(ctx, string(b.updates().text("updated="+now+",token=GREATEST(token,").int(floor).text(")").where(floorKey))); err != nil {
		return 0, "", err
	}
	// A row that somebody has used meanwhile is not old, or has a larger token.
	res, err := tx.ExecContext(ctx, string(statement(nil).text("DELETE FROM ").text(b.table).text(" WHERE lock_key IN (").
		text(string(keys)).text(") AND token<=").int(floor).text(" AND ").text(string(old))))
	if err != nil {
		return 0, "", err
	}
	n, err := res.RowsAffected() // of a DELETE: the same whatever clientFoundRows is
	if err != nil {
		return 0, "", err
	}
	if err := tx.Commit(); err != nil {
		return 0, "", err
	}
	if len(rows) < cleanupChunk {
		return int(n), "", nil
	}
	return int(n), rows[len(rows)-1].key, nil
}
