package table

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// Try takes the key with one statement if this client has just freed it. Otherwise
// it reads the row without locking it, and sends a second statement only if the key
// looks free, or is the owner's own.
func (b *Backend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	known := b.freed.take(req.Key, b.clock.Now())
	var read *row // as it was when it looked free, and could not be taken
	stale, unseen := 0, 0
	for try := 1; try <= wire.Repeats; try++ {
		if known {
			a, err := b.change(ctx, b.takeFree(req))
			if err != nil {
				return backend.Grant{}, wire.KeyError(ctx, req.Key, err)
			}
			if a.id != 0 {
				return soleHold(req, a), nil
			}
		}
		r, err := b.one(ctx, req.Key)
		if err != nil {
			return backend.Grant{}, wire.KeyError(ctx, req.Key, err)
		}
		if r == nil || r.free() {
			if r != nil && r.token >= lastToken {
				return backend.Grant{}, b.tokensUsedUp(req.Key)
			}
			if r != nil {
				if read != nil {
					// Who takes a key raises its token: the row would have another by now.
					if stale++; r.token > read.token {
						stale = 0
					}
					if stale == staleReads {
						return backend.Grant{}, readElsewhere(req.Key)
					}
					if err := wire.Jitter(ctx, try); err != nil {
						return backend.Grant{}, fmt.Errorf("mysqllock: key %q: %w: %w", req.Key, backend.ErrUnavailable, err)
					}
				}
				known, read = true, r // as far as anybody can know; the statement checks it
				continue
			}
			known = false
			a, err := b.change(ctx, b.insert(req))
			switch {
			case wire.CodeOf(err) == wire.CodeDuplicate: // somebody else was first, or the row is not where it was read
				if unseen++; unseen == unseenReads {
					return backend.Grant{}, readElsewhere(req.Key)
				}
				if unseen > 1 {
					if err := wire.Jitter(ctx, try); err != nil {
						return backend.Grant{}, fmt.Errorf("mysqllock: key %q: %w: %w", req.Key, backend.ErrUnavailable, err)
					}
				}
				known = true
			case err != nil:
				return backend.Grant{}, wire.KeyError(ctx, req.Key, err)
			case a.id == 0:
				if err := b.notInserted(ctx, req.Key); err != nil {
					return backend.Grant{}, err
				}
			default:
				return soleHold(req, a), nil
			}
			continue
		}
		known = false
		grant, done, err := b.join(ctx, req, *r)
		if done || err != nil {
			return grant, err
		}
		if err := wire.Jitter(ctx, try); err != nil {
			return backend.Grant{}, fmt.Errorf("mysqllock: key %q: %w: %w", req.Key, backend.ErrUnavailable, err)
		}
	}
	return backend.Grant{}, outrun(req.Key)
}

// notInserted is why no row could be made for a key, and nil when it is worth another try.
func (b *Backend) notInserted(ctx context.Context, key string) error {
	if err := b.step(ctx, takesWrites); err != nil {
		return wire.KeyError(ctx, key, fmt.Errorf("%w (%w)", err, backend.ErrUnavailable)) // only a look
	}
	floor, err := b.one(ctx, floorKey)
	switch {
	case err != nil:
		return wire.KeyError(ctx, key, fmt.Errorf("%w (%w)", err, backend.ErrUnavailable))
	case floor != nil && floor.token >= lastToken:
		return b.tokensUsedUp(key)
	}
	return nil
}

// soleHold is the grant of a hold that is the only one on its key.
func soleHold(req backend.Request, a answer) backend.Grant {
	return backend.Grant{
		Token: uint64(a.id), Holds: 1,
		Validity: backend.Validity{Sent: a.sent, For: backend.ValidFor(req.TTL)},
	}
}

