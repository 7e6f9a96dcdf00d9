package flawed

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	memlock "github.com/mortiselock/lock/backend/memory"
	"github.com/mortiselock/lock/conformance"
)

// Store is where a lock keeps its records.
type Store string

// The stores.
const (
	Redis  Store = "redis"  // a Redis server
	Memory Store = "memory" // the memory of the process
)

// Lock is one lock of the collection.
type Lock struct {
	// ID is the name of the mistake, such as "Z01". Two locks may share it.
	ID string
	// Title says in a few words what the lock does.
	Title string
	// Summary says in one sentence what goes wrong.
	Summary string
	// Seen says where locks like it were found, or where they are described.
	Seen string
	// Instead says what to do in its place.
	Instead string
	// File is the source file of the mistake, in this package's directory.
	File string
	// Over is the store that it needs.
	Over Store
	// Rule is the rule of the suite that must catch it. It is empty for a
	// healthy lock.
	Rule string
	// Also are the other rules, or subjects of rules, that the same mistake
	// breaks, or breaks when the timing is right. The suite must not report
	// anything else.
	Also []string
	// Slow: what the mistake does looks as if the server were slow.
	Slow bool

	// One of these makes a client of the lock out of a healthy client.
	onRedis  func(single) backend.Backend
	onTable  func(session) backend.Backend
	onFiles  func(*directory) backend.Backend
	onMemory func(primitives) backend.Backend
	onQueue  func(queued) backend.Backend
	onPolicy func(l lock.Locker, b backend.Backend) lock.Locker // l is on b, which may be behind faults
	asLocker func(lock.Locker) lock.Locker
	beneath  func(backend.Backend) backend.Backend // with onPolicy: what l is on, and what b is then
}

// TTL is the time to live of the leases that the suite lets expire, for every
// lock of the collection: those that dawdle are tuned to it.
const TTL = time.Second

// All lists the broken locks, in the order in which people meet the mistakes.
func All() []Lock {
	return []Lock{
		z49Open, z49Shut,
		z01, z02, z39, z03, z04, z40, z07Watch, z07Nil, z05, z06,
		z08, z09, z10,
		z48Exists, z48Unlink,
		z32, z18, z35, z46, z31,
		z14, z13, z42, z15, z17, z16, z11, z12,
		z28, z29, z41Loss, z41Panic,
		z37, z37Step, z36, z30, z50, z51,
		z24, z25, z27,
	}
}

// Healthy lists the locks that the broken ones are made of. The suite must pass
// on them, or else a failure on a broken one would prove nothing.
func Healthy() []Lock {
	return []Lock{healthySingle, healthyFenced, healthyTable, healthyFile, healthyPrimitives, healthyQueue, healthyPolicy, healthyWatchdog, healthyAsking}
}

// Config is the lock as the suite sees it. A lock over Redis needs the client,
// shares it between all its own clients and leaves it open; it should have a pool
// of at least 50 connections. Each Config over memory has a store of its own.
func (l Lock) Config(client *goredis.Client) conformance.Config {
	cfg := conformance.Config{Name: l.ID + " " + l.Title, TTL: TTL}
	var clients atomic.Int64
	switch {
	case l.onRedis != nil:
		cfg.OpenBackend = func(context.Context) (backend.Backend, error) {
			return l.onRedis(single{rdb: client, file: l.File, number: int(clients.Add(1))}), nil
		}
		cfg.Remove = func(ctx context.Context, key string) error {
			return client.Del(ctx, single{file: l.File}.name(key)).Err()
		}
	case l.onTable != nil:
		rows := &table{rows: map[string]row{}}
		cfg.OpenBackend = func(context.Context) (backend.Backend, error) {
			return l.onTable(session{table: rows, number: int(clients.Add(1))}), nil
		}
		cfg.Remove = func(_ context.Context, key string) error { session{table: rows}.delete(key); return nil }
	case l.onFiles != nil:
		dir := &directory{files: map[string]*file{}}
		cfg.OpenBackend = func(context.Context) (backend.Backend, error) { return l.onFiles(dir), nil }
		cfg.Remove = func(_ context.Context, key string) error { dir.unlink(key); return nil }
	default:
		l.inMemory(&cfg, memlock.NewStore(nil))
	}
	return cfg
}

