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

// failure is one broken expectation.
type failure struct {
	text   string
	key    string // whose calls are shown
	excuse excuse
	gone   string // which hold had run out that it rests on
	proof  bool   // holds whatever else went wrong in the case
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

// failf records a broken rule and goes on. The key selects the calls that are shown, and
// the holds that it rests on; the empty key shows all, and rests on none.
func (e *env) failf(key, format string, args ...any) { e.fail(excuse{}, key, format, args...) }

// fatalf is failf, and ends the case.
func (e *env) fatalf(key, format string, args ...any) {
	e.fail(excuse{}, key, format, args...)
	panic(abort{})
}

// latef records that something came too late or ended too early, which counts only if
// nothing was held up for a good part of a TTL.
func (e *env) latef(key, format string, args ...any) { e.fail(e.timely(), key, format, args...) }

// lateFatalf is latef, and ends the case.
func (e *env) lateFatalf(key, format string, args ...any) {
	e.fail(e.timely(), key, format, args...)
	panic(abort{})
}

// overduef records that something had not happened when a control timer with slack
// fired, which counts unless something was held up for long.
func (e *env) overduef(key, format string, args ...any) { e.fail(e.patient(), key, format, args...) }

// overdueFatalf is overduef, and ends the case.
func (e *env) overdueFatalf(key, format string, args ...any) {
	e.fail(e.patient(), key, format, args...)
	panic(abort{})
}

// unexpected is failf for an error that should have been another one, or none. A server
// that did not answer in time, and a lease that ran out, are late.
func (e *env) unexpected(key string, err error, format string, args ...any) {
	e.fail(e.excuseFor(err), key, format, args...)
}

// unexpectedFatal is unexpected, and ends the case.
func (e *env) unexpectedFatal(key string, err error, format string, args ...any) {
	e.fail(e.excuseFor(err), key, format, args...)
	panic(abort{})
}

func (e *env) excuseFor(err error) excuse {
	switch {
	case noAnswer(err):
		return excuse{min(e.timely().from, usualTimeout), anyAnswer}
	case errors.Is(err, lock.ErrExpired), errors.Is(err, context.Canceled):
		return e.timely()
	}
	return excuse{}
}

// untypedError is an error of a backend that matches none of the lock package: its outcome
// is unknown, by the contract.
type untypedError struct{ error }

func (e untypedError) Unwrap() error { return e.error }

func untyped(err error) error {
	for _, n := range errorNames {
		if errors.Is(err, n.err) {
			return err
		}
	}
	if err == nil {
		return nil
	}
	return untypedError{err}
}

// noAnswer reports whether the error says that the server did not answer in time.
func noAnswer(err error) bool {
	if errors.As(err, new(untypedError)) {
		return true
	}
	if errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrOutcomeUnknown) {
		return false // it has answered
	}
	for _, x := range []error{lock.ErrUnavailable, lock.ErrOutcomeUnknown, context.DeadlineExceeded, os.ErrDeadlineExceeded} {
		if errors.Is(err, x) {
			return true
		}
	}
	return false
}

func (e *env) fail(excuse excuse, key, format string, args ...any) {
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
	if !f.proof && f.key != "" {
		e.doubt(&f)
	}
	f.text = fmt.Sprintf("at %s: %s", seconds(now), text)
	f.like = figures.ReplaceAllString(text, "")
	calls := snapshot{at: now, text: e.hist.until(f.key, when)}
	if when >= 0 {
		calls.at = when
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// What a case sees after its caller has given up is the giving up.
	if !f.proof && (e.sealed || e.caller.Err() != nil) {
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
