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

// Cleanup implements backend.Cleaner. What it removes are the records of holders that died,
// since a release removes its record; their counters stay.
func (b *files) Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (int, error) {
	return b.eachOld(ctx, olderThan, func(p place, old func() (bool, error)) (is bool, err error) {
		if dryRun && readsUnguarded {
			return old()
		}
		err = b.guarded(ctx, p, func(g *guard) error {
			is, err = old()
			if err != nil || !is || dryRun {
				return err
			}
			return b.remove(g, p)
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
