package backend

import (
	"context"
	"time"
)

// Watcher is implemented by backends whose server can tell when a key may have
// become free.
type Watcher interface {
	// Watch starts watching the key. The watch is in force when Watch returns: a
	// release that happens later is signalled. Where a crowd watches the key, it may be
	// signalled to some of them, to others each time. Signals may coalesce or be
	// spurious. Those that are lost, as with a connection, only delay a waiter, which
	// polls underneath. A closed channel means that the watch broke and that the key
	// should be tried again. The watch ends, and frees what it used, when ctx ends.
	Watch(ctx context.Context, key string) (<-chan Hint, error)
}

// Hint is a signal of a [Watcher] that the key may have become free.
type Hint struct {
	// Watchers is how many clients have this signal, this one included, or zero when
	// that is not known. With it the lock package lets the other clients have
	// their turn before one that has just held the key; without it whoever asks
	// first is served.
	// Each signal with it counts as one release. Who may signal one release twice says zero.
	Watchers int
}

// ReleaseTeller is implemented by backends whose release knows, without another round
// trip, whether other clients watch the key. A client that takes the key again and again
// then leaves them their turn.
type ReleaseTeller interface {
	// ReleaseTelling is Release, and returns how many other clients watch the key and
	// were told, or some of them, that it is free: zero when it is still held, and a
	// number below zero when the server can't say. What this client itself watches, or
	// has just ceased to watch, does not count.
	ReleaseTelling(ctx context.Context, hold Hold) (others int, err error)
}

// Queuer is implemented by backends where waiting takes a place on the server. Where
// [Guarantees] say Fair, places are served first come first served across all
// clients. A Locker takes a place for the first of its callers, not for each: what limits
// callers has no place here.
type Queuer interface {
	// Enqueue takes a place for the request, and returns when the server has
	// answered, without waiting for the key. A server that is silent gives no place.
	// On error no place is left behind. The caller takes another ID for another place.
	Enqueue(ctx context.Context, req Request) (Ticket, error)
}

// Ticket is a place in the queue of a server.
type Ticket interface {
	// Wait blocks until the place is the first and the key is granted, or ctx
	// ends, or the place is lost. It verifies place and session in the same step
	// that grants, and Validity.Sent is the instant of that step. After an error
	// the caller withdraws. It is called at once: a place at which nobody waits may be
	// passed over after a second, or the TTL where that is shorter.
	Wait(ctx context.Context) (Grant, error)
	// Behind reports whether the server has said, to Enqueue or to Wait, that
	// somebody else was before this place. Only then is a caller who gives up told
	// that the key is held: to have no answer is not to be refused. It does no I/O
	// and may be called beside Wait.
	Behind() bool
	// Withdraw gives the place up and removes the grant if there is one. It may
	// be called again after an error, and beside a Wait whose context has ended.
	// A place never outlives the TTL of its request once its client has gone.
	Withdraw(ctx context.Context) error
}

// LateTicket is implemented by tickets of which a request may still reach the server when
// Withdraw has returned nil.
type LateTicket interface {
	// MayArrive reports whether that is so: a request was sent, and has no answer. It
	// may take the place or the key again, so Withdraw is called a few times more
	// within the TTL. MayArrive does no I/O.
	MayArrive() bool
}

// LossNotifier is implemented by backends that learn about the death of a
// session or a connection by themselves.
type LossNotifier interface {
	// NotifyLoss registers the function that is told once about each hold that has
	// ended on the server; cause matches ErrLost. It is called once, before the
	// first request. lost does not block and may be called from any goroutine.
	NotifyLoss(lost func(id ID, cause error))
}

// BatchRenewer is implemented by backends that renew many holds in one round
// trip.
type BatchRenewer interface {
	// RenewBatch renews each hold as Renew does and returns one answer per hold,
	// in the same order.
	RenewBatch(ctx context.Context, holds []Hold) []Renewal
}

// Renewal is the answer of [BatchRenewer] for one hold.
type Renewal struct {
	Validity Validity
	Err      error
}

// Partitioner is implemented by backends whose keys are served by several servers that
// fail apart from each other, such as the members of a cluster.
type Partitioner interface {
	// Partition names the server that serves the key, as far as that is known here, and
	// is "" where it isn't. The lock package renews holds of different partitions in
	// different batches, and a request that hangs in one partition keeps no renewal and
	// no clean-up of another waiting. Nothing else depends on it, so the answer may
	// change, and may be wrong for a while after a server has moved. There are few
	// different answers, not one for each key. It is asked for every renewal: it does no
	// I/O, does not block, and is safe for concurrent use.
	Partition(key string) string
}

// HandOverer is implemented by backends that can release a hold and grant the
// key to the next local waiter in one round trip.
type HandOverer interface {
	// HandOver releases from, which is the only hold of the key, and grants to, in
	// one atomic step, with a token of its own. The lock package sees to it that
	// other clients are not passed over for long. An error that matches ErrNotHeld
	// means that from no longer existed. One that matches ErrHeld means that from
	// was released and that somebody else is due first, in the queue of a server
	// that has one. In both cases nothing was granted.
	HandOver(ctx context.Context, from Hold, to Request) (Grant, error)
}

// Inspector is implemented by backends that can show who holds a key.
type Inspector interface {
	// Inspect returns the record of the key, or an error matching ErrNotHeld when
	// nobody holds it. It never changes anything.
	Inspect(ctx context.Context, key string) (Record, error)
}

