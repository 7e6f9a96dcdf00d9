package table

import (
	"context"
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Renew extends the hold in one statement when it is the only one on the key, and in
// three when its owner has others. It does not wait for a row that somebody else has
// locked: a moment later that is ErrUnavailable. While a guarded write of this client is open under
// a hold of the key, which keeps the row locked, it answers "still held, not extended":
// that lengthens nothing, and nobody can take the key over before the write has ended.
func (b *Backend) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if !b.guards.renew(hold) {
		return backend.Validity{Sent: b.clock.Now()}, nil
	}
	defer b.guards.renewed(hold)
	for try := 1; ; try++ {
		v, err := b.renewOnce(ctx, hold)
		if !errors.Is(err, errUnchanged) || try == wire.Repeats {
			return v, err
		}
		if waitErr := wire.Jitter(ctx, try); waitErr != nil {
			return v, fmt.Errorf("%w: %w", err, waitErr)
		}
	}
}

// renewalError is KeyError for a renewal. A hold ends when the pool was closed by its
// owner: no renewal can succeed any more, and the holder should not learn of it at the
// deadline only.
func renewalError(ctx context.Context, key string, err error) error {
	if wire.PoolClosed(err) {
		return fmt.Errorf("%w: %w", backend.ErrSessionLost, wire.KeyError(ctx, key, err))
	}
	return wire.KeyError(ctx, key, err)
}

// renewOnce is Renew without a second try.
func (b *Backend) renewOnce(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	a, err := b.change(ctx, b.renew(hold))
	if err != nil {
		return backend.Validity{}, renewalError(ctx, hold.Key, err)
	}
	if a.id == 0 {
		r, mine, others, err := b.find(ctx, hold)
		switch {
		case err != nil:
			return backend.Validity{}, err
		case r.holds == mine.hash:
			return backend.Validity{}, outrun(hold.Key) // it meets the condition: its row was locked
		}
		set, where := extension(r, others, mine.hash, mine.expires, hold.TTL)
		a, err = b.change(ctx, b.updateUnlocked(1, where, set))
		switch {
		case err != nil:
			return backend.Validity{}, renewalError(ctx, hold.Key, err)
		case a.id == 0:
			return backend.Validity{}, outrun(hold.Key)
		}
	}
	return backend.Validity{Sent: a.sent, For: backend.ValidFor(hold.TTL)}, nil
}

// Release ends the hold in one statement when it is the only one on the key, and in
// three when its owner has others.
func (b *Backend) Release(ctx context.Context, hold backend.Hold) error {
	if err := b.guards.pass(ctx, hold); err != nil {
		return wire.KeyError(ctx, hold.Key, err)
	}
	for try := 1; try <= wire.Repeats; try++ {
		a, err := b.change(ctx, b.release(hold))
		if err != nil {
			return wire.KeyError(ctx, hold.Key, err)
		}
		if a.id != 0 {
			b.freed.add(hold.Key, b.clock.Now())
			return nil
		}
		if hold.Owner == "" {
			return wire.NotHeld(hold.Key) // it shares no row with others
		}
		r, mine, others, err := b.find(ctx, hold)
		if err != nil {
			return err
		}
		a, err = b.change(ctx, b.without(r, others, mine.expires))
		if err != nil {
			return wire.KeyError(ctx, hold.Key, err)
		}
		if a.id != 0 {
			return nil
		}
		if err := wire.Jitter(ctx, try); err != nil {
			return fmt.Errorf("mysqllock: key %q: %w: %w", hold.Key, backend.ErrUnavailable, err)
		}
	}
	return outrun(hold.Key)
}

// find reads the row of a hold that was not the only one on its key, or tells why
// there is no such hold.
func (b *Backend) find(ctx context.Context, hold backend.Hold) (r row, mine held, others []held, err error) {
	found, err := b.one(ctx, hold.Key)
	if err != nil {
		// The statement before changed nothing, and this one only reads.
		return row{}, held{}, nil, fmt.Errorf("%w (%w)", wire.KeyError(ctx, hold.Key, err), backend.ErrUnavailable)
	}
	if found == nil {
		return row{}, held{}, nil, wire.NotHeld(hold.Key)
	}
	holds, err := found.unexpired()
	if err != nil {
		return row{}, held{}, nil, err
	}
	mine, others, ok := split(holds, hashOf(hold.ID.Hex()))
	if !ok {
		return row{}, held{}, nil, lost(hold, *found)
	}
	return *found, mine, others, nil
}

// lost says what became of a hold that the row does not have.
func lost(hold backend.Hold, r row) error {
	switch {
	case hold.Token != 0 && r.token < int64(hold.Token):
		return fmt.Errorf("mysqllock: key %q: %w: the row has an older token: the server has lost what it had committed, or the row was written by somebody else", hold.Key, backend.ErrTakenOver)
	case r.holds == hashOf(hold.ID.Hex()):
		return fmt.Errorf("mysqllock: key %q: %w", hold.Key, backend.ErrExpired)
	}
	return wire.NotHeld(hold.Key)
}

// Inspect shows the record of the key. The table does not know who waits, so
// Waiters is -1.
func (b *Backend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	r, err := b.one(ctx, key)
	if err != nil {
		return backend.Record{}, wire.KeyError(ctx, key, err)
	}
	if r == nil {
		return backend.Record{}, wire.NotHeld(key)
	}
	return r.record()
}

// ForceRelease frees the key if its record has the token, in one statement.
func (b *Backend) ForceRelease(ctx context.Context, key string, token uint64) error {
	if token > lastToken {
		return wire.NotHeld(key)
	}
	a, err := b.change(ctx, b.force(key, token))
	if err != nil {
		return wire.KeyError(ctx, key, err)
	}
	if a.id == 0 {
		return wire.NotHeld(key)
	}
	return nil
}

// Revoke makes the record that of nobody until it expires, in one statement.
func (b *Backend) Revoke(ctx context.Context, key string, token uint64) error {
	if token > lastToken {
		return wire.NotHeld(key)
	}
	a, err := b.change(ctx, b.revoke(key, token))
	if err != nil {
		return wire.KeyError(ctx, key, err)
	}
	if a.id == 0 {
		return wire.NotHeld(key)
	}
	return nil
}
