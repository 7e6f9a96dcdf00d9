package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
)

// TestAlsoOnPairsOfRealStores runs the suite, which pairs have in virtual time.
func TestAlsoOnPairsOfRealStores(t *testing.T) {
	suites.Also(t)
	for _, m := range [][2]string{{"file", "redis"}, {"redis", "etcd"}} {
		t.Run(m[0]+" and "+m[1], func(t *testing.T) {
			t.Parallel()
			child, err := json.Marshal(changeOf(t, m[0], m[1]))
			require.NoError(t, err)
			cfg := pairOf(string(child))
			cfg.Judge = linear.Judge(t)
			conformance.Run(t, cfg)
		})
	}
}

// pairOf is the suite's Config, also in the processes that it starts.
func pairOf(child string) conformance.Config {
	var c change
	if err := json.Unmarshal([]byte(child), &c); err != nil {
		panic(err)
	}
	cfg := conformance.Config{
		Open: func(ctx context.Context) (lock.Locker, error) {
			return openBoth(ctx, c.Old, c.New, &lock.Options{TTL: 2 * time.Second})
		},
		Remove: func(ctx context.Context, key string) error {
			if err := remove(ctx, c.New, key); err != nil {
				return err
			}
			// A holder that is told of it at once may have released the other record by now.
			if err := remove(ctx, c.Old, key); !errors.Is(err, lock.ErrNotHeld) {
				return err
			}
			return nil
		},
		Child:  child,
		TTL:    2 * time.Second,
		Budget: min(servertest.Budget(), 5*time.Second),
	}
	return cfg
}

// remove ends the hold of a key by force in one store.
func remove(ctx context.Context, url, key string) error {
	b, err := backend.DefaultMux.Open(ctx, url, backend.OpenConfig{LookOnly: true})
	if err != nil {
		return err
	}
	defer b.Close()
	in, _ := backend.As[backend.Inspector](b)
	rec, err := in.Inspect(ctx, key)
	if err != nil {
		return err
	}
	force, _ := backend.As[backend.ForceReleaser](b)
	return force.ForceRelease(ctx, key, rec.Token)
}
