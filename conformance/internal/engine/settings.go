package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// MinTTL is the shortest TTL that a run can have: below it, requests are no small part of it.
const MinTTL = 100 * time.Millisecond

// OpenLimit is how long opening a client may take.
const OpenLimit = 30 * time.Second

const (
	closeLimit  = 8 * time.Second
	longTTL     = 30 * time.Second
	defaultTTL  = time.Second
	defaultKeys = "conformance/"

	defaultParallel = 12
	parallelHere    = 24 // where there is no server on which cases are a load
)

// Settings is a checked Config.
type Settings struct {
	Config
	Claimed  backend.Guarantees
	Says     bool // the lock states its guarantees itself
	able     bool // the backend has abilities that the lock package uses
	TTL      time.Duration
	Long     time.Duration // for leases that must not expire during a case
	Fixed    bool          // only one TTL can be had
	KeySpace string        // KeyPrefix and a part that no other run has
	Rules    []*Rule
	stalls   *stallMeter
	// bystander is there for locks that other processes can have.
	bystander  *bystander
	pace       pace
	PoolBefore string // what Pool said at the beginning
	used       *usedKeys
	red        atomic.Bool // a rule has failed for sure
	lone       reliability
	declining  declining
	apart      tasks // clients that are closed beside the cases
}

// Prepare checks the Config and opens one client to see that it can be opened.
func Prepare(ctx context.Context, cfg Config, all []*Rule) (*Settings, error) {
	s := &Settings{Config: cfg}
	switch {
	case os.Getenv(childVar) != "":
		return nil, errInChild
	case cfg.Proxy != nil && (cfg.Proxy.Server == "" || cfg.Proxy.Open == nil):
		return nil, errors.New("conformance: Config.Proxy needs Server, the address of the lock's server, and Open, which opens a Locker at another one")
	case cfg.Open == nil && cfg.OpenBackend == nil:
		return nil, errors.New("conformance: Config needs Open, OpenBackend or Proxy")
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
	if s.Logf == nil {
		s.Logf = func(string, ...any) {}
	}
	var random [12]byte
	_, _ = rand.Read(random[:])
	s.KeySpace = fmt.Sprintf("%s%x/", s.KeyPrefix, random[:4])
	if s.Seed == 0 {
		s.Seed = binary.LittleEndian.Uint64(random[4:])
	}
	var err error
	if s.Rules, err = selectRules(all, cfg.Only); err != nil {
		return nil, err
	}
	if err := checkDeviations(all, s.Deviations); err != nil {
		return nil, err
	}
	if s.Pool != nil {
		if s.PoolBefore, err = cfg.Pool(ctx); err != nil {
			return nil, fmt.Errorf("conformance: Config.Pool: %w", err)
		}
	}
	if err := s.probe(ctx); err != nil {
		return nil, err
	}
	if err := s.chooseTTL(); err != nil {
		return nil, err
	}
	if s.Parallel == 0 {
		s.Parallel = defaultParallel
		if s.Claimed.Reach == backend.ReachProcess {
			s.Parallel = parallelHere
		}
	}
	if s.OpenBackend == nil && s.Kill == nil && !s.Claimed.WithoutRenewal {
		return nil, errors.New("conformance: expiry cannot be tested: the guarantees don't claim WithoutRenewal, so Config.Kill is needed to abandon a Locker")
	}
	if s.Name == "" {
		s.Name = s.Claimed.Name
	}
	s.measure(ctx)
	return s, nil
}

// measureLimit is how long it may take to learn what requests take.
const measureLimit = 3 * time.Second

// closeApart closes a client beside the cases, which a Close that hangs must not hold up.
func (s *Settings) closeApart(c io.Closer) { s.apart.Go(func() { _ = c.Close() }) }

// measure learns what a few requests take, so that the first cases have the TTL and the
// limits that fit the server. What goes wrong in it is for the rules to find.
func (s *Settings) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureLimit)
	defer cancel()
	done := make(chan struct{})
	s.apart.Go(func() {
		defer close(done)
		defer func() { _ = recover() }()
		l, err := s.OpenLocker(ctx)
		if err != nil {
			return
		}
		defer s.closeApart(l)
		var opts []lock.Option
		if !s.Fixed {
			opts = append(opts, lock.WithTTL(s.Long))
		}
		for n := 0; n < fewest && ctx.Err() == nil; n += 2 {
			begun := time.Now()
			lease, err := l.TryAcquire(ctx, s.KeySpace+"measure", opts...)
			if err != nil || lease == nil {
				return
			}
			s.pace.add(time.Since(begun))
			begun = time.Now()
			if lease.Release(ctx) != nil {
				return
			}
			s.pace.add(time.Since(begun))
		}
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// probe opens a client once, and learns the guarantees and which hooks exist.
func (s *Settings) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, OpenLimit)
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
				s.closeApart(b)
			}
			if s.Open != nil {
				l, err := s.Open(ctx)
				if err != nil {
					return fmt.Errorf("conformance: Config.Open failed: %w", err)
				}
				if l == nil {
					return errors.New("conformance: Config.Open returned neither a Locker nor an error")
				}
				if own, ok := l.(interface{ Guarantees() backend.Guarantees }); ok && !says {
					g, says = own.Guarantees(), true
				}
				s.closeApart(l)
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
	s.Claimed, s.Says, s.able = g, says, able
	switch {
	case s.Guarantees != nil:
		s.Claimed = *s.Guarantees
	case !says:
		s.Claimed = backend.Guarantees{Name: "unnamed lock", Expiry: backend.ClockUnknown, WithoutRenewal: s.Kill == nil}
	}
	if s.Remove == nil && removing {
		s.Remove = s.forceRelease
	}
	return nil
}

