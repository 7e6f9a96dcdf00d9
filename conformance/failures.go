package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mortiselock/lock"
)

// failure is one broken expectation. A late one may be the fault of a machine
// that stood still.
type failure struct {
	text string
	key  string // whose calls are shown
	// excuse is how long the machine must have stood still for the failure to be
	// its fault, or zero when nothing excuses it.
	excuse time.Duration
	proof  bool // holds whatever else went wrong in the case
	like   string
	more   int // that are like it, and are counted only
}

// snapshot is the calls on a key as they were at some time.
type snapshot struct {
	at   time.Duration
	text string
}

// mostFailures is how many different ones the evidence tells of. Proofs come on top.
const mostFailures = 3

var figures = regexp.MustCompile(`[0-9][0-9.]*`)

// excused reports whether the failures may be the fault of a machine that stood
// still for so long: the first one may, and the others followed from it.
func (e *env) excused(stalled time.Duration) bool {
	for i, f := range e.failures {
		if f.proof || i == 0 && (f.excuse == 0 || f.excuse > stalled) {
			return false
		}
	}
	return true
}

// failf records a broken rule and goes on. The key selects the calls that are
// shown; the empty key shows all.
func (e *env) failf(key, format string, args ...any) { e.fail(0, key, format, args...) }

// fatalf is failf, and ends the case.
func (e *env) fatalf(key, format string, args ...any) {
	e.fail(0, key, format, args...)
	panic(abort{})
}

// latef records that something came too late or ended too early, which is a
// broken rule unless the machine stood still: the case is then repeated.
func (e *env) latef(key, format string, args ...any) { e.fail(stallLeast, key, format, args...) }

// lateFatalf is latef, and ends the case.
func (e *env) lateFatalf(key, format string, args ...any) {
	e.fail(stallLeast, key, format, args...)
	panic(abort{})
}

// overduef records that something had not happened when a control timer with
// slack fired. Only a long stall excuses that.
func (e *env) overduef(key, format string, args ...any) { e.fail(stallLong, key, format, args...) }

// overdueFatalf is overduef, and ends the case.
func (e *env) overdueFatalf(key, format string, args ...any) {
	e.fail(stallLong, key, format, args...)
	panic(abort{})
}

// unexpected is failf for an error that should have been another one, or none.
// A server that did not answer in time, and a lease that ran out, may be the
// fault of a machine that stood still.
func (e *env) unexpected(key string, err error, format string, args ...any) {
	e.fail(slow(err), key, format, args...)
}

// unexpectedFatal is unexpected, and ends the case.
func (e *env) unexpectedFatal(key string, err error, format string, args ...any) {
	e.fail(slow(err), key, format, args...)
	panic(abort{})
}

func slow(err error) time.Duration {
	for _, x := range []error{lock.ErrUnavailable, lock.ErrOutcomeUnknown, lock.ErrExpired, context.DeadlineExceeded, context.Canceled, os.ErrDeadlineExceeded} {
		if errors.Is(err, x) {
			return stallLeast
		}
	}
	return 0
}

func (e *env) fail(excuse time.Duration, key, format string, args ...any) {
	e.addFailure(-1, failure{key: key, excuse: excuse}, format, args...)
}

// proofAt records a broken rule that nothing excuses, not even what went wrong
// before, and shows the calls up to that time.
func (e *env) proofAt(when time.Duration, key, format string, args ...any) {
	e.addFailure(when, failure{key: key, proof: true}, format, args...)
}

func (e *env) addFailure(when time.Duration, f failure, format string, args ...any) {
	text := e.hist.brief(fmt.Sprintf(format, args...))
	now := e.hist.now()
	f.text = fmt.Sprintf("at %s: %s", seconds(now), text)
	f.like = figures.ReplaceAllString(text, "")
	calls := snapshot{at: now, text: e.hist.until(f.key, when)}
	if when >= 0 {
		calls.at = when
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed && !f.proof {
		return
	}
	if i := slices.IndexFunc(e.failures, func(g failure) bool { return g.like == f.like }); i >= 0 {
		e.failures[i].more++
		e.failures[i].proof = e.failures[i].proof || f.proof
		return
	}
	if len(e.failures) >= mostFailures && (!f.proof || slices.ContainsFunc(e.failures, func(g failure) bool { return g.proof })) {
		return
	}
	e.failures = append(e.failures, f)
	if calls.at >= e.calls[f.key].at {
		e.calls[f.key] = calls
	}
}

// evidence is the failures, and after them the calls on the keys that they are
// about. The mutex is held.
func (e *env) evidence() string {
	var parts []string
	for _, f := range e.failures {
		if f.more > 0 {
			f.text += fmt.Sprintf(" (and %d more like this)", f.more)
		}
		parts = append(parts, f.text)
	}
	shown := map[string]bool{}
	for _, f := range e.failures {
		if !shown[f.key] {
			parts = append(parts, e.calls[f.key].text)
		}
		shown[f.key] = true
	}
	return strings.Join(parts, "\n")
}

// is fails the case unless the error matches all of the targets.
func (e *env) is(key string, err error, what string, targets ...error) {
	for _, t := range targets {
		if !errors.Is(err, t) {
			e.unexpected(key, err, "%s returned %s; expected an error that matches %s", what, outcome(err), errorName(t))
			return
		}
	}
}

var errorNames = []struct {
	err  error
	name string
}{
	{lock.ErrExpired, "ErrExpired"}, {lock.ErrTakenOver, "ErrTakenOver"}, {lock.ErrSessionLost, "ErrSessionLost"},
	{lock.ErrMaxHold, "ErrMaxHold"}, {lock.ErrLost, "ErrLost"}, {lock.ErrHeld, "ErrHeld"}, {lock.ErrNotHeld, "ErrNotHeld"},
	{lock.ErrOutcomeUnknown, "ErrOutcomeUnknown"}, {lock.ErrUnavailable, "ErrUnavailable"}, {lock.ErrPermanent, "ErrPermanent"},
	{lock.ErrInvalid, "ErrInvalid"}, {lock.ErrUnsupported, "ErrUnsupported"}, {lock.ErrClosed, "ErrClosed"},
	{lock.ErrReleased, "ErrReleased"}, {lock.ErrTooManyHolds, "ErrTooManyHolds"}, {context.Canceled, "context.Canceled"}, {context.DeadlineExceeded, "context.DeadlineExceeded"},
}

func errorName(err error) string {
	for _, n := range errorNames {
		if err == n.err {
			return n.name
		}
	}
	return fmt.Sprintf("%q", err)
}

// outcome describes an error with the sentinels that it matches.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	var matched []string
	for _, n := range errorNames {
		if errors.Is(err, n.err) {
			matched = append(matched, n.name)
		}
	}
	if len(matched) == 0 {
		return fmt.Sprintf("error %q (matches no error of package lock)", err)
	}
	return fmt.Sprintf("error %q (matches %s)", err, strings.Join(matched, ", "))
}
