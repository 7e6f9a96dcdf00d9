package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// savepoint marks the transaction that has the row locked. It is gone when the
// transaction has ended, whatever has ended it.
const savepoint = "mortise_hold"

// rowHold is one acquisition, from its first request to its end.
type rowHold struct {
	id  backend.ID
	key string

	// turn is taken by whoever uses the session. It is a channel because statements
	// are sent while it is taken.
	turn chan struct{}

	life context.Context // ends when what is under way on the session must end
	stop context.CancelFunc

	// busy: what uses the session can take long, and is stopped by a release that is
	// not its own: a request that is not granted yet, or the work of InTx.
	busy atomic.Bool

	// behind: the server has said that somebody else had the row locked.
	behind atomic.Bool

	// at is the session, once it has been granted the row, and waits the one that waits
	// for it.
	at, waits atomic.Pointer[rowSession]

	// The turn guards the rest.
	phase rowPhase
	s     *rowSession
	token uint64
	until backend.Instant // until when the server is certain to keep the session
	cause error           // of its loss
	tx    *rowTx          // the transaction of InTx, once it has begun
}

type rowPhase uint8

const (
	rowAsking  rowPhase = iota // no lock yet
	rowHeld                    // the session is open and has the row locked
	rowClosing                 // the session is closed on this side; the server has not confirmed its end
	rowEnded
)

// take takes the turn, unless ctx ends first.
func (h *rowHold) take(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unsent{fmt.Errorf("another statement is under way on the connection of the hold: %w", ctx.Err())}
	}
}

func (h *rowHold) leave() { <-h.turn }

// enter returns the acquisition with this id, or a new one with the turn taken.
func (b *rowBackend) enter(id backend.ID, key string) (h *rowHold, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds[id]; h != nil {
		return h, false
	}
	h = &rowHold{id: id, key: key, turn: make(chan struct{}, 1)}
	h.life, h.stop = context.WithCancel(context.Background())
	h.turn <- struct{}{}
	h.busy.Store(true)
	b.holds[id] = h
	return h, true
}

func (b *rowBackend) find(hold backend.Hold) *rowHold {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds[hold.ID]; h != nil && h.key == hold.Key {
		return h
	}
	return nil
}

// forget ends an acquisition that has nothing on the server any more. The turn is
// taken.
func (b *rowBackend) forget(h *rowHold) {
	h.phase, h.s = rowEnded, nil
	h.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.holds, h.id)
}

// drop closes the session and forgets the acquisition. The turn is taken.
func (b *rowBackend) drop(h *rowHold) {
	if h.s != nil && h.phase != rowClosing {
		b.sessions.discard(h.s)
	}
	b.forget(h)
}

// lose ends a hold whose session is no longer good, and tells the lock package. The
// end on the server is confirmed by Release. The turn is taken.
func (b *rowBackend) lose(h *rowHold, cause error) {
	if h.tx != nil {
		h.tx.end.CompareAndSwap(nil, &txEnd{cause: cause})
	}
	b.sessions.discard(h.s)
	h.phase, h.cause = rowClosing, cause
	h.stop()
	if b.lost != nil {
		b.lost(h.id, cause)
	}
}

// extended notes that a statement succeeded that was sent at the given instant: the
// server counts the idle time of the session from its end.
func (h *rowHold) extended(sent backend.Instant) backend.Validity {
	v := backend.Validity{Sent: sent, For: backend.ValidFor(h.s.ttl)}
	h.until = max(h.until, v.Until())
	return v
}

// sessionEnded reports whether an error on a session means that the session, and its
// transaction with it, is over. The server answers otherwise.
func sessionEnded(err error) bool {
	switch codeOf(err) {
	case 0, codeInactivity, 1053, 1080, 1152, 1184, 1927, 3169: // shutdown, forced close, aborted, killed
		return true
	}
	return false
}

// transactionEnded reports whether the server says that the transaction of the hold
// is over, though the session is not: rolled back by a deadlock, or committed by a
// statement that commits implicitly.
func transactionEnded(err error) bool {
	switch codeOf(err) {
	case codeDeadlock, codeNoSavepoint, 1402, 3101:
		return true
	}
	return false
}

// codeNoSavepoint is also the answer about a procedure that does not exist.
const codeNoSavepoint = 1305

