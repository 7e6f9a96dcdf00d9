package flawed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var (
	healthySingle = Lock{
		ID: "healthy", Title: "SET NX PX with an id per acquisition, compared on the server",
		File: "healthy.go", Over: Redis,
		On: onNetwork(func(s single) backend.Backend { return s }),
	}
	healthyPrimitives = Lock{
		ID: "healthy", Title: "memlock's primitives",
		File: "healthy.go", Over: Memory,
		On: onMemory(func(m primitives) backend.Backend { return m }),
	}
	healthyPolicy = Lock{
		ID: "healthy", Title: "memlock's Locker",
		File: "healthy.go", Over: Memory,
		On: asLocker(func(l *lock.Client) lock.Locker { return policy{l} }),
	}
)

// single is a correct lock on one Redis server, and the ground on which broken
// ones are built. The record is a string that expires; its value is the id of
// the acquisition, which nobody else has.
//
//	acquire   SET name id NX PX ttl
//	renew     if GET name == id then PEXPIRE name ttl     one script
//	release   if GET name == id then DEL name             one script
type single struct {
	clocked
	rdb    *goredis.Client
	file   string // of the lock in the collection, which its records are named after
	number int    // 1 for the first client of a run, and so on
}

var (
	renewIfMine = goredis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

	deleteIfMine = goredis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('DEL', KEYS[1])`)
)

// name is the Redis key of a lock. No two locks of the collection share one: the suite also
// takes keys that are the same in all runs.
func (s single) name(key string) string { return "flawed:" + s.file + ":" + key }

// clocked is for locks whose machines never sleep, so that they can be tried in virtual
// time.
type clocked struct{}

// Clock implements backend.Clocked.
func (clocked) Clock() backend.Clock { return backend.RuntimeClock() }

func now() backend.Instant { return clocked{}.Clock().Now() }

func (s single) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := now()
	taken, err := s.rdb.SetNX(ctx, s.name(req.Key), req.ID.Hex(), req.TTL).Result()
	if err != nil {
		return backend.Grant{}, unreached(err)
	}
	if !taken {
		return s.repeat(ctx, req)
	}
	return granted(sent, req.TTL), nil
}

// repeat answers a request that found the key taken. The taker may be the request
// itself: its first answer was lost, and it came again.
func (s single) repeat(ctx context.Context, req backend.Request) (backend.Grant, error) {
	v, err := s.Renew(ctx, backend.HoldOf(req))
	switch {
	case errors.Is(err, backend.ErrNotHeld):
		return backend.Grant{}, held(req.Key)
	case err != nil:
		return backend.Grant{}, err
	}
	return backend.Grant{Holds: 1, Validity: v}, nil
}

func (s single) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	sent := now()
	n, err := renewIfMine.Run(ctx, s.rdb, []string{s.name(hold.Key)}, hold.ID.Hex(), hold.TTL.Milliseconds()).Int()
	return renewed(sent, hold.TTL, n == 1, unreached(err))
}

func (s single) Release(ctx context.Context, hold backend.Hold) error {
	n, err := deleteIfMine.Run(ctx, s.rdb, []string{s.name(hold.Key)}, hold.ID.Hex()).Int()
	return released(n == 1, unreached(err))
}

func (s single) Close() error { return nil }

// unreached puts an error of a client that repeats no command into the words of the contract:
// where there was no connection, nothing was sent. What an error leaves open is unknown.
func unreached(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return err
}

func (s single) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name:           "flawed",
		Reach:          backend.ReachNetwork,
		Assumptions:    []string{"The Redis server keeps its data, and its clock runs at the speed of the holder's."},
		Expiry:         backend.ClockServerWall,
		MinTTL:         10 * time.Millisecond,
		MaxTTL:         24 * time.Hour,
		TTLGrain:       time.Millisecond,
		Token:          backend.TokenNone,
		Reentrancy:     backend.ReentrancyNone,
		Waiting:        backend.WaitPoll,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
	}
}

// granted, renewed, released and held put answers into the words of the contract.

func granted(sent backend.Instant, ttl time.Duration) backend.Grant {
	return backend.Grant{Holds: 1, Validity: validity(sent, ttl)}
}

func validity(sent backend.Instant, ttl time.Duration) backend.Validity {
	return backend.Validity{Sent: sent, For: backend.ValidFor(ttl)}
}

func renewed(sent backend.Instant, ttl time.Duration, done bool, err error) (backend.Validity, error) {
	if err := released(done, err); err != nil {
		return backend.Validity{}, err
	}
	return validity(sent, ttl), nil
}

func released(done bool, err error) error {
	if err == nil && !done {
		return backend.ErrNotHeld
	}
	return err
}

func held(key string) error { return &backend.HeldError{Key: key} }

// primitives are those of memlock without its abilities.
type primitives struct{ backend.Backend }

// Clock implements backend.Clocked.
func (p primitives) Clock() backend.Clock { return p.Backend.(backend.Clocked).Clock() }

func (p primitives) Guarantees() backend.Guarantees {
	g := p.Backend.Guarantees()
	g.Waiting = backend.WaitPoll
	return g
}

// policy is a Locker around a healthy one, the ground for locks whose primitives
// are right and whose use of them is not.
type policy struct{ *lock.Client }

// changed is a Locker whose leases are changed, by whichever call they come.
type changed struct {
	policy
	lease func(lease lock.Lease, set lock.Settings) lock.Lease
}

// Acquire implements lock.Locker.
func (c changed) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return c.change(opts)(c.policy.Acquire(ctx, key, opts...))
}

// TryAcquire implements lock.Locker.
func (c changed) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return c.change(opts)(c.policy.TryAcquire(ctx, key, opts...))
}

func (c changed) change(opts []lock.Option) func(lock.Lease, error) (lock.Lease, error) {
	return func(lease lock.Lease, err error) (lock.Lease, error) {
		set, _ := lock.ResolveOptions(opts...)
		if err != nil {
			return nil, err
		}
		return c.lease(lease, set), nil
	}
}
