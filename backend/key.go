package backend

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxKey is the longest key in bytes, the same on every backend.
const MaxKey = 512

// MaxOwner is the longest owner in bytes.
const MaxOwner = 256

// MaxHolds is the largest number of holds that one owner can have on a key.
const MaxHolds = 64

// ValidateKey accepts 1 to [MaxKey] bytes of valid UTF-8 without control
// characters and refuses everything else with an error matching [ErrInvalid].
// Every byte of a key is significant.
func ValidateKey(key string) error { return validateName("key", key, MaxKey) }

// ValidateOwner accepts 1 to [MaxOwner] bytes of valid UTF-8 without control
// characters. The error matches [ErrInvalid] and does not contain the owner.
func ValidateOwner(owner string) error { return validateName("owner", owner, MaxOwner) }

// ValidateLabel accepts what ValidateOwner accepts, for the public label of a
// holder.
func ValidateLabel(label string) error { return validateName("label", label, MaxOwner) }

func validateName(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalid, what)
	case len(s) > limit:
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed; use a hash of it", ErrInvalid, what, len(s), limit)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: the %s is not valid UTF-8; encode it, for example in hexadecimal", ErrInvalid, what)
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: the %s has a control character (U+%04X) at byte %d", ErrInvalid, what, r, i)
		}
	}
	return nil
}