// chooseTTL sets the TTLs that the cases use.
func (s *Settings) chooseTTL() error {
	grain := max(s.Claimed.TTLGrain, 1)
	if s.Claimed.MinTTL < 0 || s.Claimed.MaxTTL < 0 || s.Claimed.TTLGrain < 0 || s.Claimed.TakeoverLag < 0 || (s.Claimed.MaxTTL > 0 && s.Claimed.MaxTTL < s.Claimed.MinTTL) {
		return fmt.Errorf("conformance: the guarantees contradict themselves: MinTTL %s, MaxTTL %s, TTLGrain %s, TakeoverLag %s",
			s.Claimed.MinTTL, s.Claimed.MaxTTL, s.Claimed.TTLGrain, s.Claimed.TakeoverLag)
	}
	s.Fixed = s.Claimed.MaxTTL > 0 && s.Claimed.MinTTL == s.Claimed.MaxTTL
	s.TTL = s.Config.TTL
	if s.TTL == 0 {
		s.TTL = (max(s.Claimed.MinTTL, defaultTTL) + grain - 1) / grain * grain
		if s.Claimed.MaxTTL > 0 {
			s.TTL = min(s.TTL, s.Claimed.MaxTTL)
		}
	}
	if s.TTL < MinTTL {
		return fmt.Errorf("conformance: a TTL of %s is too short to test with, use at least %s", s.TTL, MinTTL)
	}
	if err := s.Claimed.CheckTTL(s.TTL); err != nil {
		return fmt.Errorf("conformance: Config.TTL does not fit the guarantees: %w", err)
	}
	s.Long = s.Fit(max(longTTL, 4*s.TTL))
	return nil
}

// Fit returns the largest TTL up to d that the guarantees allow, and at least
// the TTL of the run.
func (s *Settings) Fit(d time.Duration) time.Duration {
	if s.Fixed {
		return s.TTL
	}
	if s.Claimed.MaxTTL > 0 {
		d = min(d, s.Claimed.MaxTTL)
	}
	grain := max(s.Claimed.TTLGrain, 1)
	return max(d/grain*grain, s.TTL)
}

// forceRelease is the Remove hook of backends that can inspect and force.
func (s *Settings) forceRelease(ctx context.Context, key string) error {
	b, err := s.OpenBackend(ctx)
	if err != nil {
		return err
	}
	defer s.closeApart(b)
	inspector, _ := backend.As[backend.Inspector](b)
	rec, err := inspector.Inspect(ctx, key)
	if err != nil {
		return err
	}
	forcer, _ := backend.As[backend.ForceReleaser](b)
	return forcer.ForceRelease(ctx, key, rec.Token)
}

// OpenLocker opens a new client of the store.
func (s *Settings) OpenLocker(ctx context.Context) (lock.Locker, error) {
	return s.openLockerFor(ctx, s.TTL)
}

// openLockerFor is OpenLocker with another TTL for the calls that ask for none, which a
// Locker of Config.Open has from its own settings.
func (s *Settings) openLockerFor(ctx context.Context, ttl time.Duration) (lock.Locker, error) {
	if s.Open != nil {
		l, err := s.Open(ctx)
		if err != nil {
			return nil, err // l may be a nil pointer of its type
		}
		if l == nil {
			return nil, errors.New("neither a Locker nor an error")
		}
		return l, nil
	}
	b, err := s.openBackend(ctx)
	if err != nil {
		return nil, err
	}
	return s.MakeLocker(b, ttl)
}

func (s *Settings) openBackend(ctx context.Context) (backend.Backend, error) {
	b, err := s.OpenBackend(ctx)
	if err == nil && b == nil {
		err = errors.New("neither a backend nor an error")
	}
	return b, err
}

// MakeLocker makes a Locker of a backend.
func (s *Settings) MakeLocker(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
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
