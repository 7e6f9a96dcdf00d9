package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNothingIsSoldTwice(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), "mem:stock", 4, &out))
	assert.Equal(t, "100 pieces on the shelf, 100 sold, 0 left\n", out.String())
}

func TestAnOldTokenIsRefused(t *testing.T) {
	t.Parallel()
	s := &shelf{stock: 3}
	require.NoError(t, s.write(2, 20))
	require.ErrorIs(t, s.write(1, 19), errTooLate)
	assert.Equal(t, 2, s.read())
}
