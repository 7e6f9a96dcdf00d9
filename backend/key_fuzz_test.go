package backend_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

// FuzzValidateKey: the accepted keys are those of 1 to 512 bytes of valid UTF-8
// without control characters, and no error repeats what it refuses.
func FuzzValidateKey(f *testing.F) {
	for _, key := range []string{
		"", "a", "a/b", "a ", "\u00e9", "e\u0301", "\U0001f512", "{tag}", "%_*", "..", "\u200b", "\ufeffa", "\ufffd", "\x00", "a\nb", "\x7f", "\u0085",
		"\xff\xfe", "\xe2\x82", "\xed\xa0\x80", "\xc0\xaf", "\x1b[2J", strings.Repeat("x", 512), strings.Repeat("x", 513), strings.Repeat("\u20ac", 171),
	} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		want := len(key) >= 1 && len(key) <= 512 && utf8.ValidString(key)
		for _, r := range key {
			want = want && !unicode.Is(unicode.Cc, r)
		}
		err := backend.ValidateKey(key)
		if want {
			assert.NoError(t, err)
			return
		}
		assert.ErrorIs(t, err, backend.ErrInvalid)
		if err != nil {
			assert.True(t, utf8.ValidString(err.Error()))
			assert.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "%q", err)
		}
	})
}
