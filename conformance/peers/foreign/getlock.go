package foreign

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/mortiselock/lock"
)

// GetLock is GET_LOCK of MySQL and MariaDB. A hold has a connection of its own and ends with
// it, which is noticed within period: until then another one may be inside.
func GetLock(db *sql.DB, name func(key string) string, period time.Duration) *Locker {
	return &Locker{Name: "GET_LOCK", TTL: period, Renews: true, Try: func(ctx context.Context, key string, _ time.Duration) (Hold, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return Hold{}, err
		}
		ask := func(ctx context.Context, no error, query string) error {
			var yes sql.NullBool
			err := conn.QueryRowContext(ctx, query, name(key)).Scan(&yes)
			if err != nil { // not back to the pool, where it might keep the lock
				_ = conn.Raw(func(any) error { return driver.ErrBadConn })
			} else if !yes.Bool {
				err = no
			}
			return err
		}
		if err := ask(ctx, lock.ErrHeld, "SELECT GET_LOCK(?, 0)"); err != nil {
			_ = conn.Close()
			return Hold{}, err
		}
		return Hold{
			Extend: func(ctx context.Context, _ time.Duration) error {
				if err := ask(ctx, lock.ErrNotHeld, "SELECT IS_USED_LOCK(?) = CONNECTION_ID()"); err != nil {
					return errors.Join(lock.ErrNotHeld, err) // also without an answer: the connection is gone
				}
				return nil
			},
			Release: func(ctx context.Context) error {
				defer conn.Close()
				return ask(ctx, lock.ErrNotHeld, "SELECT RELEASE_LOCK(?)")
			},
		}, nil
	}}
}
