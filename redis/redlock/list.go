package redlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// listBound is how long List waits for a node to name its keys.
const listBound = 5 * time.Second

// List finds the names with SCAN on every node that answers, and asks all nodes for
// each record. A majority of the nodes must answer, since a held key is known to one
// node of every majority. A key that could not be decided on in the end ends the listing with
// an error, after all others were shown.
func (b *majority) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	bounded, cancel := context.WithTimeout(ctx, listBound)
	defer cancel()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		found   = map[string]bool{}
		reached int
		failed  error
	)
	for _, n := range b.nodes {
		s, ok := n.server.(redisServer)
		if !ok {
			continue
		}
		wg.Go(func() {
			keys, err := s.keys(bounded, b.prefix+"k:", prefix)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = fmt.Errorf("%s: %w", n.name, err)
				return
			}
			reached++
			for _, key := range keys {
				found[key] = true
			}
		})
	}
	wg.Wait()
	if reached < b.quorum {
		return fmt.Errorf("redlock: listing keys: %w: %d of %d nodes answered, and %d are needed: %w", backend.ErrUnavailable, reached, len(b.nodes), b.quorum, wire.Describe(ctx, failed))
	}
	undecided, err := b.show(ctx, slices.Sorted(maps.Keys(found)), visit)
	for pause := firstPause; len(undecided) > 0 && pause <= lastPause; pause *= 2 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		undecided, err = b.show(ctx, undecided, visit)
	}
	return err
}

// While nodes are down, nobody can say of a key that is just being taken or released whether
// a majority has it. Such keys are looked at again after the others, for longer than a node
// that was late once is left alone, unless they are so many that the nodes are the reason.
const (
	firstPause    = 20 * time.Millisecond
	lastPause     = 640 * time.Millisecond
	mostUndecided = 16
)

// show visits the records of the keys. It returns those that could not be decided on, with
// the first error; none where visit wants no more, or nothing can be decided on.
func (b *majority) show(ctx context.Context, keys []string, visit func(backend.Record) bool) (undecided []string, first error) {
	for _, key := range keys {
		rec, err := b.Inspect(ctx, key)
		switch {
		case errors.Is(err, backend.ErrNotHeld), errors.Is(err, backend.ErrPermanent):
			continue // a minority's, gone meanwhile, or not ours
		case ctx.Err() != nil, errors.Is(err, backend.ErrClosed):
			return nil, err
		case err != nil:
			undecided = append(undecided, key)
			if first == nil {
				first = err
			}
			if len(undecided) > mostUndecided {
				return nil, first
			}
		case !visit(rec):
			return nil, nil
		}
	}
	return undecided, first
}

// keys are those of the node's records whose names begin so.
func (s redisServer) keys(ctx context.Context, names, prefix string) ([]string, error) {
	var keys []string
	it := s.client.Scan(ctx, 0, wire.Globbed(names+prefix)+"*", wire.ScanCount).Iterator()
	for it.Next(ctx) {
		if key, ok := strings.CutPrefix(it.Val(), names); ok && backend.ValidateKey(key) == nil {
			keys = append(keys, key)
		}
	}
	return keys, it.Err()
}