// lossOf is the cause of a loss for the lock package.
func lossOf(key string, err error) error {
	if errors.Is(err, errRevoked) {
		return fmt.Errorf("mysqllock: key %q: %w: %w", key, backend.ErrTakenOver, err)
	}
	if isMoved(err) {
		return fmt.Errorf("mysqllock: key %q: %w: %w", key, backend.ErrSessionLost, err)
	}
	switch codeOf(err) {
	case codeNoSavepoint:
		return fmt.Errorf("mysqllock: key %q: %w: its transaction was ended, by a statement that commits implicitly or by a rollback", key, backend.ErrSessionLost)
	case codeDeadlock, 1402, 3101:
		return fmt.Errorf("mysqllock: key %q: %w: the server rolled its transaction back: %w", key, backend.ErrSessionLost, err)
	case codeInactivity:
		return fmt.Errorf("mysqllock: key %q: %w: the server closed the connection because it had been idle for the TTL", key, backend.ErrSessionLost)
	}
	return fmt.Errorf("mysqllock: key %q: %w: its connection broke: %w", key, backend.ErrSessionLost, err)
}

// errRevoked is what a heartbeat finds after [rowBackend.Revoke].
var errRevoked = errors.New("the hold was revoked")

// errElsewhere is what a look at the address finds. A row that is locked where it does not
// lead any more, or on a read-only server, is locked against nobody who comes to the new
// primary.
var errElsewhere = errors.New("the address leads to another server now, as after a switchover")

func isMoved(err error) bool { return isReadOnly(err) || errors.Is(err, errElsewhere) }

// errEndedByWork is what the end of [InTx] and its heartbeats find when the savepoint
// is gone.
var errEndedByWork = errors.New("the work has ended the transaction itself, with a statement that commits implicitly, as DDL does, or by an error of the server that it passed over: some of it may have taken effect; look at what it did before you repeat it")

// lossLimit bounds the look for the reason of a loss, which holds the news of it up.
const lossLimit = 500 * time.Millisecond

// lossOf is the cause of the loss of a hold. A connection that broke may have been
// ended by [rowBackend.ForceRelease], whose transaction is waited for. The turn is
// taken.
func (b *rowBackend) lossOf(ctx context.Context, h *rowHold, err error) error {
	if h.tx != nil && codeOf(err) == codeNoSavepoint {
		return fmt.Errorf("mysqllock: key %q: %w: %w", h.key, backend.ErrSessionLost, errEndedByWork)
	}
	if isMoved(err) {
		b.leaveServer()
		return lossOf(h.key, err)
	}
	if sessionEnded(err) {
		ctx, cancel := context.WithTimeout(ctx, lossLimit)
		defer cancel()
		if b.control.QueryRowContext(ctx, b.isRevoked(h.key, h.token)+b.shared).Scan(new(int)) == nil {
			err = errRevoked
		}
	}
	return lossOf(h.key, err)
}

// beat is the heartbeat: it shows that the transaction still exists, that the hold was
// not revoked and that the server still takes writes, and has the server count the
// idle time afresh. The turn is taken.
//
// The savepoint comes last: a return to it also gives up the metadata lock of the
// look at the other table.
func (b *rowBackend) beat(ctx context.Context, h *rowHold, ttl time.Duration) (backend.Validity, error) {
	if ttl > h.s.ttl {
		if err := b.sessions.setTTL(ctx, h.s, ttl); err != nil {
			return backend.Validity{}, err
		}
	}
	state, _, err := h.s.first(ctx, b.holdState(h.key, h.token))
	switch {
	case err != nil:
		return backend.Validity{}, err
	case state == stateRevoked:
		return backend.Validity{}, errRevoked
	case state != stateGood:
		return backend.Validity{}, errReadOnly
	}
	sent := b.clock.Now()
	if h.tx == nil {
		err = h.s.exec(ctx, "ROLLBACK TO SAVEPOINT "+savepoint) // there is nothing to roll back
	} else {
		err = h.s.exec(ctx, "RELEASE SAVEPOINT "+savepoint)
		if err == nil {
			sent = b.clock.Now()
			err = h.s.exec(ctx, "SAVEPOINT "+savepoint)
		}
	}
	if err != nil {
		return backend.Validity{}, err
	}
	v := h.extended(sent)
	v.For = min(v.For, backend.ValidFor(ttl))
	return v, nil
}

// confirmEnd has the server end the session, and returns when it has rolled back
// what was open on it. A session that the server has already ended is left alone:
// its number may belong to another one after a restart.
func (b *rowBackend) confirmEnd(ctx context.Context, s *rowSession) error {
	conn, err := b.controlConn(ctx)
	if err != nil {
		return err
	}
	err = endSession(ctx, conn, s.id, s.mark)
	closeConn(conn, err)
	return err
}
