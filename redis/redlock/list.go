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
// node of every majority.
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
	for _, key := range slices.Sorted(maps.Keys(found)) {
		rec, err := b.Inspect(ctx, key)
		switch {
		case errors.Is(err, backend.ErrNotHeld), errors.Is(err, backend.ErrPermanent):
			continue // a minority's, gone meanwhile, or not ours
		case err != nil:
			return err
		case !visit(rec):
			return nil
		}
	}
	return nil
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