// inMemory completes the Config of a lock over the store.
func (l Lock) inMemory(cfg *conformance.Config, store *memlock.Store) {
	cfg.Remove = func(_ context.Context, key string) error { store.Remove(key); return nil }
	over := func(change func(backend.Backend) backend.Backend) {
		cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
			b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: l.onQueue != nil})
			if err != nil {
				return nil, err
			}
			return change(b), nil
		}
	}
	switch {
	case l.onMemory != nil:
		over(func(b backend.Backend) backend.Backend { return l.onMemory(primitives{b}) })
	case l.onQueue != nil:
		over(func(b backend.Backend) backend.Backend { return l.onQueue(queued{b}) })
	case l.onPolicy != nil:
		over(func(b backend.Backend) backend.Backend { return announced{primitives{b}} })
		cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
			if l.beneath != nil {
				b = l.beneath(b)
			}
			inner, err := lock.New(b, &lock.Options{TTL: ttl})
			if err != nil {
				return nil, err
			}
			return l.onPolicy(inner, b), nil
		}
	default:
		cfg.Open = func(ctx context.Context) (lock.Locker, error) {
			inner, err := memlock.New(ctx, &memlock.Options{Store: store, Lock: lock.Options{TTL: TTL}})
			if err != nil {
				return nil, err
			}
			return l.asLocker(inner), nil
		}
	}
}

// dawdling is how long a lock dawdles: longer than it takes others to notice that
// a key has become free, and much less than the TTL.
const dawdling = 50 * time.Millisecond

// dawdle stands for a slow network, a garbage collection or a busy machine
// between two commands.
func dawdle() { time.Sleep(dawdling) }

// Mistakes with the same consequences break the same rules.
var (
	// takeovers: a lease runs out, and somebody else is to get the key. The Locker
	// of the first holder, whose own deadline is a little earlier, sends a release
	// then, to clean up.
	takeovers = []string{
		"ExclusiveAcrossTakeover", "ReleaseOwnOnly", "ReleaseOldLeaseSameClient", "ReleaseReportsLoss", "ReleaseStopsRenewal",
		"ReleaseAtExpiry", "CrashFrees", "ServerOutlivesD", "HoldersTTLCounts", "EveryTTLLasts", "TTLGrain", "ExpiryIsPerHold", "RenewNotOthers", "RenewNeverResurrects", "RenewBounded",
		"WithoutRenewalEnds", "MaxHoldEnds", "LostBeforeTakeover", "LostOnRemoval", "LossEndsUse", "LostWhenCutOff",
		"TokenSurvivesRelease", "TokenInTakeoverOrder", "LateGrant",
	}
	// cleanUps: an acquisition is cancelled, cut off or closed, and its Locker
	// sends a release for what may have been granted, perhaps twice.
	cleanUps = []string{
		"Exclusive", "ExclusiveWithinLocker", "WaiterWakes", "WaiterGivesUp", "WaiterDeathHarmless", "CancelDuring", "TryBesideWaiters",
		"ManyWaiters", "ErrorsAreTyped", "CloseEndsWaits", "CloseTwice", "NoLeak", "OwnGrantRecognised", "GrantWithinValidity",
		"ReleaseUnknown", "UnavailableIsTold", "CallsAreBounded",
		"ReleaseDelayed", "HandOverUnknown", "CancelMidRequest", "ProgressUnderFaults", "PermanentStops", "NoHerd",
	}
	// manyInOneClient: callers in one client do not exclude each other.
	manyInOneClient = slices.Concat(cleanUps, []string{
		"Progress", "ConcurrentTries", "ReleaseFrees", "ReleaseTwice", "ReleaseIsNoLoss", "ReleaseOldLeaseSameClient", "ReleaseByID",
		"ExclusiveAcrossTakeover", "CancelHarmsNobody", "WaiterOrderLocal", "WaitOutlastsTTL", "NoSecretsInErrors", "CloseEndsHolds",
	})
	// keepsNobodyOut: a holder may lose the key to anybody at any time.
	keepsNobodyOut = slices.Concat(takeovers, cleanUps, []string{
		"TryIsImmediate", "IndependentKeys", "Progress", "ConcurrentTries", "TryIdempotent", "CancelledSendsNothing", "RefusalLeavesNothing",
		"BackendErrors", "CrashBetweenSteps", "HoldOutlivesAcquireCtx", "ReleaseTwice", "ReleaseByID", "RenewKeeps", "RenewByHand", "RenewByID",
		"RenewAfterRelease", "RenewUnknown", "RenewTransient", "WaitIsCalm", "WaitOutlastsTTL", "WaiterOrderLocal",
	})
)
