package row

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Try asks the server once for the row, with NOWAIT. A grant takes two statements, the row and
// the token, and a savepoint where others may have written a token meanwhile.
func (b *Backend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, wire.KeyError(ctx, req.Key, wire.Unsent(err))
	}
	for {
		h, fresh := b.enter(req.ID, req.Key)
		if fresh {
			g, err := b.acquire(ctx, h, req, func(ctx context.Context, s *session) error {
				return b.lockRowNow(ctx, s, req.Key)
			})
			h.leave()
			return g, err
		}
		g, again, err := b.repeat(ctx, h, req)
		if !again {
			return g, err
		}
	}
}

// repeat answers a request that was granted before, with the same grant. It reports
// true when the request has to be made afresh.
func (b *Backend) repeat(ctx context.Context, h *hold, req backend.Request) (g backend.Grant, again bool, err error) {
	if err := h.take(ctx); err != nil {
		return g, false, wire.KeyError(ctx, req.Key, err)
	}
	defer h.leave()
	switch h.phase {
	case phaseEnded:
		return g, true, nil
	case phaseClosing:
		if err := b.confirmEnd(ctx, h.s); err != nil {
			return g, false, wire.KeyError(ctx, req.Key, err)
		}
		b.forget(h)
		return g, true, nil
	case phaseAsking:
		return g, false, fmt.Errorf("mysqllock: key %q: %w: the same acquisition is queued", req.Key, backend.ErrHeld)
	}
	g, err = b.confirmed(ctx, h, req)
	return g, false, err
}

// confirmed is the grant of an acquisition that holds already. The turn is taken.
func (b *Backend) confirmed(ctx context.Context, h *hold, req backend.Request) (backend.Grant, error) {
	v, err := b.beat(ctx, h, req.TTL)
	if err != nil {
		b.lose(h, b.lossOf(ctx, h, err))
		return backend.Grant{}, wire.KeyError(ctx, req.Key, err)
	}
	return backend.Grant{Token: h.token, Holds: 1, Validity: v}, nil
}

var (
	errRowHeld    = errors.New("the row is locked")
	errRowMissing = errors.New("the row does not exist")
)

// maxLooks is how often in a row a try may meet somebody who only looks.
const maxLooks = 20

// lockRowNow locks the row, or says that somebody has it. Whoever looks whether the row is
// locked shares it for a moment, and that is no reason to refuse it.
func (b *Backend) lockRowNow(ctx context.Context, s *session, key string) error {
	for looks := 1; ; looks++ {
		err := b.lockRow(ctx, s, key, true)
		if !errors.Is(err, errRowHeld) || looks == maxLooks {
			return err
		}
		if locked, unknown := b.isLocked(ctx, b.control, key); locked || unknown != nil {
			return err
		}
	}
}

// lockRow locks the row of the key. It waits for it for at most lockWait, or not at
// all.
func (b *Backend) lockRow(ctx context.Context, s *session, key string, now bool) error {
	q := b.row(key) + " FOR UPDATE"
	if now {
		q += " NOWAIT"
	}
	s.asked, s.last = b.clock.Now(), b.lastOf(key)
	found, err := s.exists(ctx, q)
	switch code := wire.CodeOf(err); {
	case err == nil && !found:
		return errRowMissing
	case code == wire.CodeLockNowait, code == wire.CodeLockWaitTimeout && (!now || b.mariaDB):
		return errRowHeld
	}
	return err
}

// acquire locks the row and raises the token. Without a grant nothing is left of the acquisition. The turn is taken.
func (b *Backend) acquire(ctx context.Context, h *hold, req backend.Request, lockRow func(context.Context, *session) error) (g backend.Grant, err error) {
	asking, done := h.asking(ctx)
	defer done()
	err = b.lock(asking, h, req, lockRow)
	locked := err == nil
	if locked {
		g, err = b.grant(asking, h, req)
	}
	if err == nil {
		return g, nil
	}
	return g, b.refuse(ctx, h, locked, err)
}

// asking is the context of a request that is not granted yet: it also ends when the
// acquisition is given up. The caller owes a done.
func (h *hold) asking(ctx context.Context) (asking context.Context, done func()) {
	asking, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(h.life, cancel)
	return asking, func() { stop(); cancel() }
}

// lock takes a session, unless the acquisition has one, and locks the row on it.
func (b *Backend) lock(ctx context.Context, h *hold, req backend.Request, lockRow func(context.Context, *session) error) (err error) {
	if h.s == nil {
		if h.s, err = b.sessions.take(ctx, req.TTL); err != nil {
			return err
		}
	}
	return b.lockExisting(ctx, h, req.Key, lockRow)
}

