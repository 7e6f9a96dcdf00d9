package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mortiselock/lock"
)

// The exit statuses of lockctl. 64, 69 and 75 have their meaning from
// sysexits.h, 126 and 127 from the shell; 128+n means signal n.
const (
	exitOK          = 0
	exitFree        = 1   // inspect, unlock: nobody holds the key
	exitUsage       = 64  // EX_USAGE
	exitUnavailable = 69  // EX_UNAVAILABLE
	exitInternal    = 70  // EX_SOFTWARE
	exitHeld        = 75  // EX_TEMPFAIL; also: check found nothing broken, and has to be repeated
	exitLost        = 76  // EX_PROTOCOL in sysexits.h; here: the hold was lost
	exitNotExec     = 126 // found, but it cannot be executed
	exitNotFound    = 127 // no such command
	exitSignal      = 128
)

// exitError ends the tool with a status and, unless it is empty, a message. Its
// message starts without the name of the tool.
type exitError struct {
	code    int
	message string
}

func (e *exitError) Error() string { return e.message }

func exitWith(code int, format string, args ...any) *exitError {
	return &exitError{code: code, message: fmt.Sprintf(format, args...)}
}

func usageError(format string, args ...any) *exitError {
	return exitWith(exitUsage, format, args...)
}

// outputError is about what was to be printed.
func outputError(err error) *exitError {
	return exitWith(exitInternal, "the output cannot be written: %v; look at where it goes", cause(err))
}

// acquireError says why there is no lease: what happened and what to do next.
// waited is how long the tool was ready to wait; negative means without limit.
func acquireError(err error, key string, waited time.Duration) *exitError {
	switch {
	case errors.Is(err, lock.ErrInvalid), errors.Is(err, lock.ErrUnsupported):
		return usageError("%s; see lockctl run --help", plain(err))
	case errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable):
		// With ErrUnavailable too it was held when the server was last heard of.
		return exitWith(exitHeld, "%s", heldMessage(err, key, waited))
	case errors.Is(err, lock.ErrPermanent):
		return exitWith(exitUnavailable, "the backend refuses, and waiting does not help: %s", plain(err))
	case errors.Is(err, lock.ErrOutcomeUnknown):
		return exitWith(exitUnavailable, "no answer from the backend about %q: %s; it is free again within one TTL, try then", key, plain(err))
	case errors.Is(err, lock.ErrUnavailable):
		return exitWith(exitUnavailable, "the backend is not available: %s; check --url or LOCK_URL, and the server or directory", plain(err))
	case errors.Is(err, context.DeadlineExceeded):
		return exitWith(exitUnavailable, "no answer from the backend in time; check --url or LOCK_URL and the server")
	}
	return exitWith(exitUnavailable, "%s", plain(err))
}

func heldMessage(err error, key string, waited time.Duration) string {
	var b strings.Builder
	var held *lock.HeldError
	if errors.As(err, &held) {
		fmt.Fprintf(&b, "%q is held by %s", key, held.Holder)
		if since := held.Holder.Since; !since.IsZero() {
			if d := time.Since(since); d >= 0 {
				fmt.Fprintf(&b, " (for %s so far)", round(d))
			}
		}
		if held.Remaining > 0 {
			fmt.Fprintf(&b, ", and for another %s unless renewed", round(held.Remaining))
		}
	} else {
		fmt.Fprintf(&b, "%q is held by somebody else", key)
	}
	if waited > 0 {
		fmt.Fprintf(&b, "; gave up after %s, try later or wait longer with --wait", waited)
	} else {
		b.WriteString("; try later, or wait for it with --wait 30s")
	}
	return b.String()
}

// lossReason puts the cause of a loss into words.
func lossReason(cause error) string {
	reason := reasonOf(cause)
	for _, store := range []string{"the old store", "the new store"} { // of two
		if called, _, ok := strings.Cut(cause.Error(), ": "); ok && strings.HasPrefix(called, store) {
			return "in " + called + ", " + reason
		}
	}
	return reason
}

func reasonOf(cause error) string {
	switch {
	case errors.Is(cause, lock.ErrTakenOver):
		return "its record was removed or taken over on the server"
	case errors.Is(cause, lock.ErrSessionLost):
		return "its session with the server has ended"
	case errors.Is(cause, lock.ErrMaxHold):
		return "it reached its maximum duration"
	case errors.Is(cause, lock.ErrClosed):
		return "the connection was closed"
	case errors.Is(cause, errPaused):
		return "lockctl was stopped or starved for longer than the lease lasts"
	}
	return "no renewal was confirmed in time"
}

// plain is the text of an error without the words of the library for what the
// tool says in its own.
func plain(err error) string {
	s := err.Error()
	for _, known := range []error{lock.ErrInvalid, lock.ErrUnavailable, lock.ErrPermanent} {
		s = strings.ReplaceAll(s, known.Error()+": ", "")
	}
	return strings.TrimPrefix(s, "lock: ")
}

func round(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond)
}
