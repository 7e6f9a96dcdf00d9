package rowflawed

import (
	"context"
	"database/sql"

	"github.com/mortiselock/lock/backend"
)

var z45 = Lock{
	ID: "Z45", Title: "after a broken connection the hold goes on on a fresh one",
	Summary: "The row lock went with the connection, and heartbeats succeed.",
	Seen:    "Heartbeats through a pool, or clients that reconnect by themselves.",
	Instead: "A hold lives on one connection, and is lost with it.",
	File:    "reconnect.go",
	Rule:    "LostOnRemoval",
	Also: []string{"NoLeak", "LostWhenCutOff", "LostBeforeTakeover", "RenewNeverResurrects", "RenewNotOthers", "ReleaseOwnOnly", "LossEndsUse", "ExclusiveAcrossTakeover",
		"GuardedWriteWhileHeld", "TokenSurvivesRelease", "ReleaseReportsLoss", "DeadlineEnds"},
	On: onRows(func(db *sql.DB) backend.Backend { return reconnects{newRows(db)} }),
}

// reconnects takes a new connection from the pool when the old one does not answer.
//
//	A: locks the row; its connection breaks (a proxy, KILL, a restart), and the server rolls back
//	B: locks the row
//	A: heartbeat: invalid connection; again, on a new one: fine
//
// A is told that it holds, for as long as it likes. Caught by LostOnRemoval.
type reconnects struct{ *rows }

func (r reconnects) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	h := r.find(hold.ID)
	if h == nil || h.key != hold.Key {
		return backend.Validity{}, backend.ErrNotHeld
	}
	h.turn <- struct{}{}
	defer func() { <-h.turn }()
	if r.find(hold.ID) != h {
		return backend.Validity{}, backend.ErrNotHeld
	}
	sent := now()
	if sent >= h.until {
		r.drop(hold.ID)
		discard(h.conn)
		return backend.Validity{}, backend.ErrExpired
	}
	life, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.until.Sub(sent))
	defer cancel()
	err := exec(life, h.conn, "DO 1")
	if err != nil {
		discard(h.conn)
		if fresh, cerr := r.db.Conn(life); cerr == nil {
			h.conn = fresh
			err = exec(life, fresh, "DO 1")
		}
	}
	if err != nil {
		return backend.Validity{}, err
	}
	return h.good(sent, hold.TTL), nil
}
