package main

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
	mysqllock "github.com/mortiselock/lock/mysql"
)

// tablePool is a pool that sends the arguments of a statement with it: one round trip
// for the bare statements too.
func tablePool(s *servertest.Server, connect func(*mysql.Config) (driver.Connector, error)) (*sql.DB, error) {
	c, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	if err != nil {
		return nil, err
	}
	c.InterpolateParams = true
	connector, err := connect(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	return db, nil
}

const (
	bareTable = `CREATE TABLE IF NOT EXISTS bare (lock_key VARBINARY(512) PRIMARY KEY, owner VARBINARY(32) NOT NULL,
		token BIGINT NOT NULL, expires DATETIME(6) NOT NULL) ENGINE=InnoDB`
	bareRow     = `INSERT IGNORE INTO bare VALUES ('contended', '', 0, UTC_TIMESTAMP(6))`
	bareAcquire = `UPDATE bare SET owner=?, token=LAST_INSERT_ID(token+1), expires=UTC_TIMESTAMP(6)+INTERVAL 15 SECOND
		WHERE lock_key='contended' AND expires<=UTC_TIMESTAMP(6)`
	bareLook = `SELECT expires<=UTC_TIMESTAMP(6) FROM bare WHERE lock_key='contended'`
	bareFree = `UPDATE bare SET owner='', expires='1970-01-01' WHERE lock_key='contended' AND owner=?`
)

// bareTry takes the key with one statement, and reports whether it was free.
func bareTry(ctx context.Context, db *sql.DB, id string) (bool, error) {
	res, err := db.ExecContext(ctx, bareAcquire, id)
	if err != nil {
		return false, err
	}
	token, err := res.LastInsertId()
	return token != 0, err
}

// mysqlTable compares the lock table with bare statements: acquire and release by
// one goroutine, and a key for which several clients compete.
func (b *bench) mysqlTable() error {
	server := b.durableMariaDB()
	admin, err := sqlAdmin(server)
	if err != nil {
		return err
	}
	defer admin.Close()
	for _, s := range []string{bareTable, bareRow} {
		if _, err := admin.ExecContext(b.ctx, s); err != nil {
			return err
		}
	}
	if err := b.mysqlTableUncontended(server, admin); err != nil {
		return err
	}
	return b.mysqlTableContended(server, admin)
}

func (b *bench) mysqlTableUncontended(server *servertest.Server, admin *sql.DB) error {
	db, err := tablePool(server, mysql.NewConnector)
	if err != nil {
		return err
	}
	defer db.Close()
	own, err := tablePool(server, mysqllock.NewConnector)
	if err != nil {
		return err
	}
	defer own.Close()
	locker, err := mysqllock.NewTable(b.ctx, own, nil)
	if err != nil {
		return err
	}
	defer locker.Close()
	plain, err := mysqllock.NewTable(b.ctx, db, nil)
	if err != nil {
		return err
	}
	defer plain.Close()
	id := backend.NewID().Hex()
	bare := &measure.Side{Name: "two guarded UPDATEs", Take: func(ctx context.Context) (func() error, error) {
		ok, err := bareTry(ctx, db, id)
		if err == nil && !ok {
			err = errBareHeld
		}
		return func() error { _, err := db.ExecContext(ctx, bareFree, id); return err }, err
	}}
	sent, err := b.sentStatements(admin, locker)
	if err != nil {
		return err
	}
	same := &measure.Side{Name: "the same statements as text", Take: func(ctx context.Context) (func() error, error) {
		res, err := db.ExecContext(ctx, sent[0])
		if err != nil {
			return nil, err
		}
		if token, err := res.LastInsertId(); err != nil || token == 0 {
			return nil, cmp.Or(err, errBareHeld)
		}
		return func() error { _, err := db.ExecContext(ctx, sent[1]); return err }, nil
	}}
	against := append(to(bare, 0.85), measure.Comparison{To: same, By: "the second", Goal: measure.Goal{AtLeast: 0.85}})
	return b.sqlPairs(admin,
		bare,
		same,
		&measure.Side{Name: "Locker.TryAcquire + Release", Take: measure.Taking(locker.TryAcquire, "try"), Against: against},
		&measure.Side{Name: "Locker.Acquire + Release", Take: measure.Taking(locker.Acquire, "acquire"), Against: against},
		&measure.Side{Name: "TryAcquire, the driver's own pool", Take: measure.Taking(plain.TryAcquire, "plain")},
	)
}

// sentStatements are the two statements that the server sees when a key is acquired and
// released, from its general log.
func (b *bench) sentStatements(admin *sql.DB, locker lock.Locker) (sent []string, err error) {
	pair := func() error {
		lease, err := locker.TryAcquire(b.ctx, "same")
		if err != nil {
			return err
		}
		return lease.Release(b.ctx)
	}
	if err := pair(); err != nil { // which makes the row
		return nil, err
	}
	for _, q := range []string{"SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON"} {
		if _, err := admin.ExecContext(b.ctx, q); err != nil {
			return nil, err
		}
	}
	err = pair()
	if _, e := admin.ExecContext(b.ctx, "SET GLOBAL general_log = OFF"); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	rows, err := admin.QueryContext(b.ctx, "SELECT argument FROM mysql.general_log WHERE command_type = 'Query' AND argument LIKE 'UPDATE%' ORDER BY event_time")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		sent = append(sent, text)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(sent) != 2 {
		return nil, fmt.Errorf("a pair was %d statements, expected 2: %q", len(sent), sent)
	}
	return sent, nil
}

// mysqlTableContended lets 4 clients with 4 goroutines each compete for a key that
// is held for a millisecond.
func (b *bench) mysqlTableContended(server *servertest.Server, admin *sql.DB) error {
	bare := &measure.Contender{Name: "look, guarded UPDATE, wait 1 to 3 ms", Open: func() (measure.Taker, func(), error) {
		db, err := tablePool(server, mysql.NewConnector)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context) (func() error, error) {
			id := backend.NewID().Hex()
			for {
				// As any careful program would: look, take, and wait a little.
				var free, ok bool
				err := db.QueryRowContext(ctx, bareLook).Scan(&free)
				if err == nil && free {
					ok, err = bareTry(ctx, db, id)
				}
				if err != nil {
					return nil, err
				}
				if ok {
					return func() error { _, err := db.ExecContext(ctx, bareFree, id); return err }, nil
				}
				time.Sleep(time.Millisecond + time.Duration(rand.Int64N(int64(2*time.Millisecond))))
			}
		}, func() { _ = db.Close() }, nil
	}}
	ours := &measure.Contender{Name: "Locker.Acquire + Release", Open: func() (measure.Taker, func(), error) {
		db, err := tablePool(server, mysqllock.NewConnector)
		if err != nil {
			return nil, nil, err
		}
		locker, err := mysqllock.NewTable(b.ctx, db, nil)
		if err != nil {
			_ = db.Close()
			return nil, nil, err
		}
		return measure.Taking(locker.Acquire, "contended"), func() { _ = locker.Close(); _ = db.Close() }, nil
	}}
	contest := measure.Contest{
		Clients: 4, Goroutines: 4, HeldFor: time.Millisecond, Length: 2 * time.Second,
		Commands: func(ctx context.Context) (float64, error) {
			n, _, err := sqlCounters(ctx, admin)
			return n, err
		},
	}
	if err := b.compete(contest, "in use %.2f of the time", measure.Contention.InUse, 0.85, bare, ours); err != nil {
		return err
	}
	cost := ours.Side(measure.Contention.CommandsPerGrant)
	cost.Goal.AtMost = 20
	measure.Print(os.Stdout, "%6.1f statements per hand-over", bare.Side(measure.Contention.CommandsPerGrant), cost)
	return nil
}