// lockExisting locks the row, which is made first if it is missing. A session that
// was idle may have been closed by the server; nothing is lost with it. Or its answer was lost:
// then it has the row locked until it has ended.
func (b *Backend) lockExisting(ctx context.Context, h *hold, key string, lockRow func(context.Context, *session) error) error {
	for range 5 {
		err := lockRow(ctx, h.s)
		switch {
		case errors.Is(err, errRowMissing):
			// Not inside the transaction: an insert of ours would keep others waiting.
			if err := b.create(ctx, key); err != nil {
				return err
			}
			h.made = true
		case err == nil, errors.Is(err, errRowHeld):
			return err
		case h.s.reused && sessionEnded(err) && !isMoved(err) && ctx.Err() == nil:
			ttl := h.s.ttl
			h.s.close()
			if !errors.Is(err, driver.ErrBadConn) && b.confirmEnd(ctx, h.s) != nil {
				return err
			}
			s, err := b.sessions.open(ctx, ttl)
			if err != nil {
				return err
			}
			h.s = s
		default:
			return err
		}
	}
	return fmt.Errorf("%w: the row was deleted again and again; don't delete rows of %s", backend.ErrUnavailable, b.rows)
}

// grant takes the token while the row is locked. Tokens have the order of the holds: either no
// other one was written since the last one that this backend knew before it had the row, and
// whoever gets the row next writes a larger one. Or the savepoint comes last: when the server has
// set it, the lock was still held after the token had been committed.
func (b *Backend) grant(ctx context.Context, h *hold, req backend.Request) (backend.Grant, error) {
	if err := b.checkAddress(ctx, h.s, req.TTL); err != nil {
		return backend.Grant{}, err
	}
	token, next, err := b.nextToken(ctx, h, req)
	if err != nil {
		return backend.Grant{}, err
	}
	sent := h.s.asked // the server counts the idle time of the session from the answer
	if !next || b.clock.Now().Sub(sent) > b.atOnce {
		sent = b.clock.Now()
		if err := h.s.exec(ctx, "SAVEPOINT "+savepoint); err != nil {
			return backend.Grant{}, err
		}
		h.marked = true
	}
	// A context that ends with the answer may have closed the connection: the driver
	// reports success then.
	if err := ctx.Err(); err != nil && !h.s.usable() {
		return backend.Grant{}, err
	}
	h.phase, h.token = phaseHeld, token
	h.at.Store(h.s)
	h.busy.Store(false)
	b.starts(h, sent)
	return backend.Grant{Token: token, Holds: 1, Validity: h.extended(sent)}, nil
}

// nextToken commits a token on a connection of its own: what is raised inside the
// transaction of the hold would be rolled back with it, and given again. A request
// that arrives late, when the session is gone, does not write over the record of
// those who came after it. On a server that has become read-only there is no token, for
// no account. next: no other token was written since the last one that this backend knew when it
// asked for the row.
func (b *Backend) nextToken(ctx context.Context, h *hold, req backend.Request) (token uint64, next bool, err error) {
	raise := b.raise(req.Key, h.s, h.s.last, req.TTL, req.Holder)
	first := b.raiseFirst(req.Key, h.s, req.TTL, req.Holder)
	steps := []string{raise, first, raise}
	if h.made { // and has no record yet
		steps = steps[1:]
	}
	for _, q := range steps {
		res, err := b.changeOnControl(ctx, q)
		if wire.CodeOf(err) == wire.CodeDuplicate {
			continue
		}
		if err != nil {
			return 0, false, err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return 0, false, err
		}
		if n > 0 {
			id, err := res.LastInsertId()
			token, next = raised(id)
			return token, next, err
		}
	}
	var last uint64
	var takesWrites bool
	err = b.control.QueryRowContext(ctx, b.lastToken(req.Key)).Scan(&last, &takesWrites)
	switch {
	case err != nil:
		return 0, false, err
	case !takesWrites:
		return 0, false, wire.ErrReadOnly
	case last >= largestToken:
		return 0, false, fmt.Errorf("%w: the tokens are used up: the counter in %s has reached 2^53; only another table starts afresh, with smaller tokens",
			backend.ErrPermanent, b.holders)
	}
	b.leaveServer() // or it is on another server than these connections are
	return 0, false, errSessionGone
}

