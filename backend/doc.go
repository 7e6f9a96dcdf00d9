// Package backend is the contract between the lock package and the servers
// that keep the locks. People who write a backend implement [Backend]; people
// who use locks never need this package.
//
// # Who does what
//
// A backend supplies atomic primitives: try, renew and release, each naming one
// acquisition by its [ID]. The lock package supplies all policy on top, once for every
// backend: waiting, automatic renewal, the local deadline, loss and its cause, maximum
// hold, clean-up after a cancelled call, and Close.
//
// So a backend renews no hold by itself, never asks again because somebody holds the key,
// and waits for a key in [Queuer] and [Watcher] only. The timers and loops that it may have
// serve its own steps and connections:
//
//   - A step that came to nothing because of others at the same moment (a deadlock, a split
//     vote, a row that changed after it was read) is taken again, perhaps after a short random
//     pause: so many times at most, and while the context lasts.
//   - A request may wait for a connection or for a turn on it, and may go out together with
//     those of others. It may be sent again when its connection breaks or its server answers
//     again, and its answer may be waited for a moment longer than its context lasts.
//   - A connection or watch that broke is made again, and one that is idle is asked for a sign
//     of life. A session that many holds share may be kept alive that way. That makes no
//     deadline later: only a grant and the answer to Renew do.
//   - Where the server can't end a hold by its TTL, since it lives as long as such a session,
//     the backend removes what was not renewed for its TTL and what nobody waits for.
//
// # Abilities
//
// What only some servers can do is an optional interface of one method. [As] finds it, also
// behind a [Wrapper], except the last two. A backend that lacks one still works; the fall-back
// is written once, in the lock package:
//
//	ability         what the server can do                  without it
//	Watcher         tells when a key may be free            waiters poll
//	Queuer          keeps waiters in a queue                they compete
//	ReleaseTeller   counts who was told of a release        a turn is left after refusals only
//	HandOverer      releases and grants in one step         a release, then a try
//	BatchRenewer    renews many holds in one round trip     one request for each
//	Partitioner     names the member that serves a key      one partition
//	LossNotifier    learns of losses by itself              the next renewal tells
//	Inspector       shows who holds a key                   ErrUnsupported for tools
//	ForceReleaser   ends the hold of another                ErrUnsupported for tools
//	Revoker         ends it, and lets nobody in before      ErrUnsupported for tools
//	Lister          finds the keys that are held            ErrUnsupported for tools
//	Forgetter       removes what is kept of unused keys     nothing is kept
//	Cleaner         removes it by age                       nothing is kept, or by name only
//	FloorRaiser     counts tokens on from a larger number   tokens count from a clock
//	TokenTeller     knows the largest token of all keys     held keys are looked at
//	Clocked         has a clock of its own                  SystemClock
//	Interruptible   ends requests with their contexts       another goroutine makes them
//	Immediate       answers without waiting for anything    requests have contexts
//
// A [Ticket] may be a [LateTicket].
//
// # Records and holds
//
// A record belongs to a key: owner, fencing token, holds. A hold belongs to one
// acquisition: its [ID] and its own expiry. The hold count is the number of
// unexpired holds, and the key is free when the last of them has ended. A
// request with an owner that the record already names adds one more hold with
// the same token and never shortens another hold. A request without an owner
// never joins a record.
//
// # Repeats
//
// A client library, a proxy or the lock package may send the same request
// twice. Because everything is named by the acquisition, a repeat must change
// nothing but the expiry: a Try whose ID already holds answers with the same
// token and the same hold count, a Release of an ID that holds nothing answers
// [ErrNotHeld] and touches nobody else.
//
// # Time
//
// The server decides expiry on its own clock from a relative TTL. The holder
// counts its own deadline from the instant before the request that the server
// confirmed was sent, never from the reply: the server cannot have begun the
// lease earlier than that (the rule of the Redlock page's MIN_VALIDITY, of
// River's elector and of client-go's leader election). [Validity] carries that
// pair. [ValidFor] subtracts the drift allowance.
//
// # Outcomes
//
// A method that returns nil took effect. [ErrHeld], [ErrNotHeld],
// [ErrUnavailable], [ErrPermanent], [ErrInvalid] and [ErrUnsupported] promise
// that it did not. Every other error, a context's included, means that the
// outcome is unknown: the request may have been applied, or may be applied
// later. Report unknown when in doubt; database/sql/driver.ErrBadConn has the
// same rule.
//
// # Concurrency and contexts
//
// All methods are called from many goroutines at once. A method should return
// soon after its context ends. Where the caller of the lock package can cancel, the
// lock package does not depend on it: it stops waiting by itself and cleans up when
// the method returns. A call with a context that never ends, such as
// context.Background, is made on the caller's goroutine and lasts until the method
// returns. A method that never returns leaks.
package backend
