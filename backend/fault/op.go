package faultlock

import (
	"fmt"
	"slices"
)

// Op is an operation of a backend that can meet a fault.
type Op string

// The operations. One call of the lock package may use several: Acquire tries,
// watches and tries again; on a backend with a queue it enqueues and waits.
const (
	// OpTry is Backend.Try: the request for the key.
	OpTry Op = "try"

	// OpRenew is Backend.Renew. A renewal of many holds in one round trip
	// (BatchRenewer) is one OpRenew for each hold: a hold whose request or answer
	// fails does so alone, one that would hang is answered at once, as of unknown
	// outcome, so that the others get their answers, and all of them take as long
	// as the longest delay.
	OpRenew Op = "renew"

	// OpRelease is Backend.Release: the release of a lease, and also the clean-up
	// after an acquisition that failed and after a loss. Where the backend can hand
	// over and somebody waits in the same Locker, a release is an OpHandOver, and an
	// OpRelease only if that fails.
	OpRelease Op = "release"

	// OpEnqueue is Queuer.Enqueue. A backend leaves no place behind when Enqueue
	// fails; so after a fault that loses the answer the place is given up in the
	// background, once.
	OpEnqueue Op = "enqueue"

	// OpWait is Ticket.Wait: waiting at the place and the grant that ends it.
	OpWait Op = "wait"

	// OpWithdraw is Ticket.Withdraw.
	OpWithdraw Op = "withdraw"

	// OpWatch is Watcher.Watch: setting up a watch.
	OpWatch Op = "watch"

	// OpHint is a signal of a watch on its way to the waiter. FailBefore and Drop
	// lose it; FailAfter delivers it, and then the watch breaks; Duplicate delivers
	// it twice; ApplyLate is a delay. Delays and hangs hold up the watch: signals
	// that come meanwhile coalesce.
	OpHint Op = "hint"

	// OpHandOver is HandOverer.HandOver: the release of a hold and the grant to a
	// waiter of the same Locker, in one request.
	OpHandOver Op = "hand over"

	// OpInspect is Inspector.Inspect.
	OpInspect Op = "inspect"

	// OpForceRelease is ForceReleaser.ForceRelease.
	OpForceRelease Op = "force release"
)

// ops are all operations.
var ops = []Op{
	OpTry, OpRenew, OpRelease, OpEnqueue, OpWait, OpWithdraw, OpWatch, OpHint, OpHandOver, OpInspect, OpForceRelease,
}

// checkOps panics on an operation that no call ever matches: a test with it would
// test nothing.
func checkOps(list []Op) {
	for _, op := range list {
		if !slices.Contains(ops, op) {
			panic(fmt.Sprintf("faultlock: there is no operation %q; use the constants of this package", op))
		}
	}
}

// repeats reports whether Duplicate means something for the operation.
func (op Op) repeats() bool {
	switch op {
	case OpEnqueue, OpWait, OpWatch, OpInspect:
		return false
	}
	return true
}

// appliesLate reports whether ApplyLate means something for the operation.
func (op Op) appliesLate() bool {
	switch op {
	case OpWait, OpWatch, OpInspect:
		return false
	}
	return true
}
