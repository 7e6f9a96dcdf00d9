package mysqllock

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

func init() {
	childConfigs["table-url"] = tableConfigOfURL
	childConfigs["table-dsn"] = func(dsn string) conformance.Config {
		cfg, _ := tableConfigOfDSN(dsn)
		return cfg
	}
}

func TestTableConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, tableConfigOfURL(os.Getenv("ZZURL")))
}

func tableConfigOfURL(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: time.Second})
		},
		Child:  "table-url " + url,
		TTL:    time.Second,
		Budget: 20 * time.Second,
	}
}

// TestTableConformanceOfPool is about a pool of the caller's, with the settings of
// the driver that are not ours: affected rows mean something else.
func TestTableConformanceOfPool(t *testing.T) {
	t.Parallel()
	cfg, db := tableConfigOfDSN(os.Getenv("ZZDSN"))
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	conformance.Run(t, cfg)
}

func tableConfigOfDSN(dsn string) (conformance.Config, *sql.DB) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		panic(err)
	}
	c.ClientFoundRows = true
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		panic(err)
	}
	db := sql.OpenDB(connector)
	return conformance.Config{
		Name: "mysql table, pool of the caller with clientFoundRows",
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return NewTableBackend(ctx, db, nil)
		},
		Child:  "table-dsn " + dsn,
		TTL:    time.Second,
		Budget: 20 * time.Second,
	}, db
}
