package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/internal/measure"
	"github.com/mortiselock/lock/internal/servertest"
)

// durableMariaDB is a server of its own that writes its log to the disk at each commit,
// as servers do where nothing else is said. The log and the pool have the sizes that
// MariaDB gives them: a small log makes the server stop for all, now and then.
func (b *bench) durableMariaDB() *servertest.Server {
	return servertest.MariaDB(b.host, servertest.WithPersistence(), servertest.WithDataOnDisk(),
		servertest.WithArgs("--innodb-log-file-size=96M", "--innodb-buffer-pool-size=128M"))
}

// sqlPairs compares the sides, one goroutine on a free key, and prints what they cost.
func (b *bench) sqlPairs(admin *sql.DB, sides ...*measure.Side) error {
	if err := b.diskPairs(sides...); err != nil {
		return err
	}
	return b.sqlCosts(admin, sides...)
}

// sqlAdmin is a pool that reads the server's counters.
func sqlAdmin(s *servertest.Server) (*sql.DB, error) {
	c, err := mysql.ParseDSN(servertest.MySQLAdminDSN(s))
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// sqlCosts prints what a pair of each side costs the server, to show that the sides
// are asked for the same: statements, and writes of the log to the disk.
func (b *bench) sqlCosts(admin *sql.DB, sides ...*measure.Side) error {
	const pairs = 500
	width := 0
	for _, s := range sides {
		width = max(width, len(s.Name))
	}
	for _, s := range sides {
		asked, synced, err := sqlCounters(b.ctx, admin)
		if err != nil {
			return err
		}
		for range pairs {
			giveBack, err := s.Take(b.ctx)
			if err == nil {
				err = giveBack()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		askedAfter, syncedAfter, err := sqlCounters(b.ctx, admin)
		if err != nil {
			return err
		}
		fmt.Printf("  %-*s  a pair: %.2f statements, %.2f syncs of the disk\n", width, s.Name,
			(askedAfter-asked-1)/pairs, (syncedAfter-synced)/pairs)
	}
	return nil
}

// sqlCounters are how many statements the server has been asked, and how often it has
// had something written to the disk.
func sqlCounters(ctx context.Context, db *sql.DB) (statements, syncs float64, err error) {
	rows, err := db.QueryContext(ctx, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Questions', 'Innodb_data_fsyncs')")
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n float64
		if err := rows.Scan(&name, &n); err != nil {
			return 0, 0, err
		}
		if name == "Questions" {
			statements = n
		} else {
			syncs = n
		}
	}
	return statements, syncs, rows.Err()
}
