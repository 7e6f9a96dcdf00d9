package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock"
	mysqllock "github.com/mortiselock/lock/mysql"
)

// A pool of one's own. Keys that nobody has used for long are removed now and then.
func ExampleNewTable() {
	ctx := context.Background()
	cfg, err := mysql.ParseDSN("app:password@tcp(localhost:3306)/app")
	if err != nil {
		log.Fatal(err)
	}
	connector, err := mysqllock.NewConnector(cfg)
	if err != nil {
		log.Fatal(err)
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	locker, err := mysqllock.NewTable(ctx, db, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if _, err := mysqllock.CleanupTable(ctx, db, nil, 30*24*time.Hour); err != nil {
		log.Print(err)
	}
}

// A write that takes effect only while the lease is held. When the lease is lost, or the
// function fails, nothing has been taken.
func ExampleGuarded() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, "mysql://app:password@localhost:3306/app", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = lock.Do(ctx, locker, "article/4711", func(ctx context.Context, lease lock.Lease) error {
		return mysqllock.Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 4711 AND n > 0")
			return err
		})
	})
	if errors.Is(err, lock.ErrNotHeld) {
		log.Print("nothing was taken, try again: ", err)
	}
}
