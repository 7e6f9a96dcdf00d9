package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/internal/servertest"
	_ "github.com/mortiselock/lock/mysql"
)

const (
	bareInsert    = "INSERT + DELETE"
	bareForUpdate = "SELECT FOR UPDATE"
)

// connections is how many waiters a contender can have each of which needs one.
const connections = 100

var mysqlStore = &store{
	name: "mysql", title: "MySQL", parallel: 16, heldFor: aMoment,
	about: "One MariaDB that writes its log to the disk at each commit.",
	start: startMariaDB,
	contenders: []contender{
		{
			name: bareInsert, kind: bare, not: map[string]string{held: notRenewed},
			how: "`INSERT IGNORE` of a row and its `DELETE`; every 1 ms while the key is taken, and again after a deadlock",
			open: func(s *servers, p purpose) (client, error) {
				db, err := openMySQL(s, p, "CREATE TABLE IF NOT EXISTS bare_locks (name VARBINARY(255) PRIMARY KEY, owner VARBINARY(32) NOT NULL) ENGINE=InnoDB")
				if err != nil {
					return client{}, err
				}
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) { return insert(ctx, db, key) },
					close:   func() { _ = db.Close() },
				}, nil
			},
		},
		{
			name: bareForUpdate, kind: bare,
			how:  "`BEGIN`, `SELECT ... FOR UPDATE` of a row that is there, `COMMIT`",
			not:  map[string]string{held: "a connection for each key"},
			most: map[string]int{waiters: connections},
			open: func(s *servers, p purpose) (client, error) {
				db, err := openMySQL(s, p, "CREATE TABLE IF NOT EXISTS bare_rows (name VARBINARY(255) PRIMARY KEY) ENGINE=InnoDB")
				if err != nil {
					return client{}, err
				}
				var there sync.Map
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) {
						if _, ok := there.Load(key); !ok {
							if _, err := db.ExecContext(context.WithoutCancel(ctx), "INSERT IGNORE INTO bare_rows VALUES (?)", key); err != nil {
								return nil, err
							}
							there.Store(key, true)
						}
						return forUpdate(ctx, db, key)
					},
					close: func() { _ = db.Close() },
				}, nil
			},
		},
		{
			name: "GET_LOCK", kind: peer,
			how:  "`GET_LOCK` and `RELEASE_LOCK` on a connection from the pool",
			not:  map[string]string{held: "a connection for each key"},
			most: map[string]int{waiters: connections},
			open: func(s *servers, p purpose) (client, error) {
				db, err := openMySQL(s, p, "")
				if err != nil {
					return client{}, err
				}
				return client{
					acquire: func(ctx context.Context, key string) (func() error, error) { return getLock(ctx, db, key) },
					close:   func() { _ = db.Close() },
				}, nil
			},
		},
		{
			name: "mysql: table", kind: own, open: ours(""),
			how:  "`lock.Open` of `mysql://user:password@host/database`",
			most: map[string]int{held: 10_000},
			aims: []aim{
				atLeast(serial, 0.9, bareInsert),
				atLeast(parallel, 0.9, bareInsert),
				atLeast(contended, 3, bareInsert),
				atLeast(contended, 1.05, "mysql: no hand-over"),
				{scenario: crowd, size: 200, figure: commands, goal: goal{atMost: 6}},
				asWith(crowd, rate, 200, 1, goal{atLeast: 0.5}),
				{scenario: held, size: 10_000, figure: memory, goal: goal{atMost: 1.2}},
				{scenario: held, size: 10_000, figure: latest, goal: goal{atMost: 0.5}},
				{scenario: held, size: 10_000, figure: sockets, goal: goal{atMost: 10}},
				{scenario: held, size: 10_000, figure: goroutines, goal: goal{atMost: 100}},
			},
		},
		{
			name: "mysql: no hand-over", kind: own, open: withoutHandOver,
			how: "the table on a backend that declines to hand over: what the hand-over buys",
			not: onlyContended,
		},
		{
			name: "mysql: row", kind: own, open: ours("?mode=row"), against: bareForUpdate,
			how: "`lock.Open` of `mysql://user:password@host/database?mode=row`",
			not: map[string]string{held: "a connection for each key"},
			aims: []aim{
				atLeast(serial, 0.8, bareForUpdate),
				atLeast(parallel, 0.8, bareForUpdate),
				atLeast(contended, 0.9, bareForUpdate),
			},
		},
	},
}

// startMariaDB starts a server whose log and pool have the sizes that MariaDB gives them:
// a small log makes it stop for all, now and then.
func startMariaDB(h *servertest.Program) *servers {
	server := servertest.MariaDB(h, servertest.WithPersistence(), servertest.WithDataOnDisk(),
		servertest.WithArgs("--innodb-log-file-size=96M", "--innodb-buffer-pool-size=128M"))
	admin, err := sql.Open("mysql", servertest.MySQLAdminDSN(server))
	if err != nil {
		h.Fatalf("%v", err)
	}
	h.Cleanup(func() { _ = admin.Close() })
	return &servers{
		version: "MariaDB " + strings.Split(server.Version(), "-")[0], url: server.URL(), dsn: servertest.MySQLDSN(server),
		commands: func(ctx context.Context, _ *contender) (n float64, err error) {
			var name string
			err = admin.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
			return n, err
		},
	}
}

// openMySQL is a pool with a connection for each goroutine.
func openMySQL(s *servers, p purpose, table string) (*sql.DB, error) {
	c, err := mysql.ParseDSN(s.dsn)
	if err != nil {
		return nil, err
	}
	c.InterpolateParams = true
	c.Logger = &mysql.NopLogger{} // it tells of each wait that was given up
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	n := min(p.goroutines, connections)
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	if table == "" {
		return db, nil
	}
	if _, err := db.Exec(table); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

func insert(ctx context.Context, db *sql.DB, key string) (func() error, error) {
	for id := random(); ; {
		res, err := db.ExecContext(ctx, "INSERT IGNORE INTO bare_locks VALUES (?, ?)", key, id)
		var n int64
		if err == nil {
			n, err = res.RowsAffected()
		}
		if err != nil && !deadlock(err) {
			return nil, err
		}
		if n == 1 {
			return func() error {
				for {
					_, err := db.ExecContext(ctx, "DELETE FROM bare_locks WHERE name = ? AND owner = ?", key, id)
					if !deadlock(err) {
						return err
					}
				}
			}, nil
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// deadlock reports whether the statement is to be repeated, which is usual among INSERTs of
// one key.
func deadlock(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && refused.Number == 1213
}

func forUpdate(ctx context.Context, db *sql.DB, key string) (func() error, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	var name string
	if err := tx.QueryRowContext(ctx, "SELECT name FROM bare_rows WHERE name = ? FOR UPDATE", key).Scan(&name); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx.Commit, nil
}

func getLock(ctx context.Context, db *sql.DB, key string) (func() error, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	for {
		var got sql.NullInt64
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 10)", key).Scan(&got); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // it may have the lock
			return nil, err
		}
		if got.Int64 == 1 {
			return func() error {
				_, err := conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", key)
				return errors.Join(err, conn.Close())
			}, nil
		}
	}
}
