package zklock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Guarded carries out operations of ZooKeeper in one transaction that takes effect
// only while the lease is held: its first operation checks that the node of the hold
// exists. That needs no clock, and also stops a holder that was paused just before.
// The operations are *zk.CreateRequest, *zk.SetDataRequest, *zk.DeleteRequest and
// *zk.CheckVersionRequest of github.com/go-zookeeper/zk, with full paths: the chroot
// of the URL does not apply to them.
//
// It returns one answer per operation. The error matches [backend.ErrNotHeld] when the
// hold has ended, and [backend.ErrOutcomeUnknown] when the answer did not arrive; an
// operation that the server refused returns the error of the client library, such as
// zk.ErrBadVersion, and then none took effect. ctx bounds the wait for the answer.
// Operations of other types are refused with [backend.ErrInvalid], and a lease of
// another backend with [backend.ErrUnsupported], before anything is sent. It is safe
// for concurrent use.
func Guarded(ctx context.Context, lease lock.Lease, ops ...any) ([]zk.MultiResponse, error) {
	held, err := lock.HeldOn[*zkBackend](lease)
	if err != nil {
		return nil, fmt.Errorf("zklock: %w", err)
	}
	if err := checkOperations(ops); err != nil {
		return nil, fmt.Errorf("zklock: guarded by %q: %w", lease.Key(), err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := held.Backend.session()
	if err != nil {
		return nil, err
	}
	n, err := s.held(held.Hold)
	if err != nil {
		return nil, notHeld(lease.Key())
	}
	all := append([]any{n.unrevoked()}, ops...)
	a := ask(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(all...) }, nil)
	answers := a.value
	if a.err == nil || len(answers) == 0 {
		return answers[min(1, len(answers)):], writeError(lease.Key(), a.err)
	}
	if errors.Is(answers[0].Error, zk.ErrNoNode) || errors.Is(answers[0].Error, zk.ErrBadVersion) {
		return nil, notHeld(lease.Key())
	}
	return answers[1:], fmt.Errorf("zklock: guarded by %q: %w", lease.Key(), describe(a.err))
}

// checkOperations refuses what the client library would not send, or panic on.
func checkOperations(ops []any) error {
	for i, op := range ops {
		good := false
		switch op := op.(type) {
		case *zk.CreateRequest:
			good = op != nil
		case *zk.SetDataRequest:
			good = op != nil
		case *zk.DeleteRequest:
			good = op != nil
		case *zk.CheckVersionRequest:
			good = op != nil
		}
		if !good {
			return fmt.Errorf("%w: operation %d is a %T; use a *zk.CreateRequest, *zk.SetDataRequest, *zk.DeleteRequest or *zk.CheckVersionRequest that is not nil", backend.ErrInvalid, i+1, op)
		}
	}
	return nil
}
