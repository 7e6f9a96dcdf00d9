package backend

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
)

// ID names one acquisition: 128 random bits, never reused. Who knows an ID can
// release its hold, so it is a secret: every way of printing it shows a
// placeholder, and only [ID.Hex] reveals it, for the server.
type ID [16]byte

// NewID returns a fresh random ID. It does not fail: crypto/rand ends the
// program when the system has no randomness.
func NewID() ID {
	random.mu.Lock()
	defer random.mu.Unlock()
	if len(random.left) == 0 {
		_, _ = rand.Read(random.bytes[:])
		random.left = random.bytes[:]
	}
	id := ID(random.left)
	clear(random.left[:len(id)])
	random.left = random.left[len(id):]
	return id
}

// random are the bytes of the next IDs: to ask the system for each of them would be a
// twentieth of an acquisition in memory.
var random struct {
	mu    sync.Mutex
	bytes [32 * len(ID{})]byte
	left  []byte
}

// Hex is the ID as 32 lower-case hexadecimal digits. Send it to the server, and
// to nobody else.
func (id ID) Hex() string { return hex.EncodeToString(id[:]) }

// ParseID reads what [ID.Hex] wrote.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*len(id) {
		return ID{}, fmt.Errorf("%w: an acquisition id has %d hexadecimal digits", ErrInvalid, 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("%w: an acquisition id has hexadecimal digits only", ErrInvalid)
	}
	return id, nil
}

// IsZero reports whether the ID was never set.
func (id ID) IsZero() bool { return id == ID{} }

// Format prints a placeholder for every verb, so that an ID never reaches a
// log.
func (id ID) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[acquisition id]")) }

// MarshalText writes the same placeholder, so that an ID never reaches a JSON
// document by accident.
func (id ID) MarshalText() ([]byte, error) { return []byte("[acquisition id]"), nil }
