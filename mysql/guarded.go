package mysqllock

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/mysql/internal/table"
)

// Guarded runs fn in a transaction, and commits it only if the lease is still held: the row
// of the lease is locked until the transaction has ended, and nobody can take the key over
// before. No clock and no token is needed.
//
// fn uses the transaction with its context, which ends with ctx and with the lease. It closes
// its rows, and neither commits nor rolls back. It must end within the lease, which is renewed
// before and not meanwhile. Its tables must be transactional. With its context it can't take
// the key again or release another hold of it: ErrUnsupported.
//
// The error matches ErrNotHeld when the lease was lost. It matches ErrOutcomeUnknown when the
// answer to the commit did not arrive in time, and when fn has ended the transaction itself, as
// DDL does. Otherwise it is that of fn or of the server, and nothing was changed.
//
// Each call takes a connection of the pool. A quarter of them is left to renewals; Guarded
// waits for one of the others until ctx or the lease has ended.
func Guarded(ctx context.Context, lease lock.Lease, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return table.Guarded(ctx, lease, fn)
}
