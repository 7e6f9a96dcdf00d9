package conformance

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// Config says what to test. One of Open, OpenBackend and Proxy is needed; every other
// field may be left out.
type Config struct {
	// Name is the name in reports. Default: that of the guarantees.
	Name string

	// Open returns a Locker. Each call is a new client, independent of the
	// others, of the same store. The suite closes it. ctx bounds the opening only.
	Open func(ctx context.Context) (lock.Locker, error)

	// OpenBackend returns a backend. Each call is a new client, independent of
	// the others, of the same store. The suite wraps it with lock.New where a
	// rule is about Lockers (unless Open is given too), and talks to it directly
	// where a rule is about backends.
	OpenBackend func(ctx context.Context) (backend.Backend, error)

	// Wrap makes a Locker of a backend, with a default TTL; Close of the Locker
	// closes the backend. Default: lock.New. It is for testing another policy over
	// the primitives of package backend, with the rules that disturb its requests:
	// the backend that it is given may be one of OpenBackend behind faults, without
	// its abilities. It needs OpenBackend.
	Wrap func(b backend.Backend, ttl time.Duration) (lock.Locker, error)

	// Guarantees are the claims to be held against what is seen. Default: what
	// the backend or the Locker says. A Locker that does not say, without this
	// field, claims lock.WithoutRenewal (unless Kill is given), and nothing else:
	// it is held to the rules that rest on no claim.
	Guarantees *backend.Guarantees

	// Deviations declares what the lock is not meant to keep, whatever it claims: names of
	// rules, or of subjects of rules, each with the reason in a few words, such as
	// "renewal": "locks are extended by their caller". A subject takes along the rules of
	// others that cannot be kept without it: who does not renew cannot keep what an idle
	// Locker holds. Such a rule is tried all the
	// same, and reported as Deviation with the reason, whether it was broken or not. That
	// a key has one holder at a time cannot be declared away: neither the subject
	// exclusion nor a rule whose name begins with Exclusive, and where any rule sees two
	// holders at a time, it has failed.
	Deviations map[string]string

	// TTL is the time to live of the leases that are left to expire: the smallest
	// that the lock keeps honestly, at least 100 ms, and 1 s or more on a server
	// in another process. Default: the larger of Guarantees.MinTTL and 1 s, as
	// fits the grain. The suite asks for other TTLs too, within the guarantees.
	// Where MinTTL equals MaxTTL, the TTL is fixed and no lock.WithTTL is given.
	TTL time.Duration

	// Budget is about how long a run may take; the number of rounds comes from
	// it. Default: 60 s. No case does less than a few rounds. From five minutes on,
	// waits and leases of more than a minute are tried too, as they always are in a
	// bubble of testing/synctest.
	Budget time.Duration

	// Parallel is how many cases overlap in time. Default: 12, and 24 for
	// a lock inside one process, where no server has the load.
	Parallel int

	// Remove deletes the record of a key by force, behind the back of its holder,
	// as an operator would. Default: backend.Inspector and backend.ForceReleaser,
	// where the backend has both. Without it some rules are skipped.
	Remove func(ctx context.Context, key string) error

	// Kill abandons a Locker without telling the server, as if its process had
	// died: it must not renew or release anything from then on. It is needed for
	// Lockers that always renew, when there is no OpenBackend; everywhere else
	// the suite abandons leases that are not renewed. A killed Locker is not used
	// or closed afterwards.
	Kill func(l lock.Locker)

	// Proxy lets the suite break the network between Lockers and their server: lost
	// requests and answers, connections that are cut, and a silent network. Without it
	// the rules of the subject "network" are skipped. Where neither Open nor OpenBackend
	// is given, Lockers are opened with it too, at the server's own address.
	Proxy *Proxy

	// Judge decides whether the calls of a case make sense together: the rules
	// Linearizable and LinearizableUnderFaults give it their histories, one for each
	// key, from several goroutines. An error breaks the rule and is its evidence,
	// unless it matches ErrInconclusive. Package conformance/linear has a judge for
	// tests, by a library that this package does not link. Without it the two rules
	// are skipped.
	Judge func(h History) error

	// Guarded is what the lock offers for guarded writes. Without it the rules about
	// them are skipped.
	Guarded *GuardedWrite

	// EndSession ends the session, or the lease, of the client that stands last in the
	// server's queue for the key, which is the holder when nobody waits, as its expiry
	// would, without telling the client. Without it two rules about sessions are skipped.
	EndSession func(ctx context.Context, key string) error

	// Pool describes the connections of the client that the lock was given by its user,
	// with what is set on them, such as the session variables of the idle connections of
	// a *sql.DB. The same text means: the same. It is for locks on a client that their
	// users also use for other things. Without it the rule PoolClean is skipped. Other
	// cases may use the client at the same time.
	Pool func(ctx context.Context) (string, error)

	// Untouched makes another store, which nobody has used yet, such as one under a prefix
	// of its own. Without it the rule LookingChangesNothing does not ask whether a look
	// leaves something in a store, nor ForgetLeavesOthers whether anything is removed, nor
	// RaisedFloorCounts whether the largest floor leaves a token, and CleanupByAge is skipped.
	Untouched func(ctx context.Context) (Store, error)

	// Child is by what another process makes this Config again, such as the address
	// of a server: the argument of the function that was given to the function
	// Child. Without it, the rules that kill or stop processes are skipped.
	Child string

	// Tidy ends, when the run is over, what rules have left behind on purpose: the
	// leases of clients that died. Otherwise they end by their TTL, half a minute at
	// most. It needs OpenBackend.
	Tidy bool

	// KeyPrefix begins every key. Default: "conformance/". At most 64 bytes.
	KeyPrefix string

	// Only names the rules or subjects to run. Default: all.
	Only []string

	// Seed makes the random choices of the cases. Default: a random one. It is
	// printed with failures. It does not make goroutines run in the same order.
	Seed uint64

	// Logf receives a line about what the run does now and then. Default: none.
	Logf func(format string, args ...any)

	// Progress is told about each case that has ended, one at a time.
	Progress func(Result)

	// Repeat is asked, one case at a time, whether a case is to be repeated that was
	// inconclusive. The result is what it would be otherwise. Default: it is, up to three
	// times, with a longer TTL each time.
	Repeat func(Result) bool
}

