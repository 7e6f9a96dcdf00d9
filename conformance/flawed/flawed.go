package flawed

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flaw"
	memlock "github.com/mortiselock/lock/memory"
)

// Lock is one lock of the collection.
type Lock = flaw.Lock

// The stores of the collection.
const (
	Redis  = flaw.Redis
	Memory = flaw.Memory
)

// TTL is the time to live of the leases that the suite lets expire, for every
// lock of the collection: those that dawdle are tuned to it.
const TTL = time.Second

// All lists the broken locks: first those that people meet first, then by number, and those
// of tokens and of errors at the end. A new one stands before z24.
func All() []Lock {
	return []Lock{
		z49Open, z49Shut,
		z01, z02, z39, z03, z04, z40, z07Watch, z07Nil, z05, z06,
		z08, z09, z10,
		z48Exists, z48Unlink,
		z32, z18, z35, z46, z31,
		z14, z13, z42, z15, z17, z16, z11, z12,
		z28, z29, z41Loss, z41Panic,
		z37, z37Step, z36, z30, z50, z51, z111,
		z80, z81, z82, z83, z84, z85, z86, z87, z88, z89, z90, z91, z92, z93, z94, z95,
		z100, z101, z102, z103, z104, z105, z106, z107, z108, z109, z110,
		z112, z113, z114, z115, z116, z117, z118, z119, z120, z121, z122, z123, z124, z125,
		z126, z128, z129, z130, z131, z132, z133, z134, z136, z137,
		z138, z139, z140, z141, z142, z143, z144, z145, z146, z147, z148, z149, z150,
		z152, z153, z154, z155, z156, z157, z158, z159, z160, z161, z162, z170,
		z180, z181, z182, z183, z184, z185, z186, z187, z188, z189, z190, z191,
		z24, z25, z27,
		z70, z71, z72, z73, z74, z75, z76, z77,
	}
}

// Healthy lists the locks that the broken ones are made of. The suite must pass
// on them, or else a failure on a broken one would prove nothing.
func Healthy() []Lock {
	return []Lock{
		healthySingle, healthyFenced, healthyTable, healthyFile, healthyPrimitives, healthyQueue, healthyPolicy, healthyWatchdog, healthyAsking,
		healthyWholeSeconds, healthySlowRelease, healthySlowPlace,
	}
}

// How a client of a lock is made out of a healthy client. Those over Redis need a
// [*goredis.Client], which all clients of the lock share; it should have a pool of at
// least 50 connections. The others ignore the server: each Config has a store of its own.
type (
	onRedis func(single) backend.Backend
	// onNetwork is onRedis where the suite also breaks the network to the server.
	onNetwork func(single) backend.Backend
	onTable   func(session) backend.Backend
	onFiles   func(*directory) backend.Backend
	onMemory  func(primitives) backend.Backend
	onAll     func(backend.Backend) backend.Backend
	onQueue   func(queued) backend.Backend
	// onPolicy makes a Locker around l, which is on b, which may be behind faults: for mistakes in
	// what is done with right primitives, where the rule counts or disturbs requests.
	onPolicy func(l *lock.Client, b backend.Backend) lock.Locker
	// onPolicyOver is onPolicy with something beneath l, which is what b is then.
	onPolicyOver struct {
		beneath func(backend.Backend) backend.Backend
		policy  onPolicy
	}
	// asLocker is a finished Locker: no rule that needs Config.OpenBackend can catch it.
	asLocker func(*lock.Client) lock.Locker
)

// Make implements flaw.Maker.
func (on onRedis) Make(_ context.Context, l Lock, server any) (conformance.Config, error) {
	client := server.(*goredis.Client)
	var clients atomic.Int64
	return conformance.Config{
		TTL: TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) {
			return on(single{rdb: client, file: l.File, number: int(clients.Add(1))}), nil
		},
		Remove: func(ctx context.Context, key string) error {
			return client.Del(ctx, single{file: l.File}.name(key)).Err()
		},
	}, nil
}

// Make implements flaw.Maker.
func (on onNetwork) Make(ctx context.Context, l Lock, server any) (conformance.Config, error) {
	cfg, err := onRedis(on).Make(ctx, l, server)
	shared := server.(*goredis.Client).Options()
	cfg.Proxy = &conformance.Proxy{
		Server: shared.Addr,
		Open: func(_ context.Context, addr string) (lock.Locker, error) {
			opts := *shared
			opts.Addr, opts.ContextTimeoutEnabled, opts.MaxRetries, opts.DialerRetries = addr, true, -1, 1
			own := goredis.NewClient(&opts)
			return lock.New(ownClient{Backend: on(single{rdb: own, file: l.File}), rdb: own}, &lock.Options{TTL: TTL})
		},
	}
	return cfg, err
}

// ownClient is a backend with a client of its own.
type ownClient struct {
	backend.Backend
	clocked
	rdb *goredis.Client
}

func (c ownClient) Close() error { return errors.Join(c.Backend.Close(), c.rdb.Close()) }

// Make implements flaw.Maker.
func (on onTable) Make(context.Context, Lock, any) (conformance.Config, error) {
	rows := &table{rows: map[string]row{}}
	var clients atomic.Int64
	return conformance.Config{
		TTL: TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) {
			return on(session{table: rows, number: int(clients.Add(1))}), nil
		},
		Remove: func(_ context.Context, key string) error { session{table: rows}.delete(key); return nil },
	}, nil
}