// errSessionGone: the server has ended the session, and the lock with it.
var errSessionGone = fmt.Errorf("%w: the session that has the row locked is gone", driver.ErrBadConn)

// changeOnControl sends a statement on a connection of the control pool. One that
// turns out to be dead before anything was sent is replaced, and a statement that the
// server has rolled back because of others is repeated.
func (b *Backend) changeOnControl(ctx context.Context, q string) (driver.Result, error) {
	dead := 0
	for try := 1; ; try++ {
		conn, err := b.controlConn(ctx)
		if err != nil {
			return nil, err
		}
		res, err := onConn(conn).change(ctx, q)
		if wire.IsReadOnly(err) {
			closeConn(conn, err)
		} else {
			_ = conn.Close() // back to the pool
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return res, err
		case errors.Is(err, driver.ErrBadConn) && dead < wire.FreshConnections:
			dead++
		case wire.WorthRepeating(err) && try < wire.Repeats:
			if waitErr := wire.Jitter(ctx, try); waitErr != nil {
				return nil, fmt.Errorf("%w: %w", waitErr, err)
			}
		default:
			return nil, err
		}
	}
}

// refuse gives up an acquisition that was not granted and returns the error for it, which
// promises that nothing was changed only if the row was not locked or is not any more.
// The turn is taken.
func (b *Backend) refuse(ctx context.Context, h *hold, locked bool, err error) error {
	key := h.key
	if isMoved(err) {
		err = fmt.Errorf("%w: %w; try again at the address of the primary", backend.ErrUnavailable, err)
		b.leaveServer() // what else leads to it is of no use either
	} else if h.s != nil && (errors.Is(err, errRowHeld) || ctx.Err() == nil && !sessionEnded(err)) {
		// After 1205 the transaction goes on, and would keep the table from being altered.
		if h.s.exec(ctx, "ROLLBACK") == nil {
			b.sessions.put(h.s)
			h.s = nil
			locked = false
		}
	}
	b.drop(h)
	switch {
	case errors.Is(err, errRowHeld):
		return b.heldError(ctx, key)
	case locked && !isMoved(err) && !errors.Is(err, errSessionGone):
		// The row is locked until the server sees that the session has ended. It is not given
		// back before: a token that is still on the way would be written.
		return failure.OfKey("mysqllock", key, failure.Describe(ctx, err, nil, ""))
	}
	return wire.KeyError(ctx, key, err)
}

// heldError is the refusal, with what the last grant has left in the table.
func (b *Backend) heldError(ctx context.Context, key string) error {
	held := &backend.HeldError{Key: key}
	if r, err := b.readRecord(ctx, b.control, key); err == nil && r.alive() {
		held.Holder, held.Remaining = r.holder(), r.ttl()
	}
	return held
}

// Renew sends a heartbeat on the connection of the hold, and never on another one. A
// heartbeat without an answer goes on when ctx ends, until the hold's time is over:
// to give it up would be to give up the connection.
func (b *Backend) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if err := ctx.Err(); err != nil {
		return backend.Validity{}, wire.KeyError(ctx, hold.Key, wire.Unsent(err))
	}
	h := b.find(hold)
	if h == nil {
		return backend.Validity{}, wire.NotHeld(hold.Key)
	}
	if err := h.take(ctx); err != nil {
		return backend.Validity{}, wire.KeyError(ctx, hold.Key, err)
	}
	now := b.clock.Now()
	switch {
	case h.phase == phaseClosing:
		h.leave()
		return backend.Validity{}, fmt.Errorf("mysqllock: key %q: %w", hold.Key, backend.ErrSessionLost)
	case h.phase != phaseHeld:
		h.leave()
		return backend.Validity{}, wire.NotHeld(hold.Key)
	case now >= h.until:
		b.lose(h, backend.ErrExpired)
		h.leave()
		return backend.Validity{}, fmt.Errorf("mysqllock: key %q: %w", hold.Key, backend.ErrExpired)
	}
	type answer struct {
		v   backend.Validity
		err error
	}
	answers := make(chan answer, 1)
	b.lookAtAddress(hold.TTL)
	go func() {
		defer h.leave()
		life, cancel := context.WithTimeout(h.life, h.until.Sub(now))
		defer cancel()
		v, err := b.beat(life, h, hold.TTL)
		switch {
		case err == nil:
		case sessionEnded(err), transactionEnded(err), errors.Is(err, errRevoked):
			cause := b.lossOf(life, h, err)
			if b.clock.Now() >= h.until && !errors.Is(cause, backend.ErrTakenOver) && !errors.Is(cause, errEndedByWork) {
				cause = backend.ErrExpired
			}
			b.lose(h, cause)
			err = cause
		default: // KILL QUERY, for example: the next heartbeat shows what it was
			err = wire.KeyError(ctx, hold.Key, err)
		}
		answers <- answer{v, err}
	}()
	select {
	case a := <-answers:
		return a.v, a.err
	case <-ctx.Done():
		return backend.Validity{}, fmt.Errorf("mysqllock: key %q: %w: no answer to the heartbeat yet", hold.Key, ctx.Err())
	}
}

