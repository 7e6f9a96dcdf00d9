package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// Revoke makes the record that of nobody, in one script.
func (b *redisBackend) Revoke(ctx context.Context, key string, token uint64) error {
	n := namesOf(b.prefix, key)
	r, err := b.run(ctx, revokeScript, n, strconv.FormatUint(token, 10), backend.ID{}.Hex())
	if err != nil {
		return err
	}
	return removal(n, r)
}

// List finds the keys with SCAN, on every primary of a Cluster, and then asks for
// each record by itself. SCAN may show a key twice.
func (b *redisBackend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return b.list(ctx, prefix, b.Inspect, visit)
}

func (b *redisBackend) list(ctx context.Context, prefix string, inspect func(context.Context, string) (backend.Record, error), visit func(backend.Record) bool) error {
	keys, err := b.scan(ctx, prefix)
	if err != nil {
		return fmt.Errorf("redislock: listing keys: %w", wire.Describe(ctx, err))
	}
	for _, key := range keys {
		rec, err := inspect(ctx, key)
		switch {
		case errors.Is(err, backend.ErrNotHeld), errors.Is(err, backend.ErrPermanent):
			continue // gone meanwhile, or not ours
		case err != nil:
			return err
		case !visit(rec):
			return nil
		}
	}
	return nil
}

func (b *redisBackend) scan(ctx context.Context, prefix string) ([]string, error) {
	var (
		mu    sync.Mutex // a Cluster client calls from several goroutines
		found = map[string]bool{}
	)
	pattern := wire.Globbed(b.prefix) + "{m:[0-9a-f][0-9a-f]}:k:" + wire.Globbed(prefix) + "*"
	scan := func(ctx context.Context, client goredis.Cmdable) error {
		it := client.Scan(ctx, 0, pattern, wire.ScanCount).Iterator()
		for it.Next(ctx) {
			if key, ok := keyOfRecord(b.prefix, it.Val()); ok {
				mu.Lock()
				found[key] = true
				mu.Unlock()
			}
		}
		return it.Err()
	}
	var err error
	if c, ok := b.client.(*goredis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error { return scan(ctx, node) })
	} else {
		err = scan(ctx, b.client)
	}
	return slices.Sorted(maps.Keys(found)), err
}

// keyOfRecord is the key of a record's name, and false for other names.
func keyOfRecord(prefix, name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || len(rest) < len("{m:00}:k:") {
		return "", false
	}
	key := rest[len("{m:00}:k:"):]
	return key, backend.ValidateKey(key) == nil && namesOf(prefix, key).record() == name
}
