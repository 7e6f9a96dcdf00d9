package faultlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// ErrInjected is matched by every error that a fault made, so that a test can tell
// it from a real one. Errors of leases and Lockers match it where they wrap the
// error of the backend.
var ErrInjected = errors.New("faultlock: injected fault")

// Fault is what happens to one call. The zero value is [Pass]. Whether the request
// was applied on the server is part of each fault; what the caller learns of it is
// another part.
type Fault struct {
	kind  kind
	delay time.Duration
	err   error
	deaf  bool // does not end with its context
}

type kind uint8

const (
	pass kind = iota
	failBefore
	drop
	failAfter
	delayBefore
	delayAfter
	duplicate
	applyLate
	hangBefore
	hangAfter
)

var names = [...]string{
	pass: "pass", failBefore: "fail before", drop: "drop", failAfter: "fail after",
	delayBefore: "delay before", delayAfter: "delay after", duplicate: "duplicate",
	applyLate: "apply late", hangBefore: "hang before", hangAfter: "hang after",
}

// Pass lets the call through. In a list of rules it stands for a call that is
// left alone; it is not recorded.
func Pass() Fault { return Fault{} }

// FailBefore refuses the call at once, as a server does that is not there. Nothing
// is applied, and the caller knows: the error matches backend.ErrUnavailable.
func FailBefore() Fault { return Fault{kind: failBefore} }

// Drop loses the request. Nothing is applied, and the caller cannot know: the
// outcome is unknown.
func Drop() Fault { return Fault{kind: drop} }

// FailAfter applies the request and loses the answer, whatever it was. The outcome
// is unknown to the caller. This is the fault that programs forget.
func FailAfter() Fault { return Fault{kind: failAfter} }

// DelayBefore sends the request only after d. If the context ends earlier, nothing
// is applied, and the caller cannot know.
func DelayBefore(d time.Duration) Fault { return Fault{kind: delayBefore, delay: d} }

// DelayAfter applies the request at once and gives the answer after d. If the
// context ends earlier, the answer is lost.
func DelayAfter(d time.Duration) Fault { return Fault{kind: delayAfter, delay: d} }

// Duplicate applies the request twice, as a client library does that repeats it. The
// answer is the first one, unless that is an error and the second one is not: a try that
// was refused, and whose copy is granted a moment later, is granted. What is not a
// request that can be repeated (OpEnqueue, OpWait, OpWatch, OpInspect) passes.
func Duplicate() Fault { return Fault{kind: duplicate} }

// ApplyLate loses the answer at once, and applies the request after d: a packet
// that was on its way for long, which may arrive after the clean-up that was sent
// behind it. The outcome is unknown to the caller; what the server answers in the
// end is in the log only. For OpWait, OpWatch and OpInspect, which nobody is there
// for any more, it is Drop; a late OpEnqueue gives its place up at once.
func ApplyLate(d time.Duration) Fault { return Fault{kind: applyLate, delay: d} }

// HangBefore holds the request back until [Faults.Heal] lets it go, or until the
// context or the backend ends: then nothing is applied, and the caller cannot know.
func HangBefore() Fault { return Fault{kind: hangBefore} }

// HangAfter applies the request at once and holds the answer back until
// [Faults.Heal] lets it go, or until the context or the backend ends: then it is
// lost.
func HangAfter() Fault { return Fault{kind: hangAfter} }

// WithError returns the fault with another error for the caller. It panics for a
// fault that has no error of its own (only FailBefore, Drop, FailAfter and
// ApplyLate have), for a nil error, and for an error that would be a lie: one that
// promises that nothing was applied (the package comment of backend lists them)
// from a fault that applies the request.
//
// An error of [FailBefore] may be any answer of a server: with
// backend.ErrTakenOver a renewal tells its holder that the lease is lost, with
// backend.ErrPermanent an acquisition ends at once.
func (f Fault) WithError(err error) Fault {
	switch f.kind {
	case failBefore, drop:
	case failAfter, applyLate:
		if promisesNothing(err) {
			panic(fmt.Sprintf("faultlock: %s with the error %q would be a lie: the error promises that nothing was applied", f, err))
		}
	default:
		panic(fmt.Sprintf("faultlock: %s has no error of its own", f))
	}
	if err == nil {
		panic(fmt.Sprintf("faultlock: %s with a nil error", f))
	}
	f.err = err
	return f
}

// IgnoringContext returns the fault so that it lasts although its context has ended,
// as in client libraries that don't look at the context of a request in flight: the
// request is sent, and the answer given, to a caller who may be gone. It is for
// DelayBefore, DelayAfter, HangBefore and HangAfter, and panics for others. An
// OpWatch ends with its context all the same.
func (f Fault) IgnoringContext() Fault {
	switch f.kind {
	case delayBefore, delayAfter, hangBefore, hangAfter:
	default:
		panic(fmt.Sprintf("faultlock: %s does not wait for anything", f))
	}
	f.deaf = true
	return f
}

// promisesNothing reports whether a backend that returns the error says that the
// request was not applied.
func promisesNothing(err error) bool {
	if errors.Is(err, backend.ErrOutcomeUnknown) {
		return false
	}
	for _, known := range []error{
		backend.ErrHeld, backend.ErrNotHeld, backend.ErrUnavailable, backend.ErrPermanent,
		backend.ErrInvalid, backend.ErrUnsupported, backend.ErrTooManyHolds,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// String is the name of the fault with its duration and error, such as
// "apply late (2s)".
func (f Fault) String() string {
	name := f.name()
	if f.takesTime() {
		name += fmt.Sprintf(" (%s)", f.delay)
	}
	if f.deaf {
		name += " ignoring the context"
	}
	if f.err != nil {
		name += fmt.Sprintf(" with %q", f.err)
	}
	return name
}

func (f Fault) name() string { return names[f.kind] }

// takesTime reports whether the fault has a duration.
func (f Fault) takesTime() bool {
	return f.kind == delayBefore || f.kind == delayAfter || f.kind == applyLate
}

// hangs reports whether the fault lasts until something else ends it.
func (f Fault) hangs() bool { return f.kind == hangBefore || f.kind == hangAfter }

// injected is the error of a fault.
type injected struct {
	text string
	err  error // or nil
}

func (e *injected) Error() string {
	if e.err == nil {
		return e.text
	}
	return e.text + ": " + e.err.Error()
}
func (e *injected) Is(target error) bool { return target == ErrInjected }
func (e *injected) Unwrap() error        { return e.err }

// failure is the error for the caller whose request or answer was lost or refused.
func (f Fault) failure(op Op, key string) error {
	err := f.err
	what := "was lost"
	switch f.kind {
	case failBefore:
		what = "was refused"
		if err == nil {
			err = backend.ErrUnavailable
		}
	case failAfter:
		what = "got no answer"
	case applyLate:
		what = "is late"
	}
	return &injected{fmt.Sprintf("%v: the %s of %q %s", ErrInjected, op, key, what), err}
}

// interrupted is the error for the caller whose wait for the answer ended early.
func (f Fault) interrupted(op Op, key string, err error) error {
	if err == backend.ErrClosed {
		return err
	}
	return &injected{fmt.Sprintf("%v: no answer to the %s of %q (%s)", ErrInjected, op, key, f), err}
}

// lasts is for how long the fault holds a call up; zero stands for ever.
func (f Fault) lasts() time.Duration {
	if f.hangs() {
		return 0
	}
	return max(f.delay, 1)
}
