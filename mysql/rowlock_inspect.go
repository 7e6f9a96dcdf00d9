package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// rowRecord is what the last grant of a key has left in the second table.
type rowRecord struct {
	token, connection uint64
	revoked           uint64 // the token of the grant that was revoked last
	session           string
	user              sql.NullInt64 // the connection that has the session's mark now
	seconds           int64
	since             int64 // microseconds of the server's clock
	label, host       string
	pid               int
}

// alive reports whether the session of the last grant still exists. It may hold
// another key by now, or none.
func (r rowRecord) alive() bool { return r.user.Valid && uint64(r.user.Int64) == r.connection }

func (r rowRecord) ttl() time.Duration { return time.Duration(r.seconds) * time.Second }

func (r rowRecord) holder() backend.Holder {
	return backend.Holder{Label: r.label, Host: r.host, PID: r.pid, Since: time.UnixMicro(r.since).UTC()}
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (b *rowBackend) readRecord(ctx context.Context, q queryer, key string, locking ...string) (r rowRecord, err error) {
	statement := b.record(key)
	for _, more := range locking {
		statement += more
	}
	err = q.QueryRowContext(ctx, statement).Scan(&r.token, &r.revoked, &r.connection, &r.session, &r.user, &r.seconds, &r.since, &r.label, &r.host, &r.pid)
	return r, err
}

// Inspect shows the holder of a key: what the last grant has left, if its session
// lives and the row is locked. To see that, it asks for a shared lock on the row for
// a moment, and a try of somebody else at that very moment is refused. Remaining is
// the TTL, since the time of the last heartbeat is not recorded; who waits is not
// known, so Waiters is -1.
func (b *rowBackend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	r, err := b.readRecord(ctx, b.control, key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return backend.Record{}, notHeld(key)
	case err != nil:
		return backend.Record{}, keyError(ctx, key, err)
	case !r.alive():
		return backend.Record{}, notHeld(key)
	}
	locked, err := b.isLocked(ctx, b.control, key)
	if err != nil {
		return backend.Record{}, keyError(ctx, key, err)
	}
	if !locked {
		return backend.Record{}, notHeld(key)
	}
	return backend.Record{
		Key: key, Token: r.token, Holds: 1, Waiters: -1, Remaining: r.ttl(), Holder: r.holder(), Revoked: r.revoked == r.token,
	}, nil
}

func (b *rowBackend) isLocked(ctx context.Context, q queryer, key string) (bool, error) {
	err := q.QueryRowContext(ctx, b.row(key)+b.lockShare).Scan(new(int))
	switch code := codeOf(err); {
	case err == nil, errors.Is(err, sql.ErrNoRows):
		return false, nil
	case code == codeLockNowait, code == codeLockWaitTimeout:
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
func (b *rowBackend) ForceRelease(ctx context.Context, key string, token uint64) error {
	return b.onHold(ctx, key, token, func(ctx context.Context, conn *sql.Conn, r rowRecord) error {
		// The holder reads it when its connection breaks, and waits for the commit.
		if _, err := conn.ExecContext(ctx, b.revoke(key, token)); err != nil {
			return err
		}
		err := endSession(ctx, conn, r.connection, r.session)
		if codeOf(err) == codeNotOwner {
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
func (b *rowBackend) Revoke(ctx context.Context, key string, token uint64) error {
	return b.onHold(ctx, key, token, func(ctx context.Context, conn *sql.Conn, _ rowRecord) error {
		_, err := conn.ExecContext(ctx, b.revoke(key, token))
		return err
	})
}

// onHold does something about the hold of the key with the token. The record is locked
// meanwhile, so that no newer grant of the key can come in between.
func (b *rowBackend) onHold(ctx context.Context, key string, token uint64, do func(context.Context, *sql.Conn, rowRecord) error) error {
	conn, err := b.briefConn(ctx)
	if err != nil {
		return keyError(ctx, key, err)
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
		return keyError(ctx, key, err)
	}
	return nil
}

// holding locks the record in a transaction, and does something if it is the one of
// the token and its row is locked.
func (b *rowBackend) holding(ctx context.Context, conn *sql.Conn, key string, token uint64, do func(context.Context, *sql.Conn, rowRecord) error) error {
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	r, err := b.readRecord(ctx, conn, key, " FOR UPDATE")
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return notHeld(key)
	case err != nil:
		return err
	case r.token != token || !r.alive():
		return notHeld(key)
	}
	locked, err := b.isLocked(ctx, conn, key)
	if err != nil {
		return err
	}
	if !locked {
		return notHeld(key)
	}
	return do(ctx, conn, r)
}