// ForceReleaser is implemented by backends that can end somebody else's hold.
type ForceReleaser interface {
	// ForceRelease removes the record of the key if its token is the one given,
	// in one atomic step. It returns an error matching ErrNotHeld when the key is
	// free or has another token, so that a newer holder is never hit. The holder
	// learns of it at its next renewal.
	ForceRelease(ctx context.Context, key string, token uint64) error
}

// Revoker is implemented by backends that can end somebody else's hold without
// letting anybody in before it would have expired.
type Revoker interface {
	// Revoke takes the key's record with this token from its owner, in one atomic
	// step: it is not renewed or entered again, and keeps others out until the
	// expiry that it has now, also those who waited before. Its holder learns of it
	// at its next renewal, and from then on its Release ends nothing, since who works
	// under the hold may still be stopping. It may end earlier with a holder that
	// releases before, and with the session of its client where Guarantees say
	// EndsWithSession. Where they say that Expiry is [ClockConnection], it ends when
	// its holder has learned of it, whose connection it is. Until then an [Inspector]
	// shows it as revoked.
	//
	// It returns an error matching ErrNotHeld when the key is free or has another
	// token, so that a newer holder is never hit.
	Revoke(ctx context.Context, key string, token uint64) error
}

// Lister is implemented by backends that can find the keys that are held.
type Lister interface {
	// List calls visit with the record of each held key that begins with prefix, in
	// no particular order, until visit returns false. A key that is taken or
	// released meanwhile may be missing or shown; no key is shown twice. It changes
	// nothing, and costs the server a look at every key of this backend's prefix.
	List(ctx context.Context, prefix string, visit func(Record) bool) error
}

// Forgetter is implemented by backends that keep something of a key beyond its last
// hold, such as a row with its token, on behalf of those who use many keys once.
type Forgetter interface {
	// Forget removes what is kept of keys that begin with the prefix, which is not
	// empty, and that nobody holds; of others nothing is lost. What counts is that the
	// keys are not used any more: a fencing token of such a key may be repeated
	// afterwards. An error may leave a part of them.
	Forget(ctx context.Context, prefix string) error
}

// Cleaner is implemented by backends that keep something of a key beyond its last hold, and
// know since when nobody has used the key.
type Cleaner interface {
	// Cleanup removes what is kept of keys that nobody holds and that were not used for longer
	// than olderThan, and returns of how many. With dryRun it changes nothing, and returns of
	// how many it would be. No fencing token goes back. What somebody uses meanwhile may be
	// left. An olderThan that is not positive is refused with an error matching ErrInvalid;
	// another error may leave a part, and n counts what was removed before.
	Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (n int, err error)
}

// FloorRaiser is implemented by backends whose tokens can be told to count on from a larger
// number. It is for those who come from another store, whose tokens were larger.
type FloorRaiser interface {
	// RaiseFloor makes every token that is granted from now on larger than above, for
	// every client of the key space, those that were opened before and those that wait in
	// a queue already included. Holds keep their tokens. Where tokens are larger already it
	// changes nothing. From 2^53 on, above is refused with an error matching ErrInvalid, and by
	// counters from 2^53-1 on: no token would be left.
	//
	// Where Guarantees say that tokens are revisions ([TokenRevision]), it is one write.
	// Elsewhere it may be one for every key that was used, and is meant for operators. An
	// error may leave a part of the keys raised; calling it again is safe.
	RaiseFloor(ctx context.Context, above uint64) error
}

// TokenTeller is implemented by backends that can find the largest token of all their keys.
// It is for those who leave a store, and want another one to count on from there.
type TokenTeller interface {
	// LastToken returns a number that no token exceeds which was granted until now, for
	// whatever key and by whatever client of the key space. It may be larger than every
	// one of them. Keys that were removed as unused, by a [Forgetter] for one, don't
	// count. It changes no token and no hold, and may cost the server a look at every key
	// that was used.
	LastToken(ctx context.Context) (uint64, error)
}

// Clocked is implemented by backends whose grants are not read from
// [SystemClock], such as the in-memory backend in tests with virtual time.
type Clocked interface {
	// Clock is the clock of all Instants of this backend.
	Clock() Clock
}

// Interruptible is implemented by backends that return from every request for a grant or a
// release when its context ends, at once, whatever the server and the network do. The lock
// package then makes these on the goroutines of its callers, where otherwise it hands them to
// another one and waits for that or for the end of the context: two hand-overs, which a fast
// server notices. The methods are those of [Backend] but Renew, and of [ReleaseTeller],
// [HandOverer], [Queuer] and [Ticket].
//
// [As] does not find it behind a [Wrapper], whose own steps may last. A Wrapper that is
// interruptible too has the method.
type Interruptible interface {
	// Interruptible reports whether that is so. The answer is always the same. A request
	// that was interrupted and may have reached the server has an unknown outcome, and what
	// is requested for the same [ID] next should come to the server after it.
	Interruptible() bool
}

// Immediate is implemented by backends whose requests wait for nothing, such as one in the
// memory of the process. They are [Interruptible], too. The lock package then makes no
// contexts for requests, which would cost more than they do. Behind a Wrapper it is not found
// either.
type Immediate interface {
	// Immediate reports whether requests return at once, whatever their contexts say: none
	// waits for a server, a disk or another request. Only [Ticket.Wait] waits, until its
	// context ends. The answer is always the same.
	Immediate() bool
}
