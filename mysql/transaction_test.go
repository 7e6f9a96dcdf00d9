package mysqllock

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// What users hold of a transaction behaves as what database/sql has.
func TestRowsOfATransaction(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		l, err := NewRow(t.Context(), mysqltest.Connector(t, s, nil), nil)
		require.NoError(t, err)
		defer l.Close()
		lease, err := l.TryAcquire(t.Context(), backendtest.UniqueKey(t))
		require.NoError(t, err)
		require.NoError(t, InTx(t.Context(), lease, func(ctx context.Context, tx Tx) error {
			var n int
			require.NoError(t, tx.QueryRowContext(ctx, "SELECT ?", 7).Scan(&n))
			require.Equal(t, 7, n)
			require.ErrorIs(t, tx.QueryRowContext(ctx, "SELECT 1 FROM DUAL WHERE FALSE").Scan(&n), sql.ErrNoRows)
			var refusal *mysql.MySQLError
			require.ErrorAs(t, tx.QueryRowContext(ctx, "SELECT nothing_here").Scan(&n), &refusal)
			require.Error(t, tx.QueryRowContext(ctx, "SELECT 1, 2").Scan(&n), "two columns")
			_, err := tx.QueryContext(ctx, "SELECT nothing_here")
			require.ErrorAs(t, err, &refusal)
			rows, err := tx.QueryContext(ctx, "SELECT 1 AS n UNION SELECT 2 ORDER BY n")
			require.NoError(t, err)
			names, err := rows.Columns()
			require.NoError(t, err)
			require.Equal(t, []string{"n"}, names)
			_, err = tx.ExecContext(ctx, "DO 0")
			require.ErrorIs(t, err, lock.ErrInvalid, "rows are open")
			var all []int
			for rows.Next() {
				require.NoError(t, rows.Scan(&n))
				all = append(all, n)
			}
			require.NoError(t, rows.Err())
			require.NoError(t, rows.Close())
			require.Equal(t, []int{1, 2}, all)
			_, err = tx.ExecContext(ctx, "DO 0")
			return err
		}))
		require.ErrorIs(t, InTx(t.Context(), lease, nil), lock.ErrInvalid)
		require.ErrorIs(t, lease.Release(t.Context()), lock.ErrNotHeld)
		_, err = NewRow(t.Context(), mysqltest.Connector(t, s, nil), &RowOptions{Lock: lock.Options{TTL: 1500 * time.Millisecond}})
		require.ErrorIs(t, err, lock.ErrInvalid)
	})
}
