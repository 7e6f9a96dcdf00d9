package filelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
)

// readsUnguarded: records can be read without the guard. On Windows a rename
// fails while somebody reads the file.
const readsUnguarded = runtime.GOOS != "windows"

// Try asks once for the key. A refusal takes no guard: a record is replaced as a
// whole, so one that is read and has not expired is a reason to refuse.
func (b *files) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	p := b.placeOf(req.Key)
	id, owner := idHash(req.ID), ownerHash(req.Key, req.Owner)
	if readsUnguarded && ctx.Err() == nil {
		if r, _, err := b.load(p); err != nil {
			return backend.Grant{}, err
		} else if err := b.refusal(r, id, owner); err != nil {
			return backend.Grant{}, err
		}
	}
	var grant backend.Grant
	err := b.guarded(ctx, p, func(g *guard) error {
		var err error
		grant, err = b.try(g, p, req, id, owner)
		return err
	})
	if err != nil {
		return backend.Grant{}, err
	}
	return grant, nil
}

// refusal is not nil when the record is held by somebody else.
func (b *files) refusal(r *record, id, owner string) error {
	now := b.boot.now()
	live := r.live(b.boot.run, now)
	switch {
	case len(live) == 0, find(live, id) >= 0, owner != "" && owner == r.Owner:
		return nil
	}
	return r.heldBy(live, now)
}

func (b *files) try(g *guard, p place, req backend.Request, id, owner string) (backend.Grant, error) {
	r, damaged, err := b.load(p)
	if err != nil {
		return backend.Grant{}, err
	}
	if damaged {
		b.log.Warn("filelock: somebody else has damaged a state file; whoever held the key has lost it", "key", p.key, "file", p.record())
	}
	if err := b.refusal(r, id, owner); err != nil {
		return backend.Grant{}, err
	}
	live := r.live(b.boot.run, b.boot.now())
	at := find(live, id)
	switch {
	case len(live) == 0:
		if r, err = b.newRecord(p, req, r, owner); err != nil {
			return backend.Grant{}, err
		}
		at, live = 0, []hold{{ID: id}}
	case at < 0 && len(live) >= backend.MaxHolds:
		return backend.Grant{}, backend.ErrTooManyHolds
	case at < 0:
		at, live = len(live), append(live, hold{ID: id})
	}
	validity := b.extend(&live[at], req.TTL)
	r.Holds = live
	if err := b.save(g, p, r); err != nil {
		return backend.Grant{}, err
	}
	return backend.Grant{Token: r.Token, Holds: len(live), Validity: validity}, nil
}

// newRecord begins a record with a token of its own. The old record, if any, has
// no live hold.
func (b *files) newRecord(p place, req backend.Request, old *record, owner string) (*record, error) {
	var last uint64
	if old != nil {
		last = old.Token
	}
	token, err := b.nextToken(p, last)
	if err != nil {
		return nil, err
	}
	holder := req.Holder
	holder.Since = time.Now().UTC().Round(time.Millisecond)
	return &record{Version: recordVersion, Key: p.key, runID: b.boot.run, Token: token, Owner: owner, Holder: holder}, nil
}

// extend gives the hold a full TTL from now, and never less than it had. The
// local deadline counts from a reading of the clock taken before the one that the
// expiry counts from, and both are taken inside the guard: time spent waiting for
// the guard, or for the disk to keep the token, does not shorten the lease, and a
// process that is stopped after the readings has both of them early.
func (b *files) extend(h *hold, ttl time.Duration) backend.Validity {
	sent := b.clock.Now()
	h.Expires = max(h.Expires, b.boot.now()+int64(ttl))
	return backend.Validity{Sent: sent, For: backend.ValidFor(ttl)}
}

// Renew extends the hold if its record still has it.
func (b *files) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	p := b.placeOf(h.Key)
	var validity backend.Validity
	err := b.guarded(ctx, p, func(g *guard) error {
		r, damaged, err := b.load(p)
		if err != nil {
			return err
		}
		live := r.live(b.boot.run, b.boot.now())
		at := find(live, idHash(h.ID))
		if at < 0 {
			return b.missing(p, r, h, damaged)
		}
		validity = b.extend(&live[at], h.TTL)
		r.Holds = live
		return b.save(g, p, r)
	})
	if err != nil {
		return backend.Validity{}, err
	}
	return validity, nil
}

// missing says why a hold is not among the live holds of its record.
func (b *files) missing(p place, r *record, h backend.Hold, damaged bool) error {
	switch {
	case r != nil && find(r.Holds, idHash(h.ID)) >= 0:
		return fmt.Errorf("%w: filelock: the record of %q has run out", backend.ErrExpired, p.key)
	case r != nil && r.Token == h.Token:
		return fmt.Errorf("%w: filelock: %q has only other holds of the same owner", backend.ErrNotHeld, p.key)
	case damaged:
		return fmt.Errorf("%w: filelock: %s was damaged by somebody else", backend.ErrTakenOver, p.record())
	case r != nil:
		return fmt.Errorf("%w: filelock: %q has been granted to somebody else", backend.ErrTakenOver, p.key)
	}
	return fmt.Errorf("%w: filelock: %q has no record any more", backend.ErrTakenOver, p.key)
}

// Release ends the hold. A record of which only expired holds are left is
// removed; a record that does not have the hold is not touched.
func (b *files) Release(ctx context.Context, h backend.Hold) error {
	_, err := b.ReleaseTelling(ctx, h)
	return err
}

