package engine

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
	excuse Excuse
	gone   string // which hold had run out that it rests on
	unkept bool   // nothing was to keep it
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

// Failf records a broken rule and goes on. The key selects the calls that are shown, and
// the holds that it rests on; the empty key shows all, and rests on none.
func (e *Env) Failf(key, format string, args ...any) { e.Fail(Excuse{}, key, format, args...) }

// Fatalf is Failf, and ends the case.
func (e *Env) Fatalf(key, format string, args ...any) {
	e.Fail(Excuse{}, key, format, args...)
	panic(Abort{})
}

// Latef records that something came too late or ended too early, which counts only if
// nothing was held up for a good part of a TTL.
func (e *Env) Latef(key, format string, args ...any) { e.Fail(e.Timely(), key, format, args...) }

// LateFatalf is Latef, and ends the case.
func (e *Env) LateFatalf(key, format string, args ...any) {
	e.Fail(e.Timely(), key, format, args...)
	panic(Abort{})
}

// Overduef records that something had not happened when a control timer with slack
// fired, which counts unless something was held up for long.
func (e *Env) Overduef(key, format string, args ...any) {
	e.addFailure(-1, e.overdue(key), format, args...)
}

// OverdueFatalf is Overduef, and ends the case.
func (e *Env) OverdueFatalf(key, format string, args ...any) {
	e.addFailure(-1, e.overdue(key), format, args...)
	panic(Abort{})
}

func (e *Env) overdue(key string) failure {
	f := failure{key: key, excuse: e.patient()}
	// Many short stalls may hold up what takes many steps, and none of them is long.
	slack := e.Slack()
	if stood := e.stalls.during(slack); stood >= slack/3 {
		f.gone = fmt.Sprintf("this process stood still for %s of the last %s", stood.Round(time.Millisecond), slack)
	}
	return f
}

// Unexpected is Failf for an error that should have been another one, or none. A server
// that did not answer in time, and a lease that ran out, are late.
func (e *Env) Unexpected(key string, err error, format string, args ...any) {
	e.Fail(e.excuseFor(err), key, format+"%s", append(args, e.unsaid(err))...)
}

// unsaid is why an option was given that the lock refuses, where it does not say what it has.
func (e *Env) unsaid(err error) string {
	if e.Says || e.Guarantees != nil || !errors.Is(err, lock.ErrUnsupported) {
		return ""
	}
	return " (the lock has no guarantees, so that its options are taken to work; one with a TTL of its own says so in Config.Guarantees: MinTTL and MaxTTL)"
}

// UnexpectedFatal is Unexpected, and ends the case.
func (e *Env) UnexpectedFatal(key string, err error, format string, args ...any) {
	e.Unexpected(key, err, format, args...)
	panic(Abort{})
}

// UnexpectedLate is Unexpected for what may have come too late, as in Latef.
func (e *Env) UnexpectedLate(key string, err error, format string, args ...any) {
	excuse := e.Timely()
	if noAnswer(err) {
		excuse = e.excuseFor(err)
	}
	e.Fail(excuse, key, format, args...)
}

// UnexpectedLateFatal is UnexpectedLate, and ends the case.
func (e *Env) UnexpectedLateFatal(key string, err error, format string, args ...any) {
	e.UnexpectedLate(key, err, format, args...)
	panic(Abort{})
}

func (e *Env) excuseFor(err error) Excuse {
	switch {
	case noAnswer(err):
		e.suspect()
		return Excuse{min(e.Timely().From, usualTimeout), anyAnswer}
	case errors.Is(err, lock.ErrExpired), errors.Is(err, context.Canceled):
		return e.Timely()
	}
	return Excuse{}
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

// Undisturbed takes note of a call that took so long and failed, and that was made past the
// clients of the suite, which note that of theirs.
func (e *Env) Undisturbed(took time.Duration, err error) {
	if noAnswer(err) {
		e.Log.unanswered(took)
	}
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

// Fail records a broken rule, which counts unless the excuse holds.
func (e *Env) Fail(excuse Excuse, key, format string, args ...any) {
	e.addFailure(-1, failure{key: key, excuse: excuse}, format, args...)
}

// ProofAt records a broken rule that nothing excuses, not even what went wrong
// before, and shows the calls up to that time.
func (e *Env) ProofAt(when time.Duration, key, format string, args ...any) {
	e.addFailure(when, failure{key: key, proof: true}, format, args...)
}

func (e *Env) addFailure(when time.Duration, f failure, format string, args ...any) {
	text := e.Log.brief(fmt.Sprintf(format, args...))
	now := e.Log.Now()
	if !f.proof && f.key != "" {
		e.doubt(&f)
	}
	f.text = fmt.Sprintf("at %s: %s", Seconds(now), text)
	f.like = figures.ReplaceAllString(text, "")
	calls := snapshot{at: now, text: e.Log.until(f.key, when)}
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
func (e *Env) evidence() string {
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

// Is fails the case unless the error matches all of the targets.
func (e *Env) Is(key string, err error, what string, targets ...error) {
	for _, t := range targets {
		if !errors.Is(err, t) {
			e.Unexpected(key, err, "%s returned %s; expected an error that matches %s", what, Outcome(err), ErrorName(t))
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

// ErrorName is the name of the error, if it is one that errorNames lists, or its text in quotes.
func ErrorName(err error) string {
	for _, n := range errorNames {
		if err == n.err {
			return n.name
		}
	}
	return fmt.Sprintf("%q", err)
}

// Outcome describes an error with the sentinels that it matches.
func Outcome(err error) string {
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
