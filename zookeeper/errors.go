package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
)

// notSent is the reason why a request was not sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// refusals are the answers of a server, after which nothing was changed.
var refusals = []error{
	zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
	zk.ErrInvalidACL, zk.ErrInvalidFlags, zk.ErrAuthFailed, zk.ErrSessionMoved, zk.ErrInvalidPath, zk.ErrBadArguments, zk.ErrAPIError,
}

// answered reports whether the server has answered the request, with success or not.
func answered(err error) bool {
	return err == nil || failure.IsAny(err, refusals) || strings.HasPrefix(err.Error(), "unknown error: ")
}

// gaveUp reports that the wait for an answer was given up; the request is under way.
func gaveUp(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errGone)
}

// lostReply reports that the connection ended before the answer.
func lostReply(err error) bool {
	return err != nil && !answered(err) && !gaveUp(err) && !errors.As(err, new(notSent)) && !errors.Is(err, zk.ErrSessionExpired) && !errors.Is(err, backend.ErrTakenOver)
}

// disconnected reports that there is no connection, and that another may follow.
func disconnected(err error) bool {
	return lostReply(err) || errors.As(err, new(notSent)) && errors.Is(err, backend.ErrUnavailable)
}

// sentinelFor returns the error of package backend for an answer that promises that
// nothing was changed, and nil for every other.
func sentinelFor(err error) error {
	switch {
	case failure.IsAny(err, []error{zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrNoChildrenForEphemerals, zk.ErrInvalidPath, zk.ErrInvalidFlags, zk.ErrBadArguments}):
		return backend.ErrPermanent
	case failure.IsAny(err, []error{zk.ErrSessionMoved, zk.ErrSessionExpired, zk.ErrNoServer}):
		return backend.ErrUnavailable
	}
	return unnamed[codeOf(err)].sentinel
}

// unnamed are the answers that the client library has no name for and that promise that
// nothing was changed. What it knows neither, such as a system error (-1), may have been
// carried out.
var unnamed = map[string]struct {
	sentinel error
	text     string
}{
	"-6":   {backend.ErrPermanent, "the server does not know the request (unimplemented); ZooKeeper 3.5 or later is needed"},
	"-119": {backend.ErrUnavailable, "the server is read-only: it is cut off from its quorum"},
	"-120": {backend.ErrPermanent, "the session is local (localSessionsEnabled), and a lock needs one that the quorum knows; set localSessionsUpgradingEnabled=true"},
	"-124": {backend.ErrPermanent, "the server wants SASL, which this client does not speak (sessionRequireClientSASLAuth)"},
	"-125": {backend.ErrUnavailable, "the quota of a node above the lock is exceeded (enforceQuota); see it with: listquota PATH in zkCli.sh"},
	"-127": {backend.ErrUnavailable, "the server throttles requests"},
}

// codeOf is the number of an answer that the client library has no name for.
func codeOf(err error) string {
	code, _ := strings.CutPrefix(err.Error(), "unknown error: ")
	return code
}

func hintFor(err error) string {
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return "; check user and password, and the ACL of the prefix"
	case errors.Is(err, zk.ErrInvalidACL):
		return "; acl=creator needs a user and a password"
	case errors.Is(err, zk.ErrNoChildrenForEphemerals):
		return "; the prefix or the key has an ephemeral node that is not ours"
	}
	if u := unnamed[codeOf(err)]; u.text != "" {
		return ": " + u.text
	}
	return ""
}

// describe marks the error with its sentinel and adds what to do about it.
func describe(err error) error {
	if failure.IsAny(err, []error{backend.ErrUnavailable, backend.ErrPermanent, backend.ErrLost, backend.ErrHeld, backend.ErrNotHeld}) {
		return err
	}
	if sentinel := sentinelFor(err); sentinel != nil {
		return fmt.Errorf("%w: %w%s", sentinel, err, hintFor(err))
	}
	return err
}

// keyError is the error of an operation on a key.
func keyError(key string, err error) error {
	if err == nil {
		return nil
	}
	return failure.OfKey("zklock", key, describe(err))
}

// writeError is the error of an operation that may have taken effect when there was
// no answer.
func writeError(key string, err error) error {
	if err == nil || failure.IsAny(err, []error{backend.ErrHeld, backend.ErrNotHeld}) {
		return err
	}
	if errors.As(err, new(notSent)) && gaveUp(err) {
		return fmt.Errorf("zklock: key %q: %w: no time left to ask: %w", key, backend.ErrUnavailable, err)
	}
	if errors.Is(err, errGone) { // and with the session whatever it did
		return keyError(key, err)
	}
	if gaveUp(err) || lostReply(err) {
		return fmt.Errorf("zklock: key %q: %w: no answer: %w", key, backend.ErrOutcomeUnknown, failure.Unmarked(err))
	}
	return keyError(key, err)
}

// readError is the error of an operation that changed nothing.
func readError(key string, err error) error {
	if err == nil || failure.IsAny(err, []error{backend.ErrHeld, backend.ErrNotHeld}) {
		return err
	}
	if gaveUp(err) || lostReply(err) {
		return fmt.Errorf("zklock: key %q: %w: no answer: %w", key, backend.ErrUnavailable, err)
	}
	return keyError(key, err)
}

func notHeld(key string) error { return failure.NotHeld("zklock", key) }