// ReleaseTelling implements backend.ReleaseTeller. Of many other clients it may tell of
// fewer, and it can't say on systems other than Linux.
func (b *files) ReleaseTelling(ctx context.Context, h backend.Hold) (others int, _ error) {
	p := b.placeOf(h.Key)
	err := b.guarded(ctx, p, func(g *guard) error {
		r, _, err := b.load(p)
		if err != nil {
			return err
		}
		if r == nil || find(r.Holds, idHash(h.ID)) < 0 {
			return fmt.Errorf("%w: filelock: %q has no such hold", backend.ErrNotHeld, p.key)
		}
		live := r.live(b.boot.run, b.boot.now())
		at := find(live, idHash(h.ID))
		var expired error
		if at < 0 {
			expired = fmt.Errorf("%w: filelock: the record of %q has run out", backend.ErrExpired, p.key)
		} else {
			live = append(live[:at], live[at+1:]...)
		}
		if len(live) == 0 {
			if err = b.remove(g, p); err == nil {
				// Who was told of the removal waits for the guard, and watches still.
				others = b.waiters.others(p.waiter)
			}
		} else {
			r.Holds = live
			err = b.save(g, p, r)
		}
		if err != nil {
			return err
		}
		return expired
	})
	return others, err
}

// Inspect shows the record of the key.
func (b *files) Inspect(ctx context.Context, key string) (backend.Record, error) {
	p := b.placeOf(key)
	var out backend.Record
	look := func(*guard) error {
		r, _, err := b.load(p)
		if err != nil {
			return err
		}
		now := b.boot.now()
		live := r.live(b.boot.run, now)
		if len(live) == 0 {
			if b.untouched() {
				return fmt.Errorf("%w: filelock: nobody holds %q: the directory %s does not exist", backend.ErrNotHeld, key, b.dir)
			}
			return fmt.Errorf("%w: filelock: nobody holds %q", backend.ErrNotHeld, key)
		}
		out = backend.Record{Key: key, Token: r.Token, Holds: len(live), Waiters: -1, Remaining: remaining(live, now), Holder: r.Holder, Revoked: r.Revoked}
		return nil
	}
	err := ctx.Err()
	switch {
	case err != nil:
	case readsUnguarded:
		err = look(nil)
	default:
		err = b.guarded(ctx, p, look)
	}
	return out, err
}

// ForceRelease removes the record if its token is the one given.
func (b *files) ForceRelease(ctx context.Context, key string, token uint64) error {
	return b.change(ctx, key, token, func(g *guard, p place, _ *record, _ []hold) error { return b.remove(g, p) })
}

// Revoke makes the record that of nobody, until it runs out.
func (b *files) Revoke(ctx context.Context, key string, token uint64) error {
	return b.change(ctx, key, token, func(g *guard, p place, r *record, live []hold) error {
		nobody := hold{ID: idHash(backend.NewID())}
		for _, h := range live {
			nobody.Expires = max(nobody.Expires, h.Expires)
		}
		r.Owner, r.Holds, r.Revoked = "", []hold{nobody}, true
		return b.save(g, p, r)
	})
}

// change calls f inside the guard with the record of the key and its live holds, if its
// token is the one given. Where it is not, nothing is made.
func (b *files) change(ctx context.Context, key string, token uint64, f func(*guard, place, *record, []hold) error) error {
	p := b.placeOf(key)
	look := func() (*record, []hold, error) {
		r, _, err := b.load(p)
		if err != nil {
			return nil, nil, err
		}
		live := r.live(b.boot.run, b.boot.now())
		if len(live) == 0 || r.Token != token {
			return nil, nil, fmt.Errorf("%w: filelock: nobody holds %q with this token", backend.ErrNotHeld, key)
		}
		return r, live, nil
	}
	if readsUnguarded && ctx.Err() == nil {
		if _, _, err := look(); err != nil {
			return err
		}
	}
	return b.guarded(ctx, p, func(g *guard) error {
		r, live, err := look()
		if err != nil {
			return err
		}
		return f(g, p, r, live)
	})
}

// List reads every state file of the directory, and visits the keys that are
// held. It makes no file and no directory.
func (b *files) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return b.eachPlace(ctx, func(p place) (bool, error) {
		if !strings.HasPrefix(p.key, prefix) {
			return true, nil
		}
		rec, err := b.Inspect(ctx, p.key)
		switch {
		case errors.Is(err, backend.ErrNotHeld):
			return true, nil
		case err != nil:
			return false, err
		}
		return visit(rec), nil
	})
}

// eachPlace calls visit with the place of each state file, until it returns false or an
// error.
func (b *files) eachPlace(ctx context.Context, visit func(place) (goOn bool, err error)) error {
	dirs, err := os.ReadDir(filepath.Join(b.dir, holdDir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.untouched()
	case err != nil:
		return failed("listing the records", err)
	}
	for _, dir := range dirs {
		path := filepath.Join(b.dir, holdDir, dir.Name())
		files, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed("listing the records", err)
		}
		for _, file := range files {
			if err := ctx.Err(); err != nil {
				return err
			}
			key, ok := keyIn(filepath.Join(path, file.Name()))
			if !ok {
				continue
			}
			p := b.placeOf(key)
			if p.name != file.Name() {
				continue
			}
			if goOn, err := visit(p); err != nil || !goOn {
				return err
			}
		}
	}
	return nil
}

// keyIn is the key that a state file says it is about. Whether that is true is for
// the caller to find out.
func keyIn(path string) (string, bool) {
	data, err := readFile(path)
	if err != nil {
		return "", false // foreign, or gone
	}
	var r struct {
		Key string `json:"key"`
	}
	return r.Key, json.Unmarshal(data, &r) == nil && r.Key != ""
}
