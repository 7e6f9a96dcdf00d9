package backend

import (
	"fmt"
	"slices"
	"time"
)

// Guarantees is what a backend promises, as data. The conformance suite proves
// each claim, and reports what works but is not claimed. Mutual exclusion,
// owner-only release, expiry and renewal are not listed: without them it is not
// a backend.
type Guarantees struct {
	// Name is the name of the backend in reports, such as "redis".
	Name string `json:"name"`

	// Reach says between whom the lock excludes.
	Reach Reach `json:"reach"`

	// Assumptions lists, one sentence each, everything that must be true for the
	// lock to exclude until the holder's deadline.
	Assumptions []string `json:"assumptions"`

	// Expiry says whose clock ends a hold that is no longer renewed.
	Expiry ExpiryClock `json:"expiry"`

	// MinTTL, MaxTTL and TTLGrain bound what a request may ask. A TTL outside the
	// bounds or not a multiple of the grain is refused. In JSON all durations are
	// seconds, such as "min_ttl_seconds".
	MinTTL   time.Duration `json:"-"`
	MaxTTL   time.Duration `json:"-"`
	TTLGrain time.Duration `json:"-"`

	// LongerTTL says what to set for a TTL above MaxTTL, such as "raise
	// restart_delay". It is "" where nothing helps, and where MaxTTL is zero, which
	// means that there is no limit.
	LongerTTL string `json:"longer_ttl,omitempty"`

	// TakeoverLag is by how much longer than the TTL an abandoned hold can keep
	// others out.
	TakeoverLag time.Duration `json:"-"`

	// EndsWithSession: a hold has no expiry of its own on the server. It ends with
	// its release or with the session of its client, which all holds of the client
	// share. The lock package then repeats a release that was not confirmed for as
	// long as the Locker is open, and not only until the TTL has passed.
	EndsWithSession bool `json:"ends_with_session"`

	// Token says where fencing tokens come from, and TokenSurvives after which
	// events they still increase. Release and expiry are always survived by a
	// backend that has tokens.
	Token         TokenSource `json:"token"`
	TokenSurvives []Fault     `json:"token_survives"`

	// HoldsSurvive lists the events after which a hold that is still renewed goes
	// on. After any other event the holder is told that it was lost.
	HoldsSurvive []Fault `json:"holds_survive"`

	// Reentrancy says where the holds of an explicit owner are counted.
	Reentrancy Reentrancy `json:"reentrancy"`

	// Waiting says how a waiter learns that the key is free.
	Waiting Waiting `json:"waiting"`

	// Fair: waiters of different clients are served in the order of their arrival
	// at the server.
	Fair bool `json:"fair"`

	// ManualRenewal: Lease.Renew works.
	ManualRenewal bool `json:"manual_renewal"`

	// WithoutRenewal: a hold can be taken that is not renewed automatically.
	WithoutRenewal bool `json:"without_renewal"`

	// LossSignal: Lease.Context ends by the deadline when renewals fail, and
	// within one renewal period when the record is removed by force.
	LossSignal bool `json:"loss_signal"`

	// Deadline: Lease.Deadline is known.
	Deadline bool `json:"deadline"`

	// HolderDetails: a refusal names the holder and its remaining time. An [Inspector]
	// and a [Lister] show what its request told of it. Without HolderDetails any of that
	// may be unknown.
	HolderDetails bool `json:"holder_details"`

	// GuardedWrite: the backend offers a write into the same store that takes
	// effect only while the caller is the recorded owner.
	GuardedWrite bool `json:"guarded_write"`
}

// Clone returns a copy with lists of its own, for a backend that keeps its guarantees.
func (g Guarantees) Clone() Guarantees {
	g.Assumptions, g.TokenSurvives, g.HoldsSurvive = slices.Clone(g.Assumptions), slices.Clone(g.TokenSurvives), slices.Clone(g.HoldsSurvive)
	return g
}

// CheckTTL refuses a TTL that the backend cannot keep, with an error matching
// [ErrInvalid] that states the limits.
func (g Guarantees) CheckTTL(ttl time.Duration) error {
	grain := max(g.TTLGrain, 1)
	switch {
	case ttl <= 0:
		return fmt.Errorf("%w: TTL %s; it must be positive", ErrInvalid, ttl)
	case g.MaxTTL > 0 && ttl > g.MaxTTL && g.LongerTTL != "":
		return fmt.Errorf("%w: TTL %s; %s accepts %s; for a longer one, %s", ErrInvalid, ttl, g.Name, g.ttlRange(), g.LongerTTL)
	case ttl < g.MinTTL, g.MaxTTL > 0 && ttl > g.MaxTTL:
		return fmt.Errorf("%w: TTL %s; %s accepts %s", ErrInvalid, ttl, g.Name, g.ttlRange())
	case ttl%grain != 0:
		return fmt.Errorf("%w: TTL %s is not a multiple of %s; %s accepts %s", ErrInvalid, ttl, grain, g.Name, g.ttlRange())
	}
	return nil
}

