//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// kept is what a server keeps of keys that begin with a prefix, as its own tools show
// it: rows of MySQL, keys of Redlock. Other backends keep nothing of a key.
func kept(t *testing.T, url, prefix string) []string {
	t.Helper()
	u, err := backend.ParseURL(url)
	require.NoError(t, err)
	var found []string
	switch u.Scheme {
	case "mysql":
		db := databaseOf(t, u)
		table := u.Query.String("table", "")
		columns := map[string]string{table: "lock_key"}
		if u.Query.String("mode", "") == "row" {
			columns = map[string]string{table: "k", table + "_holders": "k"}
		}
		for table, column := range columns {
			rows, err := db.QueryContext(t.Context(), fmt.Sprintf("SELECT %s FROM %s WHERE %[1]s LIKE '%[3]s%%'", column, table, prefix))
			require.NoError(t, err)
			for rows.Next() {
				var key string
				require.NoError(t, rows.Scan(&key))
				found = append(found, table+": "+key)
			}
			require.NoError(t, rows.Err())
			_ = rows.Close()
		}
	case "redlock":
		for _, addr := range u.Hosts {
			client := goredis.NewClient(&goredis.Options{Addr: addr})
			keys, err := client.Keys(t.Context(), "*:"+prefix+"*").Result()
			require.NoError(t, err)
			_ = client.Close()
			found = append(found, keys...)
		}
	}
	return found
}

// databaseOf is a pool on the database of a URL.
func databaseOf(t *testing.T, u *backend.URL) *sql.DB {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = u.User, u.Password, "tcp", u.Hosts[0], strings.Trim(u.Path, "/")
	db, err := sql.Open("mysql", cfg.FormatDSN())
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// What a backend keeps of keys that nobody holds can be removed, and nothing else goes
// with it.
func TestForget(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		url := p.url(t)
		b, err := backend.DefaultMux.Open(t.Context(), url, backend.OpenConfig{TTL: takenTTL})
		require.NoError(t, err)
		defer b.Close()
		f, ok := b.(backend.Forgetter)
		if !ok {
			assert.Empty(t, kept(t, url, ""))
			t.Skipf("%s keeps nothing of a key", p.name)
		}
		use := func(keys ...string) {
			for _, key := range keys {
				req := backend.Request{Key: key, ID: backend.NewID(), TTL: takenTTL}
				_, err := b.Try(t.Context(), req)
				require.NoError(t, err)
				require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
			}
		}
		held := taken(t, url, "f/held")
		use("f", "g/free", "F/free")
		for i := range 210 { // more than one chunk
			use(fmt.Sprintf("f/free/%d", i))
		}
		before := len(kept(t, url, "f/free/"))
		require.GreaterOrEqual(t, before, 210)
		require.ErrorIs(t, f.Forget(t.Context(), ""), lock.ErrInvalid, "the tokens of all keys")
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		require.NoError(t, f.Forget(ctx, "f/"), "it may have waited for the holder")
		assert.Empty(t, kept(t, url, "f/free/"))
		for _, key := range []string{"f/held", "g/free"} {
			assert.NotEmpty(t, kept(t, url, key), key)
		}
		require.NoError(t, held.Renew(t.Context()), "the hold was forgotten")
		_, err = b.Try(t.Context(), backend.Request{Key: "f/held", ID: backend.NewID(), TTL: takenTTL})
		require.ErrorIs(t, err, backend.ErrHeld)
		use("f/free/1")
		require.NoError(t, held.Release(t.Context()))
	})
}
