package faultlock_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// abilities are the names of all that backend.As finds.
func abilities(b backend.Backend) (names []string) {
	for name, has := range map[string]bool{
		"Watcher": is[backend.Watcher](b), "Queuer": is[backend.Queuer](b), "BatchRenewer": is[backend.BatchRenewer](b),
		"HandOverer": is[backend.HandOverer](b), "ReleaseTeller": is[backend.ReleaseTeller](b), "Partitioner": is[backend.Partitioner](b),
		"Inspector": is[backend.Inspector](b), "ForceReleaser": is[backend.ForceReleaser](b), "Revoker": is[backend.Revoker](b),
		"Lister": is[backend.Lister](b), "Forgetter": is[backend.Forgetter](b), "FloorRaiser": is[backend.FloorRaiser](b), "TokenTeller": is[backend.TokenTeller](b),
		"Clocked": is[backend.Clocked](b),
	} {
		if has {
			names = append(names, name)
		}
	}
	return names
}

func is[T any](b backend.Backend) bool {
	_, ok := backend.As[T](b)
	return ok
}

// bare has the primitives only.
type bare struct{ backend.Backend }

// Faults change no ability, in two layers either, and what they don't disturb is there too.
func TestAbilitiesAreThoseOfTheInnerBackend(t *testing.T) {
	for name, opts := range map[string]*memlock.Options{"record": {}, "queue": {Queue: true}} {
		inner, err := memlock.NewBackend(t.Context(), opts)
		require.NoError(t, err)
		require.NotEmpty(t, abilities(inner))
		one := faultlock.New(inner, nil)
		two := faultlock.New(one.Backend(), nil)
		assert.ElementsMatch(t, abilities(inner), abilities(one.Backend()), name)
		assert.ElementsMatch(t, abilities(inner), abilities(two.Backend()), name)
		assert.ElementsMatch(t, []string{"Clocked", "Partitioner"}, abilities(two.Primitives()), name)
		lister, _ := backend.As[backend.Lister](two.Backend())
		assert.Equal(t, inner, lister, name)
		assert.True(t, is[backend.LossNotifier](two.Backend()))
		assert.True(t, is[backend.Immediate](inner))
		assert.False(t, is[backend.Immediate](one.Backend()), "a fault may hang")
		assert.True(t, is[backend.LossNotifier](two.Primitives()))

		none := faultlock.New(bare{inner}, nil).Backend()
		assert.Empty(t, abilities(none), name)
		assert.True(t, is[backend.LossNotifier](none), "Lose needs it")
	}
}

// Who asserts the type instead of asking backend.As is told.
func TestAbilitiesThatAreNotThere(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	b := faultlock.New(bare{inner}, nil).Backend()
	ctx, hold := context.Background(), backend.Hold{Key: "k"}
	_, err = b.(backend.Watcher).Watch(ctx, "k")
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "Watcher")
	_, err = b.(backend.Queuer).Enqueue(ctx, request("k"))
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorIs(t, b.(backend.BatchRenewer).RenewBatch(ctx, []backend.Hold{hold})[0].Err, backend.ErrUnsupported)
	_, err = b.(backend.HandOverer).HandOver(ctx, hold, request("k"))
	require.ErrorIs(t, err, backend.ErrUnsupported)
	_, err = b.(backend.Inspector).Inspect(ctx, "k")
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorIs(t, b.(backend.ForceReleaser).ForceRelease(ctx, "k", 1), backend.ErrUnsupported)
}
