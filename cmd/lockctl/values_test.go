//go:build unix

package main

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// Where a check may not make a place for guarded writes, it says that it has not tried
// them.
func TestCheckWithoutAPlaceForGuardedWrites(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"table", "row"} {
		address := mysqlURL(servertest.SharedMariaDB, mode)(t)
		taken(t, address, "k") // which makes the table of the locks
		status, out, errs := operated(t, address+"&create=false", "check", "--only", guardedWrites+",HandsOut", "--budget", "3s")
		assert.Equal(t, exitOK, status, errs)
		assert.Contains(t, errs, "guarded writes are not tried: they need a table of their own, and create=false forbids to make one")
		assert.Contains(t, out, "Not tried: GuardedWriteWhileHeld, GuardedWriteNeverLate, GuardedWriteHoldsUpNobody.")
		assert.NotContains(t, out, "Config.")
	}
}

// valuesOf names what guarded writes of a check have written and not removed.
func valuesOf(t *testing.T, address string) []string {
	t.Helper()
	u, err := backend.ParseURL(address)
	require.NoError(t, err)
	switch u.Scheme {
	case "mysql":
		return tablesOfValues(t, u)
	case "redis":
		client := goredis.NewClient(&goredis.Options{Addr: u.Hosts[0]})
		defer client.Close()
		keys, err := client.Keys(t.Context(), u.Query.String("prefix", "")+"*:g:*").Result()
		require.NoError(t, err)
		return keys
	case "etcd":
		client, err := clientv3.New(clientv3.Config{Endpoints: u.Hosts, Logger: zap.NewNop()})
		require.NoError(t, err)
		defer client.Close()
		resp, err := client.Get(t.Context(), strings.Trim(u.Path, "/")+"/values/", clientv3.WithPrefix())
		require.NoError(t, err)
		var names []string
		for _, kv := range resp.Kvs {
			names = append(names, string(kv.Key))
		}
		return names
	case "zk":
		conn, _, err := zk.Connect(u.Hosts, 10*time.Second, zk.WithLogInfo(false))
		require.NoError(t, err)
		defer conn.Close()
		names, _, err := conn.Children("/" + u.Query.String("prefix", ""))
		require.NoError(t, err)
		var left []string
		for _, name := range names {
			if strings.HasPrefix(name, "%values") {
				left = append(left, name)
			}
		}
		return left
	}
	return nil
}

func tablesOfValues(t *testing.T, u *backend.URL) []string {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = u.User, u.Password, "tcp", u.Hosts[0], strings.Trim(u.Path, "/")
	db, err := sql.Open("mysql", cfg.FormatDSN())
	require.NoError(t, err)
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SHOW TABLES LIKE 'lock_values_%'")
	require.NoError(t, err)
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	return names
}
