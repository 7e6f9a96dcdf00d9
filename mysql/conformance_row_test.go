package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

func init() {
	childConfigs["row"] = func(url string) conformance.Config { return rowConfig(url, nil) }
}

func TestRowOnMariaDB(t *testing.T) { testRow(t, servertest.SharedMariaDB) }

func TestAlsoRowOnMySQL(t *testing.T) {
	suites.Also(t)
	testRow(t, servertest.SharedMySQL)
}

func testRow(t *testing.T, shared func(servertest.TB) *servertest.Server) {
	t.Parallel()
	s := shared(t)
	db := mysqltest.AdminPool(t, s)
	mysqltest.Exec(t, db, "CREATE TABLE IF NOT EXISTS row_values (k VARBINARY(512) PRIMARY KEY, v VARBINARY(64) NOT NULL) ENGINE=InnoDB")
	cfg := rowConfig(s.URL(), db)
	cfg.Judge = linear.Judge(t)
	cfg.Untouched = untouched(t, s, "row", "", "_holders")
	cfg.Proxy = &conformance.Proxy{
		Server: s.Addr(),
		Open: func(ctx context.Context, addr string) (lock.Locker, error) {
			return lock.Open(ctx, s.URLAt(addr)+"?mode=row&dial_timeout=5s", &lock.Options{TTL: cfg.TTL})
		},
	}
	conformance.Run(t, cfg)
}

// rowConfig is that of a URL. Without a pool to read with there are no guarded writes.
func rowConfig(url string, db *sql.DB) conformance.Config {
	cfg := conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url+"?mode=row&dial_timeout=5s", backend.OpenConfig{TTL: time.Second})
		},
		Child:  "row " + url,
		TTL:    time.Second,
		Budget: servertest.Budget(),
	}
	if db != nil {
		cfg.Guarded = rowGuarded(db)
	}
	return cfg
}

// rowGuarded writes with InTx, which ends the lease.
func rowGuarded(db *sql.DB) *conformance.GuardedWrite {
	write := func(ctx context.Context, lease lock.Lease, value string, between func()) error {
		return InTx(ctx, lease, func(ctx context.Context, tx Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO row_values VALUES (?, ?) ON DUPLICATE KEY UPDATE v = VALUES(v)", lease.Key(), value)
			between()
			return err
		})
	}
	return &conformance.GuardedWrite{
		Write: func(ctx context.Context, lease lock.Lease, value string) error {
			return write(ctx, lease, value, func() {})
		},
		Open: write,
		Read: func(ctx context.Context, key string) (string, error) {
			var value string
			err := db.QueryRowContext(ctx, "SELECT v FROM row_values WHERE k = ?", key).Scan(&value)
			if errors.Is(err, sql.ErrNoRows) {
				err = nil
			}
			return value, err
		},
	}
}
