package hold

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// A look at the clock finds the term over that it has read before, and a renewal, which
// was confirmed in time, moves it just then: that one counts.
func TestLookBesideARenewalEndsNothing(t *testing.T) {
	t.Parallel()
	_, l := begin(backend.RuntimeClock(), time.Minute, Terms{})
	l.expire()
	require.NoError(t, l.Context().Err())
	_, over := l.term.read()
	require.False(t, over)
}
