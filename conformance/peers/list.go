package peers

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

// All lists the peers.
func All() []Peer { return []Peer{bsmRedislock, redsyncMutex, rueidisLock, etcdMutex} }

// Reasons that several rules have.
const (
	ttlCut         = "a TTL is cut to milliseconds"
	nothingToClose = "there is nothing to close"
	readsOn        = "go-redis reads until its ReadTimeout, whatever became of the context"
	callerRenews   = "leases are renewed by their caller"
	givenContext   = "the release is sent with the context that it is given"
	sessionClose   = "a Session is closed by its caller"
	sessionEnds    = "the context of a Session ends with its lease; it says nothing about keys"
	lookAfterPause = "a goroutine tells of the loss; nothing is said of the first look after a pause"
	secondRelease  = "the adapter answers the second release"
	nextKey        = "a request that takes longer than TryNextAfter (20 ms, the default) is given up, and a waiter sleeps on; the README promises that it tries again"
)

var bsmRedislock = Peer{
	Name: "github.com/bsm/redislock", Version: "v0.9.4", Server: "redis", Record: "%s", TTL: time.Second,
	Adapter: "Acquire is Obtain with LinearBackoff(100 ms), as in its examples, and a deadline of an hour, without which it gives up after the TTL; Renew is Refresh",
	Deviations: map[string]string{
		"RenewKeeps": callerRenews, "HoldOutlivesAcquireCtx": callerRenews, "WaitOutlastsTTL": callerRenews, "CrashFreesProcess": callerRenews,
		"ManyLeases": callerRenews, "ShortPauseIsNoLoss": callerRenews, "ShortSilenceIsNoLoss": callerRenews,
		"IdleLockerWorks": callerRenews, "EndedContexts": givenContext, "ReleaseDetached": givenContext, "TTLGrain": ttlCut, "SilentCallsEnd": readsOn,
		"ContextEndsFirst": nothingToClose, "CloseEndsHolds": nothingToClose, "CloseEndsWaits": nothingToClose, "CloseTwice": nothingToClose,
	},
	Guarantees: backend.Guarantees{
		Name: "bsm/redislock", Reach: backend.ReachNetwork, Expiry: backend.ClockServerWall, TTLGrain: time.Millisecond,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll, ManualRenewal: true, WithoutRenewal: true,
	},
	open: openRedislock,
}

var redsyncMutex = Peer{
	Name: "github.com/go-redsync/redsync/v4", Version: "v4.18.1", Server: "redis", Record: "%s", TTL: time.Second,
	Adapter: "a Mutex with one pool for each acquisition; Acquire is LockContext, again and again while the key is taken; Renew is ExtendContext",
	Deviations: map[string]string{
		"RenewKeeps": callerRenews, "HoldOutlivesAcquireCtx": callerRenews, "WaitOutlastsTTL": callerRenews, "CrashFreesProcess": callerRenews,
		"ManyLeases": callerRenews, "ShortPauseIsNoLoss": callerRenews, "ShortSilenceIsNoLoss": callerRenews, "Defaults": callerRenews,
		"IdleLockerWorks": callerRenews, "EndedContexts": givenContext, "ReleaseDetached": givenContext, "TTLGrain": ttlCut, "SilentCallsEnd": readsOn,
		"ContextEndsFirst": nothingToClose, "CloseEndsHolds": nothingToClose, "CloseEndsWaits": nothingToClose, "CloseTwice": nothingToClose, "NoLeak": nothingToClose,
	},
	Breaks: map[string]string{
		"CutIsNoRefusal": "go-redis repeats a SET NX whose answer was lost, and the repeat finds the key taken by the first; ErrTaken promises that the key was taken by another",
	},
	Guarantees: backend.Guarantees{
		Name: "redsync", Reach: backend.ReachNetwork, Expiry: backend.ClockMajority, TTLGrain: time.Millisecond,
		Token: backend.TokenNone, Waiting: backend.WaitPoll, ManualRenewal: true, WithoutRenewal: true, Deadline: true,
	},
	open: openRedsync,
}

var rueidisLock = Peer{
	Name: "github.com/redis/rueidis/rueidislock", Version: "v1.0.79", Server: "redis", Record: "rueidislock:0:%s", TTL: time.Second,
	Adapter: "a Locker with KeyMajority 1 and NoLoopTracking, as in its README for one server, and a KeyValidity of 1 s; WithContext gets a context that nobody else ends, since the hold ends with it; Release calls the CancelFunc once",
	Deviations: map[string]string{
		"ReleaseTwice":      secondRelease,
		"CutWhileReleasing": "a CancelFunc says nothing",
		"NothingKept":       "nothing is said of what a Locker keeps in memory",
		"PauseIsNoticed":    lookAfterPause,
	},
	Breaks: map[string]string{
		"GaveUpWakesNext": "a notification wakes one waiter of a Locker, and one that gives up takes it along; the README promises that a waiter tries again when the key has been released",
		"Progress":        nextKey, "WaiterWakes": nextKey, "WaiterGivesUp": nextKey, "WaiterDeathHarmless": nextKey, "ManyWaiters": nextKey,
		"ExclusiveAcrossProcesses": nextKey,
		"CutIsNoRefusal":           "the client repeats a SET NX whose answer was lost, and the repeat finds the key taken by the first; ErrNotLocked is said to mean that others hold it",
		"LostWhenUnreachable":      "an extension that has no answer is waited for past the validity; the README promises that the context is cancelled when the majority is not held any more",
		"WaiterSurvivesCut":        "what happened to the key while the connection was cut is not asked for afterwards; the README promises that a waiter tries again when it has been released",
	},
	Guarantees: backend.Guarantees{
		Name: "rueidislock", Reach: backend.ReachNetwork, Expiry: backend.ClockMajority, MinTTL: time.Second, MaxTTL: time.Second,
		Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPush, LossSignal: true,
	},
	open: openRueidislock,
}

var etcdMutex = Peer{
	Name: "go.etcd.io/etcd/client/v3/concurrency", Version: "v3.7.3", Server: "etcd", Record: "/peers/%s/", TTL: 2 * time.Second,
	Adapter: "a Session and a Mutex for each acquisition, since two of one Session don't exclude each other; keys are escaped, since a Mutex has all keys below its prefix; the token is the revision of the reply header",
	Deviations: map[string]string{
		"CloseEndsHolds": sessionClose, "CloseEndsWaits": sessionClose, "CloseTwice": sessionClose,
		"ReleaseTwice":    secondRelease,
		"SilentCallsEnd":  "what a call undoes when its context has ended waits for the server",
		"EndedContexts":   givenContext,
		"ReleaseDetached": givenContext,
		"LostOnRemoval":   sessionEnds,
		"NoLeak":          sessionEnds,
		"PauseIsNoticed":  lookAfterPause,
	},
	Breaks: map[string]string{
		"LostWhenUnreachable": "the client counts the TTL from the last answer and looks every half second; Done promises to be closed when the lease expires",
	},
	Guarantees: backend.Guarantees{
		Name: "etcd concurrency.Mutex", Reach: backend.ReachNetwork, Expiry: backend.ClockServerSteady,
		MinTTL: 2 * time.Second, MaxTTL: 2 * time.Second, TTLGrain: time.Second, TakeoverLag: time.Second,
		Token: backend.TokenRevision, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitQueue, Fair: true, LossSignal: true,
	},
	open: openEtcdMutex,
}
