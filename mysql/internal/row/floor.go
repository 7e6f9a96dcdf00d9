package row

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

var (
	_ backend.FloorRaiser = (*Backend)(nil)
	_ backend.TokenTeller = (*Backend)(nil)
)

// floorChunk bounds how many records one statement of RaiseFloor locks.
const floorChunk = 200

// insertFloor makes the record of the floor where it is missing. It is made at opening, so
// that every new key finds it.
func (st *statements) insertFloor() string {
	key := literal(floorKey)
	return "INSERT IGNORE INTO " + st.holders + " (k, token, revoked, floor, connection, session, ttl, since, label, host, pid) SELECT " + key +
		", 0, 0, 0, 0, '', 0, UTC_TIMESTAMP(6), '', '', 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM " + st.holders + " WHERE k = " + key + ")"
}

// RaiseFloor raises the record of the floor first: from then on no record is made with less,
// and those before are found. Then it writes the floor beside the token of each record. Tokens
// stay as they are, and the next grants count on from the floor.
func (b *Backend) RaiseFloor(ctx context.Context, above uint64) error {
	if above >= largestToken {
		return fmt.Errorf("mysqllock: %w: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(largestToken-1))
	}
	if err := b.raiseFloor(ctx, above); err != nil {
		return fmt.Errorf("mysqllock: raising the floor of the tokens: %w", wire.Describe(ctx, err))
	}
	return nil
}

func (b *Backend) raiseFloor(ctx context.Context, above uint64) error {
	floor := strconv.FormatUint(above, 10)
	behind := " AND token < " + floor + " AND floor < " + floor
	raise := func(where string) error {
		_, err := b.changeOnControl(ctx, "UPDATE "+b.holders+" SET floor = "+floor+" WHERE "+where+behind+" AND "+wire.Writable)
		return err
	}
	if _, err := b.changeOnControl(ctx, b.insertFloor()); err != nil {
		return err
	}
	if err := raise("k = " + literal(floorKey)); err != nil {
		return err
	}
	for after := floorKey; ; {
		keys, err := b.holderKeys(ctx, "SELECT k FROM "+b.holders+" WHERE k > "+literal(after)+behind+" ORDER BY k LIMIT "+strconv.Itoa(floorChunk))
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		names := make([]string, len(keys))
		for i, key := range keys {
			names[i] = literal(key)
		}
		if err := raise("k IN (" + strings.Join(names, ", ") + ")"); err != nil {
			return err
		}
		after = keys[len(keys)-1]
	}
	// On a server that has become read-only nothing was raised, also for an account that may
	// write all the same.
	_, err := b.largest(ctx)
	return err
}

// largest is the largest token of all records, and of what their floors allow.
func (b *Backend) largest(ctx context.Context) (last uint64, err error) {
	var takesWrites bool
	err = b.control.QueryRowContext(ctx, "SELECT COALESCE(MAX(GREATEST(token, floor)), 0), "+wire.Writable+" FROM "+b.holders).Scan(&last, &takesWrites)
	if err == nil && !takesWrites {
		b.leaveServer()
		err = wire.ErrReadOnly
	}
	return last, err
}

// LastToken is the largest token of all records, or the floor where that is larger.
func (b *Backend) LastToken(ctx context.Context) (uint64, error) {
	last, err := b.largest(ctx)
	if err != nil {
		return 0, fmt.Errorf("mysqllock: looking for the largest token: %w", wire.Describe(ctx, err))
	}
	return last, nil
}
