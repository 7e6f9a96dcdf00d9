package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
)

// permanent are the answers of the server that waiting does not cure.
var permanent = []error{
	rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrPermissionDenied,
	rpctypes.ErrPermissionNotGranted, rpctypes.ErrAuthNotEnabled,
	rpctypes.ErrCorrupt, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyOps, rpctypes.ErrLeaseTTLTooLarge,
	rpctypes.ErrNotCapable, rpctypes.ErrClusterIDMismatch,
}

// refusedForNow are answers that promise that nothing was changed, and that time
// can cure.
var refusedForNow = []error{
	rpctypes.ErrNoSpace, rpctypes.ErrTooManyRequests, rpctypes.ErrNoLeader, rpctypes.ErrNotLeader,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUnhealthy,
}

// sentinelFor returns ErrUnavailable or ErrPermanent for an error that promises
// that nothing was changed, and nil for every other. What the server may have
// accepted before it lost its leader, or before the connection broke, is unknown.
func sentinelFor(err error) error {
	for _, e := range permanent {
		if errors.Is(err, e) {
			return backend.ErrPermanent
		}
	}
	for _, e := range refusedForNow {
		if errors.Is(err, e) {
			return backend.ErrUnavailable
		}
	}
	var server rpctypes.EtcdError
	switch {
	case errors.As(err, &server):
	case errors.Is(err, errClientClosed):
		return backend.ErrPermanent
	case badCertificate(err):
		return backend.ErrPermanent
	case refusedBefore(err):
		return backend.ErrPermanent
	case notSent(err):
		return backend.ErrUnavailable
	}
	return nil
}

// refusedBefore reports that the request was refused in other words than those of etcd, as a
// proxy does that asks for credentials of its own.
func refusedBefore(err error) bool {
	code := status.Code(err)
	return (code == codes.PermissionDenied || code == codes.Unauthenticated) && !errors.As(err, new(rpctypes.EtcdError))
}

var errClientClosed = errors.New("the client was closed before the Locker")

// notSent reports that there was no connection to send anything on. gRPC has no
// code for it.
func notSent(err error) bool {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.Unavailable {
		return false
	}
	for _, text := range []string{"Error while dialing", "authentication handshake failed", "there is no address available", "there is no connection available", "no children to pick from", "name resolver error"} {
		if strings.Contains(s.Message(), text) {
			return true
		}
	}
	return false
}

// connectionBroke reports that the connection ended before the answer: the same
// request can be sent again, to another member perhaps.
func connectionBroke(err error) bool {
	var server rpctypes.EtcdError
	if errors.As(err, &server) {
		return errors.Is(err, rpctypes.ErrLeaderChanged) || errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail) || errors.Is(err, rpctypes.ErrStopped)
	}
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.Unavailable && !badCertificate(err)
}

// mayHaveRun reports whether a transaction that failed may have been carried out. What
// the server says of it before it proposes it to the others is a refusal.
func mayHaveRun(err error) bool {
	if sentinelFor(err) != nil {
		return false
	}
	var server rpctypes.EtcdError
	if !errors.As(err, &server) {
		return true
	}
	switch server.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.NotFound:
		return false
	}
	return true
}

// keyError is the error of a request that may have changed something.
func keyError(ctx context.Context, key string, err error) error {
	return failure.OfKey("etcdlock", key, describe(ctx, err))
}

// readError is the error of a request that changes nothing.
func readError(ctx context.Context, key string, err error) error {
	return failure.OfKey("etcdlock", key, harmless(ctx, err))
}

// harmless marks what is not a refusal for good as "unavailable".
func harmless(ctx context.Context, err error) error {
	err = describe(ctx, err)
	if errors.Is(err, backend.ErrPermanent) || errors.Is(err, backend.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
}

// describe marks the error with its sentinel, adds what to do about it, and makes
// it match the context that caused it.
func describe(ctx context.Context, err error) error {
	sentinel, hint := sentinelFor(err), hintFor(err)
	if status.Code(err) == codes.DeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // of one attempt, or a moment before the timer of ctx
	}
	return failure.Describe(ctx, err, sentinel, hint)
}

func hintFor(err error) string {
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return "; the user needs a role with read and write permission on the whole prefix"
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return "; check user and password"
	case errors.Is(err, rpctypes.ErrNoSpace):
		return "; compact and defragment the server, then disarm its alarm"
	case badCertificate(err):
		return failure.CheckCertificates
	case refusedBefore(err):
		return "; not in the words of etcd: look at what stands before it, a proxy perhaps"
	}
	return ""
}

// unmark takes away the promise that nothing was changed.
func unmark(err error) error {
	return failure.Unmarked(fmt.Errorf("%w; an earlier attempt had lost its answer", err))
}

func notHeld(key string) error { return failure.NotHeld("etcdlock", key) }

func takenOver(key string) error {
	return fmt.Errorf("etcdlock: key %q: %w", key, backend.ErrTakenOver)
}

func sessionLost(key string) error {
	return fmt.Errorf("etcdlock: key %q: %w: its etcd lease has expired or was revoked", key, backend.ErrSessionLost)
}

func isNotHeld(err error) bool { return errors.Is(err, backend.ErrNotHeld) }

func leaseNotFound(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }
