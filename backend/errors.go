package backend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The errors of every backend, matched with errors.Is. The lock package exports
// them under the same names.
var (
	// ErrHeld: somebody else holds the key. Nothing was changed. errors.As with
	// a *HeldError gives what is known of the holder.
	ErrHeld = errors.New("lock: held by another owner")

	// ErrNotHeld: the hold does not exist: it was released, it expired, or it was
	// never granted. Nothing was changed.
	ErrNotHeld = errors.New("lock: not held")

	// ErrLost: the hold ended before it was released. Every loss also matches
	// ErrNotHeld, and one of ErrExpired, ErrTakenOver, ErrSessionLost or
	// ErrMaxHold where the cause is known.
	ErrLost = error(&lossError{"lock: the hold was lost"})

	// ErrExpired: no renewal was confirmed before the deadline of the hold.
	ErrExpired = error(&lossError{"lock: the hold expired before a renewal was confirmed"})

	// ErrTakenOver: the record was removed or replaced on the server before its
	// time, by an operator, by eviction, or by loss of the server's data.
	ErrTakenOver = error(&lossError{"lock: the hold was removed or taken over on the server"})

	// ErrSessionLost: the session or connection that the hold lived on has ended.
	ErrSessionLost = error(&lossError{"lock: the session of the hold has ended"})

	// ErrMaxHold: the hold reached the limit that its owner set for it.
	ErrMaxHold = error(&lossError{"lock: the hold reached its maximum duration"})

	// ErrOutcomeUnknown: the request may or may not have taken effect. The lock
	// package cleans up after it, and repeating the call is safe.
	ErrOutcomeUnknown = errors.New("lock: outcome unknown")

	// ErrNotSent: the context of the call ended before anything was sent, so that
	// there is nothing to clean up. It comes with the error of the context. A backend
	// that can't be sure leaves it out, and the outcome is unknown.
	ErrNotSent = errors.New("lock: nothing was sent")

	// ErrUnavailable: the server could not be reached, or refuses writes for now.
	// Nothing was changed; trying again later can help.
	ErrUnavailable = errors.New("lock: server unavailable")

	// ErrPermanent: the server refused for a reason that waiting does not cure:
	// authentication, missing permission, foreign data under our name, a wrong
	// schema. Nothing was changed.
	ErrPermanent = errors.New("lock: refused for good")

	// ErrInvalid: a key, a TTL, an option or a URL is not acceptable. Nothing was
	// sent.
	ErrInvalid = errors.New("lock: invalid")

	// ErrUnsupported: this backend cannot do what was asked. Nothing was sent.
	ErrUnsupported = errors.New("lock: not supported by this backend")

	// ErrTooManyHolds: the owner already has MaxHolds holds on the key. Nothing
	// was changed.
	ErrTooManyHolds = fmt.Errorf("lock: the owner has %d holds on this key, the most there can be; release one first", MaxHolds)

	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("lock: closed")
)

// lossError is a cause of loss. It matches itself, ErrLost and ErrNotHeld.
type lossError struct{ text string }

func (e *lossError) Error() string { return e.text }

func (e *lossError) Is(target error) bool { return target == ErrLost || target == ErrNotHeld }

// Holder is the public part of a record: what its holder wanted others to know.
// Unknown fields are zero. It contains no secret.
type Holder struct {
	// Label is the text given with WithLabel for the outermost hold. It stays until the
	// last hold of the record has ended.
	Label string `json:"label,omitempty"`
	// Host and PID name the process that took the outermost hold.
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Since is when the outermost hold was granted, on the server's clock where
	// the server has one, else on the holder's. Where the server has a queue, it may be
	// when the holder took its place there.
	Since time.Time `json:"since,omitzero"`
	// PairID is a random text for a lease that is held in two stores, the same in both, and
	// empty for any other.
	PairID string `json:"pair,omitempty"`
}

// String describes the holder for people, for example `"backup" (host db1, pid
// 312) since 2026-11-20T22:04:05Z`, and says "an unnamed holder" when nothing is
// known. What a terminal would not print is quoted.
func (h Holder) String() string {
	var b strings.Builder
	if h.Label != "" {
		fmt.Fprintf(&b, "%q", h.Label)
	}
	var at []string
	if h.Host != "" {
		at = append(at, "host "+printable(h.Host))
	}
	if h.PID != 0 {
		at = append(at, fmt.Sprintf("pid %d", h.PID))
	}
	if len(at) > 0 {
		if b.Len() > 0 {
			b.WriteString(" (" + strings.Join(at, ", ") + ")")
		} else {
			b.WriteString(strings.Join(at, ", "))
		}
	}
	if b.Len() == 0 {
		b.WriteString("an unnamed holder")
	}
	if !h.Since.IsZero() {
		b.WriteString(" since " + h.Since.UTC().Format(time.RFC3339))
	}
	return b.String()
}

// printable returns the text as it is, or quoted where it has something in it that a
// terminal does not print, such as an escape sequence.
func printable(text string) string {
	unprinted := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, unprinted) {
		return text
	}
	return strconv.Quote(text)
}

// Record is what an [Inspector] shows of a key.
type Record struct {
	Key     string `json:"key"`
	Token   uint64 `json:"token"`
	Holds   int    `json:"holds"`
	Waiters int    `json:"waiters"` // -1 where the server cannot know
	// Remaining is how long the hold lasts at most if it is not renewed, more than zero.
	Remaining time.Duration `json:"-"`
	Holder    Holder        `json:"holder"`
	// Revoked: the hold was ended by [Revoker], and is neither renewed nor entered any
	// more. It keeps others out for Remaining, or shorter.
	Revoked bool `json:"revoked,omitempty"`
}

// HeldError is a refusal with what the server knows about the holder. It matches
// [ErrHeld].
type HeldError struct {
	Key    string
	Holder Holder
	// Remaining is how long the hold lasts at most if it is not renewed. It is
	// zero when unknown, and never negative.
	Remaining time.Duration
}

// Error names the key, the holder and the remaining time, as far as known.
func (e *HeldError) Error() string {
	s := fmt.Sprintf("lock: %q is held by %s", e.Key, e.Holder)
	if e.Remaining > 0 {
		s += fmt.Sprintf(", for another %s unless renewed", e.Remaining.Round(time.Millisecond))
	}
	return s
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }
