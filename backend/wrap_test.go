package backend_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/memory"
)

// counting is what a wrapper looks like.
type counting struct {
	backend.Backend
	looks int
}

func (c *counting) Unwrap() backend.Backend { return c.Backend }

func (c *counting) Inspect(ctx context.Context, key string) (backend.Record, error) {
	c.looks++
	in, ok := backend.As[backend.Inspector](c.Backend)
	if !ok {
		return backend.Record{}, backend.ErrUnsupported
	}
	return in.Inspect(ctx, key)
}

func (c *counting) NotifyLoss(func(backend.ID, error)) {}

// prompt is a wrapper that waits for nothing.
type prompt struct{ counting }

func (*prompt) Immediate() bool { return true }

func TestWrapperIsImmediateOnItsOwnOnly(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	is := func(b backend.Backend) bool {
		i, ok := backend.As[backend.Immediate](b)
		return ok && i.Immediate()
	}
	assert.True(t, is(inner))
	assert.False(t, is(&counting{Backend: inner}))
	assert.True(t, is(&prompt{counting{Backend: struct{ backend.Backend }{inner}}}))
}

func TestWrapperHasTheAbilitiesOfTheInnerBackend(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	one := &counting{Backend: inner}
	two := &counting{Backend: one}

	in, ok := backend.As[backend.Inspector](two)
	require.True(t, ok)
	_, err = in.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, backend.ErrNotHeld)
	assert.Equal(t, []int{1, 1}, []int{one.looks, two.looks}, "each has its turn")

	lister, ok := backend.As[backend.Lister](two)
	require.True(t, ok)
	assert.Equal(t, inner, lister, "what no wrapper has comes from the inner backend")
	_, ok = backend.As[backend.Queuer](two)
	assert.False(t, ok)
	found, ok := backend.As[*counting](two)
	assert.True(t, ok)
	assert.Same(t, two, found)
}

func TestWrapperAddsNoAbility(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	bare := struct{ backend.Backend }{inner} // no Wrapper: the primitives only
	_, ok := backend.As[backend.Inspector](bare)
	require.False(t, ok)
	_, ok = backend.As[backend.Inspector](&counting{Backend: bare})
	assert.False(t, ok)
	_, ok = backend.As[backend.LossNotifier](&counting{Backend: bare})
	assert.True(t, ok, "to listen asks nothing of the server")
}

// obedient says that it is interruptible.
type obedient struct{ backend.Backend }

func (obedient) Interruptible() bool { return true }

// A wrapper that waits, as one for tests does, would hold up callers who gave up.
func TestWrapperIsInterruptibleByItsOwnMethod(t *testing.T) {
	inner, err := memlock.NewBackend(t.Context(), nil)
	require.NoError(t, err)
	_, ok := backend.As[backend.Interruptible](obedient{inner})
	require.True(t, ok)
	_, ok = backend.As[backend.Interruptible](&counting{Backend: obedient{inner}})
	require.False(t, ok)
	_, ok = backend.As[backend.Interruptible](obedient{&counting{Backend: inner}})
	require.True(t, ok)
}
