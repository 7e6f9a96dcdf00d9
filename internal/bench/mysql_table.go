package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
	mysqllock "github.com/mortiselock/lock/mysql"
)

// sqlPool is a pool on the MariaDB server of all measurements, which sends the
// arguments of a statement with it: one round trip for the bare statements too.
func (b *bench) sqlPool(connect func(*mysql.Config) (driver.Connector, error)) (*sql.DB, error) {
	c, err := mysql.ParseDSN(servertest.MySQLAdminDSN(servertest.SharedMariaDB(b.host)))
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
	db, err := b.sqlPool(mysql.NewConnector)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, s := range []string{bareTable, bareRow} {
		if _, err := db.ExecContext(b.ctx, s); err != nil {
			return err
		}
	}
	if err := b.mysqlTableUncontended(db); err != nil {
		return err
	}
	return b.mysqlTableContended(db)
}

func (b *bench) mysqlTableUncontended(db *sql.DB) error {
	const roundLength = 700 * time.Millisecond
	own, err := b.sqlPool(mysqllock.NewConnector)
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
	pair := func(l lock.Lease, err error) error {
		if err != nil {
			return err
		}
		return l.Release(b.ctx)
	}
	id := backend.NewID().Hex()
	sides := []struct {
		name string
		once func() error
		rate []float64
	}{
		{name: "two guarded UPDATEs", once: func() error {
			ok, err := bareTry(b.ctx, db, id)
			if err == nil && !ok {
				err = errors.New("the bare key was held")
			}
			if err == nil {
				_, err = db.ExecContext(b.ctx, bareFree, id)
			}
			return err
		}},
		{name: "Locker.TryAcquire + Release", once: func() error { return pair(locker.TryAcquire(b.ctx, "ours")) }},
		{name: "Locker.Acquire + Release", once: func() error { return pair(locker.Acquire(b.ctx, "ours")) }},
		{name: "TryAcquire, the driver's own pool", once: func() error { return pair(plain.TryAcquire(b.ctx, "plain")) }},
	}
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for i := range sides {
			n, start := 0, time.Now()
			for time.Since(start) < roundLength {
				if err := sides[i].once(); err != nil {
					return err
				}
				n++
			}
			if round >= 0 {
				sides[i].rate = append(sides[i].rate, float64(n)/time.Since(start).Seconds())
			}
		}
	}
	for _, s := range sides {
		ratios := make([]float64, len(s.rate))
		for i := range s.rate {
			ratios[i] = s.rate[i] / sides[0].rate[i]
		}
		lo, hi := spread(ratios)
		fmt.Printf("  %-34s %8.0f pairs/s   ratio to bare %.2f (%.2f to %.2f)\n", s.name, median(s.rate), median(ratios), lo, hi)
	}
	return nil
}

// competitor takes the key and returns how to give it back.
type competitor func(ctx context.Context) (release func() error, err error)

// mysqlTableContended lets 4 clients with 4 goroutines each compete for a key that
// is held for a millisecond.
func (b *bench) mysqlTableContended(admin *sql.DB) error {
	bare := func() (competitor, func(), error) {
		db, err := b.sqlPool(mysql.NewConnector)
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
					return func() error { _, err := db.ExecContext(b.ctx, bareFree, id); return err }, nil
				}
				time.Sleep(time.Millisecond + time.Duration(rand.Int64N(int64(2*time.Millisecond))))
			}
		}, func() { _ = db.Close() }, nil
	}
	ours := func() (competitor, func(), error) {
		db, err := b.sqlPool(mysqllock.NewConnector)
		if err != nil {
			return nil, nil, err
		}
		locker, err := mysqllock.NewTable(b.ctx, db, nil)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context) (func() error, error) {
			lease, err := locker.Acquire(ctx, "contended")
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Release(b.ctx) }, nil
		}, func() { _ = locker.Close(); _ = db.Close() }, nil
	}
	sides := []struct {
		name      string
		open      func() (competitor, func(), error)
		use, each []float64
	}{{name: "look, guarded UPDATE, wait 1 to 3 ms", open: bare}, {name: "Locker.Acquire + Release", open: ours}}
	for range b.rounds {
		for i := range sides {
			r, err := b.compete(admin, sides[i].open)
			if err != nil {
				return err
			}
			sides[i].use = append(sides[i].use, r.used.Seconds()/r.wall.Seconds())
			sides[i].each = append(sides[i].each, r.commands/float64(max(r.grants, 1)))
		}
	}
	for _, s := range sides {
		ratios := make([]float64, len(s.use))
		for i := range s.use {
			ratios[i] = s.use[i] / sides[0].use[i]
		}
		lo, hi := spread(ratios)
		fmt.Printf("  4 clients x 4, held 1ms: %-38s in use %3.0f%%   ratio to bare %.2f (%.2f to %.2f)   statements per hand-over %.1f\n",
			s.name, 100*median(s.use), median(ratios), lo, hi, median(s.each))
	}
	return nil
}

func (b *bench) compete(admin *sql.DB, open func() (competitor, func(), error)) (contention, error) {
	const (
		clients, goroutines = 4, 4
		heldFor             = time.Millisecond
		length              = 2 * time.Second
	)
	var (
		r     contention
		mu    sync.Mutex
		wg    sync.WaitGroup
		fault error
	)
	begin := make(chan struct{})
	var deadline time.Time
	for range clients {
		take, closeIt, err := open()
		if err != nil {
			return r, err
		}
		defer closeIt()
		for range goroutines {
			wg.Go(func() {
				<-begin
				for time.Now().Before(deadline) {
					release, err := take(b.ctx)
					granted := time.Now()
					if err == nil {
						time.Sleep(heldFor)
						used := time.Since(granted)
						err = release()
						mu.Lock()
						if granted.Before(deadline) {
							r.grants++
							r.used += used
						}
						mu.Unlock()
					}
					if err != nil {
						mu.Lock()
						fault = errors.Join(fault, err)
						mu.Unlock()
						return
					}
				}
			})
		}
	}
	before, err := statementCount(b.ctx, admin)
	if err != nil {
		return r, err
	}
	start := time.Now()
	deadline = start.Add(length)
	close(begin)
	time.Sleep(time.Until(deadline))
	r.wall = time.Since(start)
	after, err := statementCount(b.ctx, admin)
	if err != nil {
		return r, err
	}
	r.commands = after - before
	wg.Wait()
	return r, fault
}

// statementCount is how many statements the server has been asked.
func statementCount(ctx context.Context, db *sql.DB) (float64, error) {
	var name string
	var n float64
	err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	return n, err
}
