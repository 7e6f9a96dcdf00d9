package main

import (
	"context"
	"database/sql"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
	mysqllock "github.com/mortiselock/lock/mysql"
)

// rowPool is a pool with the defaults of the driver.
func rowPool(dsn string) (*sql.DB, error) {
	db, err := sql.Open("mysql", dsn)
	if err == nil {
		db.SetMaxIdleConns(16)
	}
	return db, err
}

// The statements that anybody would write for a row lock with a fencing token that no
// rollback takes back.
const (
	bareRowTables = `CREATE TABLE IF NOT EXISTS bare_rows (k VARBINARY(64) PRIMARY KEY, token BIGINT NOT NULL) ENGINE=InnoDB`
	bareRowMake   = `INSERT IGNORE INTO bare_rows VALUES ('row', 0), ('token', 0)`
	bareRowLock   = `SELECT 1 FROM bare_rows WHERE k = 'row' FOR UPDATE`
	bareRowToken  = `UPDATE bare_rows SET token = LAST_INSERT_ID(token + 1) WHERE k = 'token'`
)

// bareRowClient locks the row in a transaction of a pool, and raises the token on
// another connection of it.
func bareRowClient(ctx context.Context, db *sql.DB, how string) (release func() error, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err = tx.QueryRowContext(ctx, bareRowLock+how).Scan(new(int)); err == nil {
		_, err = db.ExecContext(ctx, bareRowToken)
	}
	if err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx.Rollback, nil
}

// mysqlRow compares row locks with bare statements, each with one durable token:
// acquire and release by one goroutine, and a key for which several clients compete.
func (b *bench) mysqlRow() error {
	server := b.durableMariaDB()
	dsn := servertest.MySQLDSN(server)
	admin, err := sqlAdmin(server)
	if err != nil {
		return err
	}
	defer admin.Close()
	for _, q := range []string{bareRowTables, bareRowMake} {
		if _, err := admin.ExecContext(b.ctx, q); err != nil {
			return err
		}
	}
	bare := func() (rowClient, error) {
		db, err := rowPool(dsn)
		if err != nil {
			return rowClient{}, err
		}
		return rowClient{
			try:   func(ctx context.Context) (func() error, error) { return bareRowClient(ctx, db, " NOWAIT") },
			wait:  func(ctx context.Context) (func() error, error) { return bareRowClient(ctx, db, "") },
			close: func() { _ = db.Close() },
		}, nil
	}
	ours := func() (rowClient, error) {
		c, err := mysql.ParseDSN(dsn)
		if err != nil {
			return rowClient{}, err
		}
		connector, err := mysqllock.NewConnector(c)
		if err != nil {
			return rowClient{}, err
		}
		l, err := mysqllock.NewRow(b.ctx, connector, nil)
		if err != nil {
			return rowClient{}, err
		}
		return rowClient{
			try:   measure.Taking(l.TryAcquire, "row"),
			wait:  measure.Taking(l.Acquire, "row"),
			close: func() { _ = l.Close() },
		}, nil
	}
	if err := b.mysqlRowUncontended(admin, bare, ours); err != nil {
		return err
	}
	waiting := func(open func() (rowClient, error)) func() (measure.Taker, func(), error) {
		return func() (measure.Taker, func(), error) {
			c, err := open()
			return c.wait, c.close, err
		}
	}
	return b.compete(measure.Contest{Clients: 4, Goroutines: 4, HeldFor: time.Millisecond, Length: 2 * time.Second},
		"in use %.2f of the time", measure.Contention.InUse, 0.85,
		&measure.Contender{Name: "BEGIN, FOR UPDATE, token, ROLLBACK", Open: waiting(bare)},
		&measure.Contender{Name: "Locker.Acquire + Release", Open: waiting(ours)})
}

// A rowClient takes the key, at once or after a wait.
type rowClient struct {
	try, wait measure.Taker
	close     func()
}

func (b *bench) mysqlRowUncontended(admin *sql.DB, bare, ours func() (rowClient, error)) error {
	theirs, err := bare()
	if err != nil {
		return err
	}
	defer theirs.close()
	our, err := ours()
	if err != nil {
		return err
	}
	defer our.close()
	base := &measure.Side{Name: "BEGIN, FOR UPDATE NOWAIT, token, ROLLBACK", Take: theirs.try}
	return b.sqlPairs(admin,
		base,
		&measure.Side{Name: "Locker.TryAcquire + Release", Take: our.try, Against: to(base, 0.85)},
		&measure.Side{Name: "Locker.Acquire + Release", Take: our.wait, Against: to(base, 0.85)},
	)
}
