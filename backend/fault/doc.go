// Package faultlock puts faults between the lock package and a backend, so that
// programs that use locks can be tested against what networks and servers do to
// them: a lost lease, an acquisition or a release of unknown outcome, a server
// that is slow, that hangs, or that cannot be reached.
//
//	inner, err := memlock.NewBackend(ctx, nil) // or any other backend
//	...
//	faults := faultlock.New(inner, nil)
//	locker, err := lock.New(faults.Backend(), nil)
//	...
//	faults.Next(1, faultlock.FailAfter(), faultlock.OpRelease) // applied, but the answer is lost
//	faults.All(faultlock.HangBefore(), faultlock.OpRenew)      // no renewal comes through, until:
//	faults.Heal()
//	faults.Lose("nightly-report", lock.ErrTakenOver)           // the lease is lost, now
//
// The program under test gets the Locker, the test keeps the [Faults]. Put
//
//	t.Cleanup(func() {
//		if t.Failed() {
//			t.Log(faults)
//		}
//	})
//
// beside it to see which faults there were when a test fails.
//
// # What meets a fault
//
// Every call of the lock package at the backend is an operation ([Op]) on a key.
// Rules decide first ([Faults.Next], [Faults.All], [Faults.Add]): the oldest rule
// that matches the call and is not used up says which [Fault] it meets, so rules
// that were added one after another are an ordered list. Where no rule matches,
// [Options.Random] may decide, from a seed. Otherwise the call passes.
//
// Guarantees, Close, and the notices of a backend that learns about losses by
// itself (backend.LossNotifier) never meet a fault.
//
// # Every fault is an honest one
//
// No fault makes a correct lock break its promises: none pretends that a request
// was not applied when it was, and the backend's answers are handed on as they
// are, late or not at all. A program that fails under these faults can fail in
// production.
//
// # Abilities
//
// [Faults.Backend] is a backend.Wrapper: it has the abilities of the inner backend. Watcher,
// Queuer, BatchRenewer, HandOverer, ReleaseTeller, Inspector and ForceReleaser lead through
// the faults, the others past them. It is always a LossNotifier, which [Faults.Lose] needs,
// and hands on the notices of the inner backend. It is never Immediate, since a fault may
// hang. [Faults.Primitives] has try, renewal and release only.
//
// # Time
//
// Delays use the timers of the runtime, so inside of testing/synctest all of them
// are virtual. Create the Faults inside the bubble then. Nothing here polls, and
// no goroutine is left when the backend has been closed.
package faultlock
