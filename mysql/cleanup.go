package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/mortiselock/lock/backend"
)

// CleanupTable removes the rows of keys that nobody has held or used for longer than
// olderThan, measured by the server's clock, and returns how many. No fencing token
// goes back: the largest token that was removed is written down before, as
// the floor for keys that come again. It can run beside everything else, and more
// than once at a time: it has no transaction open between its statements, and rows that
// somebody has locked are left for the next time. The user needs DELETE on the table. When it ends with an
// error, what had been removed until then is counted.
func CleanupTable(ctx context.Context, db *sql.DB, opts *Options, olderThan time.Duration) (removed int, err error) {
	b, err := newTable(db, opts)
	if err != nil {
		return 0, err
	}
	if err := b.checkSettings(ctx, slog.New(slog.DiscardHandler)); err != nil {
		return 0, err
	}
	return b.Cleanup(ctx, olderThan)
}

// CleanupRows is [CleanupTable] for the tables of row locks: it removes the keys whose last
// grant was longer than olderThan ago, except those whose rows somebody has locked, and
// returns how many. It creates no tables. A key that comes again has a larger token than before, unless the
// server's clock has been set back by more than olderThan. It can run beside everything
// else: it locks one row at a time, without waiting; a try at that very moment is refused. The user needs
// DELETE on both tables.
func CleanupRows(ctx context.Context, connector driver.Connector, opts *RowOptions, olderThan time.Duration) (removed int, err error) {
	if olderThan <= 0 {
		return 0, tooYoung(olderThan)
	}
	o := RowOptions{}
	if opts != nil {
		o = *opts
	}
	o.NoCreate = true
	opened, err := NewRowBackend(ctx, connector, &o)
	if err != nil {
		return 0, err
	}
	defer opened.Close()
	return opened.(*rowBackend).Cleanup(ctx, olderThan)
}

// Cleanup does what [CleanupRows] does, on the tables of the backend.
func (b *rowBackend) Cleanup(ctx context.Context, olderThan time.Duration) (removed int, err error) {
	if olderThan <= 0 {
		return 0, tooYoung(olderThan)
	}
	// The token is compared too: it is ahead of a clock that has been set back.
	age := strconv.FormatInt(micros(olderThan), 10)
	old := "since < UTC_TIMESTAMP(6) - INTERVAL " + age + " MICROSECOND AND token < " + utcMicros + " - " + age
	removed, err = b.removeKeys(ctx, "SELECT k FROM "+b.holders+" WHERE "+old, " AND "+old)
	if err != nil {
		return removed, fmt.Errorf("mysqllock: clean-up: %w", describe(ctx, err))
	}
	return removed, nil
}

func tooYoung(olderThan time.Duration) error {
	return fmt.Errorf("mysqllock: clean-up: %w: rows older than %s; it must be positive", backend.ErrInvalid, olderThan)
}

// cleanupChunk bounds how many rows one statement locks.
const cleanupChunk = 200

// Cleanup does what [CleanupTable] does, on the table of the backend.
func (b *tableBackend) Cleanup(ctx context.Context, olderThan time.Duration) (removed int, err error) {
	if olderThan <= 0 {
		return 0, tooYoung(olderThan)
	}
	if _, err := b.change(ctx, b.insertFloor(0)); err != nil {
		return 0, fmt.Errorf("mysqllock: clean-up: %w", describe(ctx, err))
	}
	old := string(statement(nil).text(" AND updated<" + now + "-INTERVAL ").micros(olderThan).
		text(" MICROSECOND AND expires<" + now + "-INTERVAL ").micros(olderThan).text(" MICROSECOND"))
	for after := floorKey; ; {
		chunk, last, err := b.cleanChunk(ctx, after, old)
		removed += chunk
		switch {
		case err != nil:
			return removed, fmt.Errorf("mysqllock: clean-up: %w", describe(ctx, err))
		case last == "":
			return removed, nil
		}
		after = last
	}
}

// cleanChunk removes rows after the key, and returns the last key that it looked at, or
// "" when there are no more. Each of its statements is a transaction. The floor is raised
// first: a key that is inserted with what the floor was before makes that wait, and its row
// is found to exist.
func (b *tableBackend) cleanChunk(ctx context.Context, after, old string) (removed int, last string, err error) {
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
func (b *tableBackend) raiseFloor(ctx context.Context, token int64) error {
	s := b.updateUnlocked(1, statement(nil).where(floorKey), statement(nil).text("updated="+now+",token=LAST_INSERT_ID(GREATEST(token,").int(token).text("))"))
	for try := 1; ; try++ {
		a, err := b.change(ctx, s)
		if err != nil || a.id >= token {
			return err
		}
		err = jitter(ctx, try)
		if err != nil || try == floorTries {
			return errors.Join(fmt.Errorf("%w: somebody has locked the row of the floor, whose key is x'00', for long", backend.ErrUnavailable), err)
		}
	}
}

// remove deletes the rows that meet the condition, which names their keys, and that
// nobody has locked.
func (b *tableBackend) remove(ctx context.Context, where statement, most int) (removed int, err error) {
	text := string(statement(nil).text("DELETE ").text(b.table).text(" FROM ").unlocked(b.table, most, where))
	err = b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		res, err := conn.ExecContext(ctx, text)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected() // of a DELETE: the same whatever clientFoundRows is
		removed = int(n)
		return err
	})
	return removed, err
}
