package conformance

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Config says what to test. One of Open and OpenBackend is needed; every other
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
	// its optional interfaces. It needs OpenBackend.
	Wrap func(b backend.Backend, ttl time.Duration) (lock.Locker, error)

	// Guarantees are the claims to be held against what is seen. Default: what
	// the backend or the Locker says. A Locker that does not say, without this
	// field, claims the four subjects and lock.WithoutRenewal (unless Kill is
	// given), and nothing else.
	Guarantees *backend.Guarantees

	// TTL is the time to live of the leases that are left to expire: the smallest
	// that the lock keeps honestly, at least 100 ms, and 1 s or more on a server
	// in another process. Default: the larger of Guarantees.MinTTL and 1 s, as
	// fits the grain. The suite asks for other TTLs too, within the guarantees.
	// Where MinTTL equals MaxTTL, the TTL is fixed and no lock.WithTTL is given.
	TTL time.Duration

	// Budget is about how long a run may take; the number of rounds comes from
	// it. Default: 60 s. No case does less than a few rounds.
	Budget time.Duration

	// Parallel is how many cases overlap in time. Default: 12.
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
	// leaves something in a store.
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

const (
	minTTL      = 100 * time.Millisecond
	openLimit   = 30 * time.Second
	closeLimit  = 8 * time.Second
	longTTL     = 30 * time.Second
	defaultTTL  = time.Second
	defaultKeys = "conformance/"
)

// settings is a checked Config.
type settings struct {
	Config
	g        backend.Guarantees
	says     bool // the lock states its guarantees itself
	able     bool // the backend has optional interfaces that the lock package uses
	ttl      time.Duration
	long     time.Duration // for leases that must not expire during a case
	fixed    bool          // only one TTL can be had
	keySpace string        // KeyPrefix and a part that no other run has
	rules    []*rule
	stalls   *stallMeter
	// bystander is there for locks that other processes can have.
	bystander *bystander
	pace      pace
	pool      string // what Pool said at the beginning
	used      *usedKeys
}

// prepare checks the Config and opens one client to see that it can be opened.
func prepare(ctx context.Context, cfg Config, all []*rule) (*settings, error) {
	s := &settings{Config: cfg}
	switch {
	case os.Getenv(childVar) != "":
		return nil, errInChild
	case cfg.Open == nil && cfg.OpenBackend == nil:
		return nil, errors.New("conformance: Config needs Open or OpenBackend")
	case cfg.Wrap != nil && cfg.OpenBackend == nil:
		return nil, errors.New("conformance: Config.Wrap needs OpenBackend, for backends to wrap")
	case cfg.TTL < 0 || cfg.Budget < 0 || cfg.Parallel < 0:
		return nil, errors.New("conformance: Config.TTL, Budget and Parallel must not be negative")
	case len(cfg.KeyPrefix) > 64:
		return nil, fmt.Errorf("conformance: Config.KeyPrefix has %d bytes, at most 64 are allowed", len(cfg.KeyPrefix))
	}
	if s.KeyPrefix == "" {
		s.KeyPrefix = defaultKeys
	}
	if err := backend.ValidateKey(s.KeyPrefix); err != nil {
		return nil, fmt.Errorf("conformance: Config.KeyPrefix: %w", err)
	}
	if s.Budget == 0 {
		s.Budget = time.Minute
	}
	if s.Parallel == 0 {
		s.Parallel = 12
	}
	if s.Logf == nil {
		s.Logf = func(string, ...any) {}
	}
	var random [12]byte
	_, _ = rand.Read(random[:])
	s.keySpace = fmt.Sprintf("%s%x/", s.KeyPrefix, random[:4])
	if s.Seed == 0 {
		s.Seed = binary.LittleEndian.Uint64(random[4:])
	}
	var err error
	if s.rules, err = selectRules(all, cfg.Only); err != nil {
		return nil, err
	}
	if s.Pool != nil {
		if s.pool, err = cfg.Pool(ctx); err != nil {
			return nil, fmt.Errorf("conformance: Config.Pool: %w", err)
		}
	}
	if err := s.probe(ctx); err != nil {
		return nil, err
	}
	if err := s.chooseTTL(); err != nil {
		return nil, err
	}
	if s.OpenBackend == nil && s.Kill == nil && !s.g.WithoutRenewal {
		return nil, errors.New("conformance: expiry cannot be tested: the guarantees don't claim WithoutRenewal, so Config.Kill is needed to abandon a Locker")
	}
	if s.Name == "" {
		s.Name = s.g.Name
	}
	return s, nil
}

