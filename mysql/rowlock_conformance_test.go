package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func init() { childConfigs["row"] = rowConfig }

func TestRowOnMariaDB(t *testing.T) {
	t.Parallel()
	conformance.Run(t, rowConfig(servertest.SharedMariaDB(t).URL()))
}

func TestRowOnMySQL(t *testing.T) {
	t.Parallel()
	conformance.Run(t, rowConfig(servertest.SharedMySQL(t).URL()))
}

// rowConfig has more connections than the default: the suite holds up to 50 keys at
// a time through one client.
func rowConfig(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url+"?mode=row&pool_size=64", backend.OpenConfig{TTL: time.Second})
		},
		Guarded: rowGuarded(url),
		Child:   "row " + url,
		TTL:     time.Second,
		Budget:  20 * time.Second,
	}
}

// rowGuarded writes with InTx, which ends the lease.
func rowGuarded(url string) *conformance.GuardedWrite {
	db := sync.OnceValues(func() (*sql.DB, error) {
		u, err := backend.ParseURL(url)
		if err != nil {
			return nil, err
		}
		settings, err := readURL(u, backend.OpenConfig{})
		if err != nil {
			return nil, err
		}
		connector, err := mysql.NewConnector(settings.config)
		if err != nil {
			return nil, err
		}
		db := sql.OpenDB(connector)
		db.SetMaxIdleConns(-1)
		_, err = db.Exec("CREATE TABLE IF NOT EXISTS row_values (k VARBINARY(512) PRIMARY KEY, v VARBINARY(64) NOT NULL) ENGINE=InnoDB")
		return db, err
	})
	return &conformance.GuardedWrite{
		Write: func(ctx context.Context, lease lock.Lease, value string) error {
			if _, err := db(); err != nil {
				return err
			}
			return InTx(ctx, lease, func(ctx context.Context, tx Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO row_values VALUES (?, ?) ON DUPLICATE KEY UPDATE v = VALUES(v)", lease.Key(), value)
				return err
			})
		},
		Read: func(ctx context.Context, key string) (string, error) {
			db, err := db()
			if err != nil {
				return "", err
			}
			var value string
			err = db.QueryRowContext(ctx, "SELECT v FROM row_values WHERE k = ?", key).Scan(&value)
			if errors.Is(err, sql.ErrNoRows) {
				err = nil
			}
			return value, err
		},
	}
}
