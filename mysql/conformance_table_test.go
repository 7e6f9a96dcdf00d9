package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

func init() {
	childConfigs["table-url"] = tableConfigOfURL
	childConfigs["table-dsn"] = func(dsn string) conformance.Config {
		cfg, _ := tableConfigOfDSN(dsn)
		return cfg
	}
}

func TestTableOnMariaDB(t *testing.T) { testTable(t, servertest.SharedMariaDB) }

func TestAlsoTableOnMySQL(t *testing.T) {
	suites.Also(t)
	testTable(t, servertest.SharedMySQL)
}

// testTable runs the suite on a backend of a URL.
func testTable(t *testing.T, shared func(servertest.TB) *servertest.Server) {
	t.Parallel()
	server := shared(t)
	cfg := tableConfigOfURL(server.URL())
	cfg.Judge, cfg.Guarded = linear.Judge(t), tableGuarded(t, mysqltest.Pool(t, servertest.MySQLDSN(server), ""))
	cfg.Untouched = untouched(t, server, "table", "")
	cfg.Proxy = &conformance.Proxy{
		Server: server.Addr(),
		Open: func(ctx context.Context, addr string) (lock.Locker, error) {
			return lock.Open(ctx, server.URLAt(addr)+"?mode=table", &lock.Options{TTL: cfg.TTL})
		},
	}
	conformance.Run(t, cfg)
}

func TestAlsoTableOfPoolOnMariaDB(t *testing.T) {
	suites.Also(t)
	testTableOfPool(t, servertest.SharedMariaDB)
}

func TestAlsoTableOfPoolOnMySQL(t *testing.T) {
	suites.Also(t)
	testTableOfPool(t, servertest.SharedMySQL)
}

// testTableOfPool runs the suite on a pool of the caller, with the driver's own connector and
// the other meaning of the number of affected rows. Where there is time it runs with the usual
// meaning too.
func testTableOfPool(t *testing.T, shared func(servertest.TB) *servertest.Server) {
	t.Parallel()
	meanings := []string{"true"}
	if suites.Long() {
		meanings = append(meanings, "false")
	}
	for _, found := range meanings {
		t.Run("clientFoundRows="+found, func(t *testing.T) {
			cfg, db := tableConfigOfDSN(servertest.MySQLDSN(shared(t)) + "?clientFoundRows=" + found)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			cfg.Judge, cfg.Guarded = linear.Judge(t), tableGuarded(t, db)
			cfg.Pool = func(ctx context.Context) (string, error) { return idleSessions(ctx, db) }
			conformance.Run(t, cfg)
		})
	}
}

// untouched makes tables that nobody has used. The suffixes are those of their names.
func untouched(t testing.TB, s *servertest.Server, mode string, suffixes ...string) func(context.Context) (conformance.Store, error) {
	db := mysqltest.UserPool(t, s, "")
	return func(context.Context) (conformance.Store, error) {
		name := mysqltest.OwnTable(t, db)
		for _, suffix := range suffixes {
			t.Cleanup(func() {
				_, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+name+suffix)
				require.NoError(t, err)
			})
		}
		return conformance.Store{
			Open: func(ctx context.Context) (backend.Backend, error) {
				return backend.DefaultMux.Open(ctx, s.URL()+"?mode="+mode+"&table="+name, backend.OpenConfig{TTL: time.Second})
			},
			Contents: func(ctx context.Context) (text string, err error) {
				for _, suffix := range suffixes {
					var table, sum string
					if err := db.QueryRowContext(ctx, "CHECKSUM TABLE "+name+suffix).Scan(&table, &sum); err != nil {
						return "", err
					}
					text += table + " " + sum + " "
				}
				return text, nil
			},
		}, nil
	}
}

// idleSessions says what is set on the idle connections of a pool, each text once.
func idleSessions(ctx context.Context, db *sql.DB) (string, error) {
	seen := map[string]bool{}
	for range max(db.Stats().Idle, 1) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return "", err
		}
		defer conn.Close() // the next one is another
		vars, err := wire.Variables(ctx, conn, "autocommit", "completion_type", "tx_isolation", "transaction_isolation",
			"wait_timeout", "innodb_lock_wait_timeout", "lock_wait_timeout", "sql_mode", "time_zone")
		if err != nil {
			return "", err
		}
		seen[fmt.Sprint(vars)] = true // maps are printed in the order of their keys
	}
	return fmt.Sprint(seen), nil
}

func tableConfigOfURL(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: time.Second})
		},
		Child:  "table-url " + url,
		TTL:    time.Second,
		Budget: servertest.Budget(),
	}
}

// tableGuarded writes with Guarded.
func tableGuarded(t testing.TB, db *sql.DB) *conformance.GuardedWrite {
	t.Helper()
	mysqltest.Exec(t, db, "CREATE TABLE IF NOT EXISTS table_values (k VARBINARY(512) PRIMARY KEY, v VARBINARY(64) NOT NULL) ENGINE=InnoDB")
	write := func(ctx context.Context, lease lock.Lease, value string, between func()) error {
		return Guarded(ctx, lease, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO table_values VALUES (?, ?) ON DUPLICATE KEY UPDATE v=VALUES(v)", lease.Key(), value)
			between()
			return err
		})
	}
	return &conformance.GuardedWrite{
		Write: func(ctx context.Context, lease lock.Lease, value string) error {
			return write(ctx, lease, value, func() {})
		},
		Open: write,
		Read: func(ctx context.Context, key string) (value string, err error) {
			err = db.QueryRowContext(ctx, "SELECT v FROM table_values WHERE k=?", key).Scan(&value)
			if errors.Is(err, sql.ErrNoRows) {
				err = nil
			}
			return value, err
		},
	}
}

// tableConfigOfDSN is about a pool of the caller's.
func tableConfigOfDSN(dsn string) (conformance.Config, *sql.DB) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		panic(err)
	}
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		panic(err)
	}
	db := sql.OpenDB(connector)
	return conformance.Config{
		Name: "mysql table, pool of the caller",
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return NewTableBackend(ctx, db, nil)
		},
		Child:  "table-dsn " + dsn,
		TTL:    time.Second,
		Budget: servertest.Budget(),
	}, db
}
