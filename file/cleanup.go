package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Cleanup removes the records of keys that nobody holds and whose last change was longer than
// olderThan ago, and returns how many: those of holders that died, since a release removes
// its record. Tokens rise on, because their counters stay.
func (b *files) Cleanup(ctx context.Context, olderThan time.Duration) (removed int, err error) {
	return b.eachOld(ctx, olderThan, func(p place, old func() (bool, error)) (gone bool, err error) {
		err = b.guarded(ctx, p, func(g *guard) error {
			gone, err = old()
			if err != nil || !gone {
				return err
			}
			return b.remove(g, p)
		})
		return gone, err
	})
}

// CountOld returns how many records Cleanup would remove. It changes nothing.
func (b *files) CountOld(ctx context.Context, olderThan time.Duration) (int, error) {
	return b.eachOld(ctx, olderThan, func(p place, old func() (bool, error)) (is bool, err error) {
		if readsUnguarded {
			return old()
		}
		err = b.guarded(ctx, p, func(*guard) error {
			is, err = old()
			return err
		})
		return is, err
	})
}

// eachOld calls do with each place, and a function that looks whether its record is old,
// and returns how often do has said true.
func (b *files) eachOld(ctx context.Context, olderThan time.Duration, do func(p place, old func() (bool, error)) (bool, error)) (n int, err error) {
	if olderThan <= 0 {
		return 0, fmt.Errorf("filelock: %w: keys unused for longer than %s would be all of them; name a positive duration", backend.ErrInvalid, olderThan)
	}
	err = b.eachPlace(ctx, func(p place) (bool, error) {
		done, err := do(p, func() (bool, error) { return b.unusedFor(p, olderThan) })
		if done && err == nil {
			n++
		}
		return true, err
	})
	return n, err
}

// unusedFor reports whether there is a record that nobody holds, and that has not changed
// for so long. A file that is no record of ours is left alone.
func (b *files) unusedFor(p place, long time.Duration) (bool, error) {
	r, _, err := b.load(p)
	if err != nil || r == nil || len(r.live(b.boot.run, b.boot.now())) > 0 {
		return false, err
	}
	info, err := os.Stat(p.record())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, failed("looking at a record", err)
	}
	return time.Since(info.ModTime()) > long, nil
}
