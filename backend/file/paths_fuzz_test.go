package filelock

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

// FuzzPlaceOf: two keys have two records, also where case does not count in names;
// no path of one is above a path of another or leaves the directory; and all names
// are short and plain.
func FuzzPlaceOf(f *testing.F) {
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a/", "a//b", "../a", "a/../b", "..", ".", "/etc/passwd", "a\\b", "C:", "CON", "nul", "aux.txt", "~a", "-a", "a:b", "a*", "a.",
		"\u00e4", "a\u0308", "\u00c4", "\u0131", "\u0130", "\U0001f512", "\ufffd", "\u200b", "\ufeffa", strings.Repeat("x", 255), strings.Repeat("x", 512),
	}
	for i, a := range keys {
		f.Add(a, keys[(i+1)%len(keys)])
		f.Add(a, a+"/b")
	}
	const dir = "/locks"
	b := &files{dir: dir}
	f.Fuzz(func(t *testing.T, k, l string) {
		if backend.ValidateKey(k) != nil || backend.ValidateKey(l) != nil {
			return
		}
		x, y := b.placeOf(k), b.placeOf(l)
		assert.Equal(t, k == l, strings.EqualFold(x.record(), y.record()), "%q and %q", k, l)
		paths := []string{x.record(), x.guard, x.token, x.temp}
		others := []string{y.record(), y.guard, y.token, y.temp}
		for i, p := range paths {
			rel, err := filepath.Rel(dir, p)
			assert.NoError(t, err)
			assert.True(t, filepath.IsLocal(rel) && filepath.Clean(p) == p, "%q", p)
			assert.LessOrEqual(t, len(filepath.Base(p)), 80)
			assert.Empty(t, strings.Trim(rel, "abcdefghijklmnopqrstuvwxyz0123456789./"), "%q", rel)
			for j, o := range others {
				assert.False(t, strings.HasPrefix(o, p+string(filepath.Separator)), "%q is above %q", p, o)
				if i != j {
					assert.NotEqual(t, p, o)
				}
			}
		}
		assert.Equal(t, k, x.key)
	})
}
