// Package failure is what all backends make of the errors that their clients return.
package failure

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
)

// OfKey is the error of an operation on a key.
func OfKey(pkg, key string, err error) error { return fmt.Errorf("%s: key %q: %w", pkg, key, err) }

// NotHeld says that there is no such hold.
func NotHeld(pkg, key string) error { return OfKey(pkg, key, backend.ErrNotHeld) }

// Describe marks the error with its sentinel, unless that is nil, adds what to do about it, and
// makes it match the end of the context that caused it.
func Describe(ctx context.Context, err, sentinel error, hint string) error {
	timeout := IsTimeout(err)
	if sentinel != nil {
		err = fmt.Errorf("%w: %w%s", sentinel, err, hint)
	}
	if timeout && !errors.Is(err, context.DeadlineExceeded) && deadlinePassed(ctx) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// deadlinePassed is true a moment before ctx.Err when the timer is late.
func deadlinePassed(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// IsTimeout reports that the time for an answer ran out.
func IsTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// DialFailed reports that there was no connection to send anything on.
func DialFailed(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// BadCertificate reports that one side did not accept the certificate of the other, so that
// nothing was carried out on the connection. A server may also just end it.
func BadCertificate(err error) bool {
	var op *net.OpError
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(x509.HostnameError)) ||
		errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate")
}

// CheckCertificates is the hint for BadCertificate.
const CheckCertificates = "; check ca, cert and key, and the names in the server's certificate"

var nothingChanged = []error{
	backend.ErrUnavailable, backend.ErrPermanent, backend.ErrHeld, backend.ErrNotHeld, backend.ErrTooManyHolds, backend.ErrUnsupported,
	backend.ErrNotSent,
}

// ChangedNothing reports that an error says that nothing was changed, nor will be.
func ChangedNothing(err error) bool { return IsAny(err, nothingChanged) }

// IsAny reports whether the error matches one of the targets.
func IsAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// Unmarked hides the sentinels that promise that nothing was changed, and keeps the text and the
// rest.
func Unmarked(err error) error { return unmarked{err} }

type unmarked struct{ err error }

func (u unmarked) Error() string { return u.err.Error() }

func (u unmarked) Is(target error) bool {
	return !slices.Contains(nothingChanged, target) && errors.Is(u.err, target)
}
