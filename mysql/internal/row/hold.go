package row

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// savepoint marks the transaction that has the row locked. It is gone when the
// transaction has ended, whatever has ended it. A hold has it from its grant, or from its first
// heartbeat or [InTx].
const savepoint = "mortise_hold"

// hold is one acquisition, from its first request to its end.
type hold struct {
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

	// behind: the server has said that somebody else had the row locked, or has just granted it to
	// another acquisition of this backend.
	behind atomic.Bool

	// at is the session, once it has been granted the row, and waits the one that waits
	// for it.
	at, waits atomic.Pointer[session]

	since backend.Instant // of the grant; the backend's mutex guards it

	// The turn guards the rest.
	phase  phase
	s      *session
	made   bool // the row of the key
	token  uint64
	marked bool            // the transaction has the savepoint
	until  backend.Instant // until when the server is certain to keep the session
	cause  error           // of its loss
	tx     *Tx             // the transaction of InTx, once it has begun
}

type phase uint8

const (
	phaseAsking  phase = iota // no lock yet
	phaseHeld                 // the session is open and has the row locked
	phaseClosing              // the session is closed on this side; the server has not confirmed its end
	phaseEnded
)

// take takes the turn, unless ctx ends first.
func (h *hold) take(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return wire.Unsent(fmt.Errorf("another statement is under way on the connection of the hold: %w", ctx.Err()))
	}
}

func (h *hold) leave() { <-h.turn }

// enter returns the acquisition with this id, or a new one with the turn taken.
func (b *Backend) enter(id backend.ID, key string) (h *hold, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds[id]; h != nil {
		return h, false
	}
	h = &hold{id: id, key: key, turn: make(chan struct{}, 1)}
	h.life, h.stop = context.WithCancel(context.Background())
	h.turn <- struct{}{}
	h.busy.Store(true)
	b.holds[id] = h
	return h, true
}

func (b *Backend) find(hold backend.Hold) *hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds[hold.ID]; h != nil && h.key == hold.Key {
		return h
	}
	return nil
}

// forget ends an acquisition that has nothing on the server any more. The turn is
// taken.
func (b *Backend) forget(h *hold) {
	h.phase, h.s = phaseEnded, nil
	h.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.holds, h.id)
	b.hasNot(h)
}

// justGranted is for how long a grant shows that the server answers and the key is held.
const justGranted = 100 * time.Millisecond

// starts notes that the acquisition has the key since the given instant.
func (b *Backend) starts(h *hold, since backend.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h.since = since
	b.held[h.key] = h
	if _, known := b.tokens[h.key]; !known && len(b.tokens) == maxTokens {
		for key := range b.tokens { // any one
			delete(b.tokens, key)
			break
		}
	}
	b.tokens[h.key] = h.token
}

// maxTokens is of how many keys a backend knows its last token.
const maxTokens = 4096

// lastOf is the last token that this backend was granted for the key, if it knows it.
func (b *Backend) lastOf(key string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens[key]
}

// ends notes that the acquisition no longer has the key, or is about to give it back.
func (b *Backend) ends(h *hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hasNot(h)
}

// hasNot is ends; the mutex is held.
func (b *Backend) hasNot(h *hold) {
	if b.held[h.key] == h {
		delete(b.held, h.key)
	}
}

// hasJustBeenGranted reports whether an acquisition of this backend has the key, since so short
// a time that nobody has to ask the server.
func (b *Backend) hasJustBeenGranted(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.held[key]
	return h != nil && b.clock.Now().Sub(h.since) < justGranted
}

// drop closes the session and forgets the acquisition. The turn is taken.
func (b *Backend) drop(h *hold) {
	if h.s != nil && h.phase != phaseClosing {
		b.sessions.discard(h.s)
	}
	b.forget(h)
}

// lose ends a hold whose session is no longer good, and tells the lock package. The
// end on the server is confirmed by Release. The turn is taken.
func (b *Backend) lose(h *hold, cause error) {
	if h.tx != nil {
		h.tx.end.CompareAndSwap(nil, &txEnd{cause: cause})
	}
	b.sessions.discard(h.s)
	h.phase, h.cause = phaseClosing, cause
	h.stop()
	b.ends(h)
	if b.lost != nil {
		b.lost(h.id, cause)
	}
}

// extended notes that a statement succeeded that was sent at the given instant: the
// server counts the idle time of the session from its end.
func (h *hold) extended(sent backend.Instant) backend.Validity {
	v := backend.Validity{Sent: sent, For: backend.ValidFor(h.s.ttl)}
	h.until = max(h.until, v.Until())
	return v
}

// sessionEnded reports whether an error on a session means that the session, and its
// transaction with it, is over. The server answers otherwise.
func sessionEnded(err error) bool {
	switch wire.CodeOf(err) {
	case 0, wire.CodeInactivity, 1053, 1080, 1152, 1184, 1927, 3169: // shutdown, forced close, aborted, killed
		return true
	}
	return false
}

