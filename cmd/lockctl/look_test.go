//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALookMakesNoDirectory: a mistyped path is told, and not created.
func TestALookMakesNoDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "mistyped")
	for _, args := range [][]string{{"ls"}, {"inspect", "k"}, {"wait", "k"}, {"unlock", "k", "--token", "7"}, {"cleanup", "--older-than", "1h"}, {"cleanup", "--dry-run", "--older-than", "1h"}} {
		_, _, errs := run(t, "file:"+dir, args...)
		require.NoDirExists(t, dir, args)
		if args[0] != "unlock" {
			require.Contains(t, errs, "does not exist", args)
			require.Contains(t, errs, dir, args)
		}
	}
}

// TestALookMakesNothingOnAServer: a mistyped table or prefix is told, again and again.
func TestALookMakesNothingOnAServer(t *testing.T) {
	everywhere(t, func(t *testing.T, p place) {
		if !strings.HasPrefix(p.name, "mysql") && p.name != "zookeeper" {
			t.Skip("nothing is made before a key is taken")
		}
		url := p.url(t)
		for _, args := range [][]string{{"ls"}, {"inspect", "k"}, {"wait", "k"}, {"unlock", "k", "--token", "7"}, {"compare", url}, {"cleanup", "--older-than", "1h"}, {"ls"}} {
			_, _, errs := operated(t, url, args...)
			require.Contains(t, errs, "does not exist", args)
			require.Contains(t, errs, "its name is not right", args)
		}
	})
}
