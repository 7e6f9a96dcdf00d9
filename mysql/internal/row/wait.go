package row

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Enqueue takes a connection for the wait, and tries once to lock the row: a row that nobody
// has is granted. Where somebody has it, the place in the server's queue for the row is taken by
// Wait. Where this backend has just been granted the row it asks nothing.
//
// The server's queue is in the order of arrival for as long as a statement waits,
// which is two seconds; then the statement is sent again, at the end of the queue.
// The order is therefore not promised.
func (b *Backend) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	if err := ctx.Err(); err != nil {
		return nil, wire.KeyError(ctx, req.Key, wire.Unsent(err))
	}
	h, fresh := b.enter(req.ID, req.Key)
	t := &ticket{b: b, req: req, h: h}
	if !fresh {
		return t, nil
	}
	defer h.leave()
	if b.hasJustBeenGranted(req.Key) {
		h.behind.Store(true)
		return t, nil
	}
	asking, done := h.asking(ctx)
	defer done()
	err := b.lock(asking, h, req, func(ctx context.Context, s *session) error {
		return b.lockRow(ctx, s, req.Key, true)
	})
	if errors.Is(err, errRowHeld) {
		h.behind.Store(true)
		return t, nil
	}
	locked := err == nil
	if locked {
		t.granted, err = b.grant(asking, h, req)
	}
	if err != nil {
		return nil, b.refuse(ctx, h, locked, err)
	}
	return t, nil
}

// ticket is a connection that is kept for a wait.
type ticket struct {
	b   *Backend
	req backend.Request
	h   *hold

	granted backend.Grant // by Enqueue, if it was
}

// Behind implements backend.Ticket.
func (t *ticket) Behind() bool { return t.h.behind.Load() }

// Wait locks the row as soon as the server lets it.
func (t *ticket) Wait(ctx context.Context) (backend.Grant, error) {
	b, h, req := t.b, t.h, t.req
	if err := h.take(ctx); err != nil {
		return backend.Grant{}, wire.KeyError(ctx, req.Key, err)
	}
	defer h.leave()
	switch h.phase {
	case phaseAsking:
		return b.acquire(ctx, h, req, func(ctx context.Context, s *session) error { return b.waitForRow(ctx, h, s, req) })
	case phaseHeld:
		// An older grant would have lost much of its validity: it is confirmed by a heartbeat.
		if t.granted.Token != 0 && b.clock.Now().Sub(t.granted.Validity.Sent) < h.s.ttl/12 {
			return t.granted, nil
		}
		return b.confirmed(ctx, h, req)
	}
	return backend.Grant{}, wire.NotHeld(req.Key)
}

// waitForRow sends the statement again and again until the row is locked. When ctx
// ends, the server is told to end the session: to close the connection would not do,
// since the server does not look at it while a statement waits, and would grant the
// row to nobody. A server that has been left ends the wait: who waits there would wait
// for a row that excludes nobody on the new primary.
func (b *Backend) waitForRow(ctx context.Context, h *hold, s *session, req backend.Request) error {
	h.waits.Store(s)
	defer h.waits.Store(nil)
	statement, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		limited, done := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
		defer done()
		_ = b.confirmEnd(limited, s)
		cancel()
	})
	var err error
	for {
		err = b.lockRow(statement, s, req.Key, false)
		if !errors.Is(err, errRowHeld) || ctx.Err() != nil {
			break
		}
		if err = s.exec(statement, "ROLLBACK"); err != nil {
			break
		}
		b.lookAtAddress(req.TTL)
		if err = b.stillHere(statement, s); err != nil {
			break
		}
	}
	if !stop() {
		<-killed
		return errors.Join(ctx.Err(), errWaitEnded)
	}
	if err != nil && wire.CodeOf(err) == 0 && !errors.Is(err, errRowMissing) && !isMoved(err) {
		err = fmt.Errorf("%w, while it waited for the row; a ReadTimeout of the connector must be 0 or more than %s", err, longestSilence)
	}
	return err
}

// killLimit is how long the end of a wait waits for the server to confirm it. After
// that the connection is closed, and the server gives up within lockWait.
const killLimit = time.Second

var errWaitEnded = errors.New("the wait has ended")

// Withdraw ends the wait, and the hold if there is one.
func (t *ticket) Withdraw(ctx context.Context) error {
	err := t.b.Release(ctx, backend.HoldOf(t.req))
	if errors.Is(err, backend.ErrNotHeld) {
		return nil
	}
	return err
}