// NearestTTL returns a TTL that [Guarantees.CheckTTL] accepts: the one that is wanted, or
// the nearest within the limits, rounded down to the grain where that is not below MinTTL.
func (g Guarantees) NearestTTL(want time.Duration) time.Duration {
	ttl := max(want, g.MinTTL)
	if g.MaxTTL > 0 {
		ttl = min(ttl, g.MaxTTL)
	}
	if grain := g.TTLGrain; grain > 1 {
		ttl -= ttl % grain
		if ttl < g.MinTTL || ttl <= 0 {
			ttl += grain
		}
	}
	return ttl
}

func (g Guarantees) ttlRange() string {
	s := fmt.Sprintf("multiples of %s from %s", max(g.TTLGrain, 1), max(g.MinTTL, g.TTLGrain, 1))
	if g.MaxTTL > 0 {
		s += fmt.Sprintf(" to %s", g.MaxTTL)
	}
	return s
}

// Reach says between whom a lock excludes.
type Reach string

// The reaches, from the narrowest to the widest.
const (
	ReachProcess Reach = "process" // goroutines of one process
	ReachHost    Reach = "host"    // processes of one machine
	ReachNetwork Reach = "network" // everybody who reaches the server
)

// ExpiryClock says whose clock ends a hold that is no longer renewed.
type ExpiryClock string

// Whose clock ends a hold.
const (
	ClockProcess      ExpiryClock = "process"       // the monotonic clock of this process
	ClockHost         ExpiryClock = "host"          // the boot clock of this machine; the wall clock does not matter
	ClockServerWall   ExpiryClock = "server wall"   // the wall clock of the server; set forward, it ends holds early
	ClockServerSteady ExpiryClock = "server steady" // the server's monotonic clock; its wall clock does not matter
	ClockMajority     ExpiryClock = "majority"      // the clocks of a majority of servers
	ClockConnection   ExpiryClock = "connection"    // the server's idle timer of the connection
	ClockUnknown      ExpiryClock = "unknown"       // an adapter that does not say
)

// TokenSource says where fencing tokens come from.
type TokenSource string

// The sources of fencing tokens.
const (
	TokenNone     TokenSource = "none"     // Lease.Token is 0
	TokenCounter  TokenSource = "counter"  // a counter of ours in the store, floored with its clock in microseconds
	TokenRevision TokenSource = "revision" // a revision of the store, counted on from the clock at its first use
	TokenQuorum   TokenSource = "quorum"   // accepted by a majority in a second phase
)

// Fault is something that happens to a holder, a server or a record.
type Fault string

// The faults that tokens and holds may survive.
const (
	FaultClientCrash   Fault = "client crash"   // the holder's process is killed
	FaultRecordRemoved Fault = "record removed" // an operator deletes the record
	FaultRestart       Fault = "restart"        // the server is killed and starts again with its data
	FaultFailover      Fault = "failover"       // another member takes over
	FaultDataLoss      Fault = "data loss"      // the server starts again without its data
)

// Survives reports whether the list contains the fault.
func Survives(list []Fault, f Fault) bool {
	for _, x := range list {
		if x == f {
			return true
		}
	}
	return false
}

// Reentrancy says where the holds of an explicit owner are counted.
type Reentrancy string

// Where the holds are counted.
const (
	ReentrancyNone   Reentrancy = "none"   // an explicit owner is refused
	ReentrancyClient Reentrancy = "client" // in the Locker, by Renew: another Locker with the same owner is excluded
	ReentrancyServer Reentrancy = "server" // in the record: another process with the same owner re-enters
)

// Waiting says how a waiter learns that the key may be free.
type Waiting string

// How a waiter learns that the key may be free.
const (
	WaitPoll  Waiting = "poll"  // it asks again
	WaitPush  Waiting = "push"  // the server tells, and it also asks now and then
	WaitQueue Waiting = "queue" // it has a place in a queue on the server
)
