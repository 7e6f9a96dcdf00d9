package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

// transientCodes are the first words of refusals that time can cure. The script
// was not run, or was stopped before its first write.
var transientCodes = []string{
	"READONLY", "OOM", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS",
}

// permanentCodes are the first words of refusals that waiting does not cure.
var permanentCodes = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "MOVED", "ASK", "CROSSSLOT", "DENIED",
}

// permanentTexts are refusals without a code of their own.
var permanentTexts = []string{
	"ERR unknown command", "ERR invalid password", "ERR AUTH ", "ERR Client sent AUTH",
	"ERR DB index", "ERR invalid DB index", "ERR SELECT is not allowed in cluster mode",
	"ERR This instance has cluster support disabled", "ERR Error compiling script",
}

// Sentinel returns ErrUnavailable or ErrPermanent for an error that promises
// that nothing was changed, and nil for every other.
func Sentinel(err error) error {
	var refusal goredis.Error
	if errors.As(err, &refusal) {
		code := Code(refusal.Error())
		for _, c := range transientCodes {
			if code == c {
				return backend.ErrUnavailable
			}
		}
		for _, c := range permanentCodes {
			if code == c {
				return backend.ErrPermanent
			}
		}
		if goredis.IsMaxClientsError(err) {
			return backend.ErrUnavailable
		}
		for _, text := range permanentTexts {
			if strings.HasPrefix(refusal.Error(), text) {
				return backend.ErrPermanent
			}
		}
		return nil
	}
	var moving redirected
	switch {
	case errors.As(err, &moving):
		return backend.ErrUnavailable
	case errors.Is(err, goredis.ErrClosed), BadCertificate(err):
		return backend.ErrPermanent
	case errors.Is(err, goredis.ErrPoolTimeout), errors.Is(err, goredis.ErrPoolExhausted), DialFailed(err):
		return backend.ErrUnavailable
	}
	return nil
}

// Redirected marks a refusal of a member of a Cluster that sends the client elsewhere,
// after the client has followed several of them: a slot is on its way from one
// member to another, and time will cure that. What it returns is no goredis.Error.
func Redirected(err error) error { return redirected{err} }

type redirected struct{ error }

// Code is the first word of a server's error. Servers before Redis 7 wrap the
// errors of a script's commands, as in "ERR Error running script (call to f_..):
// @user_script: 3: -READONLY You can't write against a read only replica."
func Code(text string) string {
	if strings.HasPrefix(text, "ERR Error running script") {
		for _, word := range strings.Fields(text) {
			word = strings.TrimPrefix(word, "-")
			for _, codes := range [][]string{transientCodes, permanentCodes} {
				for _, c := range codes {
					if word == c {
						return c
					}
				}
			}
		}
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}

// ServerRefused reports that an error is the server's answer.
func ServerRefused(err error) bool {
	var refusal goredis.Error
	return errors.As(err, &refusal)
}

// DialFailed reports that there was no connection to send anything on.
func DialFailed(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// BadCertificate reports that one side did not accept the certificate of the other, so
// that nothing was carried out on the connection. A server may also just end it.
func BadCertificate(err error) bool {
	var op *net.OpError
	return errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate")
}

// ConnectionBroke reports that the connection ended before the reply: the
// command may have been applied, and the same command can be sent again.
func ConnectionBroke(err error) bool {
	if IsTimeout(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op == "read" || op.Op == "write"
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// IsTimeout reports that the time for an answer ran out.
func IsTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

var nothingChanged = []error{
	backend.ErrUnavailable, backend.ErrPermanent, backend.ErrHeld, backend.ErrNotHeld, backend.ErrTooManyHolds, backend.ErrUnsupported,
	backend.ErrNotSent,
}

// ChangedNothing reports that an error says that nothing was changed, nor will be.
func ChangedNothing(err error) bool {
	return slices.ContainsFunc(nothingChanged, func(promise error) bool { return errors.Is(err, promise) })
}

// Unmarked hides the sentinels that promise that nothing was changed, and keeps the
// text and the rest.
func Unmarked(err error) error { return unmarked{err} }

type unmarked struct{ err error }

func (u unmarked) Error() string { return u.err.Error() }

func (u unmarked) Is(target error) bool {
	return !slices.Contains(nothingChanged, target) && errors.Is(u.err, target)
}

// Describe marks the error with its sentinel, adds what to do about it, and
// makes a timeout match the context that caused it.
func Describe(ctx context.Context, err error) error {
	shown := Sanitized(err)
	switch sentinel := Sentinel(err); {
	case sentinel != nil:
		err = fmt.Errorf("%w: %w%s", sentinel, shown, Hint(err))
	case IsTimeout(err) && !errors.Is(err, context.DeadlineExceeded) && deadlinePassed(ctx):
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, shown)
	default:
		err = shown
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

// Hint is what to do about an error, as its text goes on.
func Hint(err error) string {
	var refusal goredis.Error
	if errors.As(err, &refusal) {
		switch Code(refusal.Error()) {
		case "MOVED", "ASK":
			return "; the server belongs to a Redis Cluster: add cluster=true to the URL, or use a ClusterClient"
		case "NOPERM":
			return "; see the permissions in the documentation of this backend"
		case "NOAUTH", "WRONGPASS":
			return "; check user and password"
		}
		if strings.Contains(refusal.Error(), "executing the script can't") {
			return "; see the permissions in the documentation of this backend"
		}
		return ""
	}
	switch {
	case errors.Is(err, goredis.ErrClosed):
		return "; the client was closed before the Locker"
	case BadCertificate(err):
		return "; check ca, cert and key, and the names in the server's certificate"
	case errors.Is(err, goredis.ErrPoolTimeout), errors.Is(err, goredis.ErrPoolExhausted):
		return "; all connections of the client's pool are busy: make the pool larger (pool_size)"
	}
	return ""
}

// Sanitized cuts what the server repeats of a command that it does not know: it
// could contain an acquisition id.
func Sanitized(err error) error {
	text, _, cut := strings.Cut(err.Error(), ", with args beginning with")
	if !cut {
		return err
	}
	return shortened{err, text}
}

type shortened struct {
	err  error
	text string
}

func (s shortened) Error() string   { return s.text }
func (s shortened) Is(t error) bool { return errors.Is(s.err, t) }