// join adds a hold to a record that has the same owner, repeats a grant, or refuses.
// It is not done when somebody else changed the row meanwhile.
func (b *Backend) join(ctx context.Context, req backend.Request, r row) (g backend.Grant, done bool, err error) {
	holds, err := r.unexpired()
	if err != nil {
		return g, true, err
	}
	hash := hashOf(req.ID.Hex())
	mine, others, repeated := split(holds, hash)
	switch {
	case repeated:
	case r.owner == "-" || r.owner != ownerField(req.Owner):
		return g, true, &backend.HeldError{Key: req.Key, Holder: r.holder(), Remaining: r.remaining()}
	case len(holds) >= backend.MaxHolds:
		return g, true, fmt.Errorf("mysqllock: key %q: %w", req.Key, backend.ErrTooManyHolds)
	}
	if err := b.guards.pass(ctx, backend.HoldOf(req)); err != nil {
		return g, true, wire.KeyError(ctx, req.Key, err)
	}
	a, err := b.change(ctx, b.extended(r, others, hash, mine.expires, req.TTL))
	if err != nil {
		return g, true, wire.KeyError(ctx, req.Key, err)
	}
	return backend.Grant{
		Token: uint64(a.id), Holds: len(others) + 1,
		Validity: backend.Validity{Sent: a.sent, For: backend.ValidFor(req.TTL)},
	}, a.id != 0, nil
}

// HandOver ends the hold and grants the key to the next waiter of this client, in
// one statement. Whose turn it is has been decided by the lock package.
func (b *Backend) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	if b.guards.others(from) {
		return backend.Grant{}, hasOthers(from.Key)
	}
	a, err := b.change(ctx, b.takeFrom(from, to))
	if err != nil {
		return backend.Grant{}, wire.KeyError(ctx, from.Key, err)
	}
	if a.id != 0 {
		return soleHold(to, a), nil
	}
	r, err := b.one(ctx, from.Key)
	if err != nil {
		// The statement before changed nothing, and this one only asks why.
		return backend.Grant{}, fmt.Errorf("%w (%w)", wire.KeyError(ctx, from.Key, err), backend.ErrUnavailable)
	}
	if r == nil || r.free() {
		return backend.Grant{}, wire.NotHeld(from.Key)
	}
	holds, err := r.unexpired()
	if err != nil {
		return backend.Grant{}, err
	}
	_, others, _ := split(holds, hashOf(from.ID.Hex()))
	switch {
	case r.token >= lastToken && len(others) == 0:
		return backend.Grant{}, b.tokensUsedUp(from.Key)
	case len(others) == 1 && len(holds) == 1 && others[0].hash == hashOf(to.ID.Hex()):
		// A repeat: the hold was handed over before.
		g, done, err := b.join(ctx, to, *r)
		if !done && err == nil {
			err = outrun(from.Key)
		}
		return g, err
	case len(others) < len(holds):
		return backend.Grant{}, hasOthers(from.Key)
	}
	return backend.Grant{}, wire.NotHeld(from.Key)
}

func hasOthers(key string) error {
	return fmt.Errorf("mysqllock: key %q: %w: its owner has other holds on it", key, backend.ErrUnsupported)
}

// outrun is the error of a step that others kept making impossible. Nothing was
// changed.
func outrun(key string) error {
	return fmt.Errorf("mysqllock: key %q: %w: %w", key, backend.ErrUnavailable, errUnchanged)
}

const (
	// staleReads is how often a row that could not be taken may read as if nobody had
	// taken it.
	staleReads = 3
	// unseenReads is how often a row that exists may read as if it did not. Clean-ups and
	// new users of a key can show the same a few times.
	unseenReads = 5
)

// readElsewhere is the error of a key that reads as free, again and again, and is not.
func readElsewhere(key string) error {
	return fmt.Errorf("mysqllock: key %q: %w: it reads as free, and can't be taken: another server answers the reads, as behind a proxy that sends SELECT to replicas; have it send what the locks ask to the primary alone",
		key, backend.ErrUnavailable)
}

func (b *Backend) tokensUsedUp(key string) error {
	return fmt.Errorf("mysqllock: key %q: %w: the tokens are used up: the last one in the table %s has reached 2^53; only another table starts afresh, with smaller tokens",
		key, backend.ErrPermanent, b.name)
}
