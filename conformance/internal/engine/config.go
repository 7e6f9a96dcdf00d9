package engine

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// The types of this file have the fields of those of package conformance with the same
// names, and are explained there.

// Config says what to test.
type Config struct {
	Name        string
	Open        func(ctx context.Context) (lock.Locker, error)
	OpenBackend func(ctx context.Context) (backend.Backend, error)
	Wrap        func(b backend.Backend, ttl time.Duration) (lock.Locker, error)
	Guarantees  *backend.Guarantees
	Deviations  map[string]string
	TTL         time.Duration
	Budget      time.Duration
	Parallel    int
	Remove      func(ctx context.Context, key string) error
	Kill        func(l lock.Locker)
	Proxy       *Proxy
	Judge       func(h History) error
	Guarded     *GuardedWrite
	EndSession  func(ctx context.Context, key string) error
	Pool        func(ctx context.Context) (string, error)
	Untouched   func(ctx context.Context) (Store, error)
	Child       string
	Tidy        bool
	KeyPrefix   string
	Only        []string
	Seed        uint64
	Logf        func(format string, args ...any)
	Progress    func(Result)
	Repeat      func(Result) bool
}

// Proxy is what the suite needs to stand between Lockers and their server.
type Proxy struct {
	Server string
	Open   func(ctx context.Context, addr string) (lock.Locker, error)
}

// GuardedWrite is a value in the lock's own store for each key.
type GuardedWrite struct {
	Write func(ctx context.Context, lease lock.Lease, value string) error
	Open  func(ctx context.Context, lease lock.Lease, value string, between func()) error
	Read  func(ctx context.Context, key string) (string, error)
}

// Store is a store of the lock that nobody has used yet.
type Store struct {
	Open     func(ctx context.Context) (backend.Backend, error)
	Contents func(ctx context.Context) (string, error)
}

// History is what callers did with one key in one case.
type History struct {
	Rule       string
	Key        string
	Tokens     bool
	Operations []Operation
}

// Operation is one call, with what is known of its effect.
type Operation struct {
	Client int
	Who    string
	Kind   OperationKind
	Hold   int
	Owner  string
	Token  uint64
	Call   time.Duration
	Return time.Duration
}

// Never is the Return of an operation whose end is not known.
const Never = time.Duration(math.MaxInt64)

// OperationKind says what an operation did.
type OperationKind string

// The kinds of operations.
const (
	Granted  OperationKind = "granted"
	Refused  OperationKind = "refused"
	MayGrant OperationKind = "may be granted"
	Kept     OperationKind = "kept"
	Released OperationKind = "released"
	Ended    OperationKind = "had ended"
	MayEnd   OperationKind = "may end"
)

// ErrInconclusive is what Config.Judge wraps when it could not decide in time.
var ErrInconclusive = errors.New("conformance: could not be decided")

// Verdict is what became of a rule.
type Verdict string

// The verdicts.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"
	NotClaimed   Verdict = "not claimed"
	Unclaimed    Verdict = "works, not claimed"
	Inconclusive Verdict = "inconclusive"
	Skipped      Verdict = "skipped"
	Deviation    Verdict = "deviation"
)

// Result is what became of one rule.
type Result struct {
	Rule      string
	Subject   string
	Statement string
	Verdict   Verdict
	Evidence  string
	Seconds   float64
	overlap   bool // two leases of a key were valid at the same time
	proven    bool // whatever a server does that fails now and then

	unreliable  bool // no TTL is long enough for such a server
	early       bool // the case was given up because another rule had failed
	unsupported bool // every failure is about an answer ErrUnsupported
	unkept      bool // the case rests on renewal, which the lock is declared not to do
}