// Proxy says where the server of a lock is, and how a Locker is opened that reaches it
// at another address:
//
//	Proxy: &conformance.Proxy{Server: "localhost:1234", Open: mylock.New}
//
// The suite listens at addresses of its own, forwards what comes there to the server, and
// disturbs it. Nobody else's connections are touched. The Locker must make all of its
// connections to the address that it was given: a client that asks its server for the
// addresses of others, as those of clusters do, goes around the proxy.
type Proxy struct {
	// Server is host:port of the server, by TCP. Those of a lock on several servers are
	// separated by commas. Each request is then disturbed on its way to all of them.
	Server string
	// Open returns a Locker that reaches its server at addr, in the form of Server, with
	// the settings of Open of the Config. Each call is a new client, independent of the
	// others, of the same store. The suite closes it. ctx bounds the opening only.
	Open func(ctx context.Context, addr string) (lock.Locker, error)
}

// GuardedWrite is a value in the lock's own store for each key, which is written
// through what the lock offers for guarded writes.
type GuardedWrite struct {
	// Write sets the value while the lease is held, and otherwise changes nothing
	// and returns an error that matches lock.ErrNotHeld. It may end the lease.
	Write func(ctx context.Context, lease lock.Lease, value string) error
	// Open does what Write does, and calls between after its first step and before its
	// last one: a transaction has begun, and keeps the key from others, but nothing is
	// committed. Where a guarded write is one request there is nothing between, and Open
	// is nil; the rule GuardedWriteHoldsUpNobody is then skipped.
	Open func(ctx context.Context, lease lock.Lease, value string, between func()) error
	// Read returns the value of the key, without any lock; empty when there is none.
	Read func(ctx context.Context, key string) (string, error)
}

// Store is a store of the lock that nobody has used yet.
type Store struct {
	// Open returns a client of it. The suite closes it.
	Open func(ctx context.Context) (backend.Backend, error)
	// Contents says what the store contains, in any words. The same text means: the
	// same contents.
	Contents func(ctx context.Context) (string, error)
}

// engine is the Config as the machinery takes it.
func (cfg Config) engine() engine.Config {
	c := engine.Config{
		Name: cfg.Name, Open: cfg.Open, OpenBackend: cfg.OpenBackend, Wrap: cfg.Wrap,
		Guarantees: cfg.Guarantees, TTL: cfg.TTL, Budget: cfg.Budget, Parallel: cfg.Parallel,
		Deviations: cfg.Deviations, Remove: cfg.Remove, Kill: cfg.Kill, Guarded: (*engine.GuardedWrite)(cfg.Guarded),
		Proxy: (*engine.Proxy)(cfg.Proxy), EndSession: cfg.EndSession, Pool: cfg.Pool, Child: cfg.Child, Tidy: cfg.Tidy,
		KeyPrefix: cfg.KeyPrefix, Only: cfg.Only, Seed: cfg.Seed, Logf: cfg.Logf,
	}
	if p := cfg.Proxy; p != nil && cfg.Open == nil && cfg.OpenBackend == nil {
		c.Open = func(ctx context.Context) (lock.Locker, error) { return p.Open(ctx, p.Server) }
	}
	if judge := cfg.Judge; judge != nil {
		c.Judge = func(h engine.History) error { return judge(history(h)) }
	}
	if untouched := cfg.Untouched; untouched != nil {
		c.Untouched = func(ctx context.Context) (engine.Store, error) {
			s, err := untouched(ctx)
			return engine.Store(s), err
		}
	}
	if progress := cfg.Progress; progress != nil {
		c.Progress = func(r engine.Result) { progress(result(r)) }
	}
	if repeat := cfg.Repeat; repeat != nil {
		c.Repeat = func(r engine.Result) bool { return repeat(result(r)) }
	}
	return c
}
