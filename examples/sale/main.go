// Sale sells the stock of an article in MySQL or MariaDB with several tills at once, in
// three ways that sell no piece twice: with a version column and no lock, with a lock
// table and a guarded write, and with a row lock whose own transaction does the work.
// Each till reads the number, thinks, and writes the new one.
//
//	go run ./examples/sale 'user:password@tcp(localhost:3306)/database'
//
// It makes a table named example_stock, and drops it in the end.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock"
	mysqllock "github.com/mortiselock/lock/mysql"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "sale: name a database, as in user:password@tcp(localhost:3306)/database")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], "example_stock", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sale:", err)
		os.Exit(1)
	}
}

const (
	pieces = 40
	tills  = 4
)

// shop is one article on the shelf, a row of a table.
type shop struct {
	db      *sql.DB
	table   string
	article int
}

func (s shop) key() string { return fmt.Sprintf("stock/%s/%d", s.table, s.article) }

// think is what a till does between reading and writing.
func think() { time.Sleep(time.Millisecond) }

// sellByVersion writes only if nobody has written since it read. Who was too slow reads
// again, and thinks again.
func (s shop) sellByVersion(ctx context.Context) (sold bool, err error) {
	for {
		var n, version int
		err := s.db.QueryRowContext(ctx, "SELECT n, version FROM "+s.table+" WHERE id = ?", s.article).Scan(&n, &version)
		if err != nil || n == 0 {
			return false, err
		}
		think()
		res, err := s.db.ExecContext(ctx, "UPDATE "+s.table+" SET n = ?, version = version + 1 WHERE id = ? AND version = ?", n-1, s.article, version)
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
func (s shop) sellGuarded(ctx context.Context, l lock.Locker) (sold bool, err error) {
	err = lock.Do(ctx, l, s.key(), func(ctx context.Context, lease lock.Lease) error {
		return mysqllock.Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT n FROM "+s.table+" WHERE id = ?", s.article).Scan(&n); err != nil || n == 0 {
				return err
			}
			think()
			sold = true
			_, err := tx.ExecContext(ctx, "UPDATE "+s.table+" SET n = ? WHERE id = ?", n-1, s.article)
			return err
		})
	})
	return sold && err == nil, err
}

// sellInTx writes in the transaction of the row lock itself, whose end is that of the
// lease.
func (s shop) sellInTx(ctx context.Context, l lock.Locker) (sold bool, err error) {
	lease, err := l.Acquire(ctx, s.key())
	if err != nil {
		return false, err
	}
	defer func() { _ = lease.Release(ctx) }() // InTx has ended it, unless it could not begin
	err = mysqllock.InTx(ctx, lease, func(ctx context.Context, tx mysqllock.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT n FROM "+s.table+" WHERE id = ?", s.article).Scan(&n); err != nil || n == 0 {
			return err
		}
		think()
		sold = true
		_, err := tx.ExecContext(ctx, "UPDATE "+s.table+" SET n = ? WHERE id = ?", n-1, s.article)
		return err
	})
	return sold && err == nil, err
}

// run sells the same stock three times, and says what has become of it.
func run(ctx context.Context, dsn, table string, out io.Writer) error {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	connector, err := mysqllock.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	byTable, err := mysqllock.NewTable(ctx, db, nil)
	if err != nil {
		return err
	}
	defer byTable.Close()
	byRow, err := mysqllock.NewRow(ctx, connector, nil)
	if err != nil {
		return err
	}
	defer byRow.Close()

	if _, err := db.ExecContext(ctx, "CREATE TABLE "+table+" (id INT PRIMARY KEY, n INT NOT NULL, version INT NOT NULL) ENGINE=InnoDB"); err != nil {
		return err
	}
	defer func() { _, _ = db.ExecContext(context.WithoutCancel(ctx), "DROP TABLE "+table) }()
	for article, way := range []struct {
		name string
		sell func(s shop, ctx context.Context) (bool, error)
	}{
		{"version column", shop.sellByVersion},
		{"lock table and Guarded", func(s shop, ctx context.Context) (bool, error) { return s.sellGuarded(ctx, byTable) }},
		{"row lock and InTx", func(s shop, ctx context.Context) (bool, error) { return s.sellInTx(ctx, byRow) }},
	} {
		s := shop{db, table, article}
		sold, left, err := sale(ctx, s, way.sell)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		fmt.Fprintf(out, "%s: %d pieces, %d sold, %d left\n", way.name, pieces, sold, left)
	}
	return nil
}

// sale puts the pieces on the shelf, and lets the tills sell until it is empty.
func sale(ctx context.Context, s shop, sell func(shop, context.Context) (bool, error)) (sold, left int, err error) {
	if _, err := s.db.ExecContext(ctx, "INSERT INTO "+s.table+" VALUES (?, ?, 0)", s.article, pieces); err != nil {
		return 0, 0, err
	}
	var each [tills]int
	var failed [tills]error
	var wg sync.WaitGroup
	for till := range tills {
		wg.Go(func() {
			for {
				ok, err := sell(s, ctx)
				if err != nil || !ok {
					failed[till] = err
					return
				}
				each[till]++
			}
		})
	}
	wg.Wait()
	for _, n := range each {
		sold += n
	}
	if err := errors.Join(failed[:]...); err != nil {
		return sold, 0, err
	}
	err = s.db.QueryRowContext(ctx, "SELECT n FROM "+s.table+" WHERE id = ?", s.article).Scan(&left)
	return sold, left, err
}
