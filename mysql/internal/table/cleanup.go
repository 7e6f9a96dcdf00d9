package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Cleanup does what [Backend.Cleanup] does, on a table that exists.
func Cleanup(ctx context.Context, db *sql.DB, name string, olderThan time.Duration) (removed int, err error) {
	b, err := newBackend(db, name)
	if err != nil {
		return 0, err
	}
	if err := b.checkSettings(ctx, construct.Logger(nil)); err != nil {
		return 0, err
	}
	return b.Cleanup(ctx, olderThan, false)
}

// cleanupChunk bounds how many rows one statement locks.
const cleanupChunk = 200

// Cleanup implements backend.Cleaner.
func (b *Backend) Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (removed int, err error) {
	if olderThan <= 0 {
		return 0, wire.TooYoung(olderThan)
	}
	if dryRun {
		return b.countOld(ctx, olderThan)
	}
	if _, err := b.change(ctx, b.insertFloor(0)); err != nil {
		return 0, fmt.Errorf("mysqllock: clean-up: %w", wire.Describe(ctx, err))
	}
	old := unusedFor(olderThan)
	for after := floorKey; ; {
		chunk, last, err := b.cleanChunk(ctx, after, old)
		removed += chunk
		switch {
		case err != nil:
			return removed, fmt.Errorf("mysqllock: clean-up: %w", wire.Describe(ctx, err))
		case last == "":
			return removed, nil
		}
		after = last
	}
}

// countOld counts rows that somebody has locked, too.
func (b *Backend) countOld(ctx context.Context, olderThan time.Duration) (old int, err error) {
	where := statement(nil).text(" WHERE lock_key>").bytes(floorKey).text(unusedFor(olderThan))
	err = b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+b.table+string(where)).Scan(&old)
	})
	if err != nil {
		return 0, fmt.Errorf("mysqllock: counting old keys: %w", wire.Describe(ctx, err))
	}
	return old, nil
}

// unusedFor is the condition for rows that nobody has held or used for so long.
func unusedFor(olderThan time.Duration) string {
	return string(statement(nil).text(" AND updated<" + now + "-INTERVAL ").micros(olderThan).
		text(" MICROSECOND AND expires<" + now + "-INTERVAL ").micros(olderThan).text(" MICROSECOND"))
}

// cleanChunk removes rows after the key, and returns the last key that it looked at, or
// "" when there are no more. Each of its statements is a transaction. The floor is raised
// first: a key that is inserted with what the floor was before makes that wait, and its row
// is found to exist.
func (b *Backend) cleanChunk(ctx context.Context, after, old string) (removed int, last string, err error) {
	rows, err := b.read(ctx, b.selects().text(" WHERE lock_key>").bytes(after).
		text(old).text(" ORDER BY lock_key LIMIT ").int(cleanupChunk))
	if err != nil || len(rows) == 0 {
		return 0, "", err
	}
	keys := statement(nil).text(" WHERE lock_key IN (")
	var floor int64
	for i, r := range rows {
		if i > 0 {
			keys = keys.text(",")
		}
		keys = keys.bytes(r.key)
		floor = max(floor, r.token)
	}
	if err := b.raiseFloor(ctx, floor); err != nil {
		return 0, "", err
	}
	// A row that somebody has used meanwhile is not old, or has a larger token.
	where := keys.text(") AND token<=").int(floor).text(old)
	n, err := b.remove(ctx, where, len(rows))
	if err != nil || len(rows) < cleanupChunk {
		return n, "", err
	}
	return n, rows[len(rows)-1].key, nil
}

// floorTries is how often raiseFloor tries, which takes some ten seconds.
const floorTries = 1000

// raiseFloor needs the lock of a row that each new key reads with a lock of its own. It
// does not wait for it, since new keys would have to wait behind.
func (b *Backend) raiseFloor(ctx context.Context, token int64) error {
	s := b.updateUnlocked(1, statement(nil).where(floorKey), statement(nil).text("updated="+now+",token=LAST_INSERT_ID(GREATEST(token,").int(token).text("))"))
	for try := 1; ; try++ {
		a, err := b.change(ctx, s)
		if err != nil || a.id >= token {
			return err
		}
		err = wire.Jitter(ctx, try)
		if err != nil || try == floorTries {
			return errors.Join(fmt.Errorf("%w: somebody has locked the row of the floor, whose key is x'00', for long", backend.ErrUnavailable), err)
		}
	}
}

// remove deletes the rows that meet the condition, which names their keys, and that
// nobody has locked.
func (b *Backend) remove(ctx context.Context, where statement, most int) (removed int, err error) {
	return b.affected(ctx, statement(nil).text("DELETE ").text(b.table).text(" FROM ").unlocked(b.table, most, where))
}

// affected is how many rows the statement has removed, or changed: where it changes each that
// it finds, it is the same number whatever clientFoundRows is.
func (b *Backend) affected(ctx context.Context, s statement) (rows int, err error) {
	text := string(s)
	err = b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		res, err := conn.ExecContext(ctx, text)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		rows = int(n)
		return err
	})
	return rows, err
}
