package backend_test

import (
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

// What a holder calls itself goes to other people's terminals.
func TestHolderIsPrintable(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"\x1b]0;mine\x07", "a\nb", "\x9b31m", "\u202egnp.exe", "\x00", "db1"} {
		h := backend.Holder{Host: text, Label: text, PID: 1}
		err := &backend.HeldError{Key: "k", Holder: h}
		for _, out := range []string{h.String(), err.Error()} {
			for _, r := range out {
				assert.True(t, unicode.IsPrint(r) && r != unicode.ReplacementChar, "%q in %q", r, out)
			}
		}
	}
	assert.Equal(t, "host db1, pid 7", backend.Holder{Host: "db1", PID: 7}.String())
}
