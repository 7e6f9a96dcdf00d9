package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
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
	case errors.Is(err, goredis.ErrClosed), failure.BadCertificate(err):
		return backend.ErrPermanent
	case errors.Is(err, goredis.ErrPoolTimeout), errors.Is(err, goredis.ErrPoolExhausted), failure.DialFailed(err):
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

// ConnectionBroke reports that the connection ended before the reply: the
// command may have been applied, and the same command can be sent again.
func ConnectionBroke(err error) bool {
	if failure.IsTimeout(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op == "read" || op.Op == "write"
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// Describe marks the error with its sentinel, adds what to do about it, and
// makes a timeout match the context that caused it.
func Describe(ctx context.Context, err error) error {
	return failure.Describe(ctx, Sanitized(err), Sentinel(err), Hint(err))
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
	case failure.BadCertificate(err):
		return failure.CheckCertificates
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
