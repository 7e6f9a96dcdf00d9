package mysqllock

import (
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(s urlSettings){
		"mysql://ann@h/app": func(s urlSettings) {
			require.Equal(t, "table", s.mode)
			require.True(t, s.create)
			require.Equal(t, "tcp", s.config.Net)
			require.Equal(t, "h:3306", s.config.Addr)
			require.Equal(t, "app", s.config.DBName)
			require.Empty(t, s.table)
			require.Zero(t, s.pool)
			require.Nil(t, s.config.TLS)
			require.Equal(t, defaultLifetime, s.lifetime)
		},
		"mysql://ann:p%40ss@[::1]:3307/app?mode=row&pool_size=7&dial_timeout=250ms&conn_max_lifetime=0s&table=ops.row_locks&create=false": func(s urlSettings) {
			require.Equal(t, "row", s.mode)
			require.False(t, s.create)
			require.Equal(t, "[::1]:3307", s.config.Addr)
			require.Equal(t, "ann", s.config.User)
			require.Equal(t, "p@ss", s.config.Passwd)
			require.Equal(t, 7, s.pool)
			require.Equal(t, 250*time.Millisecond, s.config.Timeout)
			require.Equal(t, "ops.row_locks", s.table)
			require.Zero(t, s.lifetime)
		},
		"mysql://ann@/app?socket=/run/mysqld/mysqld.sock": func(s urlSettings) {
			require.Equal(t, "unix", s.config.Net)
			require.Equal(t, "/run/mysqld/mysqld.sock", s.config.Addr)
		},
		"mysql://ann@db.example.org/app?tls=true": func(s urlSettings) {
			require.NotNil(t, s.config.TLS)
			require.False(t, s.config.TLS.InsecureSkipVerify)
			require.Equal(t, "db.example.org", s.config.TLS.ServerName)
		},
	} {
		u, err := backend.ParseURL(raw)
		require.NoError(t, err, raw)
		s, err := readURL(u, backend.OpenConfig{TTL: 15 * time.Second})
		require.NoError(t, err, raw)
		check(s)
		_, err = mysql.NewConnector(s.config)
		require.NoError(t, err, raw)
	}
	u, err := backend.ParseURL("mysql://ann@h/app")
	require.NoError(t, err)
	s, err := readURL(u, backend.OpenConfig{TTL: 300 * time.Millisecond})
	require.NoError(t, err)
	require.Less(t, s.config.Timeout, 100*time.Millisecond)
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for raw, text := range map[string]string{
		"mysql://ann:secret@h/app?unknown=1":             "unknown",
		"mysql://ann:secret@h/app?clientFoundRows=true":  "clientFoundRows",
		"mysql://ann:secret@h/app?autocommit=0":          "autocommit",
		"mysql://ann:secret@h/app?tls=skip-verify":       "tls",
		"mysql://ann:secret@h/app?mode=named":            "mode",
		"mysql://ann:secret@h/app?pool_size=many":        "pool_size",
		"mysql://ann:secret@h/app?pool_size=0":           "pool_size",
		"mysql://ann:secret@h/app?dial_timeout=5":        "dial_timeout",
		"mysql://ann:secret@h/app?dial_timeout=-5s":      "dial_timeout",
		"mysql://ann:secret@h/app?create=perhaps":        "create",
		"mysql://ann:secret@h/app?table=a&table=b":       "table",
		"mysql://ann:secret@h/app?table=a.b.c":           "table",
		"mysql://ann:secret@h/app?table=a%60b":           "table",
		"mysql://ann:secret@h/app?ca=/x":                 "tls=true",
		"mysql://ann:secret@h/app?tls=true&ca=/no.pem":   "ca",
		"mysql://ann:secret@h/app?tls=true&cert=/no.pem": "together",
		"mysql://ann:secret@h/app?socket=/s":             "socket",
		"mysql://ann:secret@/app?socket=/s&tls=true":     "exclude",
		"mysql://ann:secret@h,i/app":                     "one host",
		"mysql://ann:secret@h":                           "database",
		"mysql://ann:secret@h/app/locks":                 "one database",
		"mysql://h/app":                                  "user",
	} {
		u, err := backend.ParseURL(raw)
		require.NoError(t, err, raw)
		_, err = Opener(t.Context(), u, backend.OpenConfig{TTL: ttl})
		require.ErrorIs(t, err, backend.ErrInvalid, raw)
		require.ErrorContains(t, err, text, raw)
		require.NotContains(t, err.Error(), "secret", raw)
	}
}
