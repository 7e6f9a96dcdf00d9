package wire

import (
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(s Settings){
		"mysql://ann@h/app": func(s Settings) {
			require.Equal(t, "table", s.Mode)
			require.True(t, s.Create)
			require.Equal(t, "tcp", s.Config.Net)
			require.Equal(t, "h:3306", s.Config.Addr)
			require.Equal(t, "app", s.Config.DBName)
			require.Empty(t, s.Table)
			require.Zero(t, s.Pool)
			require.Nil(t, s.Config.TLS)
			require.Equal(t, defaultLifetime, s.Lifetime)
		},
		"mysql://ann:p%40ss@[::1]:3307/app?mode=row&pool_size=7&dial_timeout=250ms&conn_max_lifetime=0s&table=ops.row_locks&create=false": func(s Settings) {
			require.Equal(t, "row", s.Mode)
			require.False(t, s.Create)
			require.Equal(t, "[::1]:3307", s.Config.Addr)
			require.Equal(t, "ann", s.Config.User)
			require.Equal(t, "p@ss", s.Config.Passwd)
			require.Equal(t, 7, s.Pool)
			require.Equal(t, 250*time.Millisecond, s.Config.Timeout)
			require.Equal(t, "ops.row_locks", s.Table)
			require.Zero(t, s.Lifetime)
		},
		"mysql://ann@/app?socket=/run/mysqld/mysqld.sock": func(s Settings) {
			require.Equal(t, "unix", s.Config.Net)
			require.Equal(t, "/run/mysqld/mysqld.sock", s.Config.Addr)
		},
		"mysql://ann@db.example.org/app?tls=true": func(s Settings) {
			require.NotNil(t, s.Config.TLS)
			require.False(t, s.Config.TLS.InsecureSkipVerify)
			require.Equal(t, "db.example.org", s.Config.TLS.ServerName)
		},
	} {
		u, err := backend.ParseURL(raw)
		require.NoError(t, err, raw)
		s, err := ReadURL(u, backend.OpenConfig{TTL: 15 * time.Second})
		require.NoError(t, err, raw)
		check(s)
		_, err = mysql.NewConnector(s.Config)
		require.NoError(t, err, raw)
	}
	u, err := backend.ParseURL("mysql://ann@h/app")
	require.NoError(t, err)
	s, err := ReadURL(u, backend.OpenConfig{TTL: 300 * time.Millisecond})
	require.NoError(t, err)
	require.Less(t, s.Config.Timeout, 100*time.Millisecond)
}
