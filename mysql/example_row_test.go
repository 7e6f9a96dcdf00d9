package mysqllock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock"
	mysqllock "github.com/mortiselock/lock/mysql"
)

// Take one piece out of the stock, in the transaction that has the key locked. When
// the lease is lost, or the function fails, nothing has been taken.
func ExampleInTx() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, "mysql://user:password@localhost:3306/shop?mode=row", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locker.Close()
	lease, err := locker.Acquire(ctx, "stock/7")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = mysqllock.InTx(ctx, lease, func(ctx context.Context, tx mysqllock.Tx) error {
		var left int
		if err := tx.QueryRowContext(ctx, "SELECT n FROM stock WHERE id = ?", 7).Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			return errors.New("sold out")
		}
		_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = ?", 7)
		return err
	})
	switch {
	case errors.Is(err, lock.ErrLost):
		fmt.Println("nothing was taken, try again:", err)
	case err != nil:
		fmt.Println(err)
	}
	// The lease has ended, with the commit or the rollback.
}
