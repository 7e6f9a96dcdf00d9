package mysqllock

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// TestALookMakesNoTable: who only looks makes no table, and is told that there is none.
// What others do later is seen all the same.
func TestALookMakesNoTable(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		for _, mode := range []string{"table", "row"} {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				db := mysqltest.UserPool(t, s, "")
				table := mysqltest.OwnTable(t, db)
				if mode == "row" {
					t.Cleanup(func() { _, _ = db.Exec("DROP TABLE IF EXISTS " + table + "_holders") })
				}
				tables := func() (n int) {
					require.NoError(t, db.QueryRowContext(t.Context(),
						"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND LOCATE(?, table_name) = 1", table).Scan(&n))
					return n
				}
				url := s.URL() + "?mode=" + mode + "&table=" + table
				var log bytes.Buffer
				b, err := backend.DefaultMux.Open(t.Context(), url, backend.OpenConfig{LookOnly: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				require.NoError(t, err)
				defer b.Close()
				require.Contains(t, log.String(), "table="+table)
				require.Contains(t, log.String(), "does not exist")
				keys := func() (keys []string) {
					require.NoError(t, b.(backend.Lister).List(t.Context(), "", func(r backend.Record) bool {
						keys = append(keys, r.Key)
						return true
					}))
					return keys
				}
				_, err = b.(backend.Inspector).Inspect(t.Context(), "k")
				require.ErrorIs(t, err, backend.ErrNotHeld)
				require.Empty(t, keys())
				require.ErrorIs(t, b.(backend.ForceReleaser).ForceRelease(t.Context(), "k", 1), backend.ErrNotHeld)
				require.ErrorIs(t, b.(backend.Revoker).Revoke(t.Context(), "k", 1), backend.ErrNotHeld)
				require.NoError(t, b.(backend.Forgetter).Forget(t.Context(), "k"))
				for _, dryRun := range []bool{true, false} {
					n, err := b.(backend.Cleaner).Cleanup(t.Context(), time.Hour, dryRun)
					require.NoError(t, err)
					require.Zero(t, n)
				}
				require.Zero(t, tables())

				used, err := backend.DefaultMux.Open(t.Context(), url, backend.OpenConfig{})
				require.NoError(t, err)
				defer used.Close()
				g, err := used.Try(t.Context(), backend.Request{Key: "k", ID: backend.NewID(), TTL: time.Minute})
				require.NoError(t, err)
				rec, err := b.(backend.Inspector).Inspect(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, g.Token, rec.Token)
				require.Equal(t, []string{"k"}, keys())
				require.NoError(t, b.(backend.Revoker).Revoke(t.Context(), "k", g.Token))
			})
		}
	})
}
