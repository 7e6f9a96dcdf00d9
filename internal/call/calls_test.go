package call

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// A request on the caller's goroutine that Close has interrupted says what became of the
// request; its caller is to hear why.
func TestCloseIsToldOfWhatItInterrupts(t *testing.T) {
	t.Parallel()
	c := NewCalls()
	defer c.Kill()
	unsent := fmt.Errorf("%w: %w", backend.ErrNotSent, context.Canceled)
	held := &backend.HeldError{Key: "k"}
	require.Equal(t, unsent, c.ClosedIfUnknown(unsent), "before Close")
	limited, cancel := c.Within(t.Context(), 0)
	defer cancel()
	c.Shut()
	<-limited.Done()
	require.Equal(t, backend.ErrClosed, c.ClosedIfUnknown(unsent))
	require.Equal(t, backend.ErrClosed, c.ClosedIfUnknown(context.Canceled))
	require.Equal(t, error(held), c.ClosedIfUnknown(held))
	require.NoError(t, c.ClosedIfUnknown(nil))
}
