package etcdlock

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

// FuzzNames: the names of an acquisition are in the range of its key and of no other,
// and the key can be read from them; what is read from any name leads back to it.
func FuzzNames(f *testing.F) {
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a/", "/a", "/", "a0", "a.", "a//b", "%", "%2", "%2F", "%2f", "%25", "%252F", "a%2Fb", "%%", "ä", "a\u0308", "..", "a/..",
		"\U0001f512", "\ufffd", "\u200b", "sessions/1", "keys/a", strings.Repeat("x", 512), strings.Repeat("/", 512),
	}
	for i, a := range keys {
		f.Add(defaultPrefix, a, keys[(i+1)%len(keys)], "0123456789abcdef-0-0")
		f.Add("", a, a+"/", a)
		f.Add("keys/", a, a, "")
	}
	f.Fuzz(func(t *testing.T, prefix, a, b, end string) {
		if key, ok := keyOf(prefix, prefix+"keys/"+end); ok {
			assert.NoError(t, backend.ValidateKey(key))
			assert.True(t, strings.HasPrefix(prefix+"keys/"+end, namesOf(prefix, key).dir), "%q is no name of %q", end, key)
		}
		if backend.ValidateKey(a) != nil || backend.ValidateKey(b) != nil || strings.Contains(end, "/") {
			return
		}
		x, y := namesOf(prefix, a), namesOf(prefix, b)
		name := x.dir + end
		assert.True(t, x.dir <= name && name < x.end, "%q is not in its own range", name)
		assert.Equal(t, a == b, y.dir <= name && name < y.end, "%q and the range of %q", name, b)
		key, ok := keyOf(prefix, name)
		assert.True(t, ok && key == a, "%q is the key of %q, not %q", key, name, a)
		fence := fenceName(prefix, 7)
		assert.False(t, x.dir <= fence && fence < x.end, "a session in the range of %q", a)
	})
}
