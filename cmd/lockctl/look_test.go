//go:build unix

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALookMakesNoDirectory: a mistyped path is told, and not created.
func TestALookMakesNoDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "mistyped")
	for _, args := range [][]string{{"ls"}, {"inspect", "k"}, {"wait", "k"}, {"unlock", "k", "--token", "7"}} {
		_, _, errs := run(t, "file:"+dir, args...)
		require.NoDirExists(t, dir, args)
		if args[0] != "unlock" {
			require.Contains(t, errs, "does not exist", args)
			require.Contains(t, errs, dir, args)
		}
	}
}
