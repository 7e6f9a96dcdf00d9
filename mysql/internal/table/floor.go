package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

var (
	_ backend.FloorRaiser = (*Backend)(nil)
	_ backend.TokenTeller = (*Backend)(nil)
)

// floorChunk bounds how many rows one statement of RaiseFloor locks.
const floorChunk = 200

// RaiseFloor raises the row of the floor first, which new keys read with a lock: none is
// inserted with less afterwards, and those before are found among the rows. Then it raises the
// token of each row that is free. What is held keeps its token: there the time of the last
// change is set to that of the floor, from which the next grant counts on. Rows that somebody
// has locked are tried again for some ten seconds.
func (b *Backend) RaiseFloor(ctx context.Context, above uint64) error {
	if above >= lastToken {
		return fmt.Errorf("mysqllock: %w: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(lastToken-1))
	}
	floor := int64(above)
	_, err := b.change(ctx, b.insertFloor(0))
	if err == nil {
		err = b.raiseFloor(ctx, floor)
	}
	for try := 1; err == nil; try++ {
		var left int
		if left, err = b.raiseRows(ctx, floor); err == nil && left == 0 {
			return nil
		}
		if err == nil {
			err = wire.Jitter(ctx, try)
			if err != nil || try == floorTries {
				err = errors.Join(fmt.Errorf("%w: somebody has locked the rows of %d keys for long, which are not raised yet; call it again", backend.ErrUnavailable, left), err)
			}
		}
	}
	return fmt.Errorf("mysqllock: raising the floor of the tokens: %w", wire.Describe(ctx, err))
}

// raiseRows raises every row that is behind and that nobody has locked, and returns how many
// are left.
func (b *Backend) raiseRows(ctx context.Context, floor int64) (left int, err error) {
	at := string(statement(nil).text(epoch + "+INTERVAL ").int(floor).text(" MICROSECOND"))
	behind := string(statement(nil).text(" AND token<").int(floor).text(" AND (expires<=" + now + " OR updated<" + at + ")"))
	set := statement(nil).text("token=IF(expires<=" + now + ",").int(floor).text(",token),updated=IF(expires<=" + now + ",updated," + at + ")")
	for after := floorKey; ; {
		rows, err := b.read(ctx, b.selects().text(" WHERE lock_key>").bytes(after).text(behind).text(" ORDER BY lock_key LIMIT ").int(floorChunk))
		if err != nil || len(rows) == 0 {
			return left, err
		}
		where := statement(nil).text(" WHERE lock_key IN (")
		for i, r := range rows {
			if i > 0 {
				where = where.text(",")
			}
			where = where.bytes(r.key)
		}
		n, err := b.affected(ctx, b.updateUnlocked(len(rows), where.text(")").text(behind), set))
		if err != nil {
			return left, err
		}
		left += len(rows) - n
		after = rows[len(rows)-1].key
	}
}

// LastToken is the largest token of all rows, that of the floor included.
func (b *Backend) LastToken(ctx context.Context) (uint64, error) {
	var last int64
	err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		var writable bool
		err := conn.QueryRowContext(ctx, "SELECT COALESCE(MAX(token),0),"+wire.Writable+" FROM "+b.table).Scan(&last, &writable)
		if err == nil && !writable {
			err = wire.ErrReadOnly // a replica may not have the last token
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("mysqllock: looking for the largest token: %w", wire.Describe(ctx, err))
	}
	return uint64(max(last, 0)), nil
}
