package filelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/mortiselock/lock/backend"
)

// abreast is how many shards are raised at a time: what several write together is synced
// together.
const abreast = 16

// RaiseFloor raises the counters of all shards, each inside its guard. Holds keep the tokens
// in their records.
func (b *files) RaiseFloor(ctx context.Context, above uint64) error {
	if above >= maxToken {
		return fmt.Errorf("%w: filelock: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(maxToken-1))
	}
	var errs [abreast]error
	var all sync.WaitGroup
	for i := range abreast {
		all.Go(func() {
			for n := i; n < shards && errs[i] == nil; n += abreast {
				errs[i] = b.raise(ctx, b.shardOf(byte(n)), above)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs[:]...)
}

func (b *files) raise(ctx context.Context, p place, above uint64) error {
	return b.guarded(ctx, p, func(g *guard) error {
		f, err := b.openCounter(p)
		if err != nil {
			return err
		}
		defer f.Close()
		c, err := readCounter(f)
		if err != nil || c.last() >= above {
			return err
		}
		if err := g.check(p); err != nil {
			return err
		}
		return c.write(f, above)
	})
}

// LastToken is the largest number of all counters, and of the records: a record may know
// better than a counter that somebody has removed. It makes no file. A counter is read inside
// its guard, since a slot that is being written looks damaged.
func (b *files) LastToken(ctx context.Context) (last uint64, err error) {
	for n := range shards {
		p := b.shardOf(byte(n))
		if _, err := os.Stat(p.token); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := b.guarded(ctx, p, func(*guard) error {
			f, err := os.Open(p.token)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return failed("opening a token counter", err)
			}
			defer f.Close()
			c, err := readCounter(f)
			last = max(last, c.last())
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	err = b.eachPlace(ctx, func(p place) (bool, error) {
		r, _, err := b.load(p)
		if r != nil {
			last = max(last, r.Token)
		}
		return true, err
	})
	if err != nil {
		return 0, err
	}
	return last, nil
}
