package row

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// record is what the last grant of a key has left in the second table.
type record struct {
	token, connection uint64
	revoked           uint64 // the token of the grant that was revoked last
	session           string
	user              sql.NullInt64 // the connection that has the session's mark now
	seconds           int64
	since             int64 // microseconds of the server's clock
	label, host, pair string
	pid               int
}

// alive reports whether the session of the last grant still exists. It may hold
// another key by now, or none.
func (r record) alive() bool { return r.user.Valid && uint64(r.user.Int64) == r.connection }

func (r record) ttl() time.Duration { return time.Duration(r.seconds) * time.Second }

func (r record) holder() backend.Holder {
	return backend.Holder{Label: r.label, Host: r.host, PID: r.pid, PairID: r.pair, Since: time.UnixMicro(r.since).UTC()}
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (b *Backend) readRecord(ctx context.Context, q queryer, key string, locking ...string) (r record, err error) {
	statement := b.record(key)
	for _, more := range locking {
		statement += more
	}
	err = q.QueryRowContext(ctx, statement).Scan(&r.token, &r.revoked, &r.connection, &r.session, &r.user, &r.seconds, &r.since, &r.label, &r.host, &r.pair, &r.pid)
	return r, err
}

// Inspect shows the holder of a key: what the last grant has left, if its session
// lives and the row is locked. To see that, it asks for a shared lock on the row for
// a moment, and a try of somebody else at that very moment is refused. Remaining is
// the TTL, since the time of the last heartbeat is not recorded; who waits is not
// known, so Waiters is -1.
func (b *Backend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	r, err := b.readRecord(ctx, b.control, key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return backend.Record{}, wire.NotHeld(key)
	case err != nil:
		return backend.Record{}, wire.KeyError(ctx, key, err)
	case !r.alive():
		return backend.Record{}, wire.NotHeld(key)
	}
	locked, err := b.isLocked(ctx, b.control, key)
	if err != nil {
		return backend.Record{}, wire.KeyError(ctx, key, err)
	}
	if !locked {
		return backend.Record{}, wire.NotHeld(key)
	}
	return backend.Record{
		Key: key, Token: r.token, Holds: 1, Waiters: -1, Remaining: r.ttl(), Holder: r.holder(), Revoked: r.revoked == r.token,
	}, nil
}

func (b *Backend) isLocked(ctx context.Context, q queryer, key string) (bool, error) {
	err := q.QueryRowContext(ctx, b.row(key)+b.lockShare).Scan(new(int))
	switch code := wire.CodeOf(err); {
	case err == nil, errors.Is(err, sql.ErrNoRows):
		return false, nil
	case code == wire.CodeLockNowait, code == wire.CodeLockWaitTimeout:
		return true, nil
	}
	return false, err
}

// ForceRelease ends the connection that was granted the key with this token, and
// returns when the server has rolled its transaction back. The account must be that of
// the holder, or have the right to end connections of others.
//
// A session holds several keys one after the other. If it releases this key and is
// granted another one between the look and the end, that other hold is lost, and its
// holder is told so.
func (b *Backend) ForceRelease(ctx context.Context, key string, token uint64) error {
	return b.onHold(ctx, key, token, func(ctx context.Context, conn *sql.Conn, r record) error {
		// The holder reads it when its connection breaks, and waits for the commit.
		if _, err := conn.ExecContext(ctx, b.revoke(key, token)); err != nil {
			return err
		}
		err := endSession(ctx, conn, r.connection, r.session)
		if wire.CodeOf(err) == codeNotOwner {
			err = fmt.Errorf("%w: %w; the holder's connection belongs to another account: use that one, or one with CONNECTION_ADMIN (MySQL) or CONNECTION ADMIN (MariaDB)",
				backend.ErrPermanent, err)
		}
		return err
	})
}

const codeNotOwner = 1095

// Revoke writes the token beside the record, where the holder's next heartbeat finds
// it: the heartbeat is refused, and the holder gives the row up. A holder that sends
// none loses its session after the TTL, as ever. The account needs no other right
// than the holder's.
func (b *Backend) Revoke(ctx context.Context, key string, token uint64) error {
	return b.onHold(ctx, key, token, func(ctx context.Context, conn *sql.Conn, _ record) error {
		_, err := conn.ExecContext(ctx, b.revoke(key, token))
		return err
	})
}

// onHold does something about the hold of the key with the token. The record is locked
// meanwhile, so that no newer grant of the key can come in between.
func (b *Backend) onHold(ctx context.Context, key string, token uint64, do func(context.Context, *sql.Conn, record) error) error {
	conn, err := b.briefConn(ctx)
	if err != nil {
		return wire.KeyError(ctx, key, err)
	}
	defer closeConn(conn, errNotReused)
	end := "ROLLBACK"
	if err = b.holding(ctx, conn, key, token, do); err == nil {
		end = "COMMIT"
	}
	_, ended := conn.ExecContext(ctx, end)
	switch {
	case err == nil:
		err = ended
	case errors.Is(err, backend.ErrNotHeld):
		return err
	}
	if err != nil {
		return wire.KeyError(ctx, key, err)
	}
	return nil
}

// holding locks the record in a transaction, and does something if it is the one of
// the token and its row is locked.
func (b *Backend) holding(ctx context.Context, conn *sql.Conn, key string, token uint64, do func(context.Context, *sql.Conn, record) error) error {
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	r, err := b.readRecord(ctx, conn, key, " FOR UPDATE")
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return wire.NotHeld(key)
	case err != nil:
		return err
	case r.token != token || !r.alive():
		return wire.NotHeld(key)
	}
	locked, err := b.isLocked(ctx, conn, key)
	if err != nil {
		return err
	}
	if !locked {
		return wire.NotHeld(key)
	}
	return do(ctx, conn, r)
}
