package wire

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mortiselock/lock/backend"
)

const (
	// MinTTL leaves 97 ms after the drift allowance, which is several round
	// trips of a network.
	MinTTL = 100 * time.Millisecond
	// MaxTTL is the longest TTL, unless there is a reason for a shorter one.
	MaxTTL = 30 * 24 * time.Hour
)

// MaxPrefix is how long what begins every Redis key may be, in bytes.
const MaxPrefix = 128

// CheckPrefix refuses a prefix with an error matching backend.ErrInvalid.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxPrefix || !utf8.ValidString(prefix) || strings.ContainsFunc(prefix, unicode.IsControl) {
		return fmt.Errorf("%w: the prefix must be at most %d bytes of valid UTF-8 without control characters", backend.ErrInvalid, MaxPrefix)
	}
	return nil
}
