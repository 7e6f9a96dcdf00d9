package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock"
	mysqllock "github.com/mortiselock/lock/mysql"
)

// article is a row with the stock and its version.
type article struct {
	sale
	db    *sql.DB
	table string
}

const connections = 32

// newArticle makes the table with its one row, and a shop with neither a way to buy nor
// a lock.
func newArticle(ctx context.Context, at servers, s sale) (article, *mysql.Config, *shop, error) {
	if at.mysql == "" {
		return article{}, nil, nil, errNoServer
	}
	cfg, err := mysql.ParseDSN(at.mysql)
	if err != nil {
		return article{}, nil, nil, err
	}
	cfg.InterpolateParams = true // one statement each, not one to prepare and one to execute
	connector, err := mysqllock.NewConnector(cfg)
	if err != nil {
		return article{}, nil, nil, err
	}
	a := article{s, sql.OpenDB(connector), at.name}
	a.db.SetMaxOpenConns(connections)
	a.db.SetMaxIdleConns(connections)
	if _, err := a.db.ExecContext(ctx, "CREATE TABLE "+a.table+" (n INT NOT NULL, version INT NOT NULL) ENGINE=InnoDB"); err != nil {
		return article{}, nil, nil, errors.Join(err, a.db.Close())
	}
	shop := &shop{left: a.left, asked: a.asked, close: a.close}
	if _, err := a.db.ExecContext(ctx, "INSERT INTO "+a.table+" VALUES (?, 0)", s.stock); err != nil {
		return article{}, nil, nil, errors.Join(err, shop.close(ctx))
	}
	return a, cfg, shop, nil
}

func (a article) left(ctx context.Context) (n int, err error) {
	err = a.db.QueryRowContext(ctx, "SELECT n FROM "+a.table).Scan(&n)
	return n, err
}

// asked is how many statements clients have sent to the server.
func (a article) asked(ctx context.Context) (n int, err error) {
	var name string
	err = a.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	return n, err
}

func (a article) close(ctx context.Context) error {
	_, err := a.db.ExecContext(ctx, "DROP TABLE "+a.table)
	return errors.Join(err, a.db.Close())
}

// byVersion writes only if nobody has written since it read. Who was too slow reads
// again, and thinks again.
func byVersion(ctx context.Context, at servers, s sale) (*shop, error) {
	a, _, shop, err := newArticle(ctx, at, s)
	if err != nil {
		return nil, err
	}
	shop.buy = func(ctx context.Context, _ int) (bool, error) {
		for {
			var n, version int
			err := a.db.QueryRowContext(ctx, "SELECT n, version FROM "+a.table).Scan(&n, &version)
			if err != nil || n == 0 {
				return false, err
			}
			s.think()
			res, err := a.db.ExecContext(ctx, "UPDATE "+a.table+" SET n = ?, version = version + 1 WHERE version = ?", n-1, version)
			if err != nil {
				return false, err
			}
			if rows, err := res.RowsAffected(); err != nil || rows == 1 {
				return err == nil, err
			}
		}
	}
	return shop, nil
}

// byGuarded holds the key of the article, and writes in a transaction that takes effect
// only while it does.
func byGuarded(ctx context.Context, at servers, s sale) (*shop, error) {
	a, _, shop, err := newArticle(ctx, at, s)
	if err != nil {
		return nil, err
	}
	l, err := mysqllock.NewTable(ctx, a.db, nil)
	if err != nil {
		return nil, errors.Join(err, shop.close(ctx))
	}
	shop.buy = func(ctx context.Context, _ int) (sold bool, err error) {
		if n, err := a.left(ctx); err != nil || n == 0 {
			return false, err
		}
		err = lock.Do(ctx, l, "sale/"+a.table, func(ctx context.Context, lease lock.Lease) error {
			return mysqllock.Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
				var n int
				if err := tx.QueryRowContext(ctx, "SELECT n FROM "+a.table).Scan(&n); err != nil || n == 0 {
					return err
				}
				s.think()
				sold = true
				_, err := tx.ExecContext(ctx, "UPDATE "+a.table+" SET n = ?", n-1)
				return err
			})
		})
		return sold && err == nil, err
	}
	shop.close = func(ctx context.Context) error { return errors.Join(l.Close(), a.close(ctx)) }
	return shop, nil
}

// byInTx writes in the transaction of the row lock itself, whose end is that of the
// lease.
func byInTx(ctx context.Context, at servers, s sale) (*shop, error) {
	a, cfg, shop, err := newArticle(ctx, at, s)
	if err != nil {
		return nil, err
	}
	connector, err := mysqllock.NewConnector(cfg)
	if err != nil {
		return nil, errors.Join(err, shop.close(ctx))
	}
	l, err := mysqllock.NewRow(ctx, connector, nil)
	if err != nil {
		return nil, errors.Join(err, shop.close(ctx))
	}
	shop.buy = func(ctx context.Context, _ int) (sold bool, err error) {
		if n, err := a.left(ctx); err != nil || n == 0 {
			return false, err
		}
		lease, err := l.Acquire(ctx, "sale/"+a.table)
		if err != nil {
			return false, err
		}
		defer func() { _ = lease.Release(ctx) }() // InTx has ended it, unless it could not begin
		err = mysqllock.InTx(ctx, lease, func(ctx context.Context, tx mysqllock.Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT n FROM "+a.table).Scan(&n); err != nil || n == 0 {
				return err
			}
			s.think()
			sold = true
			_, err := tx.ExecContext(ctx, "UPDATE "+a.table+" SET n = ?", n-1)
			return err
		})
		return sold && err == nil, err
	}
	shop.close = func(ctx context.Context) error { return errors.Join(l.Close(), a.close(ctx)) }
	return shop, nil
}
