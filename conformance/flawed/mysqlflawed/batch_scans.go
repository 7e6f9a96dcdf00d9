package mysqlflawed

import (
	"context"
	"strings"
	"sync"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

var batchScans = Lock{
	ID: "batch", Title: "one UPDATE ... WHERE lock_key IN (...) renews all holds",
	Summary: "It waits at any locked row: one guarded write costs others their leases.",
	Seen:    "EXPLAIN shows it from 5 of 10 keys on.",
	Instead: "SELECT ... FORCE INDEX (PRIMARY) ... FOR UPDATE SKIP LOCKED, and update only those.",
	File:    "batch_scans.go",
	Rule:    "BatchRenewBesideGuardedWrite",
	On:      onTable(func(t table) backend.Backend { return batching{table: t, values: new(sync.Map)} }),
}

// scans is what the server chooses by itself for a table of the usual size; for a small
// one, as here, it depends on how old its statistics are.
const scans = " IGNORE INDEX (PRIMARY)"

// batching renews many holds in one statement, which names their keys. That the server
// goes by them is its own choice.
//
//	A: BEGIN; SELECT ... WHERE lock_key = 'm' FOR UPDATE    a guarded write
//	B: UPDATE ... WHERE lock_key IN ('a', 'b', ... 'z')     reads the table: a to l are locked, and m is waited for
//	A: COMMIT                                               much later
//	B: all of a to z have expired
//
// Caught by BatchRenewBesideGuardedWrite.
type batching struct {
	table
	values *sync.Map
}

func (t batching) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	if len(holds) == 0 {
		return out
	}
	args := []any{holds[0].TTL.Microseconds()} // all have the same
	for _, hold := range holds {
		args = append(args, hold.Key)
	}
	for _, hold := range holds {
		args = append(args, hold.ID.Hex())
	}
	list := "(" + strings.Repeat("?,", len(holds)-1) + "?)"
	_, err := t.matched(ctx, "UPDATE "+t.name+scans+" SET expires=IF(LAST_INSERT_ID(1),GREATEST(expires,"+then+"),NULL) WHERE lock_key IN "+list+
		" AND owner IN "+list+" AND expires>"+now, args...) // the mistake
	for i, hold := range holds {
		if err != nil {
			out[i].Err = err
			continue
		}
		out[i].Validity, out[i].Err = t.Renew(ctx, hold) // which also says whether it exists
	}
	return out
}

func (t batching) Guarantees() backend.Guarantees {
	g := t.table.Guarantees()
	g.GuardedWrite = true
	return g
}

// guarded writes into a map, in a transaction that has the row of the lease locked.
func (t batching) guarded() *conformance.GuardedWrite {
	open := func(ctx context.Context, lease lock.Lease, value string, between func()) error {
		tx, err := t.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		held, _ := lock.HeldOn[backend.Backend](lease)
		hold := held.Hold
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+t.name+" WHERE lock_key=? AND owner=? AND expires>"+now+" FOR UPDATE", hold.Key, hold.ID.Hex()).Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			return backend.ErrNotHeld
		}
		between()
		t.values.Store(hold.Key, value)
		return tx.Commit()
	}
	return &conformance.GuardedWrite{
		Write: func(ctx context.Context, lease lock.Lease, value string) error {
			return open(ctx, lease, value, func() {})
		},
		Open: open,
		Read: func(_ context.Context, key string) (string, error) {
			value, _ := t.values.Load(key)
			text, _ := value.(string)
			return text, nil
		},
	}
}
