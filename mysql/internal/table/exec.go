package table

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// answer is what a changing statement says: the token that it reported through
// LAST_INSERT_ID, or zero when its condition was not met.
type answer struct {
	id   int64
	sent backend.Instant // just before it was sent
}

// change sends a statement that changes at most the rows that it names, and repeats
// it when the server rolled it back. It never repeats a statement that may have been
// applied.
func (b *Backend) change(ctx context.Context, s statement) (answer, error) {
	var a answer
	text := string(s)
	err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		a.sent = b.clock.Now()
		res, err := conn.ExecContext(ctx, text)
		if err != nil {
			return err
		}
		a.id, err = res.LastInsertId()
		return err
	})
	if err != nil {
		return answer{}, err
	}
	return a, nil
}

// read reads rows without locking them. A server that has become read-only is refused: what
// it has may be out of date. One that a proxy sends reads to, and no writes, is not: a
// statement that takes a key or renews it checks what was read.
func (b *Backend) read(ctx context.Context, s statement) ([]row, error) {
	var rows []row
	text := string(s)
	err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		var err error
		rows, err = scanRows(conn.QueryContext(ctx, text))
		if err == nil && slices.ContainsFunc(rows, func(r row) bool { return !r.writable }) {
			err = takesWrites(ctx, conn)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func scanRows(rs *sql.Rows, err error) ([]row, error) {
	if err != nil {
		return nil, err
	}
	defer rs.Close()
	var rows []row
	for rs.Next() {
		var r row
		if err := rs.Scan(r.fields()...); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, rs.Err()
}

// takesWrites is nil where the connection leads to a server that takes writes. A proxy that
// sends reads to replicas sends what ends with FOR UPDATE to the primary.
func takesWrites(ctx context.Context, conn *sql.Conn) error {
	var yes bool
	if err := conn.QueryRowContext(ctx, "SELECT "+wire.Writable+" FOR UPDATE").Scan(&yes); err != nil {
		return err
	}
	if !yes {
		return wire.ErrReadOnly
	}
	return nil
}

// one reads the row of a key, and nil when there is none.
func (b *Backend) one(ctx context.Context, key string) (*row, error) {
	rows, err := b.read(ctx, b.selectRow(key))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// step runs f on a connection of the pool, with a context for its statements. An
// error that came before anything was sent is marked. A connection to a server that has
// become read-only is given up, and the step taken again on another.
func (b *Backend) step(ctx context.Context, f func(context.Context, *sql.Conn) error) error {
	dead, readOnly := 0, 0
	for try := 1; ; try++ {
		conn, err := b.conn(ctx)
		if err != nil {
			return err
		}
		inFlight, end := withGrace(ctx)
		err = f(inFlight, conn)
		end()
		if wire.IsReadOnly(err) {
			wire.LeaveServer(conn)
		} else {
			_ = conn.Close() // back to the pool
		}
		switch {
		case err == nil:
			return nil
		case wire.IsReadOnly(err) && readOnly < wire.FreshConnections:
			readOnly++
		case errors.Is(err, driver.ErrBadConn) && dead < wire.FreshConnections:
			dead++
		case wire.WorthRepeating(err) && try < wire.Repeats:
			if waitErr := wire.Jitter(ctx, try); waitErr != nil {
				return fmt.Errorf("%w: %w", waitErr, err)
			}
		default:
			return err
		}
	}
}

// conn takes a connection of the pool.
func (b *Backend) conn(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := wire.EndingBefore(ctx, 0)
	defer cancel()
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, wire.Unsent(err)
	}
	return conn, nil
}

// grace is for how long an answer is waited for after the context of the call has
// ended.
const grace = time.Second

// withGrace returns a context for the statements of a connection that ends a while
// after the given one. A statement can only be given up by closing the connection,
// and the server may carry it out afterwards: a grant could follow the release that
// was meant to remove it. So the answer is waited for; the lock package has let the
// caller go.
func withGrace(ctx context.Context) (inFlight context.Context, end func()) {
	inFlight = context.WithoutCancel(ctx)
	if ctx.Done() == nil {
		return inFlight, func() {}
	}
	inFlight, cancel := context.WithCancel(inFlight)
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(inFlight, func() { timer.Stop() })
	})
	return inFlight, func() {
		stop()
		cancel()
	}
}
