package rowflawed

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z44 = Lock{
	ID: "Z44", Title: "the server's lock wait timeout ends the wait",
	Summary: "A caller that would wait is told no after a second.",
	Seen:    "FOR UPDATE with error 1205 passed on.",
	Instead: "1205 means: ask again until the caller's context ends.",
	File:    "wait_timeout_final.go",
	Rule:    "WaitOutlastsTTL",
	Also:    []string{"waiting", "processes", "exclusion", "backend", "close", "faults", "expiry", "reentrancy", "loss", "release", "tokens", "errors", "renewal"},
	On:      onRows(func(db *sql.DB) backend.Backend { return timeoutFinal{newRows(db)} }),
}

// timeoutFinal waits on the server, and believes what it says about the wait.
//
//	A: holds the row, and works
//	B: waits for it with a context of a minute
//	server, after innodb_lock_wait_timeout: error 1205, lock wait timeout exceeded
//	B: fails for good; A releases a moment later, and the key lies free
//
// The mistake is seen only where somebody holds for long. Caught by WaitOutlastsTTL.
type timeoutFinal struct{ *rows }

func (t timeoutFinal) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	_, err := t.Try(ctx, req)
	held := errors.Is(err, backend.ErrHeld)
	if err != nil && !held {
		return nil, err
	}
	return timeoutTicket{t, req, held}, nil
}

func (t timeoutFinal) Guarantees() backend.Guarantees {
	g := t.rows.Guarantees()
	g.Waiting = backend.WaitQueue
	return g
}

type timeoutTicket struct {
	timeoutFinal
	req    backend.Request
	behind bool
}

func (t timeoutTicket) Wait(ctx context.Context) (backend.Grant, error) {
	do := t.steps()
	do.lock = func(ctx context.Context, c *sql.Conn, key string) error {
		if err := exec(ctx, c, "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
			return err
		}
		defer func() { _ = exec(context.WithoutCancel(ctx), c, "SET SESSION innodb_lock_wait_timeout = DEFAULT") }()
		err := c.QueryRowContext(ctx, "SELECT 1 FROM flawed_rows WHERE k = ? FOR UPDATE", key).Scan(new(int))
		if codeOf(err) == 1205 {
			return fmt.Errorf("%w: %s", backend.ErrPermanent, err)
		}
		return err
	}
	return t.try(ctx, t.req, do)
}

func (t timeoutTicket) Behind() bool { return t.behind }

func (t timeoutTicket) Withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := t.Release(ctx, backend.HoldOf(t.req)); !errors.Is(err, backend.ErrNotHeld) {
		return err
	}
	return nil
}
