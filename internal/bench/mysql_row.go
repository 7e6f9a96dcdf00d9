package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

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
	// Tokens are durable here: the server writes its log to the disk at each commit.
	dsn := servertest.MySQLDSN(servertest.MariaDB(b.host, servertest.WithPersistence()))
	admin, err := rowPool(dsn)
	if err != nil {
		return err
	}
	defer admin.Close()
	for _, q := range []string{bareRowTables, bareRowMake} {
		if _, err := admin.ExecContext(b.ctx, q); err != nil {
			return err
		}
	}
	bare := func() (rowTaker, func(), error) {
		db, err := rowPool(dsn)
		if err != nil {
			return nil, nil, err
		}
		return func(wait bool) (func() error, error) {
			how := " NOWAIT"
			if wait {
				how = ""
			}
			return bareRowClient(b.ctx, db, how)
		}, func() { _ = db.Close() }, nil
	}
	ours := func() (rowTaker, func(), error) {
		connector, err := mysql.MySQLDriver{}.OpenConnector(dsn)
		if err != nil {
			return nil, nil, err
		}
		l, err := mysqllock.NewRow(b.ctx, connector, nil)
		if err != nil {
			return nil, nil, err
		}
		return func(wait bool) (func() error, error) {
			acquire := l.TryAcquire
			if wait {
				acquire = l.Acquire
			}
			lease, err := acquire(b.ctx, "row")
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Release(b.ctx) }, nil
		}, func() { _ = l.Close() }, nil
	}
	if err := b.mysqlRowUncontended(bare, ours); err != nil {
		return err
	}
	return b.mysqlRowContended(bare, ours)
}

// rowTaker takes the key, at once or after a wait, and returns how to give it back.
type rowTaker func(wait bool) (release func() error, err error)

type rowClient func() (rowTaker, func(), error)

func (b *bench) mysqlRowUncontended(bare, ours rowClient) error {
	const roundLength = 700 * time.Millisecond
	takeBare, closeBare, err := bare()
	if err != nil {
		return err
	}
	defer closeBare()
	takeOurs, closeOurs, err := ours()
	if err != nil {
		return err
	}
	defer closeOurs()
	sides := []struct {
		name string
		take rowTaker
		wait bool
		rate []float64
	}{
		{name: "BEGIN, FOR UPDATE NOWAIT, token, ROLLBACK", take: takeBare},
		{name: "Locker.TryAcquire + Release", take: takeOurs},
		{name: "Locker.Acquire + Release", take: takeOurs, wait: true},
	}
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for i := range sides {
			n, start := 0, time.Now()
			for time.Since(start) < roundLength {
				release, err := sides[i].take(sides[i].wait)
				if err == nil {
					err = release()
				}
				if err != nil {
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
		fmt.Printf("  %-42s %8.0f pairs/s   ratio to bare %.2f (%.2f to %.2f)\n", s.name, median(s.rate), median(ratios), lo, hi)
	}
	return nil
}

func (b *bench) mysqlRowContended(bare, ours rowClient) error {
	sides := []struct {
		name string
		open rowClient
		use  []float64
		each []float64
	}{{name: "BEGIN, FOR UPDATE, token, ROLLBACK", open: bare}, {name: "Locker.Acquire + Release", open: ours}}
	for range b.rounds {
		for i := range sides {
			use, grants, err := b.rowContend(sides[i].open)
			if err != nil {
				return err
			}
			sides[i].use = append(sides[i].use, use)
			sides[i].each = append(sides[i].each, float64(grants))
		}
	}
	for _, s := range sides {
		ratios := make([]float64, len(s.use))
		for i := range s.use {
			ratios[i] = s.use[i] / sides[0].use[i]
		}
		lo, hi := spread(ratios)
		fmt.Printf("  4 clients x 4, held 1ms: %-36s in use %3.0f%% of the time   ratio to bare %.2f (%.2f to %.2f)   %.0f grants\n",
			s.name, 100*median(s.use), median(ratios), lo, hi, slices.Max(s.each))
	}
	return nil
}

// rowContend returns for what part of the time the key was in use.
func (b *bench) rowContend(open rowClient) (use float64, grants int, err error) {
	const (
		clients, goroutines = 4, 4
		heldFor             = time.Millisecond
		length              = 2 * time.Second
	)
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		used  time.Duration
		fault error
	)
	begin := make(chan struct{})
	var deadline time.Time
	for range clients {
		take, closeIt, err := open()
		if err != nil {
			return 0, 0, err
		}
		defer closeIt()
		for range goroutines {
			wg.Go(func() {
				<-begin
				for time.Now().Before(deadline) {
					release, err := take(true)
					granted := time.Now()
					if err == nil {
						time.Sleep(heldFor)
						held := time.Since(granted)
						err = release()
						mu.Lock()
						if granted.Before(deadline) {
							used += held
							grants++
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
	start := time.Now()
	deadline = start.Add(length)
	close(begin)
	time.Sleep(time.Until(deadline))
	wall := time.Since(start)
	wg.Wait()
	return used.Seconds() / wall.Seconds(), grants, fault
}