// Make implements flaw.Maker.
func (on onFiles) Make(context.Context, Lock, any) (conformance.Config, error) {
	dir := &directory{files: map[string]*file{}}
	return conformance.Config{
		TTL:         TTL,
		OpenBackend: func(context.Context) (backend.Backend, error) { return on(dir), nil },
		Remove:      func(_ context.Context, key string) error { dir.unlink(key); return nil },
	}, nil
}

// Make implements flaw.Maker.
func (on onMemory) Make(context.Context, Lock, any) (conformance.Config, error) {
	return inMemory(false, func(b backend.Backend) backend.Backend { return on(primitives{b}) }), nil
}

// Make implements flaw.Maker.
func (on onAll) Make(context.Context, Lock, any) (conformance.Config, error) {
	return inMemory(false, on), nil
}

// Make implements flaw.Maker.
func (on onQueue) Make(context.Context, Lock, any) (conformance.Config, error) {
	return inMemory(true, func(b backend.Backend) backend.Backend { return on(queued{b}) }), nil
}

// Make implements flaw.Maker.
func (on onPolicy) Make(ctx context.Context, l Lock, server any) (conformance.Config, error) {
	return onPolicyOver{func(b backend.Backend) backend.Backend { return b }, on}.Make(ctx, l, server)
}

// Make implements flaw.Maker.
func (on onPolicyOver) Make(context.Context, Lock, any) (conformance.Config, error) {
	cfg := inMemory(false, func(b backend.Backend) backend.Backend { return announced{primitives{b}} })
	cfg.Wrap = func(b backend.Backend, ttl time.Duration) (lock.Locker, error) {
		b = on.beneath(b)
		inner, err := lock.New(b, &lock.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		return on.policy(inner, b), nil
	}
	return cfg, nil
}

// Make implements flaw.Maker.
func (on asLocker) Make(context.Context, Lock, any) (conformance.Config, error) {
	store := memlock.NewStore(nil)
	return conformance.Config{
		TTL: TTL,
		Open: func(ctx context.Context) (lock.Locker, error) {
			inner, err := memlock.New(ctx, &memlock.Options{Store: store, Lock: lock.Options{TTL: TTL}})
			if err != nil {
				return nil, err
			}
			return on(inner), nil
		},
		Remove: func(_ context.Context, key string) error { store.Remove(key); return nil },
	}, nil
}

// inMemory is a lock on a store in memory, whose backends are changed.
func inMemory(queue bool, change func(backend.Backend) backend.Backend) conformance.Config {
	store := memlock.NewStore(nil)
	return conformance.Config{
		TTL: TTL,
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: queue})
			if err != nil {
				return nil, err
			}
			return change(b), nil
		},
		Remove: func(_ context.Context, key string) error { store.Remove(key); return nil },
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
		"ReleaseAtExpiry", "CrashFrees", "CloseUnreachable", "ServerOutlivesD", "HoldersTTLCounts", "EveryTTLLasts", "AcquireKeepsTTL", "TTLGrain", "ExpiryIsPerHold", "RenewNotOthers", "RenewNeverResurrects", "RenewBounded",
		"WithoutRenewalEnds", "Defaults", "MaxHoldEnds", "LostBeforeTakeover", "LostOnRemoval", "LossEndsUse", "LostWhenCutOff",
		"TokenSurvivesRelease", "TokenInTakeoverOrder", "LateGrant", "EndlessContexts", "TryIdempotent", "ReleaseByID", "RenewByID",
	}
	// cleanUps: an acquisition is cancelled, cut off or closed, and its Locker
	// sends a release for what may have been granted, perhaps twice.
	cleanUps = []string{
		"Exclusive", "ExclusiveWithinLocker", "Progress", "WaiterWakes", "WaiterGivesUp", "WaiterDeathHarmless", "CancelDuring", "TryBesideWaiters",
		"ManyWaiters", "ErrorsAreTyped", "CloseEndsWaits", "CloseTwice", "NoLeak", "OwnGrantRecognised", "GrantWithinValidity",
		"ReleaseUnknown", "UnavailableIsTold", "CallsAreBounded",
		"WakesAtAnyMoment", "GaveUpWakesNext", "IdleLockerWorks", "ContextEndsFirst", "ReleaseDelayed", "HandOverUnknown", "CancelMidRequest", "ProgressUnderFaults", "PermanentStops", "NoHerd",
	}
	// manyInOneClient: callers in one client do not exclude each other.
	manyInOneClient = slices.Concat(cleanUps, []string{
		"ConcurrentTries", "ReleaseFrees", "ReleaseTwice", "ReleaseIsNoLoss", "ReleaseOldLeaseSameClient", "ReleaseByID",
		"ExclusiveAcrossTakeover", "CancelHarmsNobody", "WaiterOrderLocal", "WaitOutlastsTTL", "NoSecretsInErrors", "CloseEndsHolds",
		"EndedContexts", "Defaults", "LongestNames", "HoldOutlivesAcquireCtx", "MaxHoldEnds",
	})
	// keepsNobodyOut: a holder may lose the key to anybody at any time.
	keepsNobodyOut = slices.Concat(takeovers, cleanUps, []string{
		"HandsOut", "CauseIsStable", "DeadlineEnds", "TryIsImmediate", "IndependentKeys", "ConcurrentTries", "TryIdempotent", "CancelledSendsNothing", "RefusalLeavesNothing",
		"BackendErrors", "CrashBetweenSteps", "HoldOutlivesAcquireCtx", "ReleaseTwice", "ReleaseByID", "RenewKeeps", "RenewByHand", "RenewByID",
		"RenewAfterRelease", "RenewUnknown", "RenewTransient", "WaitIsCalm", "WaitOutlastsTTL", "WaiterOrderLocal",
		"EndedContexts", "LongestNames", "ManyLeases",
	})
)
