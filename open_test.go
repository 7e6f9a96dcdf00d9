package lock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
)

func TestOpenWithoutAMux(t *testing.T) {
	t.Parallel()
	_, err := lock.Open(t.Context(), "mem:", lock.WithMux(nil))
	require.ErrorIs(t, err, lock.ErrInvalid)
}