// Release rolls the hold's transaction back, or commits that of [InTx]. When the
// answer is lost, the connection is closed and the server is asked for its end.
func (b *Backend) Release(ctx context.Context, hold backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return wire.KeyError(ctx, hold.Key, wire.Unsent(err))
	}
	h := b.find(hold)
	if h == nil {
		return wire.NotHeld(hold.Key)
	}
	if h.busy.Load() && ctx.Value(endOf{h}) == nil {
		h.stop()
	}
	if err := h.take(ctx); err != nil {
		return wire.KeyError(ctx, hold.Key, err)
	}
	defer h.leave()
	var err error
	switch h.phase {
	case phaseHeld:
		err = b.end(ctx, h)
	case phaseClosing:
		err = fmt.Errorf("mysqllock: key %q: %w", hold.Key, backend.ErrSessionLost)
	case phaseAsking: // a place in the queue at which nobody waits
		if h.s == nil {
			b.forget(h)
			return wire.NotHeld(hold.Key)
		}
		if h.s.exec(ctx, "ROLLBACK") == nil {
			b.sessions.put(h.s)
			b.forget(h)
			return wire.NotHeld(hold.Key)
		}
		b.closing(h)
		err = wire.NotHeld(hold.Key)
	default:
		return wire.NotHeld(hold.Key)
	}
	if h.phase == phaseClosing {
		if unconfirmed := b.confirmEnd(ctx, h.s); unconfirmed != nil {
			return wire.KeyError(ctx, hold.Key, unmarkedError{unconfirmed})
		}
		b.forget(h)
	}
	return err
}

// end ends the transaction of the hold. The turn is taken.
func (b *Backend) end(ctx context.Context, h *hold) error {
	b.ends(h)
	if h.tx != nil {
		return b.endTx(ctx, h)
	}
	expired := b.clock.Now() >= h.until
	err := h.s.exec(ctx, "ROLLBACK")
	switch {
	case err == nil:
		b.sessions.put(h.s)
		b.forget(h)
		if expired {
			// The server has not closed the connection yet, as after a pause of its own.
			return fmt.Errorf("mysqllock: key %q: %w", h.key, backend.ErrExpired)
		}
		return nil
	case sessionEnded(err):
		cause := b.lossOf(ctx, h, err)
		b.closing(h)
		return cause
	}
	b.closing(h)
	return nil
}

// closing closes the session on this side. The turn is taken.
func (b *Backend) closing(h *hold) {
	b.sessions.discard(h.s)
	h.phase = phaseClosing
	h.stop()
}

// unmarkedError hides that nothing was sent: it is true of the confirmation only.
type unmarkedError struct{ err error }

func (u unmarkedError) Error() string { return u.err.Error() }

// endSession has the server end the session with the number and the mark, and waits
// until it has: a session gives its named locks up after it has rolled back.
func endSession(ctx context.Context, conn *sql.Conn, id uint64, mark string) error {
	marked := func() (bool, error) {
		var user sql.NullInt64
		err := conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+mark+"')").Scan(&user)
		return user.Valid && uint64(user.Int64) == id, err // or it is another one that waits for its end
	}
	if there, err := marked(); !there {
		return err
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf("KILL CONNECTION %d", id))
	switch wire.CodeOf(err) {
	case codeNoSuchThread:
	case codeNotOwner: // a thread that is ending has no account any more
		there, unknown := marked()
		if unknown != nil || there {
			return cmp.Or(unknown, err)
		}
	default:
		if err != nil {
			return err
		}
	}
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, fmt.Sprintf("SELECT GET_LOCK('%s', %s)", mark, seconds(5*time.Second))).Scan(&got); err != nil {
		return err
	}
	if got.Int64 != 1 {
		return fmt.Errorf("%w: the server has not ended the connection yet", driver.ErrBadConn)
	}
	return conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK('"+mark+"')").Scan(&got)
}

const codeNoSuchThread = 1094