// transactionEnded reports whether the server says that the transaction of the hold
// is over, though the session is not: rolled back by a deadlock, or committed by a
// statement that commits implicitly.
func transactionEnded(err error) bool {
	switch wire.CodeOf(err) {
	case wire.CodeDeadlock, wire.CodeNoSavepoint, 1402, 3101:
		return true
	}
	return false
}

// lossOf is the cause of a loss for the lock package.
func lossOf(key string, err error) error {
	if errors.Is(err, errRevoked) {
		return fmt.Errorf("mysqllock: key %q: %w: %w", key, backend.ErrTakenOver, err)
	}
	if isMoved(err) {
		return fmt.Errorf("mysqllock: key %q: %w: %w", key, backend.ErrSessionLost, err)
	}
	switch wire.CodeOf(err) {
	case wire.CodeNoSavepoint:
		return fmt.Errorf("mysqllock: key %q: %w: its transaction was ended, by a statement that commits implicitly or by a rollback", key, backend.ErrSessionLost)
	case wire.CodeDeadlock, 1402, 3101:
		return fmt.Errorf("mysqllock: key %q: %w: the server rolled its transaction back: %w", key, backend.ErrSessionLost, err)
	case wire.CodeInactivity:
		return fmt.Errorf("mysqllock: key %q: %w: the server closed the connection because it had been idle for the TTL", key, backend.ErrSessionLost)
	}
	return fmt.Errorf("mysqllock: key %q: %w: its connection broke: %w", key, backend.ErrSessionLost, err)
}

// errRevoked is what a heartbeat finds after [Backend.Revoke].
var errRevoked = errors.New("the hold was revoked")

// errElsewhere is what a look at the address finds. A row that is locked where it does not
// lead any more, or on a read-only server, is locked against nobody who comes to the new
// primary.
var errElsewhere = errors.New("the address leads to another server now, as after a switchover")

func isMoved(err error) bool { return wire.IsReadOnly(err) || errors.Is(err, errElsewhere) }

// errEndedByWork is what the end of [InTx] and its heartbeats find when the savepoint
// is gone.
var errEndedByWork = errors.New("the work has ended the transaction itself, with a statement that commits implicitly, as DDL does, or by an error of the server that it passed over: some of it may have taken effect; look at what it did before you repeat it")

// lossLimit bounds the look for the reason of a loss, which holds the news of it up.
const lossLimit = 500 * time.Millisecond

// lossOf is the cause of the loss of a hold. A connection that broke may have been
// ended by [Backend.ForceRelease], whose transaction is waited for. The turn is
// taken.
func (b *Backend) lossOf(ctx context.Context, h *hold, err error) error {
	if h.tx != nil && wire.CodeOf(err) == wire.CodeNoSavepoint {
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
func (b *Backend) beat(ctx context.Context, h *hold, ttl time.Duration) (backend.Validity, error) {
	longer := ttl > h.s.ttl
	if longer {
		if err := b.sessions.setTTL(ctx, h.s, ttl); err != nil {
			return backend.Validity{}, err
		}
	}
	if err := b.setSavepoint(ctx, h); err != nil {
		return backend.Validity{}, err
	}
	state, _, err := h.s.first(ctx, b.holdState(h.key, h.token))
	switch {
	case err != nil:
		return backend.Validity{}, err
	case state == stateRevoked:
		return backend.Validity{}, errRevoked
	case state != stateGood:
		return backend.Validity{}, wire.ErrReadOnly
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
	if longer {
		b.showTTL(ctx, h, ttl)
	}
	return v, nil
}

// setSavepoint sets the savepoint of a hold that was granted without one, if the connection is
// still its session's. The server has not ended the transaction meanwhile: it would say so to the
// statement that follows it. The turn is taken.
func (b *Backend) setSavepoint(ctx context.Context, h *hold) error {
	if h.marked {
		return nil
	}
	if err := h.s.exec(ctx, "SAVEPOINT "+savepoint); err != nil {
		return err
	}
	same, _, err := h.s.first(ctx, h.s.isThis())
	if err == nil && same != "1" {
		err = errSessionGone
	}
	h.marked = err == nil
	return err
}

// showTTL writes for how long the hold lasts from now on, for refusals to show. A hold is kept
// without it too, so it comes after the heartbeat, which must not wait for it.
func (b *Backend) showTTL(ctx context.Context, h *hold, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = b.control.ExecContext(ctx, b.lengthen(h.key, h.token, ttl))
}

// confirmEnd has the server end the session, and returns when it has rolled back
// what was open on it. A session that the server has already ended is left alone:
// its number may belong to another one after a restart.
func (b *Backend) confirmEnd(ctx context.Context, s *session) error {
	conn, err := b.controlConn(ctx)
	if err != nil {
		return err
	}
	err = endSession(ctx, conn, s.id, s.mark)
	closeConn(conn, err)
	return err
}