// probe opens a client once, and learns the guarantees and which hooks exist.
func (s *settings) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	found := make(chan error, 1)
	var (
		g        backend.Guarantees
		says     bool
		removing bool
		able     bool
	)
	go func() {
		err := errors.New("conformance: Open ended its goroutine instead of returning (t.FailNow inside it?)")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("conformance: opening a client panicked: %v\n%s", p, stack())
			}
			found <- err
		}()
		err = func() error {
			if s.OpenBackend != nil {
				b, err := s.OpenBackend(ctx)
				if err != nil {
					return fmt.Errorf("conformance: Config.OpenBackend failed: %w", err)
				}
				if b == nil {
					return errors.New("conformance: Config.OpenBackend returned neither a backend nor an error")
				}
				g, says = b.Guarantees(), true
				_, inspects := backend.As[backend.Inspector](b)
				_, forces := backend.As[backend.ForceReleaser](b)
				removing = inspects && forces
				able = usesOptional(b)
				go func() { _ = b.Close() }()
			}
			if s.Open != nil {
				l, err := s.Open(ctx)
				if err != nil {
					return fmt.Errorf("conformance: Config.Open failed: %w", err)
				}
				if l == nil {
					return errors.New("conformance: Config.Open returned neither a Locker nor an error")
				}
				if own, ok := lock.GuaranteesOf(l); ok && !says {
					g, says = own, true
				}
				go func() { _ = l.Close() }()
			}
			return nil
		}()
	}()
	select {
	case err := <-found:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return fmt.Errorf("conformance: opening a client did not end: %w", context.Cause(ctx))
	}
	s.g, s.says, s.able = g, says, able
	switch {
	case s.Guarantees != nil:
		s.g = *s.Guarantees
	case !says:
		s.g = backend.Guarantees{Name: "unnamed lock", Expiry: backend.ClockUnknown, WithoutRenewal: s.Kill == nil}
	}
	if s.Remove == nil && removing {
		s.Remove = s.forceRelease
	}
	return nil
}

// chooseTTL sets the TTLs that the cases use.
func (s *settings) chooseTTL() error {
	grain := max(s.g.TTLGrain, 1)
	if s.g.MinTTL < 0 || s.g.MaxTTL < 0 || s.g.TTLGrain < 0 || s.g.TakeoverLag < 0 || (s.g.MaxTTL > 0 && s.g.MaxTTL < s.g.MinTTL) {
		return fmt.Errorf("conformance: the guarantees contradict themselves: MinTTL %s, MaxTTL %s, TTLGrain %s, TakeoverLag %s",
			s.g.MinTTL, s.g.MaxTTL, s.g.TTLGrain, s.g.TakeoverLag)
	}
	s.fixed = s.g.MaxTTL > 0 && s.g.MinTTL == s.g.MaxTTL
	s.ttl = s.TTL
	if s.ttl == 0 {
		s.ttl = (max(s.g.MinTTL, defaultTTL) + grain - 1) / grain * grain
		if s.g.MaxTTL > 0 {
			s.ttl = min(s.ttl, s.g.MaxTTL)
		}
	}
	if s.ttl < minTTL {
		return fmt.Errorf("conformance: a TTL of %s is too short to test with, use at least %s", s.ttl, minTTL)
	}
	if err := s.g.CheckTTL(s.ttl); err != nil {
		return fmt.Errorf("conformance: Config.TTL does not fit the guarantees: %w", err)
	}
	s.long = s.fit(max(longTTL, 4*s.ttl))
	return nil
}

// fit returns the largest TTL up to d that the guarantees allow, and at least
// the TTL of the run.
func (s *settings) fit(d time.Duration) time.Duration {
	if s.fixed {
		return s.ttl
	}
	if s.g.MaxTTL > 0 {
		d = min(d, s.g.MaxTTL)
	}
	grain := max(s.g.TTLGrain, 1)
	return max(d/grain*grain, s.ttl)
}

// forceRelease is the Remove hook of backends that can inspect and force.
func (s *settings) forceRelease(ctx context.Context, key string) error {
	b, err := s.OpenBackend(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	inspector, _ := backend.As[backend.Inspector](b)
	rec, err := inspector.Inspect(ctx, key)
	if err != nil {
		return err
	}
	forcer, _ := backend.As[backend.ForceReleaser](b)
	return forcer.ForceRelease(ctx, key, rec.Token)
}

// openLocker opens a new client of the store.
func (s *settings) openLocker(ctx context.Context) (lock.Locker, error) {
	if s.Open != nil {
		l, err := s.Open(ctx)
		if err == nil && l == nil {
			err = errors.New("neither a Locker nor an error")
		}
		return l, err
	}
	b, err := s.openBackend(ctx)
	if err != nil {
		return nil, err
	}
	return s.wrap(b, s.ttl)
}

func (s *settings) openBackend(ctx context.Context) (backend.Backend, error) {
	b, err := s.OpenBackend(ctx)
	if err == nil && b == nil {
		err = errors.New("neither a backend nor an error")
	}
	return b, err
}

// wrap makes a Locker of a backend.
func (s *settings) wrap(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
	wrap := s.Wrap
	if wrap == nil {
		wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
			return lock.New(b, &lock.Options{TTL: ttl})
		}
	}
	l, err := wrap(b, ttl)
	if err == nil && l == nil {
		err = errors.New("conformance: Config.Wrap returned neither a Locker nor an error")
	}
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return l, nil
}

// stack is the stack of the calling goroutine, without the lines of recover.
func stack() string {
	buf := make([]byte, 16<<10)
	text := string(buf[:runtime.Stack(buf, false)])
	if _, after, ok := strings.Cut(text, "panic("); ok {
		text = "panic(" + after
	}
	return text
}
