package zklock

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/mortiselock/lock/backend"
)

// encodeKey makes one path element of a key: everything but letters, digits, minus,
// underscore and inner dots is written as percent and two hexadecimal digits. No two
// keys have the same element, and none is a path of another.
func encodeKey(key string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(key) + 16)
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// decodeKey is the key of an element that encodeKey wrote, and false for others.
func decodeKey(element string) (string, bool) {
	var b strings.Builder
	b.Grow(len(element))
	for rest := element; rest != ""; {
		if rest[0] != '%' {
			b.WriteByte(rest[0])
			rest = rest[1:]
			continue
		}
		if len(rest) < 3 {
			return "", false
		}
		c, err := strconv.ParseUint(rest[1:3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		rest = rest[3:]
	}
	key := b.String()
	return key, backend.ValidateKey(key) == nil && encodeKey(key) == element
}

// The node of an acquisition is called m1-ID-SEQUENCE. ID is a hash of the
// acquisition id, which is a secret while names are not, and by it a node is found
// whose creation was not confirmed. The server appends the sequence.
const (
	nodeMark = "m1-"
	idDigits = 32
	nodeHead = len(nodeMark) + idDigits + 1
)

// nodeName is the name of the acquisition's node without its sequence.
func nodeName(id backend.ID) string {
	sum := sha256.Sum256([]byte("mortise node " + id.Hex()))
	return nodeMark + hex.EncodeToString(sum[:idDigits/2]) + "-"
}

// sequenceOf reads the sequence off a node's name, and is false for the names of
// others, which are ignored. The server writes a signed number of 32 bits, so that
// after the largest comes the smallest: m1-...--2147483648.
func sequenceOf(name string) (int32, bool) {
	if len(name) <= nodeHead || !strings.HasPrefix(name, nodeMark) || name[nodeHead-1] != '-' {
		return 0, false
	}
	for _, c := range name[len(nodeMark) : nodeHead-1] {
		if !strings.ContainsRune("0123456789abcdef", c) {
			return 0, false
		}
	}
	digits := name[nodeHead:]
	if len(digits) < 10 || strings.Trim(digits[1:], "0123456789") != "" || digits[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	return int32(n), err == nil
}

// before reports whether sequence a was given out before b. The numbers wrap
// around; those that are alive at one time lie far closer than half of them.
func before(a, b int32) bool { return a-b < 0 }

// place is a node among the children of a key.
type place struct {
	name     string
	sequence int32
}

// first is the place that is due, and the number of all. Children of others are
// ignored.
func first(children []string) (p place, n int) {
	for _, name := range children {
		if seq, ok := sequenceOf(name); ok {
			if n++; n == 1 || before(seq, p.sequence) {
				p = place{name, seq}
			}
		}
	}
	return p, n
}

// ahead is what is before a node: how many places, and the last two of them.
type ahead struct {
	n            int
	last, second place
}

// aheadOf looks for what is before the node with the name. found is false when the
// node itself is not there.
func aheadOf(children []string, name string) (a ahead, found bool) {
	own, ok := sequenceOf(name)
	if !ok {
		return a, false
	}
	for _, c := range children {
		seq, ok := sequenceOf(c)
		if c == name {
			found = true
			continue
		}
		if !ok || !before(seq, own) {
			continue
		}
		a.n++
		p := place{c, seq}
		if a.n == 1 || before(a.last.sequence, seq) {
			a.last, p = p, a.last
		}
		if a.n == 2 || a.n > 2 && before(a.second.sequence, p.sequence) {
			a.second = p
		}
	}
	return a, found
}

// named finds the node of an acquisition by its name without the sequence.
func named(children []string, name string) (string, bool) {
	for _, c := range children {
		if _, ok := sequenceOf(c); ok && strings.HasPrefix(c, name) {
			return c, true
		}
	}
	return "", false
}
