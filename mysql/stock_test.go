package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// Four sellers share a stock of forty pieces, of which each reads the number, thinks,
// and writes the new one. Each of the three ways sells every piece once.
func TestStock(t *testing.T) {
	onBoth(t, func(t *testing.T, s *servertest.Server) {
		db := userPool(t, s, "")
		table := ownTable(t, db)
		execOn(t, db, "CREATE TABLE "+table+" (id INT PRIMARY KEY, n INT NOT NULL, version INT NOT NULL) ENGINE=InnoDB")
		byTable := lockerOn(t, db, nil)
		byRow, err := lock.Open(t.Context(), s.URL()+"?mode=row")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, byRow.Close()) })
		const pieces = 40
		for id, sell := range map[int]func(ctx context.Context, id int) (bool, error){
			1: func(ctx context.Context, id int) (bool, error) { return sellByVersion(ctx, db, table, id) },
			2: func(ctx context.Context, id int) (bool, error) { return sellGuarded(ctx, byTable, table, id) },
			3: func(ctx context.Context, id int) (bool, error) { return sellInTx(ctx, byRow, table, id) },
		} {
			execOn(t, db, fmt.Sprintf("INSERT INTO %s VALUES (%d, %d, 0)", table, id, pieces))
			sold := make([]int, 4)
			var wg sync.WaitGroup
			for seller := range sold {
				wg.Go(func() {
					for {
						ok, err := sell(t.Context(), id)
						if !assert.NoError(t, err) || !ok {
							return
						}
						sold[seller]++
					}
				})
			}
			wg.Wait()
			var left int
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT n FROM "+table+" WHERE id=?", id).Scan(&left))
			require.Zero(t, left, "way %d", id)
			require.Equal(t, pieces, sold[0]+sold[1]+sold[2]+sold[3], "way %d", id)
		}
	})
}

func think() { time.Sleep(time.Millisecond) }

// sellByVersion writes only if nobody has written since it read, and starts again
// otherwise.
func sellByVersion(ctx context.Context, db *sql.DB, table string, id int) (sold bool, err error) {
	for {
		var n, version int
		if err := db.QueryRowContext(ctx, "SELECT n, version FROM "+table+" WHERE id=?", id).Scan(&n, &version); err != nil || n == 0 {
			return false, err
		}
		think()
		res, err := db.ExecContext(ctx, "UPDATE "+table+" SET n=?, version=version+1 WHERE id=? AND version=?", n-1, id, version)
		if err != nil {
			return false, err
		}
		if rows, err := res.RowsAffected(); err != nil || rows == 1 {
			return err == nil, err
		}
	}
}

// sellGuarded holds the key of the article, and writes in a transaction that takes
// effect only while it does.
func sellGuarded(ctx context.Context, l lock.Locker, table string, id int) (sold bool, err error) {
	err = lock.Do(ctx, l, fmt.Sprint("stock/", table, "/", id), func(ctx context.Context, lease lock.Lease) error {
		return Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			sold = false
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT n FROM "+table+" WHERE id=?", id).Scan(&n); err != nil || n == 0 {
				return err
			}
			think()
			sold = true
			_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n=? WHERE id=?", n-1, id)
			return err
		})
	})
	return sold && err == nil, err
}

// sellInTx writes in the transaction of the row lock itself, which ends the lease.
func sellInTx(ctx context.Context, l lock.Locker, table string, id int) (sold bool, err error) {
	lease, err := l.Acquire(ctx, fmt.Sprint("stock/", table, "/", id))
	if err != nil {
		return false, err
	}
	err = InTx(ctx, lease, func(ctx context.Context, tx Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT n FROM "+table+" WHERE id=?", id).Scan(&n); err != nil || n == 0 {
			return err
		}
		think()
		sold = true
		_, err := tx.ExecContext(ctx, "UPDATE "+table+" SET n=? WHERE id=?", n-1, id)
		return err
	})
	if released := lease.Release(ctx); released != nil && !errors.Is(released, lock.ErrNotHeld) {
		err = errors.Join(err, released)
	}
	return sold && err == nil, err
}
