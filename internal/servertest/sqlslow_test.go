package servertest

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSlowSQL: a statement that waits for a lock is reported with the transaction that
// has it.
func TestSlowSQL(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(TB) *Server{"MariaDB": SharedMariaDB, "MySQL": SharedMySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server(t)
			db, err := sql.Open("mysql", MySQLDSN(s))
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			ctx := t.Context()
			table := "slow_" + strings.ToLower(name)
			_, err = db.ExecContext(ctx, "CREATE TABLE "+table+" (k INT PRIMARY KEY) ENGINE=InnoDB")
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP TABLE "+table) })
			_, err = db.ExecContext(ctx, "INSERT INTO "+table+" VALUES (1)")
			require.NoError(t, err)

			told := attempt(func(rec TB) {
				LogSlowSQL(rec, s)
				holder, err := db.BeginTx(ctx, nil)
				if !assert.NoError(t, err) {
					return
				}
				defer func() { _ = holder.Rollback() }()
				assert.NoError(t, holder.QueryRowContext(ctx, "SELECT k FROM "+table+" WHERE k = 1 FOR UPDATE").Scan(new(int)))
				waits, cancel := context.WithTimeout(ctx, slowLeast+3*time.Second)
				defer cancel()
				_, err = db.ExecContext(waits, "INSERT IGNORE INTO "+table+" VALUES (1)")
				assert.ErrorIs(t, err, context.DeadlineExceeded, "it waits for the holder")
			})
			text := strings.Join(told.logged, "\n")
			require.Empty(t, told.failed)
			require.Contains(t, text, "INSERT IGNORE INTO "+table)
			require.Contains(t, text, "TRANSACTION")
		})
	}
}
